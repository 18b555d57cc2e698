"""What a namespace's URL says: where it is, how to log in, and the options of its query.

No error here repeats a value that may be secret: a bad URL is explained by its part's name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pairmq.model import ConfigurationError
from pairmq.transport import (
    ENDPOINT_OPTIONS,
    LOOPBACK,
    BrokerUrl,
    Endpoint,
    UrlOptions,
    bracketed,
    chosen_endpoint,
    endpoint_with_default_name,
    is_local_address,
)

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential


CREDENTIAL_KINDS: Final = frozenset(
    ("default", "managed-identity", "workload-identity", "environment", "azure-cli", "azure-developer-cli")
)
"""Values of the URL's option ``credential``, named after azure-identity's classes."""

_KNOWN = {
    "endpoint": "Endpoint",
    "sharedaccesskeyname": "SharedAccessKeyName",
    "sharedaccesskey": "SharedAccessKey",
    "sharedaccesssignature": "SharedAccessSignature",
    "entitypath": "EntityPath",
    "usedevelopmentemulator": "UseDevelopmentEmulator",
}


@dataclass(frozen=True, slots=True)
class SharedKey:
    name: str = field(repr=False)
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SharedSignature:
    """A token that was made elsewhere with a key; it ends some day and can't be renewed."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    kind: str
    client_id: str | None = None
    tenant_id: str | None = None


def make_identity(identity: Identity) -> AsyncTokenCredential:
    """Make azure-identity's credential, to be closed; no IO."""
    try:
        from azure.identity import aio
    except ImportError:
        raise ConfigurationError(
            f"credential={identity.kind} needs azure-identity: pip install 'pairmq-servicebus[identity]'"
        ) from None
    client, tenant = identity.client_id, identity.tenant_id
    given = {key: value for key, value in (("client_id", client), ("tenant_id", tenant)) if value}
    try:
        match identity.kind:
            case "managed-identity":
                return aio.ManagedIdentityCredential(client_id=client) if client else aio.ManagedIdentityCredential()
            case "workload-identity":
                return aio.WorkloadIdentityCredential(**given)
            case "environment":
                return aio.EnvironmentCredential()
            case "azure-cli":
                return aio.AzureCliCredential(tenant_id=tenant or "")
            case "azure-developer-cli":
                return aio.AzureDeveloperCliCredential(tenant_id=tenant or "")
            case _:
                return aio.DefaultAzureCredential(**({"managed_identity_client_id": client} if client else {}))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"credential={identity.kind} can't be used: {error}") from None


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """What one says; its entity path is left out, as a transport is one of a whole namespace."""

    host: str
    port: int | None
    credential: SharedKey | SharedSignature = field(repr=False)
    emulator: bool = False


def read_connection_string(text: str, where: str) -> ConnectionString:
    """Read one (Service Bus documentation: Get the connection string); the settings' names may be in any case.

    Raises `ConfigurationError`, which names the setting and no value.
    """
    found: dict[str, str] = {}
    for setting in text.strip().strip(";").split(";"):
        key, equals, value = setting.partition("=")
        name = _KNOWN.get(key.strip().lower())
        if not equals or name is None:
            raise ConfigurationError(f"{where} has an unknown setting: known are {', '.join(_KNOWN.values())}")
        if name in found:
            raise ConfigurationError(f"{where} has {name} twice")
        found[name] = value.strip()
    host, port = _host_and_port(found.get("Endpoint", ""), where)
    emulator = found.get("UseDevelopmentEmulator", "false").lower()
    if emulator not in ("true", "false"):
        raise ConfigurationError(f"{where}: UseDevelopmentEmulator is neither true nor false")
    return ConnectionString(host, port, _key_or_signature(found, where), emulator == "true")


def _host_and_port(text: str, where: str) -> tuple[str, int | None]:
    if not text:
        raise ConfigurationError(f"{where} has no Endpoint: it begins with Endpoint=sb://…")
    _, scheme, rest = text.partition("://")
    read = BrokerUrl(f"sb://{rest if scheme else text}", "sb://host/", "sb", what=f"{where}: its Endpoint")
    if read.parts.username or read.parts.path not in ("", "/"):
        raise ConfigurationError(f"{where}: its Endpoint is not sb://host/")
    return read.host(), read.port(None)


def _key_or_signature(found: dict[str, str], where: str) -> SharedKey | SharedSignature:
    name, key = found.get("SharedAccessKeyName", ""), found.get("SharedAccessKey", "")
    signature = found.get("SharedAccessSignature", "")
    if signature:
        if name or key:
            raise ConfigurationError(f"{where} has a SharedAccessSignature and a key: give one of them")
        prefix = "SharedAccessSignature "
        return SharedSignature(signature if signature.startswith(prefix) else prefix + signature)
    if not name or not key:
        raise ConfigurationError(f"{where} has no SharedAccessKeyName and SharedAccessKey")
    return SharedKey(name, key)


DEFAULT_TLS_PORT = 5671
DEFAULT_EMULATOR_PORT = 5672
DEFAULT_EMULATOR_ADMIN_PORT = 5300
DEFAULT_VARIABLE = "SERVICEBUS_CONNECTION_STRING"
"""The environment variable that ``sb://`` alone is read from."""

_AZURE = "servicebus.windows.net"
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
    """Where the administration answers; by plain HTTP only on this machine, or with an emulator allowed elsewhere."""

    host: str
    plain: bool = False


