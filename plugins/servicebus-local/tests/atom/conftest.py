"""The administration of a fresh broker in this process, over HTTPS."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_plus

import aiohttp
import pytest
from aiohttp import web
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from servicebus_local.atom import Administration, Control
from servicebus_local.broker import Broker
from servicebus_local.certificates import OwnAuthority, make_certificate
from servicebus_local.faults import FaultPlan
from servicebus_local.front import Authorizer

_KEY_NAME, _KEY = "RootManageSharedAccessKey", "c2VjcmV0IGtleQ=="


@dataclass
class Front:
    """The administration of a fresh broker."""

    broker: Broker
    ca_file: Path
    port: int = 0
    changes: int = 0
    faults: FaultPlan = field(default_factory=FaultPlan)

    @property
    def connection_string(self) -> str:
        return f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName={_KEY_NAME};SharedAccessKey={_KEY}"

    async def call(
        self, method: str, path: str, body: bytes | str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if headers is None:
            headers = {"Authorization": self.token()}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method, f"https://127.0.0.1:{self.port}{path}", data=body, headers=headers, ssl=context
            ) as response,
        ):
            return response.status, await response.text()

    def token(self, key: str = _KEY, resource: str = "", lasts: int = 60) -> str:
        # As the documentation of shared access signatures has it.
        scope, expiry = quote_plus(f"https://127.0.0.1:{self.port}/{resource}"), int(time.time()) + lasts
        digest = hmac.new(key.encode(), f"{scope}\n{expiry}".encode(), hashlib.sha256).digest()
        signature = quote_plus(base64.b64encode(digest))
        return f"SharedAccessSignature sr={scope}&sig={signature}&se={expiry}&skn={_KEY_NAME}"

    def changed(self) -> None:
        self.changes += 1


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> OwnAuthority:
    return make_certificate(tmp_path_factory.mktemp("tls"), "localhost", "127.0.0.1")


@pytest.fixture
async def front(authority: OwnAuthority) -> AsyncIterator[Front]:
    broker = Broker(time.time)
    made = Front(broker, authority.ca_file)
    authorizer = Authorizer({_KEY_NAME: _KEY})
    administration = Administration(
        broker,
        authorize=lambda header, url: authorizer.check(header, url, time.time()) is None,
        namespace="testing",
        on_change=made.changed,
        control=Control(made.faults, lambda: 3),
    )
    runner = web.AppRunner(administration.app, access_log=None)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.tls.certificate, authority.tls.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    made.port = runner.addresses[0][1]
    yield made
    # The blocking client leaves its connection open, and nobody there would answer the end of TLS.
    assert runner.server is not None
    for connection in runner.server.connections:
        if connection.transport is not None:
            connection.transport.abort()
    await asyncio.sleep(0)
    await runner.cleanup()


@pytest.fixture
async def client(front: Front) -> AsyncIterator[ServiceBusAdministrationClient]:
    made = ServiceBusAdministrationClient.from_connection_string(
        front.connection_string, connection_verify=str(front.ca_file), retry_total=0
    )
    async with made:
        yield made
