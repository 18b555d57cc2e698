"""How to log in to a namespace: credentials that show no secret, and connection strings as the portal shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pairmq.model import ConfigurationError
from pairmq.transport import BrokerUrl

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
    """A key of a shared access policy."""

    name: str = field(repr=False)
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SharedSignature:
    """A token that somebody else made with a key; it ends some day and can't be renewed."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity of Microsoft Entra."""

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
    host, port = _endpoint(found.get("Endpoint", ""), where)
    emulator = found.get("UseDevelopmentEmulator", "false").lower()
    if emulator not in ("true", "false"):
        raise ConfigurationError(f"{where}: UseDevelopmentEmulator is neither true nor false")
    return ConnectionString(host, port, _credential(found, where), emulator == "true")


def _endpoint(text: str, where: str) -> tuple[str, int | None]:
    if not text:
        raise ConfigurationError(f"{where} has no Endpoint: it begins with Endpoint=sb://…")
    _, scheme, rest = text.partition("://")
    read = BrokerUrl(f"sb://{rest if scheme else text}", "sb://host/", "sb", what=f"{where}: its Endpoint")
    if read.parts.username or read.parts.path not in ("", "/"):
        raise ConfigurationError(f"{where}: its Endpoint is not sb://host/")
    return read.host(), read.port(None)


def _credential(found: dict[str, str], where: str) -> SharedKey | SharedSignature:
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
