"""Publishing on a real server: what is confirmed is stored, and refusals are certain."""

from __future__ import annotations

import asyncio
import socket
import struct
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pika
import pytest
from pamqp import commands
from pamqp.base import Frame
from pamqp.header import ContentHeader

from cut_calls import given_up
from foreign_channel import foreign
from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing import TcpProxy
from pairmq.transport import QueueProperties, Sender, Transport, is_nothing_sent
from pairmq_rabbitmq import _context, _link
from pairmq_rabbitmq._link import Session
from pairmq_rabbitmq._publish import PublishChannel
from pairmq_rabbitmq._publisher import Publisher
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server

QUEUE, TOPIC = Entity("orders"), Entity("prices", EntityKind.TOPIC)
UNAVAILABLE, REFUSED = FailureKind.UNAVAILABLE, FailureKind.REFUSED
Outcome = tuple[FailureKind, FailureReason, bool]


def drained(server: RabbitServer, queue: str = "orders") -> list[tuple[str, bytes]]:
    """Everything that a foreign reader gets from a queue: message ids and bodies."""
    found = []
    with foreign(server) as channel:
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties.message_id, body))


def declare(server: RabbitServer, queue: str = "orders", **arguments: object) -> None:
    with foreign(server) as channel:
        channel.queue_declare(queue, durable=True, arguments={k.replace("_", "-"): v for k, v in arguments.items()})


@pytest.fixture
async def transport(rabbit: RabbitServer) -> AsyncIterator[Transport]:
    declare(rabbit)
    async with registry.transport(f"{rabbit.url}?connect_timeout=30") as transport:
        yield transport


@pytest.fixture
def sender(transport: Transport) -> Sender:
    return transport.sender(QUEUE)


def message(body: bytes = b"", **fields: object) -> Message:
    return Message(body, **{"message_id": uuid.uuid4().hex, **fields})  # type: ignore[arg-type]


async def error_of(call: object) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await call  # type: ignore[misc]
    return caught.value


def outcome(error: TransportError | None) -> Outcome | None:
    return None if error is None else (error.kind, error.reason, error.maybe_applied)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.01)


def publishing(transport: Transport) -> Session | None:
    """The connection that it publishes on, if any."""
    return transport._context.publishing.current  # type: ignore[attr-defined,no-any-return]


# ----------------------------------------------------------------------- what is confirmed


async def test_a_message_is_stored_persistently_under_its_own_id(rabbit: RabbitServer, sender: Sender) -> None:
    await sender.send(Message(b"hello", message_id="m-1", content_type="text/plain", subject="greeting"))
    with foreign(rabbit) as channel:
        _, properties, body = channel.basic_get("orders", auto_ack=True)
    assert (body, properties.message_id, properties.delivery_mode) == (b"hello", "m-1", 2)
    assert (properties.content_type, properties.type, properties.headers) == ("text/plain", "greeting", None)


async def test_batch_is_in_the_queue_in_order(rabbit: RabbitServer, sender: Sender) -> None:
    messages = [message(b"%d" % n + b" " * (n % 7 * 300)) for n in range(2000)]
    assert set(await sender.send_batch(messages)) == {None}
    assert [mid for mid, _ in drained(rabbit)] == [one.message_id for one in messages]


async def test_large_messages_travel_among_small_ones(rabbit: RabbitServer, sender: Sender) -> None:
    sizes = [10, 131_064, 131_065, 3_000_000, 0, 262_200, 1 << 20, (1 << 20) + 1, 5]
    assert set(await sender.send_batch([message(b"x" * size) for size in sizes])) == {None}
    assert [len(body) for _, body in drained(rabbit)] == sizes


async def test_messages_of_one_id_are_all_stored(rabbit: RabbitServer, sender: Sender) -> None:
    twins = [message(b"%d" % n, message_id="twin") for n in range(20)]
    assert set(await sender.send_batch(twins)) == {None}
    await asyncio.gather(*(sender.send(one) for one in twins))
    assert len(drained(rabbit)) == 40


