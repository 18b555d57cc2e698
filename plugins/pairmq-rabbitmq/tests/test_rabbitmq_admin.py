"""Administration on a real server: creating, inspecting, counting, peeking and deleting."""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import pika
import pytest
from aiormq.exceptions import ConnectionInternalError

from foreign_channel import foreign
from ordered_queue import receive
from pairmq.model import Delivery, Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing.conformance.suites import counted
from pairmq.testing.proxy import TcpProxy
from pairmq.transport import Admin, QueueCounts, QueueProperties, Transport
from pairmq_rabbitmq import _inspection
from pairmq_rabbitmq._inspection import interrogate, is_for_one_consumer
from pairmq_rabbitmq._management import effective, policy_for
from pairmq_rabbitmq._properties import arguments_of, properties_of, queue_type_for
from pairmq_rabbitmq.testing import RabbitServer

pytestmark = pytest.mark.real_server

QUEUE = Entity("orders")
TOPIC = Entity("prices", EntityKind.TOPIC)
BACKLOG = QueueProperties(max_size_megabytes=5120, max_delivery_count=2**31 - 1)
PLAIN = QueueProperties(dead_letter_on_expiration=False)
QUORUM, CLASSIC = {"x-queue-type": "quorum"}, {"x-queue-type": "classic"}


def declare(server: RabbitServer, queue: str = "orders", *, durable: bool = True, **options: Any) -> None:
    with foreign(server) as channel:
        channel.queue_declare(queue, durable=durable, **options)


def fill(server: RabbitServer, count: int, queue: str = "orders") -> None:
    with foreign(server) as channel:
        channel.confirm_delivery()
        for number in range(count):
            properties = pika.BasicProperties(message_id=f"m{number}", delivery_mode=2)
            channel.basic_publish("", queue, b"%d" % number, properties)


def all_queues(server: RabbitServer) -> str:
    """All queues of the server, with their arguments."""
    return server.erl(
        "lists:sort([{element(4, amqqueue:get_name(Q)), amqqueue:get_arguments(Q), amqqueue:is_durable(Q),"
        ' amqqueue:is_auto_delete(Q)} || Q <- rabbit_amqqueue:list(<<"/">>)])'
    )


@pytest.fixture
async def transport(rabbit: RabbitServer) -> AsyncIterator[Transport]:
    async with registry.transport(f"{rabbit.url}?connect_timeout=30") as transport:
        yield transport


@pytest.fixture
async def classic(rabbit: RabbitServer) -> AsyncIterator[Transport]:
    async with registry.transport(f"{rabbit.url}?connect_timeout=30&queue_type=classic") as transport:
        yield transport


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.05)


async def told(admin: Admin, source: Source, expected: QueueCounts) -> None:
    """Check the counts: a quorum queue whose leader takes longer than 0.25 s is reported empty."""
    assert await counted(admin, source, expected) == expected


async def listed(admin: Admin, prefix: str, expected: list[Entity]) -> None:
    """Check that entities are listed; the plugin's lists may be a moment old."""
    ends_at = asyncio.get_running_loop().time() + 30
    while (found := await admin.list_entities(prefix)) != expected and asyncio.get_running_loop().time() < ends_at:
        await asyncio.sleep(0.1)
    assert found == expected


async def reason_of(call: object) -> FailureReason:
    with pytest.raises(TransportError) as caught:
        await call  # type: ignore[misc]
    return caught.value.reason


async def send(transport: Transport, entity: Entity, count: int = 1) -> None:
    messages = [Message(b"", message_id=f"m{number}") for number in range(count)]
    assert await transport.sender(entity).send_batch(messages) == [None] * count


# --------------------------------------------------------------------------- making


async def test_creating_twice_changes_nothing(transport: Transport, rabbit: RabbitServer) -> None:
    entity = Entity("contoso/x-servicebus-transfer/0")
    await transport.admin.check()
    assert not await transport.admin.exists(entity)
    assert await transport.admin.create(entity, BACKLOG)
    assert await transport.admin.exists(entity)
    before = all_queues(rabbit)
    assert not await transport.admin.create(entity, QueueProperties(max_delivery_count=3))
    assert BACKLOG.differences(await transport.admin.properties(entity)) == ()
    assert all_queues(rabbit) == before
    assert not transport.admin.is_system_entity(entity)


async def test_a_backlog_queue_loses_nothing(transport: Transport, rabbit: RabbitServer) -> None:
    await transport.admin.create(QUEUE, BACKLOG)
    found = all_queues(rabbit)
    for argument in (
        '{<<"x-queue-type">>,longstr,<<"quorum">>}',
        '{<<"x-dead-letter-strategy">>,longstr,<<"at-least-once">>}',
        '{<<"x-overflow">>,longstr,<<"reject-publish">>}',
        '{<<"x-dead-letter-routing-key">>,longstr,<<"orders/$dead-letter">>}',
        "2147483646",
        str(5120 * 2**20),
    ):
        assert argument in found
    assert set(rabbit.queues()) == {"orders", "orders/$dead-letter"}


async def test_classic_queues_by_option(classic: Transport, rabbit: RabbitServer) -> None:
    assert await classic.admin.create(QUEUE, BACKLOG)
    assert "quorum" not in all_queues(rabbit)
    told = await classic.admin.properties(QUEUE)
    assert told.max_delivery_count is None
    assert BACKLOG.differences(told) == ()


