"""Queues with one consumer at a time on a local server: their settings, their senders, their receivers."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSession
from azure.servicebus.management import ServiceBusAdministrationClient

from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import QueueProperties, Transport
from pairmq_servicebus.testing import ServiceBusServer
from received import take

pytestmark = pytest.mark.real_server

ORDERED = QueueProperties(lock_duration=60.0, single_consumer=True)
PATIENCE = 30.0  # s

# What the README.md says, and servers hold already.
SESSION = "x-pairmq-single-consumer"
METADATA = "pairmq: single-consumer"

Make = Callable[..., Message]


@pytest.fixture
def properties() -> QueueProperties:
    return ORDERED


@pytest.fixture
async def azure(server: ServiceBusServer) -> AsyncIterator[ServiceBusClient]:
    """Somebody else's client."""
    async with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        yield client


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.message.body.decode() for delivery in deliveries]


async def refusal(call: Any) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await call
    assert caught.value.kind is FailureKind.REFUSED
    return caught.value


# Settings.


async def test_it_is_reported_as_what_was_asked_for(transport: Transport, queue: Entity) -> None:
    found = await transport.admin.properties(queue)
    assert found.single_consumer
    # What it is made of is nobody's business: nothing has to have a session, and nobody has to accept one.
    assert not found.requires_session
    # Of what was left to the service it tells its own defaults.
    assert not [line for line in ORDERED.differences(found) if "asked for None" not in line]


@pytest.mark.parametrize("settings", [{}, {"user_metadata": METADATA, "enable_partitioning": True}], ids=str)
async def test_a_queue_that_can_not_report_what_is_settled_is_reported_as_an_ordinary_one(
    transport: Transport, server: ServiceBusServer, settings: dict[str, Any]
) -> None:
    queue = Entity(f"ordered/{uuid.uuid4().hex[:10]}")
    await make(transport, queue, requires_session=True, **settings)
    found = await transport.admin.properties(queue)
    assert (found.single_consumer, found.requires_session) == (False, True)
    assert (await refusal(transport.admin.positions(queue))).reason is FailureReason.NOT_SUPPORTED


async def test_one_that_its_owner_made_by_other_means_is_one(
    transport: Transport, queue: Entity, message: Make
) -> None:
    theirs = Entity(f"ordered/{uuid.uuid4().hex[:10]}")
    await make(transport, theirs, requires_session=True, user_metadata=f"owner: orders; {METADATA}")
    assert (await transport.admin.properties(theirs)).single_consumer
    await transport.sender(theirs).send(message("x"))
    assert bodies(await take(transport.receiver(Source(theirs)), 1)) == ["x"]


async def make(transport: Transport, queue: Entity, **settings: Any) -> None:
    client: ServiceBusAdministrationClient = transport.admin._service._good_client()  # type: ignore[attr-defined]
    await client.create_queue(queue.path, **settings)  # type: ignore[func-returns-value, misc]


@pytest.mark.parametrize(
    ("kind", "asked"),
    [
        (EntityKind.TOPIC, QueueProperties(single_consumer=True)),
        (EntityKind.QUEUE, QueueProperties(single_consumer=True, requires_session=True)),
    ],
)
async def test_what_can_not_have_one_consumer_is_refused(
    transport: Transport, kind: EntityKind, asked: QueueProperties
) -> None:
    entity = Entity(f"ordered/{uuid.uuid4().hex[:10]}", kind)
    assert (await refusal(transport.admin.create(entity, asked))).reason is FailureReason.NOT_SUPPORTED
    assert not await transport.admin.exists(entity)


async def test_a_tier_without_sessions_is_named_as_the_reason(server: ServiceBusServer) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=400, text="<Error><Code>400</Code><Detail>SubCode=40000.</Detail></Error>")

    async with administration(server, refuse) as transport:
        error = await refusal(transport.admin.create(Entity("q"), ORDERED))
        assert error.reason is FailureReason.MALFORMED
        assert "Basic" in str(error)
        assert "Basic" not in str(await refusal(transport.admin.create(Entity("q"), QueueProperties())))


