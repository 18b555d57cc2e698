"""What a namespace's URL says: where it is, how to log in, and the options of its query.

No error here repeats a value that may be secret: a bad URL is explained by its part's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pairmq.model import ConfigurationError
from pairmq.transport import ENDPOINT_OPTIONS, Endpoint, chosen_endpoint, endpoint_with_default_name, is_local_address
from pairmq_servicebus._credentials import (
    CREDENTIAL_KINDS,
    Identity,
    SharedKey,
    SharedSignature,
    read_connection_string,
)

DEFAULT_TLS_PORT = 5671
DEFAULT_EMULATOR_PORT = 5672
DEFAULT_EMULATOR_ADMIN_PORT = 5300
DEFAULT_VARIABLE = "SERVICEBUS_CONNECTION_STRING"
"""The environment variable that ``sb://`` alone is read from."""

_AZURE = "servicebus.windows.net"
_LOOPBACK = frozenset(("localhost", "127.0.0.1", "::1"))
_OPTIONS = (
    "admin",
    "allow-remote-emulator",
    "client-id",
    "connect-timeout",
    "connection-string-env",
    "credential",
    "emulator",
    "operation-timeout",
    "tenant-id",
    "tls-ca",
    "transport",
    *ENDPOINT_OPTIONS,
)
_IDENTITY_OPTIONS = ("client-id", "tenant-id")

Credential = SharedKey | SharedSignature | Identity


@dataclass(frozen=True, slots=True)
class AdminAddress:
    """Where the administration answers.

    Args:
        host: name or address, with its port unless that is 443.
        plain: plain HTTP instead of HTTPS; only on this machine, or with an emulator that was allowed elsewhere.
    """

    host: str
    plain: bool = False


@dataclass(frozen=True, slots=True)
class NamespaceUrl:
    """A namespace's URL, read and checked.

    Args:
        endpoint: what PairMQ shows of it.
        host: the namespace's name, or the emulator's.
        port: TCP port.
        credential: how to log in.
        emulator: plain TCP, as the emulator and local servers speak it.
        admin: where the administration is.
        tls_ca: file of authorities to trust instead of the usual ones; None for these.
        websocket: AMQP through a web socket on port 443, for networks that let nothing else out.
        connect_timeout: seconds for opening a link, logging in included.
        operation_timeout: seconds after which a single call of the client is given up, whether or not a caller waits.
    """

    endpoint: Endpoint
    host: str
    port: int
    credential: Credential = field(repr=False)
    emulator: bool = False
    admin: AdminAddress = AdminAddress("")
    tls_ca: str | None = None
    websocket: bool = False
    connect_timeout: float = 5.0
    operation_timeout: float = 30.0


def parse_servicebus_url(url: str, environment: Mapping[str, str] | None = None) -> NamespaceUrl:
    """Read ``sb://KEYNAME:KEY@host[:port]/?options``, ``sb://host?credential=…``, or ``sb://`` with a variable's name.

    A connection string as the portal shows it (``Endpoint=sb://…;SharedAccessKeyName=…``) stands in an environment
    variable: ``sb://?connection-string-env=NAME``, or ``sb://`` alone for `DEFAULT_VARIABLE`.

    Args:
        url: the URL; user name and key are percent-encoded.
        environment: where variables are looked up; the process's own when left out.

    Returns:
        Its parts with their defaults.

    Raises:
        ConfigurationError: it can't work; the text says which part and why, without secrets.
    """
    variables = os.environ if environment is None else environment
    parts = _split(url)
    options = _options(parts)
    if parts.netloc:
        if "connection-string-env" in options:
            raise ConfigurationError("the sb:// URL names a host and connection-string-env: give one of them")
        host, port = _host(parts), _port(parts)
        emulator = _flag(options, "emulator")
        credential = _credential(parts, options, emulator)
    else:
        variable = options.get("connection-string-env") or DEFAULT_VARIABLE
        text = variables.get(variable, "")
        if not text:
            raise ConfigurationError(
                f"the sb:// URL names no host, and the environment variable {variable} is not set: set it to the "
                "namespace's connection string, or write the URL as sb://KEYNAME:KEY@host"
            )
        found = read_connection_string(text, f"the connection string in {variable}")
        host, port, emulator, credential = found.host, found.port, found.emulator, found.credential
        emulator = emulator or _flag(options, "emulator")
    return _checked(host, port, emulator, credential, options)


