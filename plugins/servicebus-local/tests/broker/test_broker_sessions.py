"""Sessions: one receiver each, in order, with a state."""

from __future__ import annotations

import pytest

from servicebus_local.broker import BrokerError, Incoming, QueueDescription


def text(session: str | None, body: str, **more) -> Incoming:
    return Incoming(body.encode(), 10, session_id=session, **more)


def bodies(messages) -> list[str]:
    return [message.content.decode() for message in messages]


def refused(condition: str):
    return pytest.raises(BrokerError, match=condition)


@pytest.fixture
def source(broker):
    broker.create_queue("q", QueueDescription(requires_session=True, max_delivery_count=2))
    return broker.resolve_receive("q")


def test_without_a_session_nothing_comes_in_or_out(broker, source):
    with refused("not-allowed"):
        broker.send("q", [text("s", "a"), text(None, "b")])
    with refused("not-allowed"):
        source.take(1)
    with refused("not-allowed"):
        broker.send("q", [text("s", "a", partition_key="other")])
    assert broker.get_queue("q").counts.total == 0


def test_each_session_has_one_receiver_and_its_own_order(broker, source):
    broker.send("q", [text("x", "1"), text("y", "2"), text("x", "3")])
    first, second = source.accept_session(None), source.accept_session(None)
    assert (first.session_id, second.session_id) == ("x", "y")
    assert source.accept_session(None) is None
    with refused("session-cannot-be-locked"):
        source.accept_session("x")
    assert bodies(source.take(9, session=first)) == ["1", "3"]
    assert bodies(source.take(9, session=second)) == ["2"]


def test_a_released_session_is_free_at_once_and_counts_no_delivery(broker, source):
    broker.send("q", [text("x", "1")])
    called = []
    source.on_ready(lambda: called.append(1))
    for _ in range(5):
        lock = source.accept_session(None)
        (message,) = source.take(1, session=lock)
        assert message.delivery_count == 0
        token = message.lock_token
        source.release_session(lock)
    assert len(called) == 5
    assert lock.lost
    with refused("message-lock-lost"):
        source.complete(token)


def test_a_session_lock_that_runs_out_counts_and_ends_in_the_dead_letter_queue(broker, source, clock):
    broker.send("q", [text("x", "1"), text("x", "2")])
    for expected in (["1", "2"], ["1", "2"], []):
        lock = source.accept_session("x")
        assert bodies(source.take(9, session=lock)) == expected
        clock.now += 60
        broker.advance()
        assert lock.lost
    dead = broker.resolve_receive("q/$DeadLetterQueue")
    assert not dead.requires_session
    assert bodies(dead.take(9)) == ["1", "2"]


def test_renewing_a_session_renews_its_messages(broker, source, clock):
    broker.send("q", [text("x", "1")])
    lock = source.accept_session("x")
    (message,) = source.take(1, session=lock)
    for _ in range(5):
        clock.now += 50
        assert source.renew_session(lock) == message.locked_until == clock.now + 60
    with refused("not-allowed"):
        source.renew(message.lock_token)
    source.complete(message.lock_token)
    clock.now += 60
    with refused("session-lock-lost"):
        source.renew_session(lock)


def test_a_session_without_messages_may_be_accepted_by_name(broker, source):
    lock = source.accept_session("empty")
    assert source.take(1, session=lock) == []
    called = []
    source.on_ready(lambda: called.append(1))
    broker.send("q", [text("empty", "1")])
    assert called == [1]
    assert bodies(source.take(1, session=lock)) == ["1"]


def test_the_state_outlives_lock_and_messages(broker, source, clock):
    lock = source.accept_session("x")
    assert source.get_session_state(lock) is None
    source.set_session_state(lock, b"half done")
    source.release_session(lock)
    with refused("session-lock-lost"):
        source.set_session_state(lock, b"late")
    assert source.get_session_state("x") == b"half done"
    source.set_session_state("x", None)
    assert source.get_session_state("x") is None
    assert source.shelf.lanes == {}


def test_sessions_are_listed_by_messages_and_state_or_by_the_age_of_their_state(broker, source, clock):
    broker.send("q", [text("b", "1"), text("a", "2")])
    start = clock.now
    clock.now += 10
    source.set_session_state("c", b"s")
    assert source.list_sessions(None, 0, 10) == ["a", "b", "c"]
    assert source.list_sessions(None, 1, 1) == ["b"]
    assert source.list_sessions(start, 0, 10) == ["c"]
    assert source.list_sessions(clock.now, 0, 10) == []


def test_a_deferred_message_belongs_to_its_session(broker, source):
    broker.send("q", [text("x", "1"), text("y", "2")])
    lock, other = source.accept_session("x"), source.accept_session("y")
    source.defer(source.take(1, session=lock)[0].lock_token)
    with refused("message-not-found"):
        source.receive_deferred([1], other)
    (message,) = source.receive_deferred([1], lock)
    source.complete(message.lock_token)


def test_a_queue_without_sessions_has_none(broker):
    broker.create_queue("plain")
    plain = broker.resolve_receive("plain")
    broker.send("plain", [text("x", "1"), text(None, "2")])
    with refused("not-allowed"):
        plain.accept_session(None)
    assert bodies(plain.peek(0, 9, "x")) == ["1"]
    assert bodies(plain.take(9)) == ["1", "2"]