async def test_a_key_without_manage_finds_out_whether_it_is_one(
    server: ServiceBusServer, transport: Transport, queue: Entity, message: Make
) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=401, text="<Error><Code>401</Code><Detail>Manage,EntityRead</Detail></Error>")

    plain = Entity(f"plain/{uuid.uuid4().hex[:10]}")
    await transport.admin.create(plain)
    async with administration(server, refuse) as lesser:
        for entity, one in ((queue, True), (plain, False)):
            assert not await lesser.admin.create(entity, ORDERED)
            assert (await lesser.admin.properties(entity)).single_consumer is one
        await lesser.sender(queue).send(message("x"))
        assert (await lesser.admin.positions(queue)).oldest is not None
        assert bodies(await take(lesser.receiver(Source(queue)), 1)) == ["x"]


class administration:
    """A transport whose administration is another one."""

    def __init__(self, server: ServiceBusServer, answer: Any) -> None:
        self._server, self._app = server, web.Application()
        self._app.router.add_route("*", "/{tail:.*}", answer)

    async def __aenter__(self) -> Transport:
        self._other = TestServer(self._app)
        await self._other.start_server()
        url = self._server.url.replace(str(self._server.admin_port), str(self._other.port))
        self._transport = registry.transport(f"{url}&connect-timeout=30")
        return self._transport

    async def __aexit__(self, *_: object) -> None:
        await self._transport.close()
        await self._other.close()


# Senders.


async def test_a_message_keeps_its_own_session_and_partition_key(
    transport: Transport, queue: Entity, message: Make
) -> None:
    sent = [message("a", session_id="s"), message("b", partition_key="p"), message("c"), message("d", session_id="s")]
    assert set(await transport.sender(queue).send_batch(sent)) == {None}
    got = await take(transport.receiver(Source(queue)), 4)
    assert [delivery.message for delivery in got] == sent


async def test_a_transport_that_does_not_know_the_queue_learns_it_by_a_refusal(
    stranger: Transport, queue: Entity, message: Make
) -> None:
    sender = stranger.sender(queue)
    await sender.send(message("a"))
    assert set(await sender.send_batch([message("b"), message("c")])) == {None}
    assert bodies(await take(stranger.receiver(Source(queue)), 3)) == ["a", "b", "c"]


async def test_all_who_learn_it_at_once_send_again(
    stranger: Transport, transport: Transport, queue: Entity, message: Make
) -> None:
    senders = [stranger.sender(queue) for _ in range(4)]
    await asyncio.gather(*(sender.send(message("x")) for sender in senders))
    assert bodies(await take(transport.receiver(Source(queue)), 4)) == ["x"] * 4


async def test_a_batch_by_a_transport_that_does_not_know_the_queue_keeps_its_order(
    stranger: Transport, transport: Transport, queue: Entity, message: Make
) -> None:
    sent = [message(str(number)) for number in range(3)]
    assert set(await stranger.sender(queue).send_batch(sent)) == {None}
    assert [delivery.message for delivery in await take(transport.receiver(Source(queue)), 3)] == sent


async def test_a_user_s_own_queue_with_sessions_goes_on_refusing_what_has_none(
    stranger: Transport, transport: Transport, message: Make
) -> None:
    queue = Entity(f"sessions/{uuid.uuid4().hex[:10]}")
    await transport.admin.create(queue, QueueProperties(requires_session=True))
    assert (await refusal(stranger.sender(queue).send(message("a")))).reason is FailureReason.NOT_SUPPORTED
    [none, done] = await stranger.sender(queue).send_batch([message("b"), message("c", session_id="s")])
    assert none is not None
    assert none.reason is FailureReason.NOT_SUPPORTED
    assert done is None
    assert (await transport.admin.counts(Source(queue))).active == 1


async def test_who_sends_without_a_session_by_other_means_is_refused(azure: ServiceBusClient, queue: Entity) -> None:
    async with azure.get_queue_sender(queue.path) as sender:
        with pytest.raises(Exception, match="session"):
            await sender.send_messages(ServiceBusMessage("x"))


# Receivers.


