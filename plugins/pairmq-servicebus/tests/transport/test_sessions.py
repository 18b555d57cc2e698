"""Sessions against a local server process."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError

from pairmq.model import Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.transport import QueueProperties, SessionReceiver, Transport
from pairmq_servicebus.testing import ServiceBusServer
from received import take

pytestmark = pytest.mark.real_server

Make = Callable[..., Message]

PATIENCE = 30.0  # s for what must come
SOON = 20.0  # s


@pytest.fixture
async def queue(transport: Transport) -> Entity:
    """A queue with sessions."""
    entity = Entity(f"sessions/{uuid.uuid4().hex[:10]}")
    await transport.admin.create(entity, QueueProperties(requires_session=True, lock_duration=60.0))
    return entity


@pytest.fixture
async def brief(transport: Transport) -> Entity:
    """One with short locks, which leave some time all the same."""
    entity = Entity(f"sessions/{uuid.uuid4().hex[:10]}")
    await transport.admin.create(entity, QueueProperties(requires_session=True, lock_duration=8.0))
    return entity


async def accepted(transport: Transport, queue: Entity, session_id: str | None = None) -> SessionReceiver:
    """Lock a session that is free."""
    receiver = await transport.accept_session(Source(queue), session_id, wait=PATIENCE)
    assert receiver is not None
    return receiver


async def test_a_named_session_is_read_alone_and_in_order(transport: Transport, queue: Entity, message: Make) -> None:
    assert (await transport.admin.properties(queue)).requires_session
    batch = [message(f"{session}{number}", session_id=session) for number in range(5) for session in "ab"]
    assert set(await transport.sender(queue).send_batch(batch)) == {None}
    about = timedelta(seconds=1)
    before = datetime.now(UTC) - about
    receiver = await accepted(transport, queue, "b")
    after = datetime.now(UTC) + about
    assert receiver.session_id == "b"
    assert before < receiver.locked_until - timedelta(minutes=1) < after
    got = await take(receiver, 5)
    assert [delivery.message.body for delivery in got] == [f"b{number}".encode() for number in range(5)]
    assert {delivery.message.session_id for delivery in got} == {"b"}
    assert set(await receiver.complete_batch(got)) == {None}
    assert await receiver.receive(5, 0) == []
    await receiver.close()


async def test_a_settlement_that_is_given_up_leaves_the_session_to_the_others(
    server: ServiceBusServer, transport: Transport, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send_batch([message(text, session_id="s") for text in "abc"])
    receiver = await accepted(transport, queue, "s")
    first, *rest = await take(receiver, 3)
    server.fault({"at": "settle", "action": "delay", "seconds": 0.5, "times": 1})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await receiver.complete(first)
    assert set(await receiver.complete_batch(rest)) == {None}
    assert await receiver.receive(5, 0) == []
    await receiver.close()


async def test_the_next_free_session_is_taken_and_none_when_there_is_none(
    transport: Transport, queue: Entity, message: Make
) -> None:
    async with asyncio.timeout(SOON):
        assert await transport.accept_session(Source(queue), wait=0.5) is None
    await transport.sender(queue).send_batch([message("x", session_id="one"), message("y", session_id="two")])
    first = await accepted(transport, queue)
    second = await accepted(transport, queue)
    assert {first.session_id, second.session_id} == {"one", "two"}
    assert await transport.accept_session(Source(queue), wait=0) is None
    await asyncio.gather(first.close(), second.close())


async def test_waiting_for_a_session_ends_when_one_gets_messages(
    transport: Transport, queue: Entity, message: Make
) -> None:
    waiting = asyncio.create_task(accepted(transport, queue))
    await asyncio.sleep(0.8)
    await transport.sender(queue).send(message("x", session_id="late"))
    receiver = await waiting
    assert receiver.session_id == "late"


async def test_a_session_that_another_has_is_waited_for(transport: Transport, queue: Entity, message: Make) -> None:
    await transport.sender(queue).send(message("x", session_id="s"))
    first = await accepted(transport, queue, "s")
    assert await transport.accept_session(Source(queue), "s", wait=0.3) is None
    waiting = asyncio.create_task(accepted(transport, queue, "s"))
    await asyncio.sleep(0.3)
    [delivery] = await take(first, 1)
    await first.close()
    second = await waiting
    [again] = await take(second, 1)
    assert again.message == delivery.message


async def test_the_state_of_a_session_outlives_its_receiver(transport: Transport, queue: Entity, message: Make) -> None:
    await transport.sender(queue).send(message("x", session_id="s"))
    receiver = await accepted(transport, queue, "s")
    assert await receiver.get_state() is None
    await receiver.set_state(b"\x00state\xff")
    await receiver.close()
    again = await accepted(transport, queue, "s")
    assert await again.get_state() == b"\x00state\xff"
    await again.set_state(None)
    assert await again.get_state() is None


async def test_a_renewed_session_lock_keeps_its_messages(transport: Transport, brief: Entity, message: Make) -> None:
    await transport.sender(brief).send(message("x", session_id="s"))
    receiver = await accepted(transport, brief, "s")
    [delivery] = await take(receiver, 1)
    before = receiver.locked_until
    # What is renewed is kept for a minute from now on.
    client: Any = transport.admin._service._good_client()  # type: ignore[attr-defined]
    description = await client.get_queue(brief.path)
    description.lock_duration = timedelta(minutes=1)
    await client.update_queue(description)
    assert await receiver.renew_session_lock() > before
    assert receiver.locked_until > before
    renewed = await receiver.renew_lock(delivery)
    assert renewed.locked_until == receiver.locked_until
    await asyncio.sleep((before - datetime.now(UTC)).total_seconds() + 0.3)
    await receiver.complete(delivery)


async def test_a_lost_session_lock_is_reported_by_every_call(
    transport: Transport, brief: Entity, message: Make
) -> None:
    await transport.sender(brief).send_batch([message("x", session_id="s"), message("y", session_id="s")])
    receiver = await accepted(transport, brief, "s")
    delivery, *_ = await take(receiver, 2)
    await asyncio.sleep((receiver.locked_until - datetime.now(UTC)).total_seconds() + 0.5)
    for call in (
        receiver.complete(delivery),
        receiver.receive(1, 1),
        receiver.renew_session_lock(),
        receiver.renew_lock(delivery),
        receiver.get_state(),
        receiver.set_state(b""),
    ):
        with pytest.raises(TransportError) as caught:
            await call
        assert caught.value.reason is FailureReason.LOCK_LOST
    await receiver.close()


async def test_a_lost_connection_is_a_lost_session(
    transport: Transport, server: ServiceBusServer, queue: Entity, message: Make
) -> None:
    await transport.sender(queue).send(message("x", session_id="s"))
    receiver = await accepted(transport, queue, "s")
    [delivery] = await take(receiver, 1)
    server.drop_connections()
    await asyncio.sleep(0.2)
    for call in (receiver.receive(1, PATIENCE), receiver.complete(delivery)):
        with pytest.raises(TransportError):
            await call
    with pytest.raises(TransportError) as caught:
        await receiver.renew_session_lock()
    assert caught.value.reason is FailureReason.LOCK_LOST


async def test_a_source_without_sessions_has_none(transport: Transport, message: Make) -> None:
    plain = Entity(f"plain/{uuid.uuid4().hex[:10]}")
    await transport.admin.create(plain)
    with pytest.raises(TransportError) as caught:
        await transport.accept_session(Source(plain), "s", wait=1)
    assert caught.value.reason is FailureReason.NOT_SUPPORTED


async def test_a_source_with_sessions_is_read_by_sessions_only(transport: Transport, queue: Entity) -> None:
    with pytest.raises(TransportError) as caught:
        await transport.receiver(Source(queue)).receive(1, 0)
    assert caught.value.reason is FailureReason.NOT_SUPPORTED


@pytest.mark.parametrize("session_id", [None, "s"])
async def test_a_service_that_is_silent_has_not_said_that_no_session_is_free(
    transport: Transport, server: ServiceBusServer, queue: Entity, session_id: str | None
) -> None:
    server.fault({"at": "attach", "action": "silence", "entity": queue.path})
    hasty = registry.transport(f"{server.url}&operation-timeout=0.5&connect-timeout=1")
    try:
        with pytest.raises(TransportError) as caught:
            await hasty.accept_session(Source(queue), session_id, wait=PATIENCE)
    finally:
        await hasty.close()
    assert (caught.value.kind, caught.value.reason) == (FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)


async def test_a_time_out_of_the_client_is_not_reported_as_the_service_s(
    server: ServiceBusServer, queue: Entity, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fault({"at": "attach", "action": "silence", "entity": queue.path})
    make = ServiceBusClient.__init__

    def make_hasty(client: ServiceBusClient, *arguments: Any, **named: Any) -> None:
        make(client, *arguments, **{**named, "try_timeout": 0.5})

    monkeypatch.setattr(ServiceBusClient, "__init__", make_hasty)
    async with registry.transport(server.url) as hasty:
        with pytest.raises(TransportError) as caught:
            await hasty.accept_session(Source(queue), wait=PATIENCE)
    assert isinstance(caught.value.__cause__, OperationTimeoutError)
    assert (caught.value.kind, caught.value.reason) == (FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)


async def test_a_cancelled_wait_for_a_session_returns_at_once(transport: Transport, queue: Entity) -> None:
    waiting = asyncio.create_task(transport.accept_session(Source(queue), wait=600))
    await asyncio.sleep(0.8)
    waiting.cancel()
    done, _ = await asyncio.wait((waiting,), timeout=SOON)
    assert done
    assert waiting.cancelled()


async def test_purging_empties_every_session(transport: Transport, queue: Entity, message: Make) -> None:
    await transport.sender(queue).send_batch([message(str(n), session_id=f"s{n % 3}") for n in range(12)])
    assert await transport.admin.purge(Source(queue)) == 12
