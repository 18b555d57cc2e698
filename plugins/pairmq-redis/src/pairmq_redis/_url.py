"""What a broker URL says: where the server is, how to log in, and the options of its query.

No error here repeats a value that may be secret: a bad URL is explained by its part's name.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pairmq.model import ConfigurationError
from pairmq.transport import (
    ENDPOINT_OPTIONS,
    Endpoint,
    checked_name,
    chosen_endpoint,
    endpoint_with_default_name,
    is_local_address,
)

DEFAULT_PORT = 6379
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
_REDIS_OPTIONS = ("connect_timeout", "poll_interval", "wait_replicas", "wait_timeout", *ENDPOINT_OPTIONS)
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile")
_MEMORY_OPTIONS = ("poll_interval", *ENDPOINT_OPTIONS)


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How the server's certificate is checked, and which one is shown to it; None takes the system's."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class RedisUrl:
    """A broker URL, read and checked.

    Args:
        host: name or address; of a memory broker its name.
        password: None to log in without one.
        wait_replicas: replicas that must have a write before it counts as confirmed.
        wait_timeout: seconds to wait for them.
        poll_interval: seconds after which a waiting receiver looks for what came back to the queue
        unannounced. connect_timeout: seconds for connecting and logging in.
    """

    endpoint: Endpoint
    host: str
    port: int = DEFAULT_PORT
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: TlsOptions | None = None
    wait_replicas: int = 0
    wait_timeout: float = 1.0
    poll_interval: float = 1.0
    connect_timeout: float = 5.0


def parse_redis_url(url: str) -> RedisUrl:
    """Read ``redis://`` or ``rediss://[user[:password]@]host[:port][/db][?options]``.

    Raises:
        ConfigurationError: it can't work; the text says which part and why, without secrets.
    """
    parts = _split(url)
    scheme = parts.scheme.lower()
    if scheme not in ("redis", "rediss"):
        raise ConfigurationError("the broker URL is none of Redis: write it as redis://host:port/db or rediss://…")
    host = (parts.hostname or "").rstrip(".")
    if not host:
        raise ConfigurationError(f"the {scheme}:// URL names no host: write it as {scheme}://host:port/db")
    if not host.isprintable():
        raise ConfigurationError(f"the host of the {scheme}:// URL holds an unprintable character: remove it")
    port, db = _port(parts, scheme), _db(parts, scheme)
    options = _options(parts, scheme, _REDIS_OPTIONS + (_TLS_OPTIONS if scheme == "rediss" else ()))
    shown = f"[{host}]" if ":" in host else host
    identity = ("redis", "127.0.0.1" if host in _LOOPBACK else host, str(port), str(db))
    endpoint = _endpoint(identity, host, f"{scheme}://{shown}:{port}/{db}")
    return RedisUrl(
        endpoint=chosen_endpoint(endpoint, options, f"the {scheme}:// URL"),
        host=host,
        port=port,
        db=db,
        username=_secret(parts.username, "user name", scheme),
        password=_secret(parts.password, "password", scheme),
        tls=_tls(options) if scheme == "rediss" else None,
        wait_replicas=int(_number(options, "wait_replicas", 0, 0, 100, scheme, whole=True)),
        wait_timeout=_number(options, "wait_timeout", 1000, 1, 60_000, scheme, whole=True) / 1000,
        poll_interval=_number(options, "poll_interval", 1.0, 0.01, 60, scheme),
        connect_timeout=_number(options, "connect_timeout", 5.0, 0.01, 300, scheme),
    )


def parse_memory_url(url: str) -> RedisUrl:
    """Read ``memory://name[?options]``.

    Raises:
        ConfigurationError: it can't work; the text says which part and why.
    """
    parts = _split(url)
    if parts.scheme.lower() != "memory":
        raise ConfigurationError("the broker URL is none of a memory broker: write it as memory://name")
    broker = unquote(parts.netloc)  # hostname would be in lower case
    if not broker or parts.path not in ("", "/"):
        raise ConfigurationError("the memory:// URL does not name one broker: write it as memory://name")
    options = _options(parts, "memory", _MEMORY_OPTIONS)
    name = checked_name(broker, "the name of the memory:// broker")
    endpoint = Endpoint(name, ("memory", name), f"memory://{name}")
    return RedisUrl(
        endpoint=chosen_endpoint(endpoint, options, "the memory:// URL"),
        host=broker,
        poll_interval=_number(options, "poll_interval", 1.0, 0.01, 60, "memory"),
    )


def tls_context(options: TlsOptions, *, for_url: str) -> ssl.SSLContext:
    """Make what checks the server, once, so that a wrong file is told when the transport is made.

    A file of authorities takes the place of the system's: no other is trusted.

    Raises:
        ConfigurationError: a file can't be read or holds no certificate or key.
    """
    try:
        context = ssl.create_default_context(cafile=options.ca_certs)
        if not options.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if options.certfile:
            context.load_cert_chain(options.certfile, options.keyfile, password=_no_passphrase)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; a file name may hold a null character
        raise ConfigurationError(f"{for_url}: a TLS file can't be used: {error}") from error
    return context


def _no_passphrase() -> str:
    # Without this, OpenSSL would ask the terminal, and a service would hang in its start.
    raise ValueError("the key is encrypted, and there is no option for its passphrase: give a plain one")


def _split(url: str) -> SplitResult:
    # urlsplit drops tabs and line ends silently, so that they are looked for first.
    if any(ord(letter) <= 0x20 or ord(letter) == 0x7F for letter in url):
        raise ConfigurationError("the broker URL holds a space or control character: write it percent-encoded")
    try:
        return urlsplit(url)
    except ValueError:
        raise ConfigurationError("the broker URL can't be read: is a bracket of an IPv6 address missing?") from None


def _port(parts: SplitResult, scheme: str) -> int:
    try:
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not 1 <= port <= 65535:
        raise ConfigurationError(f"the port of the {scheme}:// URL is none: give a number from 1 to 65535")
    return port


def _db(parts: SplitResult, scheme: str) -> int:
    text = parts.path.strip("/")
    if not re.fullmatch(r"[0-9]{0,5}", text):
        raise ConfigurationError(f"the path of the {scheme}:// URL is no database number: write /0 or leave it out")
    if parts.fragment:
        raise ConfigurationError(f"the {scheme}:// URL holds '#': write it as %23 in a password")
    return int(text or 0)


def _options(parts: SplitResult, scheme: str, known: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key not in known:
            # A password with a question mark in it ends up here.
            shown = f" {key!r}" if re.fullmatch(r"[a-z_]{1,40}", key) and "@" not in parts.query else ""
            raise ConfigurationError(
                f"the {scheme}:// URL has an unknown option{shown}: known are {', '.join(sorted(known))}"
            )
        if key in found:
            raise ConfigurationError(f"the {scheme}:// URL has the option {key!r} twice")
        found[key] = value
    return found


def _secret(text: str | None, what: str, scheme: str) -> str | None:
    if not text:
        return None
    decoded = unquote(text)
    if any(ord(letter) < 0x20 for letter in decoded):
        raise ConfigurationError(f"the {what} of the {scheme}:// URL holds a control character")
    return decoded


def _endpoint(identity: tuple[str, ...], host: str, url: str) -> Endpoint:
    place = "-".join(identity[2:])  # port and database: from the right they can be read in one way only
    if is_local_address(host):
        former = [_former_name(f"{each}-{place}") for each in dict.fromkeys((*sorted(_LOOPBACK), host))]
        return endpoint_with_default_name(identity, url, place, local=True, former=former)
    plain = f"{host}-{place}"
    return endpoint_with_default_name(identity, url, plain, former=(_former_name(plain),))


def _former_name(plain: str) -> str:
    """The default name of earlier releases, which two brokers could share."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-")


def _number(
    options: Mapping[str, str],
    key: str,
    default: float,
    least: float,
    most: float,
    scheme: str,
    *,
    whole: bool = False,
) -> float:
    if key not in options:
        return default
    try:
        value: float = int(options[key]) if whole else float(options[key])
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        kind = "whole number" if whole else "number"
        raise ConfigurationError(f"the {scheme}:// URL's option {key} is no {kind} from {least} to {most}")
    return value


def _tls(options: Mapping[str, str]) -> TlsOptions:
    verify = options.get("ssl_cert_reqs", "required")
    if verify not in ("required", "none"):
        raise ConfigurationError("the rediss:// URL's option ssl_cert_reqs is neither 'required' nor 'none'")
    if options.get("ssl_keyfile") and not options.get("ssl_certfile"):
        raise ConfigurationError("the rediss:// URL has ssl_keyfile without ssl_certfile: give both")
    return TlsOptions(
        ca_certs=options.get("ssl_ca_certs") or None,
        certfile=options.get("ssl_certfile") or None,
        keyfile=options.get("ssl_keyfile") or None,
        verify=verify == "required",
    )
