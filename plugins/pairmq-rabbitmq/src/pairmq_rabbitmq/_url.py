"""What a broker URL says: where the server is, how to log in, and the options of its query.

No error here repeats a value that may be secret: a bad URL is explained by its part's name.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from pairmq.model import ConfigurationError
from pairmq.transport import ENDPOINT_OPTIONS, Endpoint, chosen_endpoint, endpoint_with_default_name, is_local_address

DEFAULT_PORT = 5672
DEFAULT_TLS_PORT = 5671
DEFAULT_LOGIN = "guest"

QueueType = Literal["quorum", "classic"]
"""The queue types that the plugin makes."""

_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
_PORT_IN_NAME = re.compile(r"-([1-9][0-9]{0,4})(?=-|$)")
_FIRST_USER_PORT = 1024
_OPTIONS = ("connect_timeout", "heartbeat", "lock_duration", "management", "queue_type", *ENDPOINT_OPTIONS)
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile")
_MANAGEMENT_PORTS = {"http": 15672, "https": 15671}
# User name, password and virtual host travel as AMQP short strings.
_MAX_BYTES = 255


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How the server's certificate is checked, and which one is shown to it; None takes the system's."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True)
class ManagementUrl:
    """Where the management plugin answers, and how to log in there.

    Args:
        url: its root without user and password and without a slash at the end, fit for logs.
    """

    url: str
    username: str = field(default=DEFAULT_LOGIN, repr=False)
    password: str = field(default=DEFAULT_LOGIN, repr=False)


@dataclass(frozen=True, slots=True)
class RabbitUrl:
    """A broker URL, read and checked.

    Args:
        connect_timeout: seconds for connecting and logging in.
        heartbeat: seconds of silence after which a connection counts as lost, on either side.
        queue_type: the type of the queues that are made; None for the one that suits each.
        lock_duration: seconds that a received message stays locked; the client keeps the time, the broker has none.
    """

    endpoint: Endpoint
    host: str
    port: int = DEFAULT_PORT
    vhost: str = "/"
    username: str = field(default=DEFAULT_LOGIN, repr=False)
    password: str = field(default=DEFAULT_LOGIN, repr=False)
    tls: TlsOptions | None = None
    connect_timeout: float = 5.0
    heartbeat: int = 10
    queue_type: QueueType | None = None
    lock_duration: float = 60.0
    management: ManagementUrl | None = None


def parse_rabbitmq_url(url: str) -> RabbitUrl:
    """Read ``amqp://`` or ``amqps://[user[:password]@]host[:port][/vhost][?options]``.

    Args:
        url: the URL; a slash of the virtual host's name is written ``%2F``, no path is the virtual host ``/``.

    Raises:
        ConfigurationError: it can't work; the text says which part and why, without secrets.
    """
    parts = _split(url, "the broker URL")
    scheme = parts.scheme.lower()
    if scheme not in ("amqp", "amqps"):
        raise ConfigurationError("the broker URL is none of RabbitMQ: write it as amqp://host:port/vhost or amqps://…")
    where = f"the {scheme}:// URL"
    if parts.fragment or url.endswith("#"):
        raise ConfigurationError(f"{where} holds '#': write it as %23")
    host = _host(parts, where)
    port = _port(parts, where, DEFAULT_TLS_PORT if scheme == "amqps" else DEFAULT_PORT)
    vhost = _vhost(parts, where)
    options = _options(parts, where, _OPTIONS + (_TLS_OPTIONS if scheme == "amqps" else ()))
    username = _credential(parts.username, "user name", where) or DEFAULT_LOGIN
    password = _credential(parts.password, "password", where)
    if password is None:
        password = DEFAULT_LOGIN
    shown = f"[{host}]" if ":" in host else host
    identity = ("rabbitmq", "127.0.0.1" if host in _LOOPBACK else host, str(port), vhost)
    path = "" if vhost == "/" else quote(vhost, safe="")
    endpoint = _endpoint(identity, host, f"{scheme}://{shown}:{port}/{path}")
    return RabbitUrl(
        endpoint=chosen_endpoint(endpoint, options, where),
        host=host,
        port=port,
        vhost=vhost,
        username=username,
        password=password,
        tls=_tls(options, where) if scheme == "amqps" else None,
        connect_timeout=_number(options, "connect_timeout", 5.0, 0.01, 300, where),
        heartbeat=int(_number(options, "heartbeat", 10, 1, 600, where, whole=True)),
        queue_type=_queue_type(options, where),
        lock_duration=_number(options, "lock_duration", 60.0, 0.1, 1500, where),
        management=_management(options, username, password, where),
    )


def tls_context(options: TlsOptions, *, for_url: str) -> ssl.SSLContext:
    """Make what checks the server, once, so that a wrong file is told when the transport is made.

    A file of authorities takes the place of the system's: no other is trusted.

    Args:
        for_url: the broker's URL without its password, for the error's text.

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


