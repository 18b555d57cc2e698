"""Both paired clients against real local servers: lists, threads, what is the primary's own."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, exceptions
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient

from pairmq import Entity, EntityState, Receipt, Route
from pairmq.model.events import Event, SendCompleted
from pairmq.plugins import registry
from pairmq_servicebus.paired import PairedBatchError, PairedServiceBusClient
from pairmq_servicebus.paired.aio import PairedServiceBusClient as AsyncPairedServiceBusClient
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server

PATIENCE = 100.0  # s


def client(server: ServiceBusServer, given: dict[str, Any], **more: Any) -> PairedServiceBusClient:
    return PairedServiceBusClient.from_connection_string(server.connection_string, **{**given, **more})


def aio_client(server: ServiceBusServer, given: dict[str, Any], **more: Any) -> AsyncPairedServiceBusClient:
    return AsyncPairedServiceBusClient.from_connection_string(server.connection_string, **{**given, **more})


def bodies(server: ServiceBusServer, queue: str, count: int) -> list[bytes]:
    """What is in a queue of the primary, by the client's own receiver."""

    async def receive() -> list[bytes]:
        found: list[bytes] = []
        async with (
            AsyncServiceBusClient.from_connection_string(server.connection_string) as own,
            own.get_queue_receiver(queue, max_wait_time=PATIENCE) as receiver,
        ):
            async for message in receiver:
                found.append(b"".join(message.body))
                await receiver.complete_message(message)
                if len(found) == count:
                    break
        return found

    return asyncio.run(receive())


def test_the_messages_of_a_list_have_each_their_own_end(
    primary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    receipts: list[Receipt] = []
    many = [ServiceBusMessage(b"x" * size, message_id=str(number)) for number, size in enumerate((5, 400_000, 5))]
    with client(primary, given, on_receipt=receipts.append) as paired, paired.get_queue_sender(queue) as sender:
        with pytest.raises(PairedBatchError) as caught:
            sender.send_messages(many)
        assert isinstance(caught.value, exceptions.MessageSizeExceededError)
        assert isinstance(caught.value, ValueError)
        assert [failure.message_id for failure in caught.value.failures] == ["1"]
        assert [receipt.message_id for receipt in caught.value.receipts] == ["0", "2"]
        with pytest.raises(exceptions.MessageSizeExceededError):
            sender.send_messages(many[1])
    assert [receipt.message_id for receipt in receipts] == ["0", "2"]
    assert bodies(primary, queue, 2) == [b"xxxxx"] * 2


def test_closed_senders_and_clients_take_nothing(primary: ServiceBusServer, queue: str, given: dict[str, Any]) -> None:
    paired = client(primary, given)
    with paired:
        sender = paired.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("x"))
        sender.close()
        sender.close()
        with pytest.raises(ValueError, match="shutdown"):
            sender.send_messages(ServiceBusMessage("x"))
        with pytest.raises(ValueError, match="shutdown"):
            sender.__enter__()
        open_one = paired.get_queue_sender(queue)
    paired.close()
    with pytest.raises(ValueError, match="shutdown"):
        open_one.send_messages(ServiceBusMessage("x"))
    with pytest.raises(ValueError, match="shutdown"):
        paired.get_queue_sender(queue)
    open_one.close()


def test_bad_timeouts_names_and_messages_are_refused_at_once(
    primary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    paired = client(primary, given)
    sender = paired.get_queue_sender(queue, client_identifier="me")
    assert sender.client_identifier == "me"
    assert str(sender) == f"Sender client id: me, entity: {queue}"
    with pytest.raises(ValueError, match="greater than 0"):
        sender.send_messages(ServiceBusMessage("x"), timeout=0)
    with pytest.raises(TypeError, match="message 1: the body is an AMQP value"):
        sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage(None)])
    with pytest.warns(UserWarning, match="Unsupported"), pytest.raises(TypeError):
        sender.send_messages(5, colour="red")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="entity path"):
        paired.get_queue_sender("a//b")
    with pytest.raises(AttributeError):
        _ = paired.no_such_thing
    assert callable(paired.list_queue_sessions)  # whatever else the client has
    paired.close()


def test_a_name_of_the_envelope_is_refused(primary: ServiceBusServer, queue: str, given: dict[str, Any]) -> None:
    with client(primary, given) as paired, pytest.raises(ValueError, match="x-ms-path") as caught:
        paired.get_queue_sender(queue).send_messages(
            ServiceBusMessage("x", application_properties={"x-ms-path": "elsewhere"})
        )
    assert isinstance(caught.value, exceptions.ServiceBusError)


