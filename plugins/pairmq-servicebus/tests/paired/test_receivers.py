"""Receivers of queues with continuity go on while the primary is dead, with and without asyncio."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError, ServiceBusError

from pairmq import LockLost
from pairmq.model.events import Side
from pairmq_servicebus.paired import PairedReceivedMessage, PairedServiceBusClient, PairedServiceBusReceiver, aio
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server

PATIENCE = 100.0  # s

Given = dict[str, Any]


@pytest.fixture
def continued(given: Given, queue: str) -> Given:
    """As `given`, and the queue has continuity; no syphon, so that the lane is read by consumers or nobody."""
    options = replace(given["options"], continuity=("orders-*",), enable_syphon=False, backlog_queue_count=1)
    return {**given, "options": options}


@pytest.fixture
def make(primary: ServiceBusServer, continued: Given) -> Callable[[], PairedServiceBusClient]:
    return lambda: PairedServiceBusClient.from_connection_string(primary.connection_string, **continued)


def side(message: ServiceBusReceivedMessage) -> Side:
    assert isinstance(message, PairedReceivedMessage)
    return message.delivery.origin


def test_a_receiver_goes_on_while_the_primary_is_dead(
    primary: ServiceBusServer, queue: str, make: Callable[[], PairedServiceBusClient]
) -> None:
    with make() as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("before", application_properties={"a": 1}))
        with client.get_queue_receiver(queue, max_wait_time=PATIENCE) as receiver:
            assert isinstance(receiver, PairedServiceBusReceiver)
            first = next(receiver)
            assert (str(first), side(first), first.delivery_count) == ("before", Side.PRIMARY, 0)
            assert first.application_properties == {b"a": 1}
            assert isinstance(first.sequence_number, int)
            assert first.enqueued_time_utc is not None
            receiver.complete_message(first)
            with pytest.raises(MessageAlreadySettled):
                receiver.complete_message(first)
            primary.kill()
            sender.send_messages(
                [ServiceBusMessage("during", message_id="7", subject="s", content_type="text/plain", session_id="x")]
            )
            [during] = receiver.receive_messages(5)
            assert (str(during), during.message_id, during.subject, during.session_id) == ("during", "7", "s", "x")
            assert (during.content_type, side(during)) == ("text/plain", Side.SECONDARY)
            lasts = receiver.renew_message_lock(during)
            assert lasts is not None
            assert lasts > datetime.now(UTC)
            receiver.complete_message(during)
            primary.start()
            while client.state(queue) != "healthy":
                sender.send_messages(ServiceBusMessage("after"))
                [message] = receiver.receive_messages()
                receiver.complete_message(message)


def test_what_is_held_is_settled_at_its_broker_or_released(
    queue: str, make: Callable[[], PairedServiceBusClient]
) -> None:
    with make() as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("primary"))
        client._portal.call(lambda: client._pair.hold(queue))
        sender.send_messages(ServiceBusMessage("lane"))
        receiver = client.get_queue_receiver(queue)
        held = {str(message): message for _ in range(2) for message in receiver.receive_messages(1, PATIENCE)}
        assert {name: side(message) for name, message in held.items()} == {
            "primary": Side.PRIMARY,
            "lane": Side.SECONDARY,
        }
        with pytest.raises(ValueError, match="can't be deferred"):
            receiver.defer_message(held["lane"])
        for message in held.values():
            receiver.abandon_message(message)
        again = {str(message): message for _ in range(2) for message in receiver.receive_messages(1, PATIENCE)}
        assert {name: message.delivery_count for name, message in again.items()} == {"primary": 1, "lane": 1}
        receiver.dead_letter_message(again["primary"], "bad", "no such bolt")
        receiver.close()  # and with it what is held of the lane
        with pytest.raises(ValueError, match="shutdown"):
            receiver.receive_messages()
        with client.get_queue_receiver(queue, receive_mode="receiveanddelete", max_wait_time=PATIENCE) as deleting:
            [left] = deleting.receive_messages(5)
            assert (str(left), left.locked_until_utc) == ("lane", None)
            with pytest.raises(ValueError, match="RECEIVE_AND_DELETE"):
                deleting.complete_message(left)
            assert deleting.receive_messages(5, 0.5) == []
        with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER, max_wait_time=PATIENCE) as dead:
            assert not isinstance(dead, PairedServiceBusReceiver)
            [message] = dead.receive_messages()
            assert message.dead_letter_reason == "bad"
            dead.complete_message(message)


def test_the_client_s_own_ways_work_beside_it(
    queue: str, make: Callable[[], PairedServiceBusClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[str] = []
    renew = PairedServiceBusReceiver.renew_message_lock

    def noting(receiver: PairedServiceBusReceiver, message: ServiceBusReceivedMessage, **kwargs: Any) -> Any:
        renewed.append(str(message))
        return renew(receiver, message, **kwargs)

    monkeypatch.setattr(PairedServiceBusReceiver, "renew_message_lock", noting)
    with make() as client, client.get_queue_sender(queue) as sender, AutoLockRenewer() as renewer:
        monkeypatch.setattr(renewer, "_renew_period", 600.0)  # longer than the lock: it renews at once
        sender.send_messages([ServiceBusMessage("1"), ServiceBusMessage("2")])
        with client.get_queue_receiver(queue, auto_lock_renewer=renewer, prefetch_count=2) as receiver:
            assert [str(message) for message in receiver.peek_messages(9)] == ["1", "2"]
            first, second = receiver.receive_messages(2, PATIENCE)
            until = time.monotonic() + PATIENCE
            while not renewed:
                assert time.monotonic() < until
                time.sleep(0.01)
            receiver.complete_message(first)
            sender.send_messages(second)  # what was received can be sent on
            receiver.complete_message(second)
            copy = next(receiver)
            assert str(copy) == "2"

            async def lost() -> None:
                raise LockLost("planted")

            with monkeypatch.context() as patched:
                patched.setattr("pairmq.PairDelivery.complete", lambda _: lost())
                with pytest.raises(MessageLockLostError, match="planted"):
                    receiver.complete_message(copy)
            receiver.complete_message(copy)
        for wrong in ({"max_wait_time": -1}, {"receive_mode": "receiveanddelete", "auto_lock_renewer": renewer}):
            with pytest.raises(ValueError, match=r"max_wait_time|auto_lock_renewer"):
                client.get_queue_receiver(queue, **wrong)  # type: ignore[arg-type]
        with client.get_queue_receiver(queue) as unused:
            assert unused.receive_messages(None) == []
    with pytest.raises(ValueError, match="shutdown"):
        client.get_queue_receiver(queue)


async def test_the_same_with_asyncio(primary: ServiceBusServer, queue: str, continued: Given) -> None:
    got = []
    async with aio.PairedServiceBusClient.from_connection_string(primary.connection_string, **continued) as client:
        sender = client.get_queue_sender(queue)
        await sender.send_messages(ServiceBusMessage("before"))
        async with client.get_queue_receiver(queue, max_wait_time=PATIENCE) as receiver:
            assert isinstance(receiver, aio.PairedServiceBusReceiver)
            [peeked] = await receiver.peek_messages()
            assert str(peeked) == "before"
            async for message in receiver:
                got.append((str(message), side(message)))
                assert await receiver.renew_message_lock(message) is not None
                if len(got) == 2:
                    await receiver.abandon_message(message)
                elif len(got) == 3:
                    await receiver.dead_letter_message(message, "bad")
                    break
                else:
                    await receiver.complete_message(message)
                    primary.kill()
                    await sender.send_messages(ServiceBusMessage("during"))
            assert await receiver.receive_messages(1, 0.5) == []
        assert got == [("before", Side.PRIMARY), ("during", Side.SECONDARY), ("during", Side.SECONDARY)]
        with pytest.raises(ValueError, match="shutdown"):
            await receiver.receive_messages()


async def test_a_receive_raises_the_client_s_error_while_neither_broker_can_be_read(
    primary: ServiceBusServer, secondary: ServiceBusServer, queue: str, continued: Given
) -> None:
    async with aio.PairedServiceBusClient.from_connection_string(primary.connection_string, **continued) as client:
        receiver = client.get_queue_receiver(queue)
        assert await receiver.receive_messages(1, 0.5) == []
        primary.kill()
        secondary.kill()
        with pytest.raises(ServiceBusError):  # noqa: PT012  # a busy machine may not notice it within one wait
            while True:
                assert await receiver.receive_messages(1, 1) == []
        await receiver.close()