async def test_a_topic_is_published_to_with_the_subject_as_routing_key(
    rabbit: RabbitServer, transport: Transport
) -> None:
    with foreign(rabbit) as channel:
        channel.exchange_declare("prices", "topic", durable=True)
        for name, key in (("all", "#"), ("gold", "metal.gold")):
            channel.queue_declare(name)
            channel.queue_bind(name, "prices", key)
    sender = transport.sender(TOPIC)
    await sender.send(message(b"1", subject="metal.gold"))
    await sender.send(message(b"2", subject="metal.iron"))
    await sender.send(message(b"3"))
    assert [body for _, body in drained(rabbit, "all")] == [b"1", b"2", b"3"]
    assert [body for _, body in drained(rabbit, "gold")] == [b"1"]
    error = await error_of(sender.send(message(subject="x" * 256)))
    assert outcome(error) == (REFUSED, FailureReason.MALFORMED, False)


# ------------------------------------------------------------------------ what is refused


async def test_unroutable_message_is_refused_and_no_other_send_is_affected(
    rabbit: RabbitServer, transport: Transport, sender: Sender
) -> None:
    lost = transport.sender(Entity("nowhere"))
    same_id = message()
    outcomes = await asyncio.gather(
        *(sender.send(message()) for _ in range(200)),
        *(lost.send(message()) for _ in range(20)),
        *(lost.send(same_id) for _ in range(20)),
        *(lost.send(Message(b"without an id")) for _ in range(5)),
        return_exceptions=True,
    )
    assert set(outcomes[:200]) == {None}
    missing = (REFUSED, FailureReason.NOT_FOUND, False)
    assert {outcome(error) for error in outcomes[200:]} == {missing}
    assert set(map(outcome, await lost.send_batch([message() for _ in range(600)]))) == {missing}
    assert len(drained(rabbit)) == 200


async def test_a_topic_that_is_missing_or_has_no_queue_for_a_message_refuses_it(
    rabbit: RabbitServer, transport: Transport
) -> None:
    sender = transport.sender(TOPIC)
    missing = (REFUSED, FailureReason.NOT_FOUND, False)
    assert outcome(await error_of(sender.send(message()))) == missing
    with foreign(rabbit) as channel:
        channel.exchange_declare("prices", "topic", durable=True)
    error = await error_of(sender.send(message()))
    assert outcome(error) == missing
    assert "bound" in str(error)


async def test_sends_are_refused_when_the_queue_is_deleted_during_traffic(rabbit: RabbitServer, sender: Sender) -> None:
    results: list[Outcome | None] = []

    async def keep_sending() -> None:
        while not any(results) or results.count(None) < 50:
            results.append(outcome(await _error(sender.send(message()))))

    tasks = [asyncio.create_task(keep_sending()) for _ in range(10)]
    while results.count(None) < 100:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(rabbit.delete_queue, "orders")
    await asyncio.gather(*tasks)
    assert set(results) == {None, (REFUSED, FailureReason.NOT_FOUND, False)}
    declare(rabbit)
    await sender.send(message())


async def test_what_can_never_be_sent_is_refused_before_it_is_written(rabbit: RabbitServer, sender: Sender) -> None:
    huge = message(application_properties={"note": "x" * 140_000})
    good = [message(), message()]
    outcomes = await sender.send_batch([good[0], huge, good[1]])
    assert list(map(outcome, outcomes)) == [None, (REFUSED, FailureReason.TOO_LARGE, False), None]
    assert len(drained(rabbit)) == 2