@dataclass(frozen=True, slots=True)
class NamespaceUrl:
    """A namespace's URL, read and checked; times are in seconds.

    An emulator, as local servers, speaks plain TCP. A web socket on port 443 is for networks that let nothing else out.
    After ``operation_timeout`` a single call of the client is given up, whether or not a caller waits.
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

    A connection string as the portal shows it (``Endpoint=sb://…;SharedAccessKeyName=…``) is in an environment
    variable: ``sb://?connection-string-env=NAME``, or ``sb://`` alone for `DEFAULT_VARIABLE`. Raises
    `ConfigurationError`, which says which part is wrong and why, without secrets.
    """
    variables = os.environ if environment is None else environment
    read = BrokerUrl(url, "sb://KEYNAME:KEY@host/", "sb")
    if read.parts.path not in ("", "/"):
        # What stands before it may be the end of a key with a slash in it.
        raise ConfigurationError(
            "the sb:// URL has a path: it names a namespace, not an entity. Write '/' in a key as %2F"
        )
    options = read.options(*_OPTIONS, dashes=True, url_option="admin")
    if read.parts.netloc:
        if "connection-string-env" in options:
            raise ConfigurationError("the sb:// URL names a host and connection-string-env: give one of them")
        host, port = read.host(), read.port(None)
        emulator = _flag(options, "emulator")
        credential = _credential(read, options, emulator)
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
    host: str, given_port: int | None, emulator: bool, credential: Credential, options: UrlOptions
) -> NamespaceUrl:
    if ":" in host:
        raise ConfigurationError(
            f"the sb:// URL has the IPv6 address {host}, and Azure's client can't connect to one: use a host name"
        )
    remote_allowed = _flag(options, "allow-remote-emulator")
    websocket = options.choice("transport", "amqp", "websocket") == "websocket"
    if emulator:
        if host not in LOOPBACK and not remote_allowed:
            raise ConfigurationError(
                f"the sb:// URL has emulator=true and the host {host}: messages and keys would travel in the open. "
                "Use a loopback address, or add allow-remote-emulator=true"
            )
        if websocket or "tls-ca" in options:
            raise ConfigurationError("the sb:// URL has emulator=true, which is plain TCP: leave transport and tls-ca")
        if isinstance(credential, Identity):
            raise ConfigurationError("the sb:// URL has emulator=true and credential=…: an emulator takes keys only")
    port = given_port or (DEFAULT_EMULATOR_PORT if emulator else 443 if websocket else DEFAULT_TLS_PORT)
    shown = bracketed(host)
    namespace = "127.0.0.1" if host in LOOPBACK else host
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
        connect_timeout=options.number("connect-timeout", 15.0 if isinstance(credential, Identity) else 5.0, 0.1, 300),
        operation_timeout=options.number("operation-timeout", 30.0, 0.1, 300),
    )


def _credential(read: BrokerUrl, options: UrlOptions, emulator: bool) -> Credential:
    name = _decoded(read, read.parts.username, "key name")
    key = _decoded(read, read.parts.password, "key")
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
        raise ConfigurationError(
            f"the sb:// URL's option credential is invalid; use one of {', '.join(sorted(CREDENTIAL_KINDS))}"
        )
    return Identity(kind, options.get("client-id") or None, options.get("tenant-id") or None)


def _decoded(read: BrokerUrl, text: str | None, what: str) -> str:
    decoded = read.decoded(text, what)
    if not decoded.isprintable() or ";" in decoded:
        raise ConfigurationError(f"the {what} of the sb:// URL holds a ';' or a character that no key has")
    return decoded


def _flag(options: UrlOptions, key: str) -> bool:
    value = options.get(key, "false").lower()
    if value not in ("true", "false", "1", "0"):
        raise ConfigurationError(f"the sb:// URL's option {key} is neither 'true' nor 'false'")
    return value in ("true", "1")


def _admin(options: UrlOptions, host: str, emulator: bool, remote_allowed: bool) -> AdminAddress:
    text = options.get("admin")
    shown = bracketed(host)
    if text is None:
        return AdminAddress(f"{shown}:{DEFAULT_EMULATOR_ADMIN_PORT}", plain=True) if emulator else AdminAddress(shown)
    where = "the sb:// URL's option admin"
    form = "host:port, http://host:port or https://host:port"
    read = BrokerUrl(text if "://" in text else f"https://{text}", form, "http", "https", what=where)
    if read.parts.username or read.parts.path not in ("", "/"):
        raise ConfigurationError(f"{where} is not an address: write it as {form}")
    address, port, plain = read.host(), read.port(None), read.scheme == "http"
    if plain and address not in LOOPBACK and not remote_allowed:
        raise ConfigurationError(f"{where} is plain HTTP to another machine: use https://, or allow-remote-emulator")
    name = bracketed(address)
    return AdminAddress(name if port is None else f"{name}:{port}", plain)


def _endpoint(identity: tuple[str, ...], host: str, port: int, url: str) -> Endpoint:
    if is_local_address(host):
        return endpoint_with_default_name(identity, url, str(port), local=True)
    label, _, domain = host.partition(".")
    if domain == _AZURE:  # the first label is the namespace's name, and unique
        return endpoint_with_default_name(identity, url, label, unique=identity[2] == str(DEFAULT_TLS_PORT))
    numeric = re.fullmatch(r"[0-9.]+", host)
    readable = f"{host}-{port}" if numeric or ":" in host else label
    return endpoint_with_default_name(identity, url, readable, unique=bool(numeric))