def _split(url: str, what: str) -> SplitResult:
    # urlsplit drops tabs and line ends silently, so that they are looked for first.
    if any(ord(letter) <= 0x20 or ord(letter) == 0x7F for letter in url):
        raise ConfigurationError(f"{what} holds a space or control character: write it percent-encoded")
    try:
        url.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} holds a lone surrogate: remove it") from None
    try:
        return urlsplit(url)
    except ValueError:
        # None of the original text: it may quote the URL with its password.
        raise ConfigurationError(f"{what} can't be read: is a bracket of an IPv6 address missing?") from None


def _host(parts: SplitResult, where: str) -> str:
    host = (parts.hostname or "").rstrip(".")
    if not host:
        raise ConfigurationError(f"{where} names no host: write it as {parts.scheme.lower()}://host:port/…")
    # A comma would be a list of hosts, which other clients know; "%" is an escaped name, or an IPv6 zone.
    if not host.isprintable() or any(letter in "%,;*'\"<>\\^`{|}" for letter in host):
        raise ConfigurationError(f"the host of {where} is no name or address: name one host")
    return host


def _port(parts: SplitResult, where: str, default: int) -> int:
    try:
        port = default if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not 1 <= port <= 65535:
        raise ConfigurationError(f"the port of {where} is none: give a number from 1 to 65535")
    return port


def _vhost(parts: SplitResult, where: str) -> str:
    text = parts.path[1:]
    if "@" in text:
        # What stands before it may be the end of a password with a slash in it.
        raise ConfigurationError(f"{where} holds '@' behind its host: write '@' as %40, and '/' in a password as %2F")
    if "/" in text:
        raise ConfigurationError(f"the virtual host of {where} holds a slash: write it as %2F")
    vhost = _decoded(text, "virtual host", where) or "/"
    if not vhost.isprintable():
        raise ConfigurationError(f"the virtual host of {where} holds a control or unprintable character")
    return vhost


def _options(parts: SplitResult, where: str, known: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    if any("@" in option and not option.startswith("management=") for option in parts.query.split("&")):
        # A password with a question mark in it ends up here.
        raise ConfigurationError(f"{where} holds '@' in an option: write '@' as %40, and '?' in a password as %3F")
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, errors="strict")
    except ValueError:
        raise ConfigurationError(f"the options of {where} are no percent-encoded UTF-8") from None
    for key, value in pairs:
        if key not in known:
            shown = f" {key!r}" if re.fullmatch(r"[a-z_]{1,40}", key) and "@" not in parts.query else ""
            raise ConfigurationError(f"{where} has an unknown option{shown}: known are {', '.join(sorted(known))}")
        if key in found:
            raise ConfigurationError(f"{where} has the option {key!r} twice")
        found[key] = value
    return found


def _credential(text: str | None, what: str, where: str) -> str | None:
    decoded = _decoded(text or "", what, where)
    if any(ord(letter) < 0x20 for letter in decoded):
        # A null character would end the field in SASL PLAIN, and give the password another beginning.
        raise ConfigurationError(f"the {what} of {where} holds a control character")
    return None if text is None else decoded


def _decoded(text: str, what: str, where: str) -> str:
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ConfigurationError(f"the {what} of {where} is no percent-encoded UTF-8") from None
    if len(decoded.encode()) > _MAX_BYTES:
        raise ConfigurationError(f"the {what} of {where} has more than {_MAX_BYTES} bytes")
    return decoded


