"""The client of the administration, over HTTP, and what it has to be helped with.

- It says ``https://`` whatever the server speaks: local servers of plain HTTP are reached by rewriting that.
- It goes on using a token of a key for a minute after its end: it is made anew before that.
- It shows a shared access signature as a bearer token, which the service does not take.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from pairmq_servicebus._client import Namespace, connection_string
from pairmq_servicebus._credentials import Identity, SharedSignature

_TOKEN_LIFE = 45 * 60.0  # s: the client makes them for an hour


class AdminTransport(AioHttpTransport):  # type: ignore[misc]  # exported lazily, so that its type is unknown
    """aiohttp for the administration's client.

    Args:
        session: it does not own.
        plain: HTTP instead of HTTPS.
        authorization: the header's value, where the client would make a wrong one.
    """

    def __init__(self, session: aiohttp.ClientSession, *, plain: bool, authorization: str | None) -> None:
        super().__init__(session=session, session_owner=False, use_env_settings=False)
        self._plain = plain
        self._authorization = authorization

    async def send(self, request: Any, **config: Any) -> Any:
        """Send a request, with what the client could not know."""
        if self._plain:
            request.url = "http://" + request.url.removeprefix("https://")
        if self._authorization is not None:
            request.headers["Authorization"] = self._authorization
        return await super().send(request, **config)


class AdminClient:
    """Keeps one client of the administration; made when first needed.

    Args:
        namespace: the transport's.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._session: aiohttp.ClientSession | None = None
        self._client: ServiceBusAdministrationClient | None = None
        self._made_at = 0.0

    def get(self) -> ServiceBusAdministrationClient:
        """Give a client whose token is good; no IO."""
        now = asyncio.get_running_loop().time()
        if self._client is None or now - self._made_at > _TOKEN_LIFE:
            self._client = self._make()
            self._made_at = now
        return self._client

    async def close(self) -> None:
        """Close its connections; never raises."""
        session, self._session, self._client = self._session, None, None
        if session is not None:
            with contextlib.suppress(Exception):
                await session.close()

    def _make(self) -> ServiceBusAdministrationClient:
        namespace, url = self._namespace, self._namespace.url
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=namespace.tls) if namespace.tls is not None else None
            self._session = aiohttp.ClientSession(connector=connector)
        credential = url.credential
        authorization = credential.token if isinstance(credential, SharedSignature) else None
        options: dict[str, Any] = {
            "transport": AdminTransport(self._session, plain=url.admin.plain, authorization=authorization),
            "retry_total": 0,
            "connection_timeout": url.connect_timeout,
            "read_timeout": url.operation_timeout,
            "user_agent": "pairmq-servicebus",
        }
        if isinstance(credential, Identity):
            assert namespace.identity is not None  # noqa: S101 - made with the namespace
            return ServiceBusAdministrationClient(url.admin.host, namespace.identity, **options)
        text = connection_string(url, url.admin.host)
        return ServiceBusAdministrationClient.from_connection_string(text, **options)