async def test_a_publish_that_closes_the_channel_disturbs_no_other(
    rabbit: RabbitServer, transport: Transport, sender: Sender
) -> None:
    """The server's limit on a message's size is learned from a channel that it closes."""
    # RabbitMQ 3 looks at the first one for each channel; from 4 on the second one counts, which is read once.
    limit = "application:set_env(rabbit, max_message_size, {0}), persistent_term:put(max_message_size, {0})"
    before = rabbit.erl("rabbit_misc:get_env(rabbit, max_message_size, 134217728)")
    rabbit.erl(limit.format(1_500_000))
    try:
        declare(rabbit, "other")
        other = transport.sender(Entity("other"))
        calls = [sender.send(message(b"small")) for _ in range(100)]
        calls.insert(50, sender.send(message(b"x" * 2_000_000)))
        calls += [other.send(message()) for _ in range(100)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert outcome(outcomes.pop(50)) == (REFUSED, FailureReason.TOO_LARGE, False)  # type: ignore[arg-type]
        assert set(outcomes) == {None}
        assert len(drained(rabbit)) == 100
        transport.check_message(QUEUE, message(bytes(1_500_000)))
        with pytest.raises(TransportError, match="at most 1500000"):
            transport.check_message(QUEUE, message(bytes(1_500_001)))
    finally:
        rabbit.erl(limit.format(before))


async def test_a_user_who_may_not_write_is_refused_for_certain(rabbit: RabbitServer) -> None:
    declare(rabbit)
    rabbit.add_user("reader", "secret-word", write="")
    async with registry.transport(rabbit.url_for("reader", "secret-word")) as transport:
        outcomes = await transport.sender(QUEUE).send_batch([message() for _ in range(3)])
    assert outcome(outcomes[0]) == (REFUSED, FailureReason.UNAUTHORIZED, False)
    assert not any(error is None or error.maybe_applied for error in outcomes)
    assert "reader" not in repr(outcomes)
    assert drained(rabbit) == []


async def test_a_right_revoked_in_mid_traffic_gives_no_false_refusal(rabbit: RabbitServer) -> None:
    declare(rabbit)
    rabbit.add_user("writer", "secret-word")
    results: dict[str, TransportError | None] = {}
    async with registry.transport(rabbit.url_for("writer", "secret-word")) as transport:
        sender = transport.sender(QUEUE)

        async def keep_sending() -> None:
            for _ in range(20_000):
                one = message()
                error = results[one.message_id or ""] = await _error(sender.send(one))
                if error is not None and error.kind is REFUSED:
                    return

        tasks = [asyncio.create_task(keep_sending()) for _ in range(20)]
        while len(results) < 500:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(rabbit.set_permissions, "writer", write="")
        await asyncio.to_thread(rabbit.erl, 'rabbit_networking:close_all_connections("revoked")')
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
    stored = {mid for mid, _ in drained(rabbit)}
    assert {mid for mid, error in results.items() if error is None} <= stored
    assert not any(mid in stored for mid, error in results.items() if error is not None and not error.maybe_applied)
    assert {error.reason for error in results.values() if error and error.kind is REFUSED} == {
        FailureReason.UNAUTHORIZED
    }


async def test_full_queue_is_unavailable_and_stores_nothing_that_it_rejects(rabbit: RabbitServer) -> None:
    declare(rabbit, "full", x_max_length=3, x_overflow="reject-publish")
    async with registry.transport(rabbit.url) as transport:
        sender = transport.sender(Entity("full"))
        for n in range(3):
            await sender.send(message(b"%d" % n))
        errors = await sender.send_batch([message(b"no") for _ in range(10)])
        assert set(map(outcome, errors)) == {(UNAVAILABLE, FailureReason.QUOTA, False)}
        assert [body for _, body in drained(rabbit, "full")] == [b"0", b"1", b"2"]
        await sender.send(message(b"room"))


async def test_sends_to_a_full_queue_ask_why_together(rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled send leaves the question to the others, and to the probe."""
    declare(rabbit, "full", x_max_length=1, x_overflow="reject-publish")
    asked: list[str] = []
    may_answer = asyncio.Event()
    count = _context.Context.count

    async def slow(context: _context.Context, queue: str, doing: str) -> tuple[int, int]:
        asked.append(doing)
        await may_answer.wait()
        return await count(context, queue, doing)

    async with registry.transport(rabbit.url) as transport:
        sender = transport.sender(Entity("full"))
        await sender.send(message())
        monkeypatch.setattr(_context.Context, "count", slow)
        sends = [asyncio.create_task(error_of(sender.send(message()))) for _ in range(50)]
        while not asked:
            await asyncio.sleep(0.01)
        sends[0].cancel()
        await asyncio.wait(sends, timeout=0.5)  # until the others have asked, too
        may_answer.set()
        results = await asyncio.gather(*sends[1:])
        assert {outcome(error) for error in results} == {(UNAVAILABLE, FailureReason.QUOTA, False)}
        assert len(asked) == 1

        may_answer.clear()
        last = asyncio.create_task(sender.send(message()))
        while len(asked) < 2:
            await asyncio.sleep(0.01)
        last.cancel()
        await asyncio.wait((last,))
        may_answer.set()
        while (await asyncio.gather(transport.admin.probe(Entity("full")), return_exceptions=True))[0] is None:
            await asyncio.sleep(0.01)


async def test_full_backlog_queue_stores_nothing_that_it_rejects(rabbit: RabbitServer) -> None:
    """The broker's reply about such a queue is too long: truncated, it left the send in doubt."""
    queue = Entity("machine-12345--0123456789ab/x-servicebus-transfer/0")
    asked = QueueProperties(max_size_megabytes=1, max_delivery_count=2**31 - 1)
    async with registry.transport(rabbit.url) as transport:
        await transport.admin.create(queue, asked)
        sender = transport.sender(queue)
        errors = await sender.send_batch([Message(bytes(300_000)) for _ in range(30)])
        assert {outcome(error) for error in errors if error is not None} == {(UNAVAILABLE, FailureReason.QUOTA, False)}


async def test_a_topic_with_one_full_queue_may_have_reached_the_others(rabbit: RabbitServer) -> None:
    declare(rabbit, "full", x_max_length=1, x_overflow="reject-publish")
    declare(rabbit, "wide")
    with foreign(rabbit) as channel:
        channel.exchange_declare("prices", "fanout", durable=True)
        for name in ("full", "wide"):
            channel.queue_bind(name, "prices", "")
    async with registry.transport(rabbit.url) as transport:
        sender = transport.sender(TOPIC)
        await sender.send(message())
        assert outcome(await error_of(sender.send(message()))) == (UNAVAILABLE, FailureReason.QUOTA, True)
    assert len(drained(rabbit, "wide")) == 2


# ------------------------------------------------------------------------ what never comes


async def test_an_alarm_blocks_no_caller_and_later_sends_fail_at_once(
    rabbit: RabbitServer, transport: Transport, sender: Sender
) -> None:
    await sender.send(message(b"before"))
    rabbit.block()
    try:
        await given_up(sender.send(message(b"in doubt")))
        session = publishing(transport)
        assert session is not None
        await until(lambda: session.wire.blocked)  # the broker says so when something is published
        for call in (sender.send(message()), sender.send(message())):
            error = await error_of(call)
            assert outcome(error) == (UNAVAILABLE, FailureReason.QUOTA, False)
            assert "alarm" in str(error)
        assert {outcome(error) for error in await sender.send_batch([message()] * 3)} == {outcome(error)}
    finally:
        rabbit.unblock()
    await _until_sent(sender, message(b"after"))
    assert [body for _, body in drained(rabbit)] == [b"before", b"in doubt", b"after"]


async def test_hung_server_blocks_no_caller_and_later_sends_succeed(rabbit: RabbitServer, transport: Transport) -> None:
    sender = transport.sender(QUEUE)
    await sender.send(message(b"before"))
    rabbit.pause()
    try:
        calls = {
            "send": sender.send(message(b"in doubt")),
            "again": sender.send(message(b"not sent")),
            "large": sender.send(message(b"x" * 8_000_000)),
            "batch": sender.send_batch([message(b"y" * 2000) for _ in range(5000)]),
            "other": transport.sender(Entity("other")).send(message()),
            "question": transport.admin.exists(QUEUE),
        }
        for call in calls.values():
            await given_up(call)
    finally:
        rabbit.resume()
    await _until_sent(sender, message(b"after"))
    bodies = [body for _, body in drained(rabbit)]
    assert bodies.count(b"before") == bodies.count(b"after") == 1


async def test_a_send_given_up_while_connecting_left_nothing_in_doubt(rabbit: RabbitServer) -> None:
    declare(rabbit)
    rabbit.pause()
    try:
        async with registry.transport(rabbit.url) as transport:
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.3):
                    await transport.sender(QUEUE).send(message())
            assert is_nothing_sent(caught.value)
    finally:
        rabbit.resume()
    async with registry.transport(rabbit.url) as transport:
        sender = transport.sender(QUEUE)
        await sender.send(message(b"before"))
        rabbit.pause()
        try:
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.3):
                    await sender.send(message(b"in doubt"))
            assert not is_nothing_sent(caught.value)
        finally:
            rabbit.resume()