async def test_a_receiver_waits_for_its_turn_and_gets_it_when_the_other_one_closes(
    transport: Transport, stranger: Transport, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send_batch([message(each) for each in "abc"])
    first, second = transport.receiver(Source(queue)), stranger.receiver(Source(queue))
    held = await take(first, 2)
    waiting = asyncio.ensure_future(take(second, 3))
    assert await asyncio.wait((waiting,), timeout=0.5) == (set(), {waiting})
    await first.close()
    again = await waiting
    assert bodies(again) == ["a", "b", "c"]
    assert [each.sequence_number for each in again[:2]] == [each.sequence_number for each in held]
    # The service counts no delivery that ended with the closing, but there may be second copies.
    assert [each.delivery_count for each in again] == [2, 2, 1]


@pytest.mark.parametrize("forged", [b"9" * 5000, b"\xff\x00", b"-7", b""])
async def test_what_others_write_into_the_state_of_the_session_does_not_prevent_reading(
    transport: Transport, azure: ServiceBusClient, queue: Entity, message: Make, forged: bytes
) -> None:
    """Who may read the queue may write it, and Python refuses to read a number of thousands of digits."""
    async with azure.get_queue_receiver(queue.path, session_id=SESSION) as somebody:
        await somebody.session.set_state(forged)
    await transport.sender(queue).send(message("a"))
    [delivery] = await take(transport.receiver(Source(queue)), 1)
    assert delivery.delivery_count == 1


async def test_a_service_that_falls_silent_before_it_reports_the_state_blocks_no_call_for_longer_than_an_opening(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send(message("x"))
    # Its own limit for calls is far beyond what the test waits.
    hasty = registry.transport(f"{server.url}&connect-timeout=3&operation-timeout=300")
    try:
        assert (await hasty.admin.properties(queue)).single_consumer
        receiver = hasty.receiver(Source(queue))
        asked = {"at": "management", "operation": "get-session-state", "entity": f"{queue.path}*"}
        server.fault({"action": "silence", "times": 1, **asked})
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(TransportError) as caught:
                await receiver.receive(1, 0)
        assert (caught.value.kind, caught.value.reason) == (FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)
        assert bodies(await take(receiver, 1)) == ["x"]
    finally:
        await hasty.close()


async def test_a_receiver_that_waits_for_its_turn_closes_at_once(
    transport: Transport, stranger: Transport, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send(message("a"))
    await take(transport.receiver(Source(queue)), 1)
    second = stranger.receiver(Source(queue))
    waiting = asyncio.ensure_future(second.receive(1, 600))
    assert await asyncio.wait((waiting,), timeout=1.0) == (set(), {waiting})
    await second.close()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(TransportError) as caught:
            await waiting
    assert caught.value.reason is FailureReason.CLOSED


async def test_a_lost_connection_loses_what_is_held_and_it_is_redelivered_in_order(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send_batch([message(each) for each in "abcd"])
    receiver = transport.receiver(Source(queue))
    held = await take(receiver, 3)
    await receiver.complete(held[0])
    server.drop_connections()
    again: list[Delivery] = []
    with contextlib.suppress(TransportError):  # a poll that finds the connection lost says so
        again += await receiver.receive(1, 0)
    again += await take(receiver, 3 - len(again))
    assert bodies(again) == ["b", "c", "d"]
    for call in (receiver.complete(held[1]), receiver.renew_lock(held[2])):
        assert (await refusal(call)).reason is FailureReason.LOCK_LOST
    assert set(await receiver.complete_batch(again)) == {None}
    assert (await transport.admin.positions(queue)).oldest is None


async def test_what_is_released_comes_before_anything_newer(transport: Transport, queue: Entity, message: Make) -> None:
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    await sender.send_batch([message(each) for each in "ab"])
    first, second = await take(receiver, 2)
    await receiver.abandon(first)
    await sender.send(message("c"))
    again = await take(receiver, 2)
    assert bodies(again) == ["a", "c"]
    assert [each.delivery_count for each in again] == [2, 1]
    assert set(await receiver.complete_batch([second, *again])) == {None}


async def test_what_comes_while_the_link_is_used_for_something_else_keeps_its_order(
    transport: Transport,
    server: ServiceBusServer,
    queue: Entity,
    message: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client releases what arrives between two receives: it would come back behind what was on its way then."""
    sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
    write = ServiceBusSession.set_state
    later = iter(("b", "c"))

    async def meanwhile(session: ServiceBusSession, state: bytes, **options: Any) -> None:
        for body in later:
            await sender.send(message(body))
            await write(session, state, **options)

    await sender.send(message("a"))
    before = server.operations().get("settle", 0)
    with monkeypatch.context() as patch:
        patch.setattr(ServiceBusSession, "set_state", meanwhile)
        got = await receiver.receive(10, PATIENCE)
    while len(got) < 3:
        got += await receiver.receive(1, PATIENCE)
    assert bodies(got) == ["a", "b", "c"]
    assert {delivery.delivery_count for delivery in got} == {1}
    assert server.operations().get("settle", 0) == before, "something was released"


async def test_one_renewal_renews_the_lock_of_all_that_is_held(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send_batch([message(str(number)) for number in range(20)])
    receiver = transport.receiver(Source(queue))
    held = await take(receiver, 20)
    before = server.operations().get("renew", 0)
    renewed = await asyncio.gather(*(receiver.renew_lock(each) for each in held))
    assert server.operations()["renew"] - before < 10
    for old, new in zip(held, renewed, strict=True):
        assert old.locked_until is not None
        assert new.locked_until is not None
        assert new.locked_until > old.locked_until


@pytest.mark.long
async def test_an_idle_receiver_keeps_its_turn_while_it_waits(
    transport: Transport, stranger: Transport, message: Make
) -> None:
    queue = Entity(f"ordered/{uuid.uuid4().hex[:10]}")
    # The shortest locks that the service has.
    await transport.admin.create(queue, replace(ORDERED, lock_duration=5.0))
    first, second = transport.receiver(Source(queue)), stranger.receiver(Source(queue))
    assert await first.receive(1, 0) == []
    waiting = asyncio.ensure_future(first.receive(1, 60))
    # Longer than a lock lasts; the waiting one tries again and again.
    assert await second.receive(1, 8.0) == []
    await stranger.sender(queue).send(message("x"))
    async with asyncio.timeout(PATIENCE):
        assert bodies(await waiting) == ["x"]


async def test_a_queue_made_anew_as_an_ordinary_one_is_read_as_such(
    transport: Transport, stranger: Transport, queue: Entity, message: Make
) -> None:
    receiver = transport.receiver(Source(queue))
    assert await receiver.receive(1, 0) == []
    await stranger.admin.delete(queue)
    await stranger.admin.create(queue, QueueProperties())
    await transport.sender(queue).send(message("x", session_id="s"))
    got: list[Delivery] = []
    async with asyncio.timeout(PATIENCE):
        while not got:
            with contextlib.suppress(TransportError):  # its old link was detached
                got = await receiver.receive(1, 1.0)
    assert got[0].message.session_id == "s"


async def test_what_was_dead_lettered_is_read_by_any_receiver(
    transport: Transport, stranger: Transport, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send(message("x", session_id="s"))
    receiver = transport.receiver(Source(queue))
    [held] = await take(receiver, 1)
    await receiver.dead_letter(held, "why", "because")
    [dead] = await take(stranger.receiver(Source(queue, dead_letter=True)), 1)
    assert (dead.message.session_id, dead.dead_letter_reason) == ("s", "why")


async def test_purging_empties_it(transport: Transport, queue: Entity, message: Make) -> None:
    await transport.sender(queue).send_batch([message(str(number)) for number in range(5)])
    assert await transport.admin.purge(Source(queue)) == 5
    assert (await transport.admin.positions(queue)).oldest is None


@pytest.mark.usefixtures("clock_ahead")
async def test_messages_are_settled_by_a_machine_whose_clock_is_ahead(
    transport: Transport, queue: Entity, message: Make
) -> None:
    """The client compared the end of the session's lock with that clock, and made no call over its link."""
    await transport.sender(queue).send_batch([message(str(number)) for number in range(3)])
    receiver = transport.receiver(Source(queue))
    first, second, third = await take(receiver, 3)
    await receiver.complete(await receiver.renew_lock(first))
    assert [failed for failed in await receiver.complete_batch([second, third]) if failed] == []
    assert (await transport.admin.counts(Source(queue))).active == 0
