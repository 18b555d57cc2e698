"""The transport as a whole: as a plugin, over TLS, and in a pair."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
import uuid
from collections.abc import Callable
from urllib.parse import quote_plus, urlencode

import pytest

from pairmq import Pair, PairOptions
from pairmq.model import ConfigurationError, Entity, FailureKind, Message, Route, Source, TransportError
from pairmq.plugins import registry
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server

Make = Callable[..., Message]
PATIENCE = 30.0  # s for what must come


def test_the_plugin_brings_sb_urls() -> None:
    record = registry.transport_record("sb://anything")
    assert (record.name, record.schemes) == ("servicebus", ("sb",))
    transport = registry.transport("sb://k:v@contoso.servicebus.windows.net/")
    assert transport.capabilities == record.capabilities
    assert repr(transport) == "ServiceBusTransport('sb://contoso.servicebus.windows.net:5671/')"
    with pytest.raises(ConfigurationError):
        registry.transport("sb://host-without-a-key/")


async def test_tls_is_checked_with_the_given_authority(message: Make) -> None:
    with ServiceBusServer(durable=False, tls=True, queues=["orders"]) as server:
        queue = Entity("orders")
        transport = registry.transport(f"{server.url}&connect-timeout=30")
        assert await transport.admin.exists(queue)
        await transport.sender(queue).send(message("sealed"))
        receiver = transport.receiver(Source(queue))
        [delivery] = await receiver.receive(1, PATIENCE)
        assert delivery.message.body == b"sealed"
        await receiver.complete(delivery)
        await transport.close()
        # Without the authority nobody is trusted, and nothing is sent.
        login, _, options = server.url.partition("?")
        stranger = registry.transport(f"{login}?{options[options.index('admin=') :]}")
        with pytest.raises(TransportError) as caught:
            await stranger.sender(queue).send(message())
        assert (caught.value.kind, caught.value.maybe_applied) == (FailureKind.UNAVAILABLE, False)
        with pytest.raises(TransportError) as caught:
            await stranger.admin.exists(queue)
        assert caught.value.kind is FailureKind.UNAVAILABLE
        await stranger.close()


async def test_a_pair_diverts_and_moves_back(server: ServiceBusServer, message: Make) -> None:
    with ServiceBusServer(queues=["orders"]) as primary:
        options = PairOptions(
            backlog_queue_count=2,
            failover_interval=0.2,
            ping_primary_interval=0.3,
            # Nobody who is only held up has failed.
            attempt_timeout=PATIENCE,
            enable_syphon=True,
        )
        patient = f"&connect-timeout={PATIENCE}"
        async with Pair.connect(f"{primary.url}{patient}", f"{server.url}{patient}&name=west", options=options) as pair:
            sender = pair.sender("orders")
            assert (await sender.send(message("before"))).route is Route.PRIMARY
            primary.kill()
            receipts = [await sender.send(message(str(number))) for number in range(5)]
            assert {receipt.route for receipt in receipts} == {Route.BACKLOG}
            primary.start()
            got: list[bytes] = []
            async with asyncio.timeout(2 * PATIENCE), pair.receiver("orders") as receiver:
                async for delivery in receiver:
                    got.append(delivery.body)
                    await delivery.complete()
                    if len(got) == 6:
                        break
            assert sorted(got) == [b"0", b"1", b"2", b"3", b"4", b"before"]


async def test_a_signature_made_with_a_key_logs_in_everywhere(
    server: ServiceBusServer, monkeypatch: pytest.MonkeyPatch, message: Make
) -> None:
    scope, expiry = quote_plus("sb://127.0.0.1"), str(int(time.time()) + 600)
    digest = hmac.new(server.key.encode(), f"{scope}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = urlencode({"sig": base64.b64encode(digest).decode(), "se": expiry, "skn": server.key_name})
    monkeypatch.setenv(
        "SIGNED",
        f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessSignature=SharedAccessSignature sr={scope}&{signature}"
        ";UseDevelopmentEmulator=true",
    )
    url = f"sb://?connection-string-env=SIGNED&admin=http://127.0.0.1:{server.admin_port}&connect-timeout=30"
    async with registry.transport(url) as transport:
        queue = Entity(f"signed/{uuid.uuid4().hex[:8]}")
        assert await transport.admin.create(queue)
        await transport.sender(queue).send(message("signed"))
        [delivery] = await transport.receiver(Source(queue)).receive(1, PATIENCE)
        assert delivery.message.body == b"signed"
