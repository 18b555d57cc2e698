"""What a broker URL says: which broker, and the options of its query.

A URL that can't work is refused when the transport is made, by name of the part that is wrong. A part that may hold a
password is never repeated: error texts end up in logs (SPEC 10.2).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pairmq.model import ConfigurationError
from pairmq.transport import ENDPOINT_OPTIONS, Endpoint, chosen_endpoint, endpoint_with_default_name

SCHEME = "sqlite"
"""The URL scheme, which is the plugin's name as well."""

_FORM = f"write it as {SCHEME}:///absolute/path/to/file.db, or {SCHEME}://./file.db from the working directory"
_OPTIONS = tuple(sorted(("busy_timeout", "max_megabytes", "poll_interval", *ENDPOINT_OPTIONS)))
_MOST_MEGABYTES = 10**6


@dataclass(frozen=True, slots=True)
class SQLiteUrl:
    """A broker URL, read and checked.

    Args:
        endpoint: what PairMQ shows of it.
        path: the database file, absolute and with links resolved.
        busy_timeout: seconds that a call waits while another process holds the file locked.
        poll_interval: seconds between two looks of a waiting receiver, at most.
        max_megabytes: what the file may hold, in MB; None for as much as the disk does.
    """

    endpoint: Endpoint
    path: Path
    busy_timeout: float = 5.0
    poll_interval: float = 0.25
    max_megabytes: int | None = None


def parse_url(url: str) -> SQLiteUrl:
    """Read ``sqlite:///absolute/path`` or ``sqlite://./relative/path``, with options.

    Raises:
        ConfigurationError: it can't work; the text says which part and why, without secrets.
    """
    # urlsplit drops tabs and line ends silently, so that they are looked for first.
    if any(ord(letter) <= 0x20 or ord(letter) == 0x7F for letter in url):
        raise ConfigurationError(f"the {SCHEME}:// URL holds a space or control character: write it percent-encoded")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(f"the {SCHEME}:// URL can't be read: {_FORM}") from None
    path, options = _path(parts), _options(parts)
    # Two URLs of one file must have one identity, or a file could be paired with itself (SPEC 9.3).
    identity = (SCHEME, str(path))
    megabytes = _number(options, "max_megabytes", 0, 1, _MOST_MEGABYTES)
    return SQLiteUrl(
        endpoint=chosen_endpoint(_endpoint(identity, path), options, f"the {SCHEME}:// URL"),
        path=path,
        busy_timeout=_number(options, "busy_timeout", 5.0, 0.0, 300.0),
        poll_interval=_number(options, "poll_interval", 0.25, 0.01, 60.0),
        max_megabytes=int(megabytes) or None,
    )


def _path(parts: SplitResult) -> Path:
    if parts.scheme.lower() != SCHEME:
        raise ConfigurationError(f"the broker URL is no {SCHEME}:// URL: {_FORM}")
    if "@" in parts.netloc:
        raise ConfigurationError(f"the {SCHEME}:// URL names a user or password: a file has none; {_FORM}")
    if parts.netloc not in ("", "."):
        raise ConfigurationError(f"the {SCHEME}:// URL names a host: the file must be on this machine; {_FORM}")
    if parts.fragment:
        raise ConfigurationError(f"the {SCHEME}:// URL holds '#': write it as %23 in a path")
    path = unquote(parts.path)
    if "\0" in path:
        raise ConfigurationError(f"the path of the {SCHEME}:// URL holds a NUL character")
    if path in ("", "/") or path.endswith("/"):
        raise ConfigurationError(f"the {SCHEME}:// URL names no file: {_FORM}")
    # Resolved here and now: the program may change its working directory later.
    return Path(parts.netloc + path).resolve()


def _options(parts: SplitResult) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key not in _OPTIONS:
            shown = f" {key!r}" if re.fullmatch(r"[a-z_]{1,40}", key) else ""
            known = ", ".join(_OPTIONS)
            raise ConfigurationError(f"the {SCHEME}:// URL has an unknown option{shown}: known are {known}")
        if key in found:
            raise ConfigurationError(f"the {SCHEME}:// URL has the option {key!r} twice")
        found[key] = value
    return found


def _endpoint(identity: tuple[str, ...], path: Path) -> Endpoint:
    # Files of one path on two machines are two brokers, which may share a secondary.
    former = (_former_name(path),)
    return endpoint_with_default_name(identity, f"{SCHEME}://{path}", path.stem, local=True, former=former)


def _former_name(path: Path) -> str:
    """The default name of earlier releases, which files of one path on two machines shared."""
    digest = hashlib.sha256(str(path).encode(errors="surrogateescape")).hexdigest()[:8]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.")[:40]
    return f"{stem or SCHEME}-{digest}"


def _number(options: Mapping[str, str], key: str, default: float, least: float, most: float) -> float:
    if key not in options:
        return default
    try:
        value = float(options[key])
    except ValueError:
        value = float("nan")
    if not least <= value <= most:  # not a number is in no range
        raise ConfigurationError(f"the {SCHEME}:// URL's option {key} is no number from {least:g} to {most:g}")
    return value