@pytest.mark.parametrize("how", ["cut", "reset", "cancelled"])
async def test_a_send_that_waits_for_others_does_not_outlive_their_channel(rabbit: RabbitServer, how: str) -> None:
    """A large message waits until it is alone on its channel; the channel is lost, or given up, meanwhile."""
    declare(rabbit)
    with TcpProxy("127.0.0.1", rabbit.port) as proxy:
        async with registry.transport(proxy.rewrite(rabbit.url)) as transport:
            sender = transport.sender(QUEUE)
            await sender.send(message(b"before"))
            proxy.silence("to_client")
            first = asyncio.create_task(sender.send(message(b"first")))
            await asyncio.sleep(0.05)
            large = asyncio.create_task(sender.send(message(b"x" * 2_000_000)))
            await asyncio.sleep(0.05)
            if how == "cancelled":
                first.cancel()
            elif how == "cut":
                proxy.cut()
            else:
                proxy.reset()
            await asyncio.sleep(0.05)
            proxy.restore()
            await asyncio.wait_for(asyncio.gather(first, large, return_exceptions=True), 30)
            error = None if large.exception() is None else large.exception()
            assert error is None or outcome(error) == (UNAVAILABLE, FailureReason.CONNECTION, False)  # type: ignore[arg-type]
            await sender.send(message(b"after"))
    stored = [len(body) for _, body in drained(rabbit)]
    assert stored.count(2_000_000) == (0 if error else 1)