def _checked(
    host: str, given_port: int | None, emulator: bool, credential: Credential, options: Mapping[str, str]
) -> NamespaceUrl:
    remote_allowed = _flag(options, "allow-remote-emulator")
    websocket = _transport(options)
    if emulator:
        if host not in _LOOPBACK and not remote_allowed:
            raise ConfigurationError(
                f"the sb:// URL has emulator=true and the host {host}: messages and keys would travel in the open. "
                "Use a loopback address, or add allow-remote-emulator=true"
            )
        if websocket or "tls-ca" in options:
            raise ConfigurationError("the sb:// URL has emulator=true, which is plain TCP: leave transport and tls-ca")
        if isinstance(credential, Identity):
            raise ConfigurationError("the sb:// URL has emulator=true and credential=…: an emulator takes keys only")
    port = given_port or (DEFAULT_EMULATOR_PORT if emulator else 443 if websocket else DEFAULT_TLS_PORT)
    shown = f"[{host}]" if ":" in host else host
    namespace = "127.0.0.1" if host in _LOOPBACK else host
    identity = ("servicebus", namespace, str(DEFAULT_TLS_PORT if websocket and not given_port else port))
    endpoint = _endpoint(identity, host, port, f"sb://{shown}:{port}/")
    return NamespaceUrl(
        endpoint=chosen_endpoint(endpoint, options, "the sb:// URL"),
        host=host,
        port=port,
        credential=credential,
        emulator=emulator,
        admin=_admin(options, host, emulator, remote_allowed),
        tls_ca=options.get("tls-ca") or None,
        websocket=websocket,
        connect_timeout=_seconds(options, "connect-timeout", 15.0 if isinstance(credential, Identity) else 5.0),
        operation_timeout=_seconds(options, "operation-timeout", 30.0),
    )


def _split(url: str) -> SplitResult:
    # urlsplit drops tabs and line ends silently, so that they are looked for first.
    if any(ord(letter) <= 0x20 or ord(letter) == 0x7F for letter in url):
        raise ConfigurationError("the sb:// URL holds a space or control character: write it percent-encoded")
    try:
        parts = urlsplit(url)
    except ValueError:
        # None of the original text: it may quote the URL with its key.
        raise ConfigurationError("the sb:// URL can't be read: is a bracket of an IPv6 address missing?") from None
    if parts.scheme.lower() != "sb":
        raise ConfigurationError("the URL is none of Service Bus: write it as sb://KEYNAME:KEY@host/")
    if parts.fragment or url.endswith("#"):
        raise ConfigurationError("the sb:// URL holds '#': write it as %23")
    if parts.path not in ("", "/"):
        # What stands before it may be the end of a key with a slash in it.
        raise ConfigurationError(
            "the sb:// URL has a path: it names a namespace, not an entity. Write '/' in a key as %2F"
        )
    return parts


def _options(parts: SplitResult) -> dict[str, str]:
    if any("@" in option and not option.startswith("admin=") for option in parts.query.split("&")):
        # A key with a question mark in it ends up here.
        raise ConfigurationError("the sb:// URL holds '@' in an option: write '@' as %40, and '?' in a key as %3F")
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, errors="strict")
    except ValueError:
        raise ConfigurationError("the options of the sb:// URL are no percent-encoded UTF-8") from None
    found: dict[str, str] = {}
    for written, value in pairs:
        key = written.replace("_", "-")
        if key not in _OPTIONS:
            shown = f" {written!r}" if re.fullmatch(r"[a-z_-]{1,40}", written) else ""
            known = ", ".join(sorted(_OPTIONS))
            raise ConfigurationError(f"the sb:// URL has an unknown option{shown}: known are {known}")
        if key in found:
            raise ConfigurationError(f"the sb:// URL has the option {key!r} twice")
        found[key] = value
    return found


def _host(parts: SplitResult) -> str:
    host = (parts.hostname or "").rstrip(".")
    if not host or not host.isprintable() or any(letter in "%,;*'\"<>\\^`{|}" for letter in host):
        raise ConfigurationError("the host of the sb:// URL is no name or address: name one host")
    return host