def test_scheduling_at_the_primary_gives_sequence_numbers_and_can_be_cancelled(
    primary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    with client(primary, given) as paired, paired.get_queue_sender(queue) as sender:
        # What is cancelled in time would not come while anybody waits here.
        later = datetime.now(UTC) + timedelta(hours=1)
        kept, cancelled = sender.schedule_messages([ServiceBusMessage("kept"), ServiceBusMessage("cancelled")], later)
        sender.cancel_scheduled_messages(cancelled)
        assert kept != cancelled
        with paired.get_queue_receiver(queue) as receiver:
            assert [str(message) for message in receiver.peek_messages(9)] == ["kept"]
        soon = datetime.now(UTC) + timedelta(seconds=1)
        sender.schedule_messages(ServiceBusMessage("soon"), soon)
    assert bodies(primary, queue, 1) == [b"soon"]
    assert datetime.now(UTC) >= soon


def test_scheduling_at_a_primary_that_is_unavailable_fails_as_it_always_did(
    primary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    with client(primary, given, retry_total=0) as paired, paired.get_queue_sender(queue) as sender:
        primary.kill()
        with pytest.raises(exceptions.ServiceBusConnectionError):
            sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC) + timedelta(hours=1))


def test_a_client_that_was_never_entered_works_and_has_states_and_events(
    primary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    events: list[Event] = []
    paired = client(primary, given)
    try:
        end = paired.on_event(events.append)
        assert paired.state(queue) is EntityState.HEALTHY
        assert paired.states() == {}
        paired.get_queue_sender(queue).send_messages(ServiceBusMessage("x"))
        assert Entity(queue) in paired.states()
        end()
        paired.get_queue_sender(queue).send_messages(ServiceBusMessage("y"))
    finally:
        paired.close()
    assert len([event for event in events if isinstance(event, SendCompleted)]) == 1
    end()


def test_a_sender_outlives_the_name_of_its_client(primary: ServiceBusServer, queue: str, given: dict[str, Any]) -> None:
    def make() -> Any:
        return client(primary, given).get_queue_sender(queue)

    with make() as sender:
        gc.collect()
        sender.send_messages(ServiceBusMessage("x"))
    secondary = sender._sending._pair.secondary
    del sender
    gc.collect()
    deadline = time.monotonic() + PATIENCE
    while not secondary.ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert secondary.ended


def test_many_threads_share_one_sender(primary: ServiceBusServer, queue: str, given: dict[str, Any]) -> None:
    receipts: list[Receipt] = []
    with client(primary, given, on_receipt=receipts.append) as paired, paired.get_queue_sender(queue) as sender:
        threads = [
            threading.Thread(target=lambda n=n: sender.send_messages(ServiceBusMessage(str(n)))) for n in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(receipts) == 16
    assert sorted(bodies(primary, queue, 16), key=int) == [str(n).encode() for n in range(16)]


def test_what_on_receipt_raises_does_not_look_like_a_failed_send(
    primary: ServiceBusServer, queue: str, given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(receipt: Receipt) -> None:
        raise KeyError(receipt.message_id)

    with client(primary, given, on_receipt=fail) as paired:
        paired.get_queue_sender(queue).send_messages(ServiceBusMessage("x"))
    assert "on_receipt failed" in caplog.text


def test_topics_and_subscriptions(primary: ServiceBusServer, given: dict[str, Any]) -> None:
    topic = f"prices-{uuid.uuid4().hex[:8]}"

    async def make() -> None:
        async with registry.transport(primary.url) as transport:
            await transport.admin.create(Entity(topic, "topic"))  # type: ignore[arg-type]
            await transport.admin.create_subscription(Entity(topic, "topic"), "all")  # type: ignore[arg-type]

    asyncio.run(make())
    with client(primary, given) as paired:
        paired.get_topic_sender(topic).send_messages(ServiceBusMessage("up"))
        assert paired.state(topic, kind="topic") is EntityState.HEALTHY
        with paired.get_subscription_receiver(topic, "all", max_wait_time=PATIENCE) as receiver:
            (message,) = receiver.receive_messages()
            assert str(message) == "up"
            receiver.complete_message(message)


def test_a_topics_messages_are_moved_back_to_its_subscriptions(
    primary: ServiceBusServer, given: dict[str, Any]
) -> None:
    topic = f"prices-{uuid.uuid4().hex[:8]}"

    async def make() -> None:
        async with registry.transport(primary.url) as transport:
            await transport.admin.create(Entity(topic, "topic"))  # type: ignore[arg-type]
            await transport.admin.create_subscription(Entity(topic, "topic"), "all")  # type: ignore[arg-type]

    asyncio.run(make())
    with client(primary, given) as paired:
        primary.kill()
        paired.get_topic_sender(topic).send_messages(ServiceBusMessage("up", subject="bolts"))
        assert paired.state(topic, kind="topic") is EntityState.FAILED_OVER
        primary.start()
        with paired.get_subscription_receiver(topic, "all", max_wait_time=1.5 * PATIENCE) as receiver:
            (message,) = receiver.receive_messages()
            assert (str(message), message.subject) == ("up", "bolts")
            receiver.complete_message(message)


def test_another_product_may_back(primary: ServiceBusServer, queue: str, given: dict[str, Any]) -> None:
    receipts: list[Receipt] = []
    options = replace(given["options"], close_grace=1.0)
    with PairedServiceBusClient.from_connection_string(
        primary.connection_string,
        secondary=f"memory://backing-{uuid.uuid4().hex[:8]}",
        options=options,
        admin_endpoint=given["admin_endpoint"],
        on_receipt=receipts.append,
    ) as paired:
        sender = paired.get_queue_sender(queue)
        primary.kill()
        sender.send_messages(ServiceBusMessage("x", application_properties={"n": 1}))
        assert receipts[0].route is Route.BACKLOG
        primary.start()
        assert bodies(primary, queue, 1) == [b"x"]


# asyncio.


async def test_many_tasks_share_one_sender_and_a_cancelled_send_disturbs_no_other(
    primary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    async with aio_client(primary, given) as paired, paired.get_queue_sender(queue) as sender:
        sends = [asyncio.create_task(sender.send_messages(ServiceBusMessage(str(n)))) for n in range(20)]
        await asyncio.sleep(0)
        sends[3].cancel()
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(result) for n, result in enumerate(results) if n != 3] == [type(None)] * 19
        assert paired.pair.state(queue) is EntityState.HEALTHY


async def test_the_first_send_opens_the_pair_once_for_all(
    primary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    receipts: list[Receipt] = []
    paired = aio_client(primary, given, on_receipt=receipts.append)
    senders = [paired.get_queue_sender(queue) for _ in range(3)]
    await asyncio.gather(*(sender.send_messages(ServiceBusMessage("x")) for sender in senders))
    await paired.close()
    await paired.close()
    assert [receipt.route for receipt in receipts] == [Route.PRIMARY] * 3
    with pytest.raises(ValueError, match="shutdown"):
        await senders[0].send_messages(ServiceBusMessage("x"))
    with pytest.raises(ValueError, match="shutdown"):
        await paired.__aenter__()


async def test_a_long_list_is_sent_in_order_within_one_deadline(
    primary: ServiceBusServer, make_queue: Callable[..., str], given: dict[str, Any]
) -> None:
    queue = await asyncio.to_thread(make_queue)
    async with aio_client(primary, given) as paired, paired.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(str(n)) for n in range(1200)], timeout=100)
        with pytest.raises(PairedBatchError, match="and 580 more") as caught:
            await sender.send_messages([ServiceBusMessage(b"late") for _ in range(600)], timeout=0.001)
        assert len(caught.value.failures) == 600
        assert isinstance(caught.value.failures[-1].error, exceptions.OperationTimeoutError)
        assert "before its turn came" in str(caught.value.failures[-1].error)
    found = await asyncio.to_thread(bodies, primary, queue, 1200)
    assert found == [str(n).encode() for n in range(1200)]


async def test_scheduling_and_cancelling_with_asyncio(
    primary: ServiceBusServer, make_queue: Callable[..., str], given: dict[str, Any]
) -> None:
    queue = await asyncio.to_thread(make_queue)
    async with aio_client(primary, given, retry_total=0) as paired, paired.get_queue_sender(queue) as sender:
        (number,) = await sender.schedule_messages(ServiceBusMessage("x"), datetime.now(UTC) + timedelta(hours=1))
        await sender.cancel_scheduled_messages(number)
        with pytest.raises(exceptions.ServiceBusError):
            await sender.cancel_scheduled_messages(number)


# Processes.


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_a_program_that_waits_for_two_brokers(
    primary: ServiceBusServer, secondary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    code = f"""
    from azure.servicebus import ServiceBusMessage
    from pairmq import PairOptions
    from pairmq_servicebus.paired import PairedServiceBusClient

    options = PairOptions(backlog_queue_count=1, close_grace=0.5, send_timeout=3600)
    with PairedServiceBusClient.from_connection_string(
        {primary.connection_string!r}, secondary={secondary.connection_string!r}, options=options,
        admin_endpoint={given["admin_endpoint"]!r}, secondary_admin_endpoint={given["secondary_admin_endpoint"]!r},
    ) as client:
        sender = client.get_queue_sender({queue!r})
        sender.send_messages(ServiceBusMessage("first"))
        print("ready", flush=True)
        input()
        print("sending", flush=True)
        sender.send_messages(ServiceBusMessage("second"))
    """
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        primary.kill()
        secondary.kill()
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "sending\n"
        time.sleep(0.3)
        program.send_signal(signal.SIGINT)
        # Without Ctrl-C it would try for an hour.
        _, errors = program.communicate(timeout=300)
        assert "KeyboardInterrupt" in errors
    finally:
        program.kill()
        program.wait()