@pytest.mark.parametrize(
    "asked",
    [
        QueueProperties(),
        BACKLOG,
        QueueProperties(max_delivery_count=1),
        QueueProperties(max_delivery_count=10, default_time_to_live=1.5, max_size_megabytes=1),
        QueueProperties(auto_delete_after=3600.0, dead_letter_on_expiration=False),
        QueueProperties(max_delivery_count=2**31, default_time_to_live=4294967.0),
    ],
)
async def test_requested_settings_are_returned(transport: Transport, asked: QueueProperties) -> None:
    assert await transport.admin.create(QUEUE, asked)
    told = await transport.admin.properties(QUEUE)
    assert asked.differences(told) == ()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("default_time_to_live", value) for value in (math.nan, -1, 0, 5e6)),
        *(("auto_delete_after", value) for value in (math.inf, 0)),
        *(("max_delivery_count", value) for value in (2.5, 0, -1)),
        *(("max_size_megabytes", value) for value in (0, 0.5, 2**50)),
    ],
)
async def test_unsupported_setting_is_refused_by_rabbitmq_admin(
    transport: Transport, setting: str, value: float
) -> None:
    with pytest.raises(TransportError, match=setting) as caught:
        await transport.admin.create(QUEUE, QueueProperties(**{setting: value}))  # type: ignore[arg-type]
    assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, FailureReason.MALFORMED)
    assert not await transport.admin.exists(QUEUE)


async def test_queue_of_another_client_is_not_changed(transport: Transport, rabbit: RabbitServer) -> None:
    declare(rabbit, arguments={"x-max-length": 7, "x-message-ttl": 5000}, auto_delete=True, durable=False)
    before = all_queues(rabbit)
    assert not await transport.admin.create(QUEUE, BACKLOG)
    await transport.admin.properties(QUEUE)
    assert all_queues(rabbit) == before


