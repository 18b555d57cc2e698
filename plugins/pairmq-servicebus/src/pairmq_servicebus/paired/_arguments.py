"""The constructor's arguments of azure-servicebus' clients, as far as they concern the pair that sends."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote, urlencode

from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import TransportType

from pairmq import ConfigurationError
from pairmq_servicebus._client import ClientSettings
from pairmq_servicebus._transport import ServiceBusTransport
from pairmq_servicebus._url import NamespaceUrl, parse_servicebus_url, read_connection_string

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.core.credentials_async import AsyncTokenCredential

Credential: TypeAlias = "TokenCredential | AsyncTokenCredential | AzureNamedKeyCredential | AzureSasCredential"

_PASSED_ON: Final = frozenset(("http_proxy", "logging_enable", "user_agent"))
_NETWORK: Final = _PASSED_ON | {"connection_verify", "ssl_context", "transport_type"}
"""What sends need as well as receivers, to either namespace."""

_PRIMARY_ONLY: Final = frozenset(("custom_endpoint_address",))
_RECEIVING_ONLY: Final = frozenset(
    ("retry_backoff_factor", "retry_backoff_max", "retry_mode", "retry_total", "try_timeout", "uamqp_transport")
)
"""Of the retries of sends the pair's own options decide."""

KNOWN: Final = _NETWORK | _PRIMARY_ONLY | _RECEIVING_ONLY

_VARIABLE: Final = "GIVEN"
_CONNECTION_STRING = re.compile(r"\s*(Endpoint|SharedAccess\w+|EntityPath|UseDevelopmentEmulator)\s*=", re.IGNORECASE)


class Sides:
    """Makes the pair's two transports of the keyword arguments of the client's constructor; no IO."""

    def __init__(self, client_arguments: Mapping[str, Any], allow_remote_emulator: bool) -> None:
        unknown = sorted(set(client_arguments) - KNOWN)
        if unknown:
            raise TypeError(
                f"unknown argument {', '.join(unknown)}: ServiceBusClient's are {', '.join(sorted(KNOWN))}; a pair's "
                "own settings are in options=PairOptions(…)"
            )
        self._given = {name: value for name, value in client_arguments.items() if value is not None}
        self._allow_remote_emulator = allow_remote_emulator

    def of_connection_string(self, text: str, admin: str | None, *, primary: bool) -> ServiceBusTransport:
        """Make the transport of a namespace; ``admin`` is its administration, where that is on another host.

        Raises `ConfigurationError`, which says why it can't work, without secrets.
        """
        if not _CONNECTION_STRING.match(text):
            raise ConfigurationError("the primary is not a connection string: one begins with Endpoint=sb://…")
        emulator = read_connection_string(text, "the connection string").emulator
        query = {"connection-string-env": _VARIABLE, **self._options(admin, tls=not emulator)}
        # As if it stood in an environment variable: every form of a connection string is understood there.
        url = parse_servicebus_url(f"sb://?{urlencode(query)}", {_VARIABLE: text})
        return self._transport(url, None, primary)

    def of_credential(self, namespace: str, credential: Credential, admin: str | None) -> ServiceBusTransport:
        """Make the primary's transport of a key, a signature, or an object that gets tokens, blocking or not."""
        host = re.sub(r"^[a-z]+://", "", namespace.strip()).partition("/")[0]
        if isinstance(credential, AzureNamedKeyCredential):
            name, key = credential.named_key
            return self.of_connection_string(
                f"Endpoint=sb://{host}/;SharedAccessKeyName={name};SharedAccessKey={key}", admin, primary=True
            )
        if isinstance(credential, AzureSasCredential):
            return self.of_connection_string(
                f"Endpoint=sb://{host}/;SharedAccessSignature={credential.signature}", admin, primary=True
            )
        if not callable(getattr(credential, "get_token", None)):
            raise TypeError(
                f"a {type(credential).__name__} is not a credential: give an AzureNamedKeyCredential, "
                "an AzureSasCredential, or an object with get_token"
            )
        query = urlencode({"credential": "default", **self._options(admin, tls=True)})
        url = parse_servicebus_url(f"sb://{quote(host, safe=':[]')}/?{query}")
        return self._transport(url, _as_async(credential), primary=True)

    def secondary(self, given: str, admin: str | None) -> str | ServiceBusTransport:
        """What `Pair.connect` takes for a secondary: the transport of a connection string, or the URL of any broker."""
        if _CONNECTION_STRING.match(given):
            return self.of_connection_string(given, admin, primary=False)
        if admin is not None:
            raise ConfigurationError("secondary_admin_endpoint is for a connection string: a URL has the option admin")
        return given

    def _options(self, admin: str | None, *, tls: bool) -> dict[str, str]:
        options = {} if admin is None else {"admin": admin}
        if self._allow_remote_emulator:
            options["allow-remote-emulator"] = "true"
        if tls and "connection_verify" in self._given:
            options["tls-ca"] = str(self._given["connection_verify"])
        if tls and self._websocket:
            options["transport"] = "websocket"
        return options

    @property
    def _websocket(self) -> bool:
        # A proxy needs one, and a custom endpoint has one by default: the client's own rules.
        default = TransportType.AmqpOverWebsocket if "custom_endpoint_address" in self._given else TransportType.Amqp
        kind = self._given.get("transport_type", default)
        return "http_proxy" in self._given or kind is TransportType.AmqpOverWebsocket

    def _transport(self, url: NamespaceUrl, credential: object, primary: bool) -> ServiceBusTransport:
        names = _PASSED_ON | _PRIMARY_ONLY if primary else _PASSED_ON
        arguments = {name: self._given[name] for name in names if name in self._given}
        return ServiceBusTransport(url, ClientSettings(credential, self._given.get("ssl_context"), arguments))


def entity_path_of(connection_string: str) -> str | None:
    """The one entity that a connection string is for, or None; the settings' names may be in any case."""
    for setting in connection_string.split(";"):
        name, _, value = setting.partition("=")
        if name.strip().lower() == "entitypath":
            return value.strip() or None
    return None


class _InThreads:
    """A blocking credential for the pair, which may not block its event loop."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        token: AccessToken = await asyncio.to_thread(self._credential.get_token, *scopes, **options)
        return token

    async def close(self) -> None:
        """Nothing: the credential belongs to the application."""

    async def __aenter__(self) -> _InThreads:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _as_async(credential: Any) -> Any:
    # The one for asyncio is a context manager for asyncio, whatever its method may be wrapped in.
    ours = inspect.iscoroutinefunction(credential.get_token) or hasattr(credential, "__aenter__")
    return credential if ours else _InThreads(credential)