def _endpoint(identity: tuple[str, ...], host: str, url: str) -> Endpoint:
    _, _, port, vhost = identity
    place = port if vhost == "/" else f"{port}-{vhost}"
    if is_local_address(host):
        former = [_former_name(each, port, vhost) for each in dict.fromkeys((*sorted(_LOOPBACK), host))]
        return endpoint_with_default_name(identity, url, place, local=True, former=former)
    plain = f"{host}-{place}"
    return endpoint_with_default_name(
        identity,
        url,
        plain,
        unique=_as_read(plain) == (host, port, vhost),
        former=(_former_name(host, port, vhost),),
    )


def _as_read(name: str) -> tuple[str, str, str] | None:
    """The one host, port and virtual host for which a name stands; others that would have the same one get a digest.

    ``a-1-5673`` could be the host ``a``, port 1 and virtual host ``5673``, or the host ``a-1`` and port 5673: it stands
    for the likelier one.
    """
    readings = [(name[: at.start()], at[1], name[at.end() + 1 :] or "/") for at in _PORT_IN_NAME.finditer(name)]
    return min(readings, key=lambda each: _unlikely(int(each[1])), default=None)


def _unlikely(port: int) -> int:
    return 0 if port in (DEFAULT_PORT, DEFAULT_TLS_PORT) else 1 if port >= _FIRST_USER_PORT else 2


def _former_name(host: str, port: str, vhost: str) -> str:
    """The default name of earlier releases, which two virtual hosts could share."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{host}-{port}-{vhost}")[:128].strip("-")


def _number(
    options: Mapping[str, str],
    key: str,
    default: float,
    least: float,
    most: float,
    where: str,
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
        raise ConfigurationError(f"{where}'s option {key} is no {kind} from {least} to {most}")
    return value


def _queue_type(options: Mapping[str, str], where: str) -> QueueType | None:
    match options.get("queue_type"):
        case None:
            return None
        case "quorum":
            return "quorum"
        case "classic":
            return "classic"
    raise ConfigurationError(f"{where}'s option queue_type is neither 'quorum' nor 'classic'")


def _management(options: Mapping[str, str], username: str, password: str, where: str) -> ManagementUrl | None:
    text = options.get("management")
    if text is None:
        return None
    inner = f"{where}'s option management"
    parts = _split(text, inner)
    scheme = parts.scheme.lower()
    if scheme not in _MANAGEMENT_PORTS or parts.query or parts.fragment or text.endswith(("?", "#")):
        raise ConfigurationError(f"{inner} is no http:// or https:// URL: write it as http://host:15672")
    host = _host(parts, inner)
    port = _port(parts, inner, _MANAGEMENT_PORTS[scheme])
    try:
        parts.path.encode("ascii")
    except UnicodeEncodeError:
        raise ConfigurationError(f"{inner} has a path that is not percent-encoded") from None
    own_user, own_password = (
        _credential(parts.username, "user name", inner),
        _credential(parts.password, "password", inner),
    )
    shown = f"[{host}]" if ":" in host else host
    return ManagementUrl(
        f"{scheme}://{shown}:{port}{parts.path.rstrip('/')}",
        username=own_user or username,
        # Another user's password is never the broker URL's.
        password=own_password if own_password is not None else ("" if own_user else password),
    )


def _tls(options: Mapping[str, str], where: str) -> TlsOptions:
    verify = options.get("ssl_cert_reqs", "required")
    if verify not in ("required", "none"):
        raise ConfigurationError(f"{where}'s option ssl_cert_reqs is neither 'required' nor 'none'")
    if options.get("ssl_keyfile") and not options.get("ssl_certfile"):
        raise ConfigurationError(f"{where} has ssl_keyfile without ssl_certfile: give both")
    return TlsOptions(
        ca_certs=options.get("ssl_ca_certs") or None,
        certfile=options.get("ssl_certfile") or None,
        keyfile=options.get("ssl_keyfile") or None,
        verify=verify == "required",
    )