async def test_a_send_that_is_given_up_in_a_stall_leaves_the_connection_to_others(
    rabbit: RabbitServer, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_link, "_AFTERLIFE", 0.01)
    declare(rabbit, "other")
    await transport.sender(QUEUE).send(message())
    await transport.sender(Entity("other")).send(message())
    rabbit.pause()
    try:
        slow = asyncio.create_task(transport.sender(QUEUE).send(message(b"slow")))
        await asyncio.sleep(0.05)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.4):
                await transport.sender(Entity("other")).send(message())
        await asyncio.sleep(0.2)
    finally:
        rabbit.resume()
    await slow
    assert [body for _, body in drained(rabbit)].count(b"slow") == 1


async def test_a_channel_whose_first_publish_has_no_answer_holds_up_no_other_in_a_cluster(
    rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RabbitMQ 3.10 answers a publish that met a quorum queue without a leader seconds after there is one again."""
    write = PublishChannel.write
    unanswered: list[PublishChannel] = []

    async def first_to_nowhere(self: PublishChannel, batch: Any) -> None:
        if unanswered:
            await write(self, batch)
        else:
            unanswered.append(self)

    monkeypatch.setattr(PublishChannel, "write", first_to_nowhere)
    with TcpProxy("127.0.0.1", rabbit.port) as proxy:
        nodes = rabbit.url.replace(f":{rabbit.port}", f":{rabbit.port},127.0.0.1:{proxy.port}")
        async with registry.transport(nodes) as transport:
            await transport.admin.create(QUEUE)
            sender = transport.sender(QUEUE)
            first = asyncio.create_task(sender.send_batch([message(), message()]))
            async with asyncio.timeout(60):
                while not unanswered:
                    await asyncio.sleep(0.01)
                assert await sender.send_batch([message() for _ in range(300)]) == [None] * 300
            assert not first.done()
            first.cancel()
            await asyncio.wait((first,))
    assert len(drained(rabbit)) == 300


async def test_batch_is_in_doubt_when_cancelled_halfway(
    rabbit: RabbitServer, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first part is stored, and the next one has to reconnect, to a hung server."""
    sender = transport.sender(QUEUE)
    await sender.send(message())
    answers = Publisher._answers

    async def then_hang(self: Publisher, batch: Any, scope: Any) -> Any:
        found = await answers(self, batch, scope)
        rabbit.pause()
        batch.channel.session.end(ConnectionResetError("lost"))
        return found

    monkeypatch.setattr(Publisher, "_answers", then_hang)
    try:
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(3):
                await sender.send_batch([message() for _ in range(4500)])  # more than are in flight at a time
    finally:
        rabbit.resume()
    assert not is_nothing_sent(caught.value)


@pytest.mark.parametrize("words", ["vhost maintenance", "access refused for user x", "limit reached"])
async def test_connection_close_is_not_a_refusal_when_its_text_resembles_one(
    rabbit: RabbitServer, sender: Sender, words: str
) -> None:
    """An operator closes the connections while one message is in flight, which may be stored."""
    await sender.send(message())
    outcomes = []
    for _ in range(20):
        sending = asyncio.create_task(_error(sender.send(message())))
        await asyncio.to_thread(rabbit.drop_clients, words)
        outcomes.append(await sending)
    assert {error.kind for error in outcomes if error is not None} <= {UNAVAILABLE}
    assert len(drained(rabbit)) >= 1 + outcomes.count(None)


async def test_sends_given_up_while_their_channel_is_opened_leak_none(rabbit: RabbitServer) -> None:
    declare(rabbit)
    declare(rabbit, "other")
    with TcpProxy("127.0.0.1", rabbit.port) as proxy:
        async with registry.transport(proxy.rewrite(rabbit.url)) as transport:
            await transport.sender(QUEUE).send(message())
            sender = transport.sender(Entity("other"))
            proxy.silence()
            for _ in range(12):
                await given_up(sender.send(message()), 0.15)
            proxy.restore()
            await _until_sent(sender, message())
            await until(lambda: int(rabbit.erl("length(rabbit_channel:list())")) <= 6)


async def test_foreign_message_is_received_when_its_routing_key_is_not_text(rabbit: RabbitServer) -> None:
    declare(rabbit)
    with foreign(rabbit) as channel:
        channel.exchange_declare("any", "fanout")
        channel.queue_bind("orders", "any", "")
        channel.basic_publish("any", "key", b"before", pika.BasicProperties(message_id="1"))
    with socket.create_connection(("127.0.0.1", rabbit.port), timeout=30) as raw:
        _raw_publish(raw, b"any", b"\xff\xfe", b"strange")
    async with registry.transport(rabbit.url) as transport:
        receiver = transport.receiver(Source(QUEUE))
        found: list[bytes] = []
        while len(found) < 2:
            for delivery in await receiver.receive(10, 30):
                found.append(delivery.message.body)
                await receiver.complete(delivery)
    assert found == [b"before", b"strange"]


async def test_kill_9_fails_sends_at_once_and_keeps_every_confirmed_message(
    rabbit: RabbitServer, transport: Transport
) -> None:
    sender = transport.sender(QUEUE)
    confirmed: list[str] = []
    failures: list[TransportError] = []

    async def keep_sending(worker: int) -> None:
        for n in range(100_000):
            error = await _error(sender.send(message(message_id=f"{worker}-{n}")))
            if error is not None:
                failures.append(error)
                return
            confirmed.append(f"{worker}-{n}")

    tasks = [asyncio.create_task(keep_sending(worker)) for worker in range(20)]
    while len(confirmed) < 1000:
        await asyncio.sleep(0.01)
    rabbit.kill()
    await asyncio.wait_for(asyncio.gather(*tasks), 30)
    assert {error.kind for error in failures} == {UNAVAILABLE}
    assert outcome(await error_of(sender.send(message()))) == (UNAVAILABLE, FailureReason.CONNECTION, False)
    rabbit.start()
    await sender.send(message(message_id="after"))
    stored = [mid for mid, _ in drained(rabbit)]
    assert {*confirmed, "after"} <= set(stored)
    assert len(stored) == len(set(stored))
    assert len(stored) <= len(confirmed) + 1 + sum(error.maybe_applied for error in failures)


async def test_dropped_connection_is_raised_and_the_next_send_reconnects(
    rabbit: RabbitServer, transport: Transport, sender: Sender
) -> None:
    for _ in range(3):
        await sender.send(message())
        dropped = publishing(transport)
        rabbit.drop_clients()
        await until(lambda dropped=dropped: dropped is not publishing(transport))  # type: ignore[misc]
        await sender.send(message())  # the loss was noticed meanwhile, and nothing else was tried
    assert len(drained(rabbit)) == 6


async def test_close_ends_sends_in_flight_even_on_a_hung_server(rabbit: RabbitServer, transport: Transport) -> None:
    one, two = transport.sender(QUEUE), transport.sender(QUEUE)
    await one.send(message())
    rabbit.pause()
    try:
        first, second = asyncio.create_task(one.send(message())), asyncio.create_task(two.send(message()))
        await asyncio.sleep(0.05)
        await one.close()
        assert outcome(await error_of(first)) == (UNAVAILABLE, FailureReason.CLOSED, True)
        assert not second.done()
        async with asyncio.timeout(30):
            await transport.close()
        assert outcome(await error_of(second)) == (UNAVAILABLE, FailureReason.CLOSED, True)
        assert outcome(await error_of(two.send(message()))) == (UNAVAILABLE, FailureReason.CLOSED, False)
        assert outcome((await two.send_batch([message()]))[0]) == (UNAVAILABLE, FailureReason.CLOSED, False)
    finally:
        rabbit.resume()


async def test_a_cancelled_send_leaves_the_sender_usable(rabbit: RabbitServer, sender: Sender) -> None:
    await sender.send(message())
    sent = 0
    for n in range(60):
        one = message(b"kept")
        task = asyncio.create_task(sender.send(one))
        for _ in range(n % 12):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        await sender.send(one)  # the same id, while the first may still be on its way
        sent += 1
    assert sum(body == b"kept" for _, body in drained(rabbit)) >= sent


@pytest.mark.parametrize("at_once", [False, True])
async def test_more_entities_than_channels_share_them(
    rabbit: RabbitServer, transport: Transport, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """Also after all were in use at one time: with all that the broker allows, a ping would never find one."""
    monkeypatch.setattr(_context, "_MAX_PUBLISHERS", 5)
    names = [f"q{n}" for n in range(20)]
    for name in names:
        declare(rabbit, name)
    senders = [transport.sender(Entity(name)) for name in names]
    if at_once:
        await asyncio.gather(*(sender.send(message()) for sender in senders))
    for sender in senders * (1 if at_once else 2):
        await sender.send(message())
    # Those in use, those on their way out, the control connection's.
    await until(lambda: int(rabbit.erl("length(rabbit_channel:list())")) <= 5 + 2 + 3)
    assert {rabbit.queues()[name][0] for name in names} == {2}


async def _error(call: object) -> TransportError | None:
    try:
        await call  # type: ignore[misc]
    except TransportError as error:
        return error
    return None


async def _until_sent(sender: Sender, one: Message) -> None:
    """Send it until the server is available again; no failed attempt may have stored it."""
    doubtful: list[TransportError] = []
    async with asyncio.timeout(60):
        while (error := await _error(sender.send(one))) is not None:
            if error.maybe_applied:
                doubtful.append(error)
            await asyncio.sleep(0.05)
    assert not doubtful


def _raw_publish(connection: socket.socket, exchange: bytes, routing_key: bytes, body: bytes) -> None:
    """Publish with a routing key that no client library would write; returns when the broker has closed the channel."""

    def frame(kind: int, channel: int, payload: bytes) -> bytes:
        return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"

    def method(channel: int, frame_: Frame) -> bytes:
        return frame(1, channel, struct.pack(">I", frame_.index) + frame_.marshal())

    connection.sendall(b"AMQP\0\0\x09\x01")
    connection.recv(4096)
    start = commands.Connection.StartOk(mechanism="PLAIN", response="\0guest\0guest")
    connection.sendall(method(0, start))
    connection.recv(4096)
    connection.sendall(method(0, commands.Connection.TuneOk(2047, 131072, 0)) + method(0, commands.Connection.Open()))
    connection.recv(4096)
    connection.sendall(method(1, commands.Channel.Open()))
    connection.recv(4096)
    target = bytes((len(exchange),)) + exchange + bytes((len(routing_key),)) + routing_key
    publish = frame(1, 1, struct.pack(">I", commands.Basic.Publish.index) + b"\0\0" + target + b"\0")
    header = frame(2, 1, ContentHeader(body_size=len(body), properties=commands.Basic.Properties()).marshal())
    connection.sendall(publish + header + frame(3, 1, body) + method(1, commands.Channel.Close(200, "bye", 0, 0)))
    connection.recv(4096)


async def ready(transport: Transport) -> Session:
    """A transport made ready for sends; its connection, with the spare channel open."""
    await transport.sender(QUEUE).make_ready()
    session = transport._context.publishing.current  # type: ignore[attr-defined]
    assert isinstance(session, Session)
    assert session._reserve is not None
    await asyncio.wait((session._reserve,), timeout=30)
    return session


async def test_ready_sender_opens_no_channel_before_the_first_send_to_another_queue(
    transport: Transport, rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(rabbit, "other")
    await ready(transport)
    never = asyncio.Event()

    async def open_channel(*_: object, **__: object) -> None:
        await never.wait()

    monkeypatch.setattr(Session, "open_channel", open_channel)
    async with asyncio.timeout(30):
        await transport.sender(Entity("other")).send(Message(b"1", message_id="1"))
    assert drained(rabbit, "other") == [("1", b"1")]


async def test_a_channel_in_reserve_that_was_closed_is_not_used(transport: Transport, rabbit: RabbitServer) -> None:
    declare(rabbit, "other")
    session = await ready(transport)
    assert session._reserve is not None
    await session._reserve.result().close()
    async with asyncio.timeout(30):
        await transport.sender(Entity("other")).send(Message(b"1", message_id="1"))
    assert drained(rabbit, "other") == [("1", b"1")]


async def test_each_entity_has_the_channel_in_reserve_for_itself(transport: Transport, rabbit: RabbitServer) -> None:
    session = await ready(transport)
    assert session._reserve is not None
    first = session._reserve.result()
    assert session.take_publisher() is first
    assert session.take_publisher() is None
