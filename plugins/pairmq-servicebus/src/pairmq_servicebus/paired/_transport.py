"""The transport to a namespace as an application has set up its own client: with its credential, proxy and so on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from ssl import SSLContext
from typing import Any

from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import TransportType
from azure.servicebus.aio import ServiceBusClient

from pairmq_servicebus._admin import BusAdmin
from pairmq_servicebus._client import Namespace, connection_string
from pairmq_servicebus._credentials import Identity, SharedKey, SharedSignature
from pairmq_servicebus._transport import ServiceBusTransport
from pairmq_servicebus._url import DEFAULT_TLS_PORT, NamespaceUrl


class GivenTransport(ServiceBusTransport):
    """A transport of settings that no URL can hold.

    Args:
        url: the settings that it can hold.
        credential: what gets tokens, instead of the URL's own; it belongs to the caller.
        ssl_context: checks the service, instead of the one made of ``tls-ca``.
        arguments: more arguments for the client: ``user_agent``, ``http_proxy``, ``logging_enable``,
            ``custom_endpoint_address``.
    """

    def __init__(
        self,
        url: NamespaceUrl,
        *,
        credential: Any = None,
        ssl_context: SSLContext | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        # Past the parent's own constructor, which makes both of a URL's text.
        super(ServiceBusTransport, self).__init__(url.endpoint)
        self._namespace = _GivenNamespace(url, credential, ssl_context, arguments or {})
        self._admin = BusAdmin(self._namespace)
        self._closing = None


class _GivenNamespace(Namespace):
    def __init__(
        self, url: NamespaceUrl, credential: Any, ssl_context: SSLContext | None, arguments: Mapping[str, Any]
    ) -> None:
        # With another credential the parent would make an identity of its own, and need azure-identity for it.
        super().__init__(url if credential is None else replace(url, credential=SharedSignature("")))
        self.url = url
        self.identity = credential if credential is not None else self.identity
        self.tls = ssl_context if ssl_context is not None and not url.emulator else self.tls
        self._given = credential
        self._arguments = dict(arguments)

    async def close(self) -> None:
        if self._given is not None:
            self.identity = None
        await super().close()

    def _made(self) -> ServiceBusClient:
        if self._client is None:
            self._client = self._make()
        return self._client

    def _make(self) -> ServiceBusClient:
        url = self.url
        shown = f"[{url.host}]" if ":" in url.host else url.host
        options: dict[str, Any] = {"retry_total": 0, "try_timeout": url.operation_timeout}
        if url.emulator:
            options |= {"user_agent": "pairmq-servicebus", **self._arguments}
            return ServiceBusClient.from_connection_string(connection_string(url, f"{shown}:{url.port}"), **options)
        options["transport_type"] = TransportType.AmqpOverWebsocket if url.websocket else TransportType.Amqp
        options |= {"ssl_context": self.tls, "user_agent": "pairmq-servicebus"}
        if url.port != (443 if url.websocket else DEFAULT_TLS_PORT):
            options["custom_endpoint_address"] = f"sb://{shown}:{url.port}"
        return ServiceBusClient(shown, self._credential(), **{**options, **self._arguments})

    def _credential(self) -> Any:
        match self.url.credential:
            case SharedKey(name, key):
                return AzureNamedKeyCredential(name, key)
            case SharedSignature(token):
                return AzureSasCredential(token)
            case Identity():
                return self.identity