async def test_queue_created_meanwhile_is_not_changed(
    transport: Transport, rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def not_yet(*_: object) -> bool:
        return False

    declare(rabbit, arguments={"x-max-length": 7})
    monkeypatch.setattr(transport.admin, "_is_there", not_yet)
    assert not await transport.admin.create(QUEUE, BACKLOG)
    assert '{<<"x-max-length">>,' in all_queues(rabbit)


async def test_many_at_once(transport: Transport) -> None:
    entities = [Entity(f"q/{number}") for number in range(10)]
    admin = transport.admin
    assert all(await asyncio.gather(*(admin.create(entity, BACKLOG) for entity in entities)))
    assert all(await asyncio.gather(*(admin.exists(entity) for entity in entities)))
    told = await asyncio.gather(*(admin.properties(entity) for entity in entities))
    assert [BACKLOG.differences(one) for one in told] == [()] * 10


@pytest.mark.parametrize("path", ["übung/ö", "a b/c(d)'e'", "$weird/%2F", 'q"uote', "x" * 200, "ü" * 50, "日本" * 36])
async def test_any_name_that_rabbitmq_takes(transport: Transport, rabbit: RabbitServer, path: str) -> None:
    entity, topic = Entity(path), Entity(path, EntityKind.TOPIC)
    assert await transport.admin.create(entity, BACKLOG)
    assert not await transport.admin.create(entity)
    assert await transport.admin.properties(entity) == BACKLOG
    await send(transport, entity)
    await told(transport.admin, Source(entity), QueueCounts(active=1))
    await transport.admin.probe(entity)
    assert len(await transport.admin.peek(Source(entity), 5)) == 1
    assert await transport.admin.purge(Source(entity)) == 1
    await send(transport, entity)
    receiver = transport.receiver(Source(entity))
    [delivery] = await receive(receiver, 1)
    await receiver.complete(delivery)
    assert await transport.admin.delete(entity)
    assert await transport.admin.create(topic)
    assert await transport.admin.create_subscription(topic, "süb")
    await send(transport, topic)
    await told(transport.admin, Source(topic, "süb"), QueueCounts(active=1))
    assert await transport.admin.delete(topic)


async def test_a_long_name_that_is_not_ascii_is_asked_about_over_connections_of_its_own(
    transport: Transport, rabbit: RabbitServer
) -> None:
    """RabbitMQ 4 closes the connection when its refusal would contain such a name."""
    entity = Entity("ü" * 60)
    context = transport._context
    await transport.admin.create(entity, BACKLOG)
    await send(transport, entity)
    held = transport.receiver(Source(QUEUE))
    await transport.admin.create(QUEUE)
    await send(transport, QUEUE)
    [kept] = await receive(held, 1)
    consuming, control = context.consuming.current, context.control.current
    receiver = transport.receiver(Source(entity))
    [delivery] = await receive(receiver, 1)
    apart = context.consuming_of(entity.path)
    assert apart is not context.consuming
    assert context.consuming_of("x" * 200) is context.consuming
    assert apart.current is not None
    apart.current.end(ConnectionResetError("541"))  # as the broker does when the queue is gone
    with pytest.raises(TransportError):
        await receiver.complete(delivery)
    await held.complete(kept)
    assert (context.consuming.current, context.control.current) == (consuming, control)


async def test_a_queue_is_made_although_the_reply_that_it_is_missing_does_not_fit(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with RabbitMQ 4: of its dead-letter queue, too."""
    entity = Entity("日本" * 36)
    ask = transport._context.ask

    async def cut_off(doing: str, question: Any, *args: Any, **options: Any) -> Any:
        try:
            return await ask(doing, question, *args, **options)
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                unknown = TransportError(str(error), FailureKind.UNAVAILABLE, FailureReason.OTHER)
                raise unknown from ConnectionInternalError("INTERNAL_ERROR")
            raise

    monkeypatch.setattr(transport._context, "ask", cut_off)
    assert await transport.admin.create(entity, BACKLOG)
    assert not await transport.admin.create(entity, BACKLOG)


async def test_settings_are_unknown_when_the_reply_does_not_fit(
    transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    entity = Entity("ü" * 60)
    await transport.admin.create(entity, BACKLOG)

    async def refused(_: object) -> object:
        raise ConnectionInternalError("INTERNAL_ERROR")

    context = transport._context  # type: ignore[attr-defined]
    ask = context.ask

    async def cut_off(doing: str, method: Any, link: Any = None) -> Any:
        return await (ask(doing, method, link) if method.passive else context.ask_on(doing, refused, entity.path, link))

    monkeypatch.setattr(context, "ask", cut_off)
    told = await transport.admin.properties(entity)
    assert (told.max_size_megabytes, told.single_consumer) == (None, False)


async def test_a_name_that_is_too_long_is_refused(transport: Transport) -> None:
    for call in (transport.admin.create, transport.admin.exists, transport.admin.delete, transport.admin.probe):
        assert await reason_of(call(Entity("ü" * 130))) is FailureReason.MALFORMED


def test_old_servers_get_classic_queues() -> None:
    assert queue_type_for("quorum", (3, 9, 13), "quorum") == "classic"
    assert queue_type_for("quorum", (3, 10), "classic") == queue_type_for("quorum", (4, 1, 0), "classic") == "quorum"
    assert queue_type_for("classic", (4, 1, 0), "quorum") == "classic"
    assert queue_type_for("quorum", (), "classic") == "quorum"
    assert queue_type_for(None, (3, 10), "quorum") == "quorum"
    assert queue_type_for(None, (3, 10), "classic") == "classic"
    assert queue_type_for(None, (3, 9), "quorum") == "classic"


def test_newer_servers_have_a_default_delivery_limit() -> None:
    assert properties_of({"x-queue-type": "quorum"}, 60.0, server_version=(4, 0, 3)).max_delivery_count == 21
    assert properties_of({"x-queue-type": "classic"}, 60.0, server_version=(4, 0, 3)).max_delivery_count is None
    unlimited = {"x-queue-type": "quorum", "x-delivery-limit": -1}
    assert properties_of(unlimited, 60.0, server_version=(4, 0, 3)).max_delivery_count is None


# --------------------------------------------------------------------------- reading settings


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, PLAIN),
        (CLASSIC, PLAIN),
        (QUORUM, PLAIN),
        ({"x-message-ttl": 1500}, QueueProperties(default_time_to_live=1.5, dead_letter_on_expiration=False)),
        (
            {"x-max-length-bytes": 3 * 2**20, "x-overflow": "drop-head", "x-max-length": 4},
            QueueProperties(max_size_megabytes=3, dead_letter_on_expiration=False, drops_when_full=True),
        ),
        (
            {"x-max-length-bytes": 1000, "x-expires": 90_000, "x-dead-letter-exchange": "it's 'd"},
            QueueProperties(max_size_megabytes=1, auto_delete_after=90.0, drops_when_full=True),
        ),
        (
            {"x-queue-mode": "lazy", "x-max-priority": 3, "x-single-active-consumer": True, **CLASSIC},
            PLAIN,
        ),
        ({"x-foreign": [1, 2], "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "ä"}, QueueProperties()),
        (
            {**QUORUM, "x-delivery-limit": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "other"},
            QueueProperties(max_delivery_count=6),
        ),
        (
            {**QUORUM, "x-delivery-limit": 2**31 - 2, "x-quorum-initial-group-size": 1, "x-message-ttl": 2**31},
            QueueProperties(
                max_delivery_count=2**31 - 1, default_time_to_live=2147483.648, dead_letter_on_expiration=False
            ),
        ),
        (
            {**QUORUM, "x-max-length": 5, "x-single-active-consumer": True, "x-max-in-memory-length": 0},
            QueueProperties(dead_letter_on_expiration=False, single_consumer=True, drops_when_full=True),
        ),
        (
            {"x-queue-type": "stream", "x-max-age": "1D", "x-max-length-bytes": 2**30},
            QueueProperties(max_size_megabytes=1024, dead_letter_on_expiration=False, keeps_completed=True),
        ),
    ],
)
async def test_settings_of_a_foreign_queue_are_found_without_management(
    transport: Transport, classic: Transport, rabbit: RabbitServer, arguments: dict[str, Any], expected: QueueProperties
) -> None:
    declare(rabbit, arguments=arguments)
    before = all_queues(rabbit)
    quorum = arguments.get("x-queue-type") == "quorum"
    if quorum and "x-delivery-limit" not in arguments and await transport._context.server_version("ask") >= (4,):
        expected = replace(expected, max_delivery_count=21)  # the broker's own limit
    assert await transport.admin.properties(QUEUE) == expected
    assert await classic.admin.properties(QUEUE) == expected
    assert all_queues(rabbit) == before


@pytest.mark.parametrize(("durable", "auto_delete"), [(False, False), (False, True), (True, True)])
async def test_flags_are_found_out(
    transport: Transport, rabbit: RabbitServer, durable: bool, auto_delete: bool
) -> None:
    declare(rabbit, durable=durable, auto_delete=auto_delete, arguments={"x-message-ttl": 9000})
    guess = arguments_of(BACKLOG, "quorum", "d", "ask")
    found = await interrogate(transport._context, "orders", guess, "ask")
    assert (found.durable, found.auto_delete, found.complete) == (durable, auto_delete, True)
    # From 4 on RabbitMQ names the type also of a queue that was made without.
    assert {**found.arguments, "x-queue-type": "classic"} == {"x-message-ttl": 9000, "x-queue-type": "classic"}
    told = await transport.admin.properties(QUEUE)
    assert told.auto_delete_after == (0.0 if auto_delete else None)


async def test_settings_of_what_does_not_exist(transport: Transport, rabbit: RabbitServer) -> None:
    assert await reason_of(transport.admin.properties(QUEUE)) is FailureReason.NOT_FOUND
    assert await reason_of(transport.admin.properties(TOPIC)) is FailureReason.NOT_FOUND
    assert rabbit.queues() == {}


@pytest.mark.parametrize("type_", ["classic", "quorum"])
async def test_interrogation_never_creates_a_queue(
    transport: Transport, rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch, type_: str
) -> None:
    declare(rabbit, arguments={"x-queue-type": type_, "x-message-ttl": 9000})
    understand = _inspection._difference

    def delete_first(words: str) -> tuple[str, Any] | None:
        if rabbit.queues():
            rabbit.delete_queue("orders")
        return understand(words)

    monkeypatch.setattr(_inspection, "_difference", delete_first)
    assert await reason_of(transport.admin.properties(QUEUE)) is FailureReason.NOT_FOUND
    assert rabbit.queues() == {}


async def test_interrogation_ends_when_a_reply_is_not_understood(
    transport: Transport, rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(rabbit, arguments={"x-message-ttl": 9000, "x-expires": 60_000})
    understand = _inspection._difference

    def not_all(words: str) -> tuple[str, Any] | None:
        found = understand(words)
        return None if found and found[0] == "x-max-length-bytes" else found

    monkeypatch.setattr(_inspection, "_difference", not_all)
    told = await transport.admin.properties(QUEUE)
    assert (told.default_time_to_live, told.auto_delete_after, told.max_size_megabytes) == (9.0, 60.0, None)
    assert "max_size_megabytes" in told.unread
    assert not {"default_time_to_live", "auto_delete_after"} & set(told.unread)


async def test_settings_are_unknown_when_the_user_may_not_configure(rabbit: RabbitServer) -> None:
    declare(rabbit, arguments={"x-message-ttl": 9000})
    rabbit.add_user("reader", "secret", vhost="/", configure="")
    async with registry.transport(rabbit.url_for("reader", "secret")) as transport:
        assert not await transport.admin.create(QUEUE)
        told = await transport.admin.properties(QUEUE)
        assert {"default_time_to_live", "max_size_megabytes"} <= set(told.unread)
        [unknown] = QueueProperties(max_size_megabytes=5120).differences(told)
        assert unknown.startswith("unknown, as the broker does not show it to this user: max_size_megabytes")
        assert await reason_of(transport.admin.create(Entity("new"))) is FailureReason.UNAUTHORIZED
    assert set(rabbit.queues()) == {"orders"}


@pytest.mark.parametrize("lacking", ["read", "write"])
async def test_a_queue_that_may_not_be_created_leaves_no_dead_letter_queue_behind(rabbit, lacking: str) -> None:
    """RabbitMQ lets only those create a queue that dead-letters who may read it, and write to its exchange."""
    rabbit.add_user(f"no-{lacking}", "secret", vhost="/", **{lacking: ""})
    async with registry.transport(rabbit.url_for(f"no-{lacking}", "secret")) as transport:
        assert await reason_of(transport.admin.create(QUEUE, QueueProperties())) is FailureReason.UNAUTHORIZED
    assert rabbit.queues() == {}


async def test_a_dead_letter_queue_that_was_there_stays_when_its_queue_may_not_be_created(
    transport: Transport, rabbit: RabbitServer
) -> None:
    await transport.admin.create(QUEUE, QueueProperties())
    rabbit.delete_queue(QUEUE.path)
    left = set(rabbit.queues())
    assert len(left) == 1
    rabbit.add_user("no-read", "secret", vhost="/", read="")
    async with registry.transport(rabbit.url_for("no-read", "secret")) as limited:
        assert await reason_of(limited.admin.create(QUEUE, QueueProperties())) is FailureReason.UNAUTHORIZED
    assert set(rabbit.queues()) == left


# --------------------------------------------------------------------------- counting, showing, deleting


@pytest.mark.parametrize("type_", ["classic", "quorum"])
async def test_counts_and_purge(rabbit: RabbitServer, type_: str) -> None:
    async with registry.transport(f"{rabbit.url}?queue_type={type_}") as transport:
        admin, source, dead = transport.admin, Source(QUEUE), Source(QUEUE, dead_letter=True)
        await admin.create(QUEUE)
        await send(transport, QUEUE, 5)
        await told(admin, source, QueueCounts(active=5))
        receiver = transport.receiver(source)
        locked = await receive(receiver, 2)
        await told(admin, source, QueueCounts(active=3, locked=2))
        await receiver.dead_letter(locked[0], "bad", "really")
        await told(admin, source, QueueCounts(active=3, locked=1, dead_letter=1))
        await told(admin, dead, QueueCounts(active=1))
        assert await admin.purge(source) == 3
        await told(admin, source, QueueCounts(locked=1, dead_letter=1))
        assert await admin.purge(dead) == 1
        assert await admin.purge(dead) == 0


async def test_counts_purge_and_peek_raise_not_found_when_the_queue_is_missing(
    transport: Transport, rabbit: RabbitServer
) -> None:
    admin, dead = transport.admin, Source(QUEUE, dead_letter=True)
    for source in (Source(QUEUE), dead, Source(TOPIC, "s")):
        assert await reason_of(admin.counts(source)) is FailureReason.NOT_FOUND
        assert await reason_of(admin.purge(source)) is FailureReason.NOT_FOUND
        assert await reason_of(admin.peek(source, 1)) is FailureReason.NOT_FOUND
    declare(rabbit)  # without a dead-letter queue
    assert await admin.counts(Source(QUEUE)) == await admin.counts(dead) == QueueCounts()
    assert await admin.purge(dead) == 0
    assert await admin.peek(dead, 3) == []


@pytest.mark.parametrize("arguments", [CLASSIC, QUORUM])
async def test_peek_shows_messages_and_releases_them(
    transport: Transport, rabbit: RabbitServer, arguments: dict[str, Any]
) -> None:
    declare(rabbit, arguments=arguments)
    fill(rabbit, 20)
    shown: list[Delivery] = []
    for _ in range(3):
        shown = await transport.admin.peek(Source(QUEUE), 7)
        assert [delivery.message.body for delivery in shown] == [b"%d" % number for number in range(7)]
        # A server's own statistics of a quorum queue are some seconds old.
        await told(transport.admin, Source(QUEUE), QueueCounts(active=20))
    assert len(await transport.admin.peek(Source(QUEUE), 10_000)) == 20
    receiver = transport.receiver(Source(QUEUE))
    assert await reason_of(receiver.complete(shown[0])) is FailureReason.LOCK_LOST
    received = await receiver.receive(50, 30)
    assert received[0].message.body == b"0"
    await receiver.close()


async def test_those_that_look_at_a_record_at_one_time_each_see_all_of_it(connect: Callable[..., Transport]) -> None:
    """Its messages were dealt out to all of them; none saw the whole, and each looked again and again."""
    record = Entity("east/switch/x-pairmq-record")
    first, *others = [connect() for _ in range(9)]
    await first.admin.create(record, BACKLOG)
    assert not any(await first.sender(record).send_batch([Message(b"%d" % n, message_id=f"m{n}") for n in range(5)]))
    for transport in others:  # is connected, and knows the queue
        assert len(await transport.admin.peek(Source(record), 500)) == 5
    for _ in range(3):
        looks = await asyncio.gather(*(transport.admin.peek(Source(record), 500) for transport in others))
        assert [[delivery.message.body for delivery in look] for look in looks] == [[b"0", b"1", b"2", b"3", b"4"]] * 8


async def test_a_few_messages_of_a_record_are_released_before_their_reader_has_them(rabbit: RabbitServer) -> None:
    """Ten processes that looked at one time waited for each other, for a round trip each."""
    record = Entity("east/switch/x-pairmq-record")
    five = [b"%d" % number for number in range(5)]

    async def peek(transport: Transport, most: int) -> list[bytes]:
        return [delivery.message.body for delivery in await transport.admin.peek(Source(record), most)]

    with TcpProxy("127.0.0.1", rabbit.port) as proxy:
        async with registry.transport(rabbit.url) as near, registry.transport(proxy.rewrite(rabbit.url)) as far:
            await near.admin.create(record, BACKLOG)
            assert not any(await near.sender(record).send_batch([Message(body) for body in five]))
            assert await peek(far, 7) == five
            proxy.silence("to_client")
            came = proxy.bytes_to_server
            looking = asyncio.create_task(peek(far, 5))
            await until(lambda: proxy.bytes_to_server > came)
            await told(near.admin, Source(record), QueueCounts(active=5))
            assert await peek(near, 5) == five
            assert not looking.done()
            proxy.restore()
            assert await looking == five
            assert await peek(near, 2) == five[:2]
            missing = Source(Entity("west/switch/x-pairmq-record"))
            for _ in range(2):
                assert await reason_of(near.admin.peek(missing, 5)) is FailureReason.NOT_FOUND


@pytest.mark.parametrize("most", [10, 11, 32, 33])
async def test_so_many_messages_of_a_record_are_shown(transport: Transport, most: int) -> None:
    """The driver keeps ten answers of a channel: after those it read no further, and a ninth decision hung."""
    record = Entity("east/switch/x-pairmq-record")
    bodies = [b"%d" % number for number in range(70)]
    await transport.admin.create(record, BACKLOG)
    assert not any(await transport.sender(record).send_batch([Message(body) for body in bodies]))
    for _ in range(2):
        shown = await transport.admin.peek(Source(record), most)
        assert [delivery.message.body for delivery in shown] == bodies[:most]
        await told(transport.admin, Source(record), QueueCounts(active=70))


async def test_peek_shows_why_a_message_is_dead(transport: Transport) -> None:
    await transport.admin.create(QUEUE)
    await send(transport, QUEUE)
    receiver = transport.receiver(Source(QUEUE))
    [delivery] = await receiver.receive(1, 30)
    await receiver.dead_letter(delivery, "bad", "a sentence")
    [shown] = await transport.admin.peek(Source(QUEUE, dead_letter=True), 1)
    assert (shown.dead_letter_reason, shown.dead_letter_description) == ("bad", "a sentence")


async def test_peek_shows_the_rest_when_another_client_holds_messages(
    transport: Transport, rabbit: RabbitServer
) -> None:
    declare(rabbit)
    fill(rabbit, 5)
    with foreign(rabbit) as channel:
        for _ in range(3):
            channel.basic_get("orders")
        found = await transport.admin.peek(Source(QUEUE), 10)
        assert [delivery.message.body for delivery in found] == [b"3", b"4"]


async def test_peek_releases_what_it_fetched_when_cancelled(transport: Transport, rabbit: RabbitServer) -> None:
    declare(rabbit)
    fill(rabbit, 5)
    for delay in (0.0, 0.001, 0.002, 0.004, 0.008):
        peeking = asyncio.create_task(transport.admin.peek(Source(QUEUE), 5))
        await asyncio.sleep(delay)
        peeking.cancel()
        # It does not wait for the server to give back: a few turns of the loop are enough.
        for _ in range(10):
            await asyncio.sleep(0)
        assert peeking.done()
    await until(lambda: rabbit.queues()["orders"] == (5, 0))


async def test_delete_takes_the_dead_letter_queue_along(transport: Transport, rabbit: RabbitServer) -> None:
    assert not await transport.admin.delete(QUEUE)
    await transport.admin.create(QUEUE)
    await send(transport, QUEUE)
    assert await transport.admin.delete(QUEUE)
    assert not await transport.admin.delete(QUEUE)
    assert rabbit.queues() == {}
    assert await reason_of(transport.sender(QUEUE).send(Message(b"", message_id="x"))) is FailureReason.NOT_FOUND


async def test_cancelled_interrogations_leave_no_channels(transport: Transport, rabbit: RabbitServer) -> None:
    await transport.admin.check()
    for turn in range(40):
        task = asyncio.create_task(transport.admin.create_subscription(TOPIC, "s"))
        for _ in range(turn % 8):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        await asyncio.sleep(0.01)
    await transport.admin.check()
    await until(lambda: int(rabbit.erl("length(rabbit_channel:list())")) < 8)  # some are being closed


async def test_admin_calls_raise_unavailable_when_the_broker_is_down(
    transport: Transport, rabbit: RabbitServer
) -> None:
    await transport.admin.create(QUEUE)
    rabbit.go_down()
    for call in (
        transport.admin.check(),
        transport.admin.exists(QUEUE),
        transport.admin.create(QUEUE),
        transport.admin.properties(QUEUE),
        transport.admin.counts(Source(QUEUE)),
    ):
        with pytest.raises(TransportError) as caught:
            await call
        assert caught.value.kind is FailureKind.UNAVAILABLE
    rabbit.come_up()
    assert await transport.admin.exists(QUEUE)


async def test_listing_without_management_says_what_to_do(transport: Transport) -> None:
    with pytest.raises(TransportError, match=r"\?management=http://host:15672") as caught:
        await transport.admin.list_entities()
    assert caught.value.reason is FailureReason.NOT_SUPPORTED


def test_system_entities(rabbit: RabbitServer) -> None:
    admin = registry.transport(rabbit.url).admin
    for path in ("amq.topic", "pairmq.ping", "pairmq.delay.3", "orders/$dead-letter", f"$x/{uuid.uuid4()}"):
        assert admin.is_system_entity(Entity(path))
    for path in ("orders", "amqp", "pairmq", "a/b.c"):
        assert not admin.is_system_entity(Entity(path))


# --------------------------------------------------------------------------- through the management plugin


@pytest.fixture(scope="module")
def managed_server() -> Iterator[RabbitServer]:
    with RabbitServer(management=True) as server:
        yield server


@pytest.fixture
async def managed(managed_server: RabbitServer) -> AsyncIterator[Transport]:
    managed_server.reset()
    url = f"{managed_server.url}?management={managed_server.management_url}"
    async with registry.transport(url) as transport:
        yield transport


async def test_listing(managed: Transport, managed_server: RabbitServer) -> None:
    admin = managed.admin
    await listed(admin, "", [])
    for path in ("b/2", "a/1", "a/ü", "c.d"):
        await admin.create(Entity(path))
    await admin.create(TOPIC)
    await admin.create_subscription(TOPIC, "s")
    await admin.probe(TOPIC)
    declare(managed_server, "not[an]entity")
    await listed(admin, "", [Entity("a/1"), Entity("a/ü"), Entity("b/2"), Entity("c.d"), TOPIC])
    await listed(admin, "a/", [Entity("a/1"), Entity("a/ü")])
    await listed(admin, "/", [])


async def test_a_long_list_comes_in_pages(managed: Transport, managed_server: RabbitServer) -> None:
    with foreign(managed_server) as channel:
        for number in range(1010):
            channel.queue_declare(f"q{number:04}")
    await listed(managed.admin, "q", [Entity(f"q{number:04}") for number in range(1010)])


async def test_a_topic_is_deleted_with_its_subscriptions(managed: Transport, managed_server: RabbitServer) -> None:
    await managed.admin.create(TOPIC)
    await managed.admin.create(Entity("prices"))
    for name in ("a", "b/c"):
        await managed.admin.create_subscription(TOPIC, name)
    management = managed.admin._management  # type: ignore[attr-defined]
    async with asyncio.timeout(30):
        while len(await management.queues("prices/$subscriptions/", "list")) < 4:  # two, and their dead letters
            await asyncio.sleep(0.1)
    assert await managed.admin.delete(TOPIC)
    assert set(managed_server.queues()) == {"prices", "prices/$dead-letter"}


async def test_settings_with_policies(managed: Transport, managed_server: RabbitServer) -> None:
    await managed.admin.create(Entity("a ü/1"), BACKLOG)
    assert BACKLOG.differences(await managed.admin.properties(Entity("a ü/1"))) == ()
    declare(managed_server, arguments={"x-message-ttl": 5000, "x-max-length-bytes": 2**20})
    assert (await managed.admin.properties(QUEUE)).default_time_to_live == 5.0
    definition = {"message-ttl": 2000, "max-length-bytes": 2**30, "expires": 90_000, "dead-letter-exchange": "x"}
    managed_server.set_policy("p", "^orders$", definition)
    expected = QueueProperties(
        max_size_megabytes=1, default_time_to_live=2.0, auto_delete_after=90.0, drops_when_full=True
    )
    assert await managed.admin.properties(QUEUE) == expected
    managed_server.add_user("viewer", "secret", tags=("management",))  # may not look at policies
    where = managed_server.management_url.replace("//", "//viewer:secret@")
    async with registry.transport(f"{managed_server.url}?management={where}") as viewer, asyncio.timeout(60):
        while await viewer.admin.properties(QUEUE) != expected:  # the plugin hears of policies every 5 s
            await asyncio.sleep(0.2)
    assert await reason_of(managed.admin.properties(Entity("none"))) is FailureReason.NOT_FOUND


@pytest.mark.parametrize("operator", [False, True])
async def test_policy_that_makes_backlog_queues_drop_is_reported(
    managed: Transport, managed_server: RabbitServer, operator: bool
) -> None:
    """Also for a queue that was created just now."""
    if operator:
        definition = '[{<<"message-ttl">>, 1000}]'
        managed_server.erl(
            f'ok = rabbit_policy:set_op(<<"/">>, <<"p">>, <<".">>, {definition}, 0, <<"queues">>, <<"test">>)'
        )
    else:
        managed_server.set_policy("other", "^x", {"overflow": "reject-publish"})
        managed_server.set_policy("p", ".", {"overflow": "drop-head", "max-length": 5})
    await managed.admin.create(QUEUE, BACKLOG)
    found = BACKLOG.differences(await managed.admin.properties(QUEUE))
    assert found == (
        ("default_time_to_live is 1.0, asked for None" if operator else "drops_when_full is True, asked for False"),
    )


@pytest.mark.parametrize(
    ("policies", "told"),
    [
        ([], {}),
        ([{"pattern": "^o", "apply-to": "queues", "definition": {"a": 1}}], {"a": 1}),
        ([{"pattern": "r", "apply-to": "all", "definition": {"a": 1}}], {"a": 1}),
        ([{"pattern": "^r", "apply-to": "all", "definition": {"a": 1}}], {}),
        ([{"pattern": ".", "apply-to": "exchanges", "definition": {"a": 1}}], {}),
        ([{"pattern": ".", "apply-to": "classic_queues", "definition": {"a": 1}}], {}),
        ([{"pattern": ".", "apply-to": "quorum_queues", "definition": {"a": 1}}], {"a": 1}),
        (
            [
                {"pattern": ".", "apply-to": "all", "priority": 1, "definition": {"a": 1}},
                {"pattern": ".", "apply-to": "all", "priority": 5, "definition": {"b": 1}},
                {"pattern": ".", "apply-to": "all", "priority": 3, "definition": {"c": 1}},
            ],
            {"b": 1},
        ),
        ([None, {"pattern": ".", "apply-to": "all"}], {}),
    ],
)
def test_the_policy_of_a_queue_is_found(policies: list[Any], told: dict[str, Any]) -> None:
    assert policy_for("orders", "quorum", policies) == told


def test_policies_count_as_the_broker_counts_them() -> None:
    own = {"x-queue-type": "quorum", "x-overflow": "reject-publish", "x-max-length": 9, "x-dead-letter-exchange": "d"}
    policy = {"overflow": "drop-head", "max-length": 5, "dead-letter-exchange": "other", "message-ttl": 1}
    assert effective(own, policy) == {**own, "x-overflow": "drop-head", "x-max-length": 5, "x-message-ttl": 1}
    classic = {**own, "x-queue-type": "classic"}
    assert effective(classic, policy) == {**classic, "x-max-length": 5, "x-message-ttl": 1}
    operator = {"max-length": 7, "overflow": "reject-publish"}
    assert effective(own, policy, operator)["x-overflow"] == "reject-publish"
    assert effective(own, policy, operator)["x-max-length"] == 5


async def test_management_errors_are_raised_when_it_refuses_or_is_down(managed_server: RabbitServer) -> None:
    managed_server.reset()
    managed_server.add_user("plain", "s3cret-word")
    where = managed_server.management_url
    for inner, kind in (
        (where.replace("//", "//guest:wr0ng-word@"), FailureKind.REFUSED),
        (where.replace("//", "//plain:s3cret-word@"), FailureKind.REFUSED),
        ("http://127.0.0.1:1", FailureKind.UNAVAILABLE),
        (managed_server.url.replace("amqp", "http").rstrip("/"), FailureKind.UNAVAILABLE),
    ):
        async with registry.transport(f"{managed_server.url}?management={inner}") as transport:
            with pytest.raises(TransportError) as caught:
                await transport.admin.list_entities()
            assert caught.value.kind is kind
            assert "-word" not in repr(caught.value)
            assert "-word" not in repr(caught.value.__cause__)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:%d/else\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200_000,
        b'HTTP/1.1 200 OK\r\n\r\n{"items": 5}',
        b'HTTP/1.1 200 OK\r\n\r\n["name"]',
        b"HTTP/1.1 500 Oh\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}",
        b"\x00\x01\x02",
        b"",
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (33 * 2**20),
    ],
    ids=["redirect", "nested", "no-list", "no-table", "error", "cut-off", "no-http", "nothing", "endless"],
)
async def test_answers_of_something_else(rabbit: RabbitServer, answer: bytes) -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        port = writer.get_extra_info("sockname")[1]
        with contextlib.suppress(ConnectionError):
            writer.write(answer.replace(b"%d", b"%d" % port))
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with registry.transport(f"{rabbit.url}?management=http://127.0.0.1:{port}") as transport:
            with pytest.raises(TransportError) as caught:
                await transport.admin.list_entities()
    assert caught.value.kind is FailureKind.UNAVAILABLE
    assert asked == 1


async def test_management_that_never_answers(rabbit: RabbitServer) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"{rabbit.url}?connect_timeout=0.5&management=http://127.0.0.1:{port}"
        async with registry.transport(url) as transport:
            assert await reason_of(transport.admin.list_entities()) is FailureReason.TIMEOUT
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await transport.admin.list_entities()
            await asyncio.sleep(0.5)


async def test_what_has_no_sessions_is_not_made_to_require_them(transport: Transport) -> None:
    with pytest.raises(TransportError) as caught:
        await transport.admin.create(QUEUE, QueueProperties(requires_session=True))
    assert caught.value.reason is FailureReason.NOT_SUPPORTED
    assert not await transport.admin.exists(QUEUE)
    with pytest.raises(TransportError) as caught:
        await transport.accept_session(Source(QUEUE), "s", wait=0)
    assert caught.value.reason is FailureReason.NOT_SUPPORTED


async def judge_confirm_risks(admin: Admin, server: RabbitServer, *unseen: str) -> None:
    declare(server, "transient", durable=False)
    declare(server, "classic")
    declare(server, "quorum", arguments=QUORUM)
    assert await admin.confirm_risks() == ()
    for queue, risks in (("quorum", ()), ("transient", ("not durable",)), ("classic", ("classic queue",))):
        found = await admin.confirm_risks(Entity(queue))
        for risk, text in zip(found, (*risks, *unseen), strict=True):
            assert text in risk.text


async def test_confirm_risks_name_a_queue_that_is_not_durable_and_a_classic_one(transport, rabbit) -> None:
    await judge_confirm_risks(transport.admin, rabbit, "AMQP does not show policies")


async def test_confirm_risks_are_named_alike_through_the_management_plugin(managed, managed_server) -> None:
    await judge_confirm_risks(managed.admin, managed_server)


@pytest.mark.parametrize(
    ("properties", "single", "most"),
    [
        (replace(BACKLOG, max_size_megabytes=None), False, 2),  # of a pair's record
        (BACKLOG, False, 3),
        (replace(BACKLOG, single_consumer=True), True, 3),
        (PLAIN, False, 1),
    ],
)
async def test_few_questions_show_whether_a_queue_of_ours_is_for_one_consumer(
    transport: Transport, monkeypatch: pytest.MonkeyPatch, properties: QueueProperties, single: bool, most: int
) -> None:
    """Each costs a distant syphon two round trips before its first message."""
    await transport.admin.create(QUEUE, properties)
    context, asked = transport._context, []
    ask = context.ask

    async def counted(doing: str, *arguments: Any, **options: Any) -> Any:
        asked.append(doing)
        return await ask(doing, *arguments, **options)

    monkeypatch.setattr(context, "ask", counted)
    assert await is_for_one_consumer(context, QUEUE.path, "ask") is single
    assert len(asked) <= most


async def test_a_queue_of_ours_with_a_foreign_exchange_for_dead_letters_is_read_as_what_it_is(
    transport: Transport, rabbit: RabbitServer
) -> None:
    arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "dead", "x-single-active-consumer": True}
    declare(rabbit, arguments=arguments)
    declare(rabbit, "plain", arguments={"x-dead-letter-exchange": "dead", "x-dead-letter-routing-key": "k"})
    assert await is_for_one_consumer(transport._context, "orders", "ask")
    assert not await is_for_one_consumer(transport._context, "plain", "ask")


async def test_connections_are_opened_ahead_for_what_is_asked(transport: Transport) -> None:
    context = transport._context
    await transport.make_ready()
    assert (context.publishing.current, context.consuming.current) == (None, None)
    await transport.make_ready(sends=True)
    assert context.publishing.current is not None
    assert context.consuming.current is None
    await transport.make_ready(sends=True, receives=True)
    assert context.consuming.current is not None


async def test_a_server_that_is_down_refuses_to_be_connected_to_ahead(rabbit: RabbitServer) -> None:
    transport = registry.transport("amqp://guest:guest@127.0.0.1:1/")
    with pytest.raises(TransportError) as refused:
        await transport.make_ready(sends=True, receives=True)
    assert refused.value.kind is FailureKind.UNAVAILABLE
    await transport.close()
