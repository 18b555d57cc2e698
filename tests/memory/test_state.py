"""The state of the broker in memory: values in, values out, and time as a value."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq.memory import Queue, State, Stored
from pairmq.model import Entity, EntityKind, FailureReason, Message, Source, TransportError
from pairmq.transport import QueueCounts, QueueProperties

QUEUE = Entity("orders")
TOPIC = Entity("news", EntityKind.TOPIC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def queue_with(*bodies: str, **properties: object) -> tuple[State, Queue]:
    state = State()
    state.create(QUEUE, QueueProperties(**{"lock_duration": 10.0, **properties}))  # type: ignore[arg-type]
    for body in bodies:
        state.store(QUEUE, Message(body.encode(), message_id=body), 0.0)
    return state, state.find(QUEUE)


def bodies(found: list[Stored]) -> str:
    return "".join(each.message.body.decode() for each in found)


def reason_of(call: object) -> FailureReason:
    with pytest.raises(TransportError) as caught:
        call()  # type: ignore[operator]
    return caught.value.reason


def test_a_lock_ends_at_its_instant_and_its_message_is_the_next_one() -> None:
    _, queue = queue_with(*"abc")
    first = queue.take("one", 1, 0.0)
    assert bodies(queue.take("two", 9, 9.9)) == "bc"
    again = queue.take("two", 9, 10.0)
    assert (bodies(again), again[0].deliveries) == ("a", 2)
    assert reason_of(lambda: queue.held(first[0].lock, "one", 10.0)) is FailureReason.LOCK_LOST


def test_a_lock_is_settled_by_its_holder_alone_and_once() -> None:
    _, queue = queue_with("a")
    (stored,) = queue.take("one", 1, 0.0)
    token = stored.lock
    assert reason_of(lambda: queue.held(token, "two", 0.0)) is FailureReason.LOCK_LOST
    assert reason_of(lambda: queue.held("anything", "one", 0.0)) is FailureReason.LOCK_LOST
    assert reason_of(lambda: queue.held(token, "one", 10.0)) is FailureReason.LOCK_LOST
    queue.complete(queue.held(token, "one", 9.9))
    assert reason_of(lambda: queue.held(token, "one", 9.9)) is FailureReason.LOCK_LOST


def test_a_renewed_lock_ends_a_whole_duration_later() -> None:
    _, queue = queue_with(*"ab")
    first, second = queue.take("one", 2, 0.0)
    assert queue.renew(first, 5.0) == 15.0
    assert bodies(queue.take("two", 9, 10.0)) == "b"
    assert second.deliveries == 2
    assert bodies(queue.take("two", 9, 14.9)) == ""
    assert queue.next_change() == 15.0


def test_a_message_that_is_due_joins_the_end() -> None:
    state, queue = queue_with()
    due = EPOCH + timedelta(seconds=5)
    state.store(QUEUE, Message(b"later", scheduled_enqueue_at=due), 0.0)
    state.store(QUEUE, Message(b"now"), 1.0)
    assert (queue.counts(4.9), queue.next_change()) == (QueueCounts(active=1, scheduled=1), 5.0)
    assert [bodies([each]) for each in queue.take("one", 9, 5.0)] == ["now", "later"]


def test_an_epoch_is_what_schedules_are_measured_from() -> None:
    state = State(epoch=1000.0)
    state.create(QUEUE, QueueProperties())
    state.store(QUEUE, Message(b"x", scheduled_enqueue_at=EPOCH + timedelta(seconds=1005)), 0.0)
    queue = state.find(QUEUE)
    assert queue.take("one", 1, 4.9) == []
    (stored,) = queue.take("one", 1, 5.0)
    assert state.delivery(stored).enqueued_at == EPOCH + timedelta(seconds=1005)


@pytest.mark.parametrize(("own", "default", "lives"), [(5.0, None, 5.0), (None, 5.0, 5.0), (9.0, 5.0, 5.0)])
def test_a_message_expires_by_the_shorter_time_to_live(own, default, lives) -> None:
    state, queue = queue_with(default_time_to_live=default)
    state.store(QUEUE, Message(b"x", time_to_live=own), 0.0)
    assert queue.take("one", 1, lives) == []
    assert [stored.reason for stored in queue.dead.take("one", 1, lives)] == ["expired"]


def test_an_expired_message_is_dropped_where_it_is_not_dead_lettered() -> None:
    state, queue = queue_with(dead_letter_on_expiration=False)
    state.store(QUEUE, Message(b"x", time_to_live=5), 0.0)
    assert queue.take("one", 1, 5.0) == []
    assert queue.counts(5.0) == QueueCounts()


def test_a_message_whose_last_lock_ends_is_dead_lettered() -> None:
    _, queue = queue_with("a", max_delivery_count=2)
    queue.take("one", 1, 0.0)
    queue.take("one", 1, 10.0)
    assert queue.take("one", 1, 20.0) == []
    (dead,) = queue.dead.take("one", 1, 20.0)
    assert (dead.reason, dead.deliveries) == ("max-delivery-count", 1)


def test_a_message_of_a_dead_letter_queue_never_expires_and_is_never_worn_out() -> None:
    state, queue = queue_with(max_delivery_count=1)
    state.store(QUEUE, Message(b"x", time_to_live=5), 0.0)
    queue.bury(queue.take("one", 1, 0.0)[0], "reason", "description")
    for count in range(1, 4):
        (dead,) = queue.dead.take("one", 1, 100.0)
        assert (dead.deliveries, dead.reason, dead.description) == (count, "reason", "description")
        queue.dead.abandon(dead)


def test_a_single_consumer_is_the_only_one_while_it_holds_a_lock() -> None:
    _, queue = queue_with(*"abc", single_consumer=True)
    (first,) = queue.take("one", 1, 0.0)
    assert queue.take("two", 9, 1.0) == []
    assert bodies(queue.take("one", 1, 1.0)) == "b"
    queue.abandon(first)
    assert queue.take("two", 9, 2.0) == []
    assert bodies(queue.take("one", 9, 2.0)) == "ac"
    assert bodies(queue.take("two", 9, 20.0)) == "abc"


def test_a_subscription_has_what_was_sent_since_it_was_made() -> None:
    state = State()
    state.create(TOPIC, QueueProperties())
    state.store(TOPIC, Message(b"0"), 0.0)
    state.subscribe(TOPIC, "a")
    state.store(TOPIC, Message(b"1"), 0.0)
    state.subscribe(TOPIC, "b")
    state.store(TOPIC, Message(b"2"), 0.0)
    first, second = (state.source(Source(TOPIC, name)) for name in "ab")
    assert (bodies(first.take("x", 9, 0.0)), bodies(second.take("x", 9, 0.0))) == ("12", "2")


def test_one_path_is_of_one_kind() -> None:
    state, _ = queue_with()
    assert reason_of(lambda: state.create(Entity("orders", EntityKind.TOPIC), QueueProperties())) is (
        FailureReason.ALREADY_EXISTS
    )


def test_what_was_locked_in_a_deleted_queue_can_not_be_settled() -> None:
    state, queue = queue_with("a")
    token = queue.take("one", 1, 0.0)[0].lock
    assert queue in state.delete(QUEUE)
    state.create(QUEUE, QueueProperties())
    assert reason_of(lambda: state.find(QUEUE).held(token, "one", 0.0)) is FailureReason.LOCK_LOST
    assert reason_of(lambda: queue.held(token, "one", 0.0)) is FailureReason.LOCK_LOST


def test_positions_pass_a_message_when_it_is_settled() -> None:
    state, queue = queue_with(*"ab")
    before = queue.positions(0.0)
    first, second = queue.take("one", 2, 0.0)
    assert queue.positions(0.0).oldest == before.oldest
    queue.complete(first)
    assert queue.positions(0.0).oldest == second.number
    queue.complete(second)
    state.store(QUEUE, Message(b"c"), 0.0)
    after = queue.positions(0.0)
    assert after.oldest is not None
    assert before.newest < after.oldest <= after.newest


def sessions_with(*messages: tuple[str, str]) -> Queue:
    state, queue = queue_with(requires_session=True)
    for session, body in messages:
        state.store(QUEUE, Message(body.encode(), session_id=session), 0.0)
    return queue


def test_a_session_is_released_when_its_lock_ends() -> None:
    queue = sessions_with(("s", "a"), ("s", "b"))
    session = queue.accept("one", "s", 0.0)
    assert session is not None
    (stored,) = queue.take("one", 1, 0.0, session)
    token = stored.lock
    assert queue.accept("two", "s", 9.9) is None
    assert queue.renew(stored, 5.0) == 15.0
    assert queue.accept("two", None, 14.9) is None
    assert queue.counts(14.9) == QueueCounts(active=1, locked=1)
    other = queue.accept("two", None, 15.0)
    assert other is not None
    assert bodies(queue.take("two", 9, 15.0, other)) == "ab"
    assert reason_of(lambda: queue.held(token, "one", 15.0)) is FailureReason.LOCK_LOST
    assert reason_of(lambda: queue.held_session(session, "one", 15.0)) is FailureReason.LOCK_LOST


def test_the_next_session_is_that_of_the_oldest_message() -> None:
    queue = sessions_with(("b", "1"), ("a", "2"))
    first, second = queue.accept("one", None, 0.0), queue.accept("one", None, 0.0)
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("b", "a")
    assert queue.accept("one", None, 0.0) is None


def test_an_expired_message_makes_no_session_worth_reading() -> None:
    state, queue = queue_with(requires_session=True)
    state.store(QUEUE, Message(b"x", session_id="s", time_to_live=5), 0.0)
    assert queue.accept("one", None, 5.0) is None
    assert queue.counts(5.0) == QueueCounts(dead_letter=1)


def test_an_empty_session_is_forgotten_when_it_is_purged_or_its_messages_expire() -> None:
    state, queue = queue_with(requires_session=True)
    state.store(QUEUE, Message(b"x", session_id="s", time_to_live=5), 0.0)
    assert queue.accept("one", None, 5.0) is None
    assert queue.sessions == {}
    state.store(QUEUE, Message(b"x", session_id="s"), 5.0)
    queue.purge()
    assert queue.sessions == {}


def test_a_purge_leaves_sessions_that_are_locked_or_have_a_state() -> None:
    queue = sessions_with(("locked", "a"), ("kept", "b"))
    kept = queue.accept("one", "kept", 0.0)
    assert kept is not None
    kept.state = b"half"
    queue.release_all("one")
    locked = queue.accept("two", "locked", 0.0)
    assert locked is not None
    queue.purge()
    assert queue.sessions == {"locked": locked, "kept": kept}
    assert queue.held_session(locked, "two", 0.0) is locked
    queue.release_all("two")
    assert queue.sessions == {"kept": kept}


def test_a_queue_with_sessions_is_not_read_without_one() -> None:
    queue = sessions_with(("s", "a"))
    assert reason_of(lambda: queue.take("one", 1, 0.0)) is FailureReason.NOT_SUPPORTED
    session = queue.accept("one", "s", 0.0)
    queue.bury(queue.take("one", 1, 0.0, session)[0], "reason", "description")
    assert bodies(queue.dead.take("one", 1, 0.0)) == "a"


def test_what_a_closed_session_leaves_behind_is_its_state() -> None:
    queue = sessions_with(("s", "a"))
    session = queue.accept("one", "s", 0.0)
    assert session is not None
    session.state = b"half"
    queue.complete(queue.take("one", 1, 0.0, session)[0])
    assert queue.release_all("one")
    again = queue.accept("two", "s", 0.0)
    assert again is not None
    assert again.state == b"half"
    again.state = None
    queue.release_all("two")
    assert queue.sessions == {}


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "take", "complete", "abandon", "bury", "renew", "wait"]), st.integers(0, 5)),
    max_size=60,
)


@given(STEPS, st.booleans(), st.booleans())
def test_nothing_is_lost_or_under_two_locks(steps: list[tuple[str, int]], sessions: bool, single: bool) -> None:
    state, queue = queue_with(requires_session=sessions, single_consumer=single)
    now, put, gone = 0.0, 0, 0
    held: list[tuple[object, object]] = []
    for number, (step, argument) in enumerate(steps):
        if step == "put":
            state.store(QUEUE, Message(b"%d" % number, session_id="s" * (argument + 1)), now)
            put += 1
        elif step == "take":
            holder = argument % 2
            session = queue.accept(number, None, now) if sessions else None
            if session is not None or not sessions:
                holder = number if sessions else holder
                taken = queue.take(holder, argument + 1, now, session)
                numbers = [each.number for each in taken]
                assert numbers == sorted(numbers)
                held += [(each.lock, holder) for each in taken]
        elif step == "wait":
            now += argument * 3
        elif held:
            token, holder = held[argument % len(held)]
            try:
                stored = queue.held(token, holder, now)
            except TransportError:
                continue
            if step == "complete":
                queue.complete(stored)
                gone += 1
            elif step == "abandon":
                queue.abandon(stored)
            elif step == "bury":
                queue.bury(stored, "", "")
            else:
                assert queue.renew(stored, now) == now + 10
        counts = queue.counts(now)
        assert counts.pending + counts.dead_letter + gone == put
        live = {each.number for each in queue.stored.values() if (each.locked_until or 0.0) > now}
        assert counts.locked == len(live)
