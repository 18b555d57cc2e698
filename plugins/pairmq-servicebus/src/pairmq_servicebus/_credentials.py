"""How to log in to a namespace; values that show no secret, and the identities of Microsoft Entra."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pairmq.model import ConfigurationError

if TYPE_CHECKING:
    from azure.core.credentials_async import AsyncTokenCredential

CREDENTIAL_KINDS: Final = frozenset(
    ("default", "managed-identity", "workload-identity", "environment", "azure-cli", "azure-developer-cli")
)
"""Values of the URL's option ``credential``, named after azure-identity's classes."""


@dataclass(frozen=True, slots=True)
class SharedKey:
    """A key of a shared access policy.

    Args:
        name: the policy's name.
        key: the key.
    """

    name: str = field(repr=False)
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class SharedSignature:
    """A token that somebody else made with a key; it ends some day and can't be renewed.

    Args:
        token: ``SharedAccessSignature sr=…``.
    """

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Identity:
    """An identity of Microsoft Entra.

    Args:
        kind: one of `CREDENTIAL_KINDS`.
        client_id: which one, where there are several.
        tenant_id: its tenant.
    """

    kind: str
    client_id: str | None = None
    tenant_id: str | None = None


def make_identity(identity: Identity) -> AsyncTokenCredential:
    """Make azure-identity's credential; no IO.

    Args:
        identity: which one.

    Returns:
        What gets tokens; to be closed.

    Raises:
        ConfigurationError: azure-identity is not installed, or does not take these options.
    """
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