def _port(parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port is not None and not 1 <= port <= 65535:
        raise ConfigurationError("the port of the sb:// URL is none: give a number from 1 to 65535")
    return port


def _credential(parts: SplitResult, options: Mapping[str, str], emulator: bool) -> Credential:
    name = _decoded(parts.username, "key name")
    key = _decoded(parts.password, "key")
    kind = options.get("credential")
    if kind is None:
        if any(option in options for option in _IDENTITY_OPTIONS):
            raise ConfigurationError("the sb:// URL has client-id or tenant-id without credential=…: add it")
        if not name or not key:
            also = "" if emulator else ", or as sb://host?credential=default for an identity of Microsoft Entra"
            raise ConfigurationError(f"the sb:// URL has no key: write it as sb://KEYNAME:KEY@host{also}")
        return SharedKey(name, key)
    if name or key:
        raise ConfigurationError("the sb:// URL has a key and credential=…: give one of them")
    if kind not in CREDENTIAL_KINDS:
        raise ConfigurationError(f"the sb:// URL's option credential is none of {', '.join(sorted(CREDENTIAL_KINDS))}")
    return Identity(kind, options.get("client-id") or None, options.get("tenant-id") or None)


def _decoded(text: str | None, what: str) -> str:
    try:
        decoded = unquote(text or "", errors="strict")
    except UnicodeDecodeError:
        raise ConfigurationError(f"the {what} of the sb:// URL is no percent-encoded UTF-8") from None
    if not decoded.isprintable() or ";" in decoded:
        raise ConfigurationError(f"the {what} of the sb:// URL holds a ';' or a character that is no key's")
    return decoded


def _flag(options: Mapping[str, str], key: str) -> bool:
    value = options.get(key, "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise ConfigurationError(f"the sb:// URL's option {key} is neither 'true' nor 'false'")
    return value in ("true", "1")


def _seconds(options: Mapping[str, str], key: str, default: float) -> float:
    if key not in options:
        return default
    try:
        value = float(options[key])
    except ValueError:
        value = float("nan")
    if not 0.1 <= value <= 300:
        raise ConfigurationError(f"the sb:// URL's option {key} is no number from 0.1 to 300")
    return value


def _transport(options: Mapping[str, str]) -> Literal[True, False]:
    match options.get("transport", "amqp"):
        case "amqp":
            return False
        case "websocket":
            return True
    raise ConfigurationError("the sb:// URL's option transport is neither 'amqp' nor 'websocket'")


def _admin(options: Mapping[str, str], host: str, emulator: bool, remote_allowed: bool) -> AdminAddress:
    text = options.get("admin")
    shown = f"[{host}]" if ":" in host else host
    if text is None:
        return AdminAddress(f"{shown}:{DEFAULT_EMULATOR_ADMIN_PORT}", plain=True) if emulator else AdminAddress(shown)
    where = "the sb:// URL's option admin"
    plain = text.startswith("http://")
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
        port = parts.port
    except ValueError:
        raise ConfigurationError(f"{where} can't be read: write it as host:port or http://host:port") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.path not in ("", "/"):
        raise ConfigurationError(f"{where} is no address: write it as host:port, http://host:port or https://host:port")
    if plain and parts.hostname not in _LOOPBACK and not remote_allowed:
        raise ConfigurationError(f"{where} is plain HTTP to another machine: use https://, or allow-remote-emulator")
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return AdminAddress(name if port is None else f"{name}:{port}", plain)


def _endpoint(identity: tuple[str, ...], host: str, port: int, url: str) -> Endpoint:
    if is_local_address(host):
        former = [_former_name(each, port) for each in dict.fromkeys((*sorted(_LOOPBACK), host))]
        return endpoint_with_default_name(identity, url, str(port), local=True, former=former)
    former = [_former_name(host, port)]
    label, _, domain = host.partition(".")
    if domain == _AZURE:  # the first label is the namespace's name, and unique
        return endpoint_with_default_name(
            identity, url, label, unique=identity[2] == str(DEFAULT_TLS_PORT), former=former
        )
    numeric = re.fullmatch(r"[0-9.]+", host)
    readable = f"{host}-{port}" if numeric or ":" in host else label
    return endpoint_with_default_name(identity, url, readable, unique=bool(numeric), former=former)


def _former_name(host: str, port: int) -> str:
    """The default name of earlier releases: the first label, which namespaces of two clouds could share."""
    numeric = ":" in host or host in _LOOPBACK or re.fullmatch(r"[0-9.]+", host)
    plain = f"{host}-{port}" if numeric else host.partition(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain)[:128].strip("-")
