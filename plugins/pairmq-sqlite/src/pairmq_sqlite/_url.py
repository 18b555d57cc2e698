"""What a broker URL says: which broker, and the options of its query.

A URL that can't work is refused when the transport is made, by name of the part that is wrong. A part that may hold a
password is never repeated: error texts end up in logs (SPEC 10.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pairmq.model import ConfigurationError
from pairmq.transport import ENDPOINT_OPTIONS, BrokerUrl, Endpoint, chosen_endpoint, endpoint_with_default_name

SCHEME = "sqlite"
"""The URL scheme, which is the plugin's name as well."""

_FORM = f"{SCHEME}:///absolute/path/to/file.db, or {SCHEME}://./file.db from the working directory"
_OPTIONS = tuple(sorted(("busy_timeout", "max_megabytes", "poll_interval", *ENDPOINT_OPTIONS)))
_MOST_MEGABYTES = 10**6


@dataclass(frozen=True, slots=True)
class SQLiteUrl:
    endpoint: Endpoint  # what PairMQ shows of it
    path: Path  # the database file, absolute and with links resolved
    busy_timeout: float = 5.0  # seconds that a call waits while another process holds the file locked
    poll_interval: float = 0.25  # seconds between two looks of a waiting receiver, at most
    max_megabytes: int | None = None  # what the file may hold, in MB; None for as much as the disk does


def parse_url(url: str) -> SQLiteUrl:
    """Read ``sqlite:///absolute/path`` or ``sqlite://./relative/path``, with options.

    Raises `ConfigurationError`, which says which part is wrong and why, without secrets.
    """
    read = BrokerUrl(url, _FORM, SCHEME)
    path, options = _path(read), read.options(*_OPTIONS)
    # Two URLs of one file must have one identity, or a file could be paired with itself (SPEC 9.3).
    identity = (SCHEME, str(path))
    # Files of one path on two machines are two brokers, which may share a secondary.
    default = endpoint_with_default_name(identity, f"{SCHEME}://{path}", path.stem, local=True)
    return SQLiteUrl(
        endpoint=chosen_endpoint(default, options, read.where),
        path=path,
        busy_timeout=options.number("busy_timeout", 5.0, 0, 300),
        poll_interval=options.number("poll_interval", 0.25, 0.01, 60),
        max_megabytes=int(options.number("max_megabytes", 0, 1, _MOST_MEGABYTES)) or None,
    )


def _path(read: BrokerUrl) -> Path:
    parts = read.parts
    if "@" in parts.netloc:
        raise ConfigurationError(f"the {SCHEME}:// URL names a user or password: a file has none; write it as {_FORM}")
    if parts.netloc not in ("", "."):
        raise ConfigurationError(f"the {SCHEME}:// URL names a host: the file must be here; write it as {_FORM}")
    path = unquote(parts.path)
    if "\0" in path:
        raise ConfigurationError(f"the path of the {SCHEME}:// URL holds a NUL character")
    if path in ("", "/") or path.endswith("/"):
        raise ConfigurationError(f"the {SCHEME}:// URL names no file: write it as {_FORM}")
    # Resolved here and now: the program may change its working directory later.
    return Path(parts.netloc + path).resolve()
