"""What sending keeps: every field, the order, and the truth about each message; to topics and sessions as well."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from pairmq.model import (
    MAX_NESTING,
    Entity,
    EntityKind,
    FailureKind,
    FailureReason,
    Message,
    PropertyValue,
    Source,
    TransportError,
)
from pairmq.testing.conformance._broker import (
    LOCK_LOST,
    MISSING,
    NOT_FOUND,
    NOT_SUPPORTED,
    Broker,
    LockClock,
    Suite,
    bodies,
    capability,
    counted,
    limit,
    limits,
    message,
    must_fail,
    of_size,
    receive_all,
    receive_one,
    refusal,
    refused,
    testable_limit,
)
from pairmq.transport import QueueCounts, QueueProperties, SessionReceiver

_TEXTS = {
    "content_type": "application/json; charset=utf-8",
    "content_encoding": "gzip",
    "correlation_id": "order 17/ä",
    "subject": "order.placed",
    "to": "billing",
    "reply_to": "answers/inbox",
    "reply_to_session_id": "session of the answer",
}
_FREE_TEXTS = [name for name in _TEXTS if name != "reply_to_session_id"]
_LARGE = 50_000
_LIVES = 86_400.123456
_AROUND_A_LARGE_ONE = ("a1", "b1", "large", "a2", "b2", "a3")

_ZONE_OF_INDIA = "2031-05-06T07:08:09.123456+05:30"
_VALUES: dict[str, PropertyValue] = {
    "text": "grüße, 世界 😀",
    "text empty": "",
    "text with nul": "a\x00b",
    "text like a number": "17",
    "bytes": bytes(range(256)),
    "bytes empty": b"",
    "bytes that are text": b"text",
    "true": True,
    "false": False,
    "int 0": 0,
    "int 1": 1,
    "int negative": -1,
    "int 32 bits": -(2**31),
    "int beyond 32 bits": 2**31,
    "int lowest": -(2**63),
    "int highest": 2**63 - 1,
    "float": 0.1,
    "float whole": 1.0,
    "float negative zero": -0.0,
    "float largest": 1.7976931348623157e308,
    "float smallest": 5e-324,
    "decimal": Decimal("12.50"),
    "decimal whole": Decimal("7"),
    "decimal lowest": Decimal("-2147483648"),
    "decimal finest": Decimal((0, (1,), -255)),
    "instant": datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC),
    "instant with microseconds": datetime.fromisoformat(_ZONE_OF_INDIA),
    "instant before 1970": datetime(1901, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    "instant far away": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "nothing": None,
    "sequence": (1, "two", b"three", None, (4.0, ())),
    "mapping": {"a": 1, "b": {"c": (True, Decimal("0.5"))}, "empty": {}},
    "ß, a name with = and spaces": "named",
    "n" * 128: "a long name",
}


async def _keeps_sessions_in_order(broker: Broker) -> None:
    """What `Sender.send_in_order` promises, in one round trip or in many."""
    queue = await broker.queue()
    sender = broker.sender(queue)
    assert list(await sender.send_in_order([])) == []
    sessions = ("a", "b", None)
    sent = [message(str(number), session_id=sessions[number * number % 7 % 3]) for number in range(60)]
    assert list(await sender.send_in_order(sent)) == [None] * 60
    assert bodies(await receive_all(broker.receiver(queue), 60)) == [str(number) for number in range(60)]
    most = testable_limit(broker)
    if most is None:
        return
    large = replace(of_size(broker, most + 1), session_id="a")
    batch = [large if body == "large" else message(body, session_id=body[0]) for body in _AROUND_A_LARGE_ONE]
    outcomes = await sender.send_in_order(batch)
    assert [error is None for error in outcomes] == [body[0] == "b" or body == "a1" for body in _AROUND_A_LARGE_ONE]
    assert outcomes[2] is not None and outcomes[2].reason is FailureReason.TOO_LARGE
    assert not any(error.maybe_applied for error in outcomes if error), "none of them can have been stored"
    received = bodies(await receive_all(broker.receiver(queue), 3))
    assert (received.count("a1"), [body for body in received if body[0] == "b"]) == (1, ["b1", "b2"])
    assert await broker.receiver(queue).receive(1, 0) == [], "one was stored behind one of its session that failed"


class Send(Suite):
    """`Sender.send`, `Sender.send_batch` and `Sender.send_in_order` (SPEC 3.4, 3.6)."""

    async def test_every_field_comes_back_as_it_was(self, broker: Broker) -> None:
        # One queue for all: opening links takes the time, and a difference is reported by the field's name.
        await _come_back(
            broker,
            message(bytes(range(256)) * 3),
            message(b""),
            message("every field", priority=7, session_id="s" * 128, partition_key="s" * 128, **_TEXTS),
            message("a partition key", partition_key="key"),
            message("empty is not the same as not set", **dict.fromkeys(_FREE_TEXTS, "")),
            # Longer than a length of one octet can say, in characters of several octets.
            message("long texts", **dict.fromkeys(_FREE_TEXTS, "ä" * 400)),
            message("the longest id", message_id="ä" * 128),
            message("extremes", priority=255),
            message("extremes", priority=0),
        )

    async def test_every_application_property_comes_back_as_it_was(self, broker: Broker) -> None:
        deep: PropertyValue = "bottom"
        for level in range(MAX_NESTING):
            deep = (deep,) if level % 2 else {"in": deep}
        await _come_back(
            broker,
            message("every type", application_properties=_VALUES),
            message("the deepest", application_properties={"deep": deep}),
            # A codec may have a shorter way for properties that are all texts: a task of Celery's has these.
            message("nothing beside texts", application_properties={"text": "a text", "nothing": None}),
        )

    async def test_a_batch_carries_every_field_once(self, broker: Broker) -> None:
        """`Sender.send_batch` and `Sender.send_in_order` carry every field unchanged, and send no message twice."""
        whole = {**_TEXTS, "priority": 7, "session_id": "s", "partition_key": "s", "application_properties": _VALUES}
        if broker.capabilities.time_to_live:
            whole["time_to_live"] = _LIVES
        for way in ("send_batch", "send_in_order"):
            queue = await broker.queue()
            sent = [message(f"{way} {number}", **whole) for number in range(3)]
            assert list(await getattr(broker.sender(queue), way)(sent)) == [None] * 3
            await _arrive(broker, queue, *sent)
            assert await broker.receiver(queue).receive(1, 0) == [], f"{way}: more came than were sent"

    @capability("time_to_live", disclaimed=refused(lambda broker: _send(broker, time_to_live=_LIVES)))
    async def test_a_time_to_live_comes_back_to_the_microsecond(self, broker: Broker) -> None:
        await _come_back(broker, message("hello", time_to_live=_LIVES))

    @capability("time_to_live", disclaimed=refused(lambda broker: _send(broker, time_to_live=0.05)))
    async def test_a_message_whose_time_is_over_is_not_delivered(self, broker: Broker) -> None:
        queue = await broker.queue_with("stale", time_to_live=0.05)
        await asyncio.sleep(1.0)  # longer than any broker's idea of 50 ms
        await broker.put(queue, "fresh")
        deliveries = await receive_all(broker.receiver(queue), 1)
        assert bodies(deliveries) == ["fresh"], "a message outlived its time-to-live"

    @capability("scheduling", disclaimed=refused(lambda broker: _send(broker, scheduled_enqueue_at=_later(60))))
    async def test_a_scheduled_message_waits_for_its_time(self, broker: Broker) -> None:
        queue = await broker.queue()
        at = _later(2.0)
        (sent,) = await broker.put(queue, "later", scheduled_enqueue_at=at)
        delivery = await receive_one(broker.receiver(queue))
        assert datetime.now(UTC) >= at, "it was delivered before its time"
        assert _differences(sent, delivery.message) == []

    @capability("scheduling", disclaimed=refused(lambda broker: _send(broker, scheduled_enqueue_at=_later(60))))
    async def test_a_scheduled_message_holds_up_no_other(self, broker: Broker) -> None:
        queue = await broker.queue_with("later", scheduled_enqueue_at=_later(600))
        await broker.put(queue, "now")
        assert bodies(await receive_all(broker.receiver(queue), 1)) == ["now"]

    async def test_sends_one_after_the_other_keep_their_order(self, broker: Broker) -> None:
        queue = await broker.queue()
        sent = await broker.put(queue, *map(str, range(20)))
        assert bodies(await receive_all(broker.receiver(queue), 20)) == [each.body.decode() for each in sent]

    async def test_a_batch_keeps_its_order(self, broker: Broker) -> None:
        queue = await broker.queue()
        batch = [message(str(number)) for number in range(100)]
        sender = broker.sender(queue)
        assert list(await sender.send_batch([])) == []
        assert list(await sender.send_batch(batch)) == [None] * 100
        assert bodies(await receive_all(broker.receiver(queue), 100)) == [str(number) for number in range(100)]

    @capability("ordered_batches", disclaimed=_keeps_sessions_in_order)
    async def test_nothing_of_a_session_is_stored_behind_one_that_failed(self, broker: Broker) -> None:
        await _keeps_sessions_in_order(broker)

    async def test_a_batch_larger_than_what_goes_at_once_is_cut(self, broker: Broker) -> None:
        queue = await broker.queue()
        batch = [message(bytes(20_000), subject=str(number)) for number in range(60)]
        assert list(await broker.sender(queue).send_batch(batch)) == [None] * 60
        deliveries = await receive_all(broker.receiver(queue), 60)
        assert [delivery.message.subject for delivery in deliveries] == [each.subject for each in batch]

    async def test_concurrent_sends_of_one_sender_all_arrive_once(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        batch = [message(str(number)) for number in range(50)]
        await asyncio.gather(*(sender.send(each) for each in batch))
        deliveries = await receive_all(broker.receiver(queue), 50)
        assert sorted(bodies(deliveries), key=int) == [str(number) for number in range(50)]
        assert await broker.receiver(queue).receive(1, 0) == [], "more came than were sent"

    async def test_two_messages_of_one_id_are_two_messages(self, broker: Broker) -> None:
        # A copy after a lost confirm has the same id; whether it is dropped is for the reader to decide (SPEC 3.3).
        queue = await broker.queue_with("first", "second", message_id="the same")
        assert bodies(await receive_all(broker.receiver(queue), 2)) == ["first", "second"]

    async def test_a_missing_entity_is_reported(self, broker: Broker) -> None:
        sender = broker.sender(MISSING)
        error = await must_fail(lambda: sender.send(message("lost")), *NOT_FOUND)
        assert not error.maybe_applied, "nothing can have stored it"
        outcomes = await sender.send_batch([message("lost"), message("too")])
        found = [None if error is None else (error.kind, error.reason, error.maybe_applied) for error in outcomes]
        assert found == [(FailureKind.REFUSED, FailureReason.NOT_FOUND, False)] * 2

    async def test_a_deleted_entity_is_reported_by_a_sender_that_has_used_it(self, broker: Broker) -> None:
        """`Sender.send`: confirmed by the broker, whatever the sender has learned before."""
        queue, sender = await broker.connected()
        await broker.admin.delete(queue)
        error = await must_fail(lambda: sender.send(message("lost")))
        if error.kind is FailureKind.UNAVAILABLE:  # its link ended with the entity: the next call opens another one
            error = await must_fail(lambda: sender.send(message("lost")))
        assert (error.kind, error.reason) == NOT_FOUND, f"{error!r}"

    async def test_a_refused_send_leaves_the_sender_usable(self, broker: Broker) -> None:
        sender = broker.sender(MISSING)
        await must_fail(lambda: sender.send(message("lost")), FailureKind.REFUSED)
        await broker.admin.create(MISSING)
        await sender.send(message("found"))
        assert bodies(await receive_all(broker.receiver(MISSING), 1)) == ["found"]

    @limit("max_message_bytes")
    async def test_a_message_of_exactly_the_limit_goes(self, broker: Broker) -> None:
        """``max_message_bytes`` is the largest message as `measure` counts it."""
        queue = await broker.queue()
        await broker.admin.check()
        sender = broker.sender(queue)
        await sender.send(message("opens the link: a limit may become exact"))
        largest = of_size(broker)
        assert refusal(broker, queue, largest) is None
        await sender.send(largest)
        deliveries = await receive_all(broker.receiver(queue), 2)
        assert len(deliveries) == 2 and deliveries[1].message.body == largest.body

    @limit("max_message_bytes")
    async def test_a_message_beyond_the_limit_is_refused_by_itself(self, broker: Broker) -> None:
        """``max_message_bytes`` is the largest message as `measure` counts it."""
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("opens the link: a limit may become exact"))
        most = testable_limit(broker)
        if most is None:
            return  # without a limit, or beyond what a test may send: the test above sends a large one
        large = of_size(broker, most + 1)
        outcomes = await sender.send_batch([message("before"), large, message("after")])
        assert [error and (error.reason, error.maybe_applied) for error in outcomes] == [
            None,
            (FailureReason.TOO_LARGE, False),
            None,
        ]
        error = await must_fail(lambda: sender.send(large), FailureKind.REFUSED, FailureReason.TOO_LARGE)
        assert not error.maybe_applied
        checked = refusal(broker, queue, large)
        assert checked is not None, "check_message lets it pass"
        assert (checked.kind, checked.reason) == (FailureKind.REFUSED, FailureReason.TOO_LARGE)
        deliveries = await receive_all(broker.receiver(queue), 3)
        assert bodies(deliveries)[1:] == ["before", "after"]

    @limit("max_message_bytes")
    async def test_large_properties_go_like_a_large_body(self, broker: Broker) -> None:
        """``max_message_bytes`` counts properties in; what refuses more, `check_message` refuses as well."""
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("opens the link: a limit may become exact"))
        # Half of it in one value, the other half in many.
        properties: dict[str, PropertyValue] = {"large": "v" * _LARGE}
        properties |= {f"small {number}": "v" * (_LARGE // 50) for number in range(50)}
        large = message("large properties", application_properties=properties)
        checked = refusal(broker, queue, large)
        if checked is not None:  # a rule of this broker, which a pair learns of before an outage
            error = await must_fail(lambda: sender.send(large), FailureKind.REFUSED, checked.reason)
            assert not error.maybe_applied
            return
        await sender.send(large)
        deliveries = await receive_all(broker.receiver(queue), 2)
        assert [_differences(large, delivery.message) for delivery in deliveries[1:]] == [[]]

    async def test_what_is_disclaimed_is_refused_without_asking_the_broker(self, broker: Broker) -> None:
        queue = Entity("orders")
        assert refusal(broker, queue, message("hello", session_id="s", priority=3)) is None
        for field, value, claimed in (
            ("time_to_live", 60.0, broker.capabilities.time_to_live),
            ("scheduled_enqueue_at", _later(60), broker.capabilities.scheduling),
        ):
            error = refusal(broker, queue, message("hello", **{field: value}))
            if claimed:
                assert error is None, f"{field} is claimed, and check_message refuses it: {error}"
            else:
                assert error is not None, f"{field} is disclaimed, and check_message lets it pass"
                assert error.kind is FailureKind.REFUSED

    async def test_a_measure_grows_with_all_that_a_message_holds(self, broker: Broker) -> None:
        plain = broker.transport.measure(message("hello", message_id="i"))
        assert broker.transport.measure(message("hello" * 100, message_id="i")) >= plain + 495
        properties = {"key": "v" * 500}
        measured = broker.transport.measure(message("hello", message_id="i", application_properties=properties))
        assert measured > plain + 500, "what it measures leaves the application properties out"


async def _come_back(broker: Broker, *messages: Message) -> None:
    queue = await broker.queue()
    sender = broker.sender(queue)
    for each in messages:
        await sender.send(each)
    await _arrive(broker, queue, *messages)


async def _arrive(broker: Broker, queue: Entity, *messages: Message) -> None:
    """Receive these messages, and name each that is lost and each field that has changed."""
    deliveries = await receive_all(broker.receiver(queue), len(messages))
    received = {delivery.message.message_id: delivery.message for delivery in deliveries}
    problems = [
        f"{sent.body[:40]!r}: {problem}"
        for sent in messages
        for problem in (
            _differences(sent, received[sent.message_id]) if sent.message_id in received else ["it is lost"]
        )
    ]
    assert not problems, "\n".join(problems)


def _differences(sent: Message, received: Message) -> list[str]:
    """Name each field that was not received unchanged, including types: 1, 1.0 and True are equal and not the same."""
    found = []
    for entry in fields(Message):
        if entry.name == "application_properties":
            continue
        was, is_ = getattr(sent, entry.name), getattr(received, entry.name)
        if repr(was) != repr(is_):
            found.append(f"{entry.name}: sent {was!r}, received {is_!r}")
    before, after = sent.application_properties, received.application_properties
    for name in sorted({*before, *after}):
        was, is_ = before.get(name, "(not there)"), after.get(name, "(not there)")
        if _shown(was) != _shown(is_):
            found.append(f"application property {name!r}: sent {was!r}, received {is_!r}")
    return found


def _shown(value: PropertyValue) -> str:
    # Mappings have no order.
    if isinstance(value, dict):
        return repr({name: _shown(value[name]) for name in sorted(value)})
    return repr(value)


async def _send(broker: Broker, **fields: object) -> None:
    queue = await broker.queue()
    await broker.sender(queue).send(message("hello", **fields))


def _later(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


_TOPIC = Entity("news", EntityKind.TOPIC)
_ALICE = Source(_TOPIC, "alice")


async def _make_topic(broker: Broker) -> object:
    return await broker.admin.create(_TOPIC)


async def _send_to_topic(broker: Broker) -> None:
    await broker.sender(_TOPIC).send(message("hello"))


async def _receive_from_topic(broker: Broker) -> object:
    return await broker.receiver(_ALICE).receive(1, 0)


async def _subscribe(broker: Broker) -> object:
    return await broker.admin.create_subscription(_TOPIC, "alice")


class Topics(Suite, needs="topics", disclaimed=refused(_make_topic, _send_to_topic, _receive_from_topic, _subscribe)):
    """`Admin.create_subscription`, and what is sent to a topic and received from its subscriptions."""

    async def test_a_topic_exists_from_its_making_to_its_end(self, broker: Broker) -> None:
        assert not await broker.admin.exists(_TOPIC)
        assert await broker.admin.create(_TOPIC) is True
        assert await broker.admin.create(_TOPIC) is False
        assert await broker.admin.exists(_TOPIC)
        assert await broker.admin.delete(_TOPIC) is True
        assert not await broker.admin.exists(_TOPIC)

    async def test_every_subscription_gets_every_message_in_order(self, broker: Broker) -> None:
        topic = await broker.topic("alice", "bob")
        await broker.put(topic, *"abc")
        for name in ("alice", "bob"):
            assert bodies(await receive_all(broker.receiver(Source(topic, name)), 3)) == list("abc")

    async def test_a_batch_reaches_every_subscription_in_order(self, broker: Broker) -> None:
        topic = await broker.topic("alice", "bob")
        batch = [message(str(number)) for number in range(20)]
        assert list(await broker.sender(topic).send_batch(batch)) == [None] * 20
        for name in ("alice", "bob"):
            assert bodies(await receive_all(broker.receiver(Source(topic, name)), 20)) == [str(n) for n in range(20)]

    async def test_what_one_subscription_completes_the_other_still_has(self, broker: Broker) -> None:
        topic = await broker.topic("alice", "bob")
        await broker.put(topic, "hello")
        alice = broker.receiver(Source(topic, "alice"))
        await alice.complete(await receive_one(alice))
        assert bodies(await receive_all(broker.receiver(Source(topic, "bob")), 1)) == ["hello"]
        await alice.close()
        assert await broker.connect().receiver(Source(topic, "alice")).receive(1, 0.3) == []

    async def test_a_subscription_gets_messages_from_its_making_on(self, broker: Broker) -> None:
        topic = await broker.topic("alice")
        await broker.put(topic, "before")
        assert await broker.admin.create_subscription(topic, "bob") is True
        assert await broker.admin.create_subscription(topic, "bob") is False
        await broker.put(topic, "after")
        assert bodies(await receive_all(broker.receiver(Source(topic, "bob")), 1)) == ["after"]

    async def test_counts_are_each_subscriptions_own(self, broker: Broker) -> None:
        topic = await broker.topic("alice", "bob")
        await broker.put(topic, *"ab")
        alice = broker.receiver(Source(topic, "alice"))
        await alice.complete(await receive_one(alice))
        for name, waiting in (("alice", QueueCounts(active=1)), ("bob", QueueCounts(active=2))):
            assert await counted(broker.admin, Source(topic, name), waiting) == waiting

    @capability("dead_letter", disclaimed=lambda broker: _no_dead_letters_of_topics(broker))
    async def test_a_subscription_has_a_dead_letter_queue_of_its_own(self, broker: Broker) -> None:
        topic = await broker.topic("alice", "bob")
        await broker.put(topic, "poison")
        alice = broker.receiver(Source(topic, "alice"))
        await alice.dead_letter(await receive_one(alice), "a reason", "a description")
        dead = await receive_one(broker.receiver(Source(topic, "alice", dead_letter=True)))
        assert (dead.message.body, dead.dead_letter_reason) == (b"poison", "a reason")
        waiting = QueueCounts(active=1)
        assert await counted(broker.admin, Source(topic, "bob"), waiting) == waiting

    async def test_a_missing_topic_is_reported(self, broker: Broker) -> None:
        await must_fail(lambda: _send_to_topic(broker), *NOT_FOUND)

    async def test_a_subscription_of_a_missing_topic_is_not_found(self, broker: Broker) -> None:
        await must_fail(lambda: _subscribe(broker), *NOT_FOUND)

    async def test_a_missing_subscription_is_reported(self, broker: Broker) -> None:
        topic = await broker.topic("alice")
        receiver = broker.receiver(Source(topic, "nobody"))
        await must_fail(lambda: receiver.receive(1, 0.2), *NOT_FOUND)

    async def test_a_queue_is_no_topic_and_a_topic_no_queue(self, broker: Broker) -> None:
        queue, topic = await broker.queue(), await broker.topic()
        assert not await broker.admin.exists(Entity(queue.path, EntityKind.TOPIC))
        assert not await broker.admin.exists(Entity(topic.path, EntityKind.QUEUE))


async def _no_dead_letters_of_topics(broker: Broker) -> None:
    topic = await broker.topic("alice")
    await broker.put(topic, "hello")
    alice = broker.receiver(Source(topic, "alice"))
    delivery = await receive_one(alice)
    await must_fail(
        lambda: alice.dead_letter(delivery, "a reason", "a description"),
        *NOT_SUPPORTED,
    )


async def _accept(broker: Broker) -> object:
    return await broker.transport.accept_session(Source(await broker.queue()), wait=0.2)


async def _accept_by_name(broker: Broker) -> object:
    return await broker.transport.accept_session(Source(await broker.queue()), "a", wait=0.2)


async def _make(broker: Broker) -> object:
    return await broker.admin.create(Entity("by-session"), QueueProperties(requires_session=True))


class Sessions(Suite, needs="sessions", disclaimed=refused(_accept, _accept_by_name, _make)):
    """`Transport.accept_session` and `SessionReceiver`."""

    async def test_a_session_is_read_alone_and_in_order(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        for body, session in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("a3", "a")):
            await broker.put(queue, body, session_id=session)
        receiver = await _session(broker, queue, "a")
        assert receiver.session_id == "a"
        assert bodies(await receive_all(receiver, 3)) == ["a1", "a2", "a3"]
        assert await receiver.receive(1, 0.3) == []

    async def test_the_next_free_session_is_one_that_has_messages(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.put(queue, "a1", session_id="a")
        await broker.put(queue, "b1", session_id="b")
        first, second = await _session(broker, queue), await _session(broker, queue)
        assert {first.session_id, second.session_id} == {"a", "b"}

    async def test_none_is_given_when_none_is_free_in_time(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        assert await broker.transport.accept_session(Source(queue), wait=0.3) is None

    async def test_a_locked_session_is_not_delivered_to_others(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.put(queue, "a1", session_id="a")
        await _session(broker, queue, "a")
        assert await broker.connect().accept_session(Source(queue), "a", wait=0.3) is None

    async def test_a_closed_session_is_the_next_ones_with_what_was_not_settled(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        for body in ("a1", "a2"):
            await broker.put(queue, body, session_id="a")
        first = await _session(broker, queue, "a")
        deliveries = await receive_all(first, 2)
        await first.complete(deliveries[0])
        await first.close()
        assert bodies(await receive_all(await _session(broker, queue, "a"), 1)) == ["a2"]

    async def test_a_waiting_reader_gets_the_session_that_comes(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        waiting = asyncio.ensure_future(broker.transport.accept_session(Source(queue), wait=limits().patience))
        await asyncio.sleep(0.3)
        await broker.put(queue, "a1", session_id="a")
        receiver = await waiting
        assert receiver is not None and receiver.session_id == "a"

    async def test_the_state_outlives_its_reader(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.put(queue, "a1", session_id="a")
        first = await _session(broker, queue, "a")
        assert await first.get_state() is None
        await first.set_state(b"\x00 half way \xff")
        await first.close()
        second = await _session(broker, queue, "a")
        assert await second.get_state() == b"\x00 half way \xff"
        await second.set_state(None)
        assert await second.get_state() is None

    async def test_a_renewed_session_lock_lasts_longer(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True, short_locks=True)
        await broker.put(queue, "a1", session_id="a")
        clock = LockClock(broker.harness.lock_duration)
        while not await _held_for_longer(broker, queue, clock):
            pass  # this machine stalled for as long as a lock: once more

    async def test_a_lost_session_lock_is_reported(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True, short_locks=True)
        await broker.put(queue, "a1", session_id="a")
        receiver = await _session(broker, queue, "a")
        delivery = await receive_one(receiver)
        wait = broker.harness.lock_duration + limits().patience
        other = await broker.connect().accept_session(Source(queue), "a", wait=wait)
        assert other is not None, "the lock did not end"
        await must_fail(lambda: receiver.complete(delivery), *LOCK_LOST)
        await must_fail(receiver.renew_session_lock, *LOCK_LOST)
        assert (await receive_one(other)).message == delivery.message

    async def test_a_queue_without_sessions_has_none_to_accept(self, broker: Broker) -> None:
        await must_fail(lambda: _accept(broker), *NOT_SUPPORTED)

    async def test_a_message_without_a_session_is_refused_where_one_is_required(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        sender = broker.sender(queue)
        assert refusal(broker, queue, message("kept", session_id="a")) is None
        await sender.send(message("kept", session_id="a"))
        await must_fail(lambda: sender.send(message("lost")), FailureKind.REFUSED)
        assert refusal(broker, queue, message("lost")) is not None, "a backlog would take it, and never deliver it"


async def _held_for_longer(broker: Broker, queue: Entity, clock: LockClock) -> bool:
    """Hold a session for one and a half times as long as an unrenewed lock; False after a standstill."""
    clock.ask()
    receiver = await _session(broker, queue, "a")
    clock.begin()
    try:
        delivery = await receive_one(receiver)
        for _ in range(5):
            await asyncio.sleep(broker.harness.lock_duration * 0.3)
            before = receiver.locked_until
            clock.ask()
            assert await receiver.renew_session_lock() > before
            clock.begin()
        await receiver.complete(delivery)
    except TransportError as error:
        if not clock.excuses(error):
            raise
        return False
    return True


async def _session(broker: Broker, queue: Entity, name: str | None = None) -> SessionReceiver:
    receiver = await broker.transport.accept_session(Source(queue), name, wait=limits().patience)
    assert receiver is not None, "no session was free"
    return receiver
