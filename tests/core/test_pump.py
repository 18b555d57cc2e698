"""The machine of a pump: SPEC 7 and 8, without brokers, tasks and time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairmq.core import MAYBE_DUPLICATE, Diversion, PairOptions, divert
from pairmq.core.gates import Gates
from pairmq.core.machine import ImpossibleInputError
from pairmq.core.pump import (
    ITEM,
    MOST_COMPLETED,
    DestinationLine,
    Ending,
    Item,
    Next,
    PumpMachine,
    QueueClock,
    Room,
    State,
    Symbol,
    adapted,
)
from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, TransportError
from patient_examples import examples

AT = datetime(2026, 11, 1, tzinfo=UTC)
ORDERS, PRICES = Entity("orders"), Entity("prices")
DIVERSION = Diversion(ORDERS, AT, "sender", 1)

AWAY = TransportError("connection refused", FailureKind.UNAVAILABLE, FailureReason.OTHER)
IN_DOUBT = TransportError("connection lost", FailureKind.UNAVAILABLE, FailureReason.OTHER, maybe_applied=True)
CUT_OFF = TransportError("no answer", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT, maybe_applied=True)
BUSY = TransportError("try again", FailureKind.BUSY, FailureReason.OTHER)
TOO_LARGE = TransportError("too large", FailureKind.REFUSED, FailureReason.TOO_LARGE)
NOT_FOUND = TransportError("no such queue", FailureKind.REFUSED, FailureReason.NOT_FOUND)
UNAUTHORIZED = TransportError("no right", FailureKind.REFUSED, FailureReason.UNAUTHORIZED)
LOCK_LOST = TransportError("lock lost", FailureKind.REFUSED, FailureReason.LOCK_LOST)
BEHIND = TransportError("not sent, since an earlier message of its session failed", FailureKind.TRANSIENT)
CLOSED = TransportError("closed", FailureKind.UNAVAILABLE, FailureReason.CLOSED)


def envelope(
    number: int, entity: Entity = ORDERS, body: bytes = b"x", session: str | None = None, **fields: Any
) -> Message:
    message = Message(body, message_id=f"m{number}", session_id=session, **fields)
    return divert(message, Diversion(entity, AT, "sender", number))


class Pump:
    """A machine, and what it was given."""

    def __init__(
        self,
        *,
        ordered: bool = False,
        batches: bool = False,
        lane: bool = False,
        schedules: bool = True,
        lock: float | None = 60.0,
        **options: Any,
    ) -> None:
        self.gates = Gates(60.0)
        self.machine = PumpMachine(
            PairOptions(**options),
            self.gates,
            lambda entity: entity.path == "system",
            ordered_batches=batches,
            lane=lane,
            schedules=schedules,
        )
        self.machine.opened(lock, ordered=ordered)
        self.lines: dict[Entity, DestinationLine] = {}

    def receive(self, *messages: Message, now: float = 0.0, first: int = 1, count: int = 1) -> list[Item]:
        """Give it messages at positions from the first on; returns what it settles at once."""
        deliveries = [
            Delivery(message, object(), delivery_count=count, sequence_number=str(first + index))
            for index, message in enumerate(messages)
        ]
        settle, begun = self.machine.received(deliveries, now, AT)
        self.lines.update({line.gate.entity: line for line in begun})
        return settle

    def send(
        self, *results: TransportError | None, entity: Entity = ORDERS, took: float = 0.0, now: float = 0.0
    ) -> Any:
        """One operation of a line from its beginning to its end."""
        line = self.lines[entity]
        items, settle = self.machine.screened(self.machine.take(line, now), AT)
        sent = self.machine.sent(line.gate, items, results, took, now)
        if sent.failure is not None:
            self.gates.shut(line.gate)
        self.machine.ended(line)
        return sent._replace(settle=settle + sent.settle)

    def settle(self, items: Sequence[Item], *errors: TransportError | None) -> Any:
        return self.machine.settled(items, [item.delivery for item in items], errors or [None] * len(items))

    def waiting(self, entity: Entity = ORDERS) -> list[str]:
        return [item.message.message_id or "" for item in self.lines[entity].items]


# The table.


def test_a_message_that_is_to_be_settled_is_never_sent_again():
    reached, last = {State.SETTLING}, set[State]()
    while reached != last:
        last, reached = reached, reached | {after for state in reached for after in ITEM[state].values()}
    assert reached == {State.SETTLING, State.UNSETTLED, State.LAPSED, State.FORFEIT, State.GONE}


def test_a_message_is_completed_only_after_it_was_confirmed_or_known_or_is_poison():
    into = {symbol for rows in ITEM.values() for symbol, after in rows.items() if after is State.SETTLING}
    assert into == {Symbol.CONFIRMED, Symbol.POISON, Symbol.KNOWN}


def test_every_locked_state_can_lose_its_lock():
    lost = {state: ITEM[state].get(Symbol.LOCK_LOST) for state in State if state < State.LOST}
    assert set(lost.values()) == {State.LOST, State.LAPSED, State.FORFEIT}


@pytest.mark.parametrize("symbol", Symbol)
def test_nothing_happens_to_a_message_that_is_gone(symbol):
    pump = Pump()
    pump.receive(envelope(1))
    [item] = pump.send(None).settle
    pump.settle([item])
    with pytest.raises(ImpossibleInputError):
        item.step(symbol)
    assert item.state is State.GONE


def test_a_settlement_that_failed_is_tried_once_more_when_its_lock_is_lost():
    pump = Pump()
    pump.receive(envelope(1))
    [item] = pump.send(None).settle
    pump.settle([item], TransportError("no", FailureKind.UNAVAILABLE, FailureReason.CONNECTION))
    item.step(Symbol.LOCK_LOST)
    assert list(pump.machine.unsettled) == [item]
    pump.settle([item], TransportError("no", FailureKind.REFUSED, FailureReason.LOCK_LOST))
    assert (item.state, len(pump.machine.unsettled), pump.machine.moved) == (State.GONE, 0, 1)


# What a send's results mean.


def test_a_confirmed_message_is_completed_and_reported():
    pump = Pump()
    pump.receive(envelope(1))
    sent = pump.send(None)
    assert [item.state for item in sent.settle] == [State.SETTLING]
    reports, _ = pump.settle(sent.settle)
    assert ([completed for _, completed in reports], pump.machine.moved, len(pump.machine)) == ([True], 1, 0)


def test_a_message_that_was_not_taken_goes_back_to_the_head_of_its_line():
    pump = Pump()
    pump.receive(*map(envelope, range(3)))
    sent = pump.send(None, AWAY, AWAY)
    assert (len(sent.settle), sent.failure, pump.waiting()) == (1, AWAY, ["m1", "m2"])
    assert pump.machine.next(pump.lines[ORDERS], 0.0) is Next.WAIT


def test_a_refused_message_is_dead_lettered_and_shuts_no_gate():
    pump = Pump()
    pump.receive(envelope(1))
    sent = pump.send(TOO_LARGE)
    assert (sent.failure, sent.settle[0].poison.reason) == (None, "too-large")
    pump.settle(sent.settle)
    assert (pump.machine.dead_lettered, pump.machine.moved) == (1, 0)


def test_messages_wait_for_a_destination_that_does_not_exist_and_are_dead_lettered_when_that_lasts():
    pump = Pump(lock=1000.0)
    pump.receive(envelope(1), envelope(2))
    sent = pump.send(NOT_FOUND, NOT_FOUND, now=1.0)
    assert (sent.failure, sent.settle, sent.unknown_entity) == (NOT_FOUND, [], False)
    assert (pump.gates.of(ORDERS).is_open, pump.waiting()) == (False, ["m1", "m2"])
    pump.gates.open(pump.gates.of(ORDERS))  # for one operation, as a probe was answered
    assert pump.send(NOT_FOUND, NOT_FOUND, now=100.0).settle == []
    pump.gates.open(pump.gates.of(ORDERS))
    sent = pump.send(NOT_FOUND, NOT_FOUND, now=181.0)
    assert (sent.failure, sent.unknown_entity) == (None, True)
    assert [item.poison.reason for item in sent.settle] == ["not-found"] * 2


def test_a_destination_is_unknown_only_when_it_took_nothing():
    pump = Pump(lock=1000.0)
    pump.receive(*map(envelope, range(4)))
    pump.send(*[NOT_FOUND] * 4)
    pump.gates.open(pump.gates.of(ORDERS))
    pump.send(*[NOT_FOUND] * 4, now=100.0)
    pump.gates.open(pump.gates.of(ORDERS))
    sent = pump.send(NOT_FOUND, None, None, None, now=180.0)
    assert (sent.failure, sent.unknown_entity, len(sent.settle)) == (None, False, 4)


def test_a_message_in_doubt_is_marked_and_sent_alone_next():
    pump = Pump()
    pump.receive(*map(envelope, range(3)))
    pump.send(IN_DOUBT, AWAY, AWAY)
    line = pump.lines[ORDERS]
    assert ([item.unknown for item in line.items], line.gate.most) == ([True, False, False], 1)


def in_doubt(pump: Pump, attempts: int) -> float:
    """Send the first message in vain; gives the instant of its next attempt."""
    line, now = pump.lines[ORDERS], 0.0
    for _ in range(attempts):
        pump.send(IN_DOUBT, now=now)
        pump.gates.open(line.gate)
        now = pump.machine.ready_at(line, now)
    return now


def test_a_message_in_doubt_waits_from_the_fourth_attempt_on_twice_as_long_and_ten_minutes_at_most():
    pump = Pump()
    pump.receive(envelope(1))
    waits, now = [], 0.0
    for _ in range(16):
        [(_, _, wait)] = pump.send(IN_DOUBT, now=now).doubtful
        pump.gates.open(pump.lines[ORDERS].gate)
        waits.append(wait)
        now += wait
    assert (waits[:6], waits[-2:]) == ([0.0, 0.0, 0.0, 4.0, 8.0, 16.0], [600.0, 600.0])


def test_others_pass_a_message_in_doubt():
    pump = Pump()
    pump.receive(envelope(1))
    ready_at = in_doubt(pump, 5)
    line = pump.lines[ORDERS]
    assert pump.machine.next(line, ready_at - 0.1) is Next.WAIT
    pump.receive(envelope(2), envelope(3), first=2, now=ready_at - 0.1)
    line.gate.most = 10
    assert pump.machine.next(line, ready_at - 0.1) is Next.SEND
    taken = pump.machine.take(line, ready_at - 0.1)
    assert ([item.message.message_id for item in taken], pump.waiting()) == (["m2", "m3"], ["m1"])
    pump.machine.ended(line)
    assert len(pump.machine.take(line, ready_at)) == 3


@pytest.mark.parametrize("batches", [True, False])
def test_where_order_is_kept_only_other_sessions_pass_a_message_in_doubt(batches):
    pump = Pump(ordered=True, batches=batches)
    pump.receive(envelope(1, session="a"))
    now = in_doubt(pump, 5) - 0.1
    pump.receive(envelope(2, session="a"), envelope(3, session="b"), first=2, now=now)
    line = pump.lines[ORDERS]
    line.gate.most = 10
    assert [item.message.message_id for item in pump.machine.take(line, now)] == ["m3"]
    assert (pump.waiting(), pump.machine.ready_at(line, now)) == (["m1", "m2"], pytest.approx(now + 0.1))


def test_a_message_in_doubt_waits_also_after_it_was_redelivered():
    pump = Pump()
    pump.receive(envelope(1))
    ready_at = in_doubt(pump, 5)
    pump.machine.drop_lines()
    pump.machine.release()
    pump.receive(envelope(1), now=ready_at - 0.1, first=9, count=2)
    assert pump.machine.next(pump.lines[ORDERS], ready_at - 0.1) is Next.WAIT
    assert pump.machine.next(pump.lines[ORDERS], ready_at) is Next.SEND


def test_messages_in_doubt_make_room_for_others():
    pump = Pump(syphon_batch=2)
    pump.receive(envelope(1), envelope(2))
    line = pump.lines[ORDERS]
    for now in range(4):
        line.gate.most = 10
        pump.send(IN_DOUBT, IN_DOUBT, now=now)
        pump.gates.open(line.gate)
    assert pump.machine.room(now) is Room.POSTPONE
    assert pump.machine.fullest(now) is line
    assert len(pump.machine.postpone(line, now)) == 2


def test_an_operation_that_is_cut_off_is_halved_and_grows_while_there_is_time():
    assert adapted(100, 60, [CUT_OFF] * 60, 1.0, 200) == 30
    assert [adapted(100, 100, [None], took, 150) for took in (0.1, 0.3, 0.6)] == [150, 101, 100]
    assert adapted(100, 60, [None], 0.1, 150) == 100  # it does not show that more would fit


# What is received.


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Message(b"forged"), "malformed-envelope"),
        (envelope(1, Entity("system")), "destination-not-allowed"),
        (envelope(1, Entity("secret")), "destination-not-allowed"),
    ],
)
def test_what_may_not_be_delivered_is_dead_lettered_at_once(message, reason):
    pump = Pump(allowed_entities=("o*", "system"))
    assert [item.poison.reason for item in pump.receive(message)] == [reason]
    assert pump.lines == {}


@pytest.mark.parametrize(("policy", "reasons"), [("elapse", ["TTLExpiredException"]), ("restore", [])])
def test_time_in_the_backlog_counts_where_it_should(policy, reasons):
    pump = Pump(ttl_policy=policy)
    late = divert(Message(b"", time_to_live=60.0), Diversion(ORDERS, AT - timedelta(seconds=61), "sender", 1))
    assert [item.poison.reason for item in pump.receive(late)] == reasons


def test_a_message_is_sent_with_the_time_that_it_has_left():
    pump = Pump(ttl_policy="elapse")
    pump.receive(divert(Message(b"", time_to_live=60.0), Diversion(ORDERS, AT - timedelta(seconds=20), "sender", 1)))
    items = pump.machine.take(pump.lines[ORDERS], 0.0)
    assert [message.time_to_live for message in pump.machine.outgoing(items, AT)] == [40.0]


def test_what_was_delivered_is_not_sent_again_when_it_is_redelivered():
    pump = Pump()
    pump.receive(envelope(1))
    pump.settle(pump.send(None).settle, LOCK_LOST)
    [item] = pump.receive(envelope(1), count=2)
    pump.settle([item])
    assert (pump.machine.moved, len(pump.machine)) == (1, 0)
    assert pump.receive(envelope(1)) == []  # a later message of that name is another one


def with_time(seconds: float, session: str | None = None) -> Message:
    """A message that was delivered while it had time to live, and has so much left."""
    at = AT - timedelta(seconds=60 - seconds)
    return divert(Message(b"", message_id="m1", time_to_live=60.0, session_id=session), Diversion(ORDERS, at, "s", 1))


@pytest.mark.parametrize("ordered", [False, True])
def test_what_was_delivered_is_completed_although_its_time_has_run_out_since(ordered):
    """A dead letter of it would be a second copy."""
    pump = Pump(ordered=ordered, ttl_policy="elapse")
    message = with_time(1.0)
    pump.receive(message)
    pump.settle(pump.send(None).settle, LOCK_LOST)
    if pump.machine.broken:
        pump.machine.release()
    settle, _ = pump.machine.received(
        [Delivery(message, object(), delivery_count=2, sequence_number="1")], 0.0, AT + timedelta(seconds=2)
    )
    assert [(item.poison, item.ending) for item in settle] == [(None, Ending.REDELIVERED)]


def test_what_was_delivered_under_another_lock_is_completed_although_its_time_has_run_out():
    pump = Pump(ttl_policy="elapse")
    message = with_time(1.0)
    pump.receive(message)
    pump.receive(message, first=2)  # a copy
    line = pump.lines[ORDERS]
    [first, second] = pump.machine.take(line, 0.0)
    pump.settle(pump.machine.sent(line.gate, [first], [None], 0.0, 0.0).settle, LOCK_LOST)
    send, settle = pump.machine.screened([second], AT + timedelta(seconds=2))
    assert (send, [(item.poison, item.ending) for item in settle]) == ([], [(None, Ending.REDELIVERED)])


LOST_ANSWER = TransportError("no answer", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT, maybe_applied=True)
UNAPPLIED = TransportError("not sent", FailureKind.UNAVAILABLE, FailureReason.CONNECTION)


@pytest.mark.parametrize(("first", "reported"), [(LOST_ANSWER, 1), (UNAPPLIED, 0)])
@pytest.mark.parametrize("then", [LOCK_LOST, NOT_FOUND])
def test_a_dead_letter_is_reported_when_its_confirmation_was_lost(first, reported, then):
    """The broker has no lock of it any more, as it lies in the dead-letter queue."""
    pump = Pump()
    [item] = pump.receive(Message(b"forged", message_id="m1"))
    assert pump.settle([item], first)[0] == []
    reports, _ = pump.settle([item], then)
    assert [item for item, _ in reports] == [item] * reported
    assert (pump.machine.dead_lettered, len(pump.machine)) == (reported, 0)


def test_a_dead_letter_in_doubt_is_reported_once_when_it_is_redelivered():
    pump = Pump()
    [item] = pump.receive(Message(b"forged", message_id="m1"))
    pump.settle([item], LOST_ANSWER)
    pump.settle([item], LOCK_LOST)
    [again] = pump.receive(Message(b"forged", message_id="m1"), count=2)
    assert pump.settle([again])[0] == []
    assert pump.machine.dead_lettered == 1
    [another] = pump.receive(Message(b"forged", message_id="m1"), first=2)
    assert len(pump.settle([another])[0]) == 1


def test_what_is_here_already_goes_on_under_its_new_lock():
    pump = Pump()
    pump.receive(envelope(1))
    pump.receive(envelope(1), now=30.0, count=2)
    [item] = pump.lines[ORDERS].items
    assert (item.delivery.delivery_count, item.locked_until, len(pump.machine)) == (2, 90.0, 1)


def test_the_same_position_of_a_queue_that_was_made_anew_is_another_message():
    pump = Pump()
    pump.receive(envelope(1))
    pump.receive(envelope(2))
    assert pump.waiting() == ["m1", "m2"]


# The window.


def test_more_is_read_ahead_while_small_messages_flow():
    pump = Pump(syphon_batch=2)
    pump.receive(envelope(1), envelope(2))
    pump.send(None, None)
    pump.receive(envelope(3), envelope(4), first=3)
    assert pump.machine.ahead == 10
    pump.send(AWAY, AWAY)
    pump.receive(envelope(5), envelope(6), first=5)
    assert pump.machine.ahead == 0


def flowing(pump: Pump, share: float, rounds: int = 20) -> None:
    """Messages flow, each operation takes this share of ten seconds, and all is settled."""
    for first in range(1, 2 * rounds, 2):
        pump.receive(envelope(first), envelope(first + 1), first=first)
        items = pump.send(None, None, took=share).settle
        pump.machine.settled(items, [item.delivery for item in items], [None] * len(items), share)


@pytest.mark.parametrize(
    ("round_trip", "batch", "ahead"),
    [(0.001, 2, 10), (0.005, 2, 10), (0.01, 4, 20), (0.02, 8, 40), (0.1, 32, 160), (2.9, 32, 160)],
)
def test_more_is_on_its_way_to_a_distant_broker(round_trip: float, batch: int, ahead: int):
    pump = Pump(syphon_batch=2)
    flowing(pump, round_trip / 10)
    assert (pump.machine.batch, pump.machine.ahead) == (batch, ahead)
    flowing(pump, 0.0, rounds=1)
    assert (pump.machine.batch, pump.machine.ahead) == (2, 10)


def test_no_more_is_on_its_way_to_a_distant_broker_than_short_locks_allow():
    pump = Pump(syphon_batch=2, lock=4.0)
    flowing(pump, 0.3 / 1.8)
    assert pump.machine.ahead == 10


def test_one_operation_to_a_distant_broker_carries_more():
    pump = Pump(syphon_batch=2)
    flowing(pump, 0.03)
    pump.lines[ORDERS].gate.most = 1000
    pump.receive(*map(envelope, range(200, 240)), first=200)
    assert len(pump.machine.take(pump.lines[ORDERS], 0.0)) == 40


@pytest.mark.parametrize(("size", "times"), [(1 << 10, 16), (2 << 10, 16), (3 << 10, 8), (5 << 10, 4), (8 << 10, 4)])
def test_no_more_bytes_are_on_their_way_to_a_distant_broker_than_may_be_held(size: int, times: int):
    pump = Pump(syphon_batch=100)
    for first in range(1, 2000, 100):
        pump.receive(*(envelope(n, body=bytes(size)) for n in range(first, first + 100)), first=first)
        items = pump.send(*[None] * 100, took=0.03).settle
        pump.machine.settled(items, [item.delivery for item in items], [None] * len(items), 0.03)
    assert pump.machine.stretch == times
    assert pump.machine.ahead * size <= 16 << 20


def test_one_receive_takes_more_while_messages_flow_and_the_window_has_room():
    pump = Pump(syphon_batch=2)
    pump.receive(envelope(1), first=1)
    assert pump.machine.receives == 2
    flowing(pump, 0.0, rounds=1)
    assert pump.machine.receives == 4
    flowing(pump, 0.03)
    assert pump.machine.receives == 64
    pump.receive(*map(envelope, range(200, 359)), first=200)
    assert (len(pump.machine), pump.machine.receives) == (159, 33)
    assert pump.machine.room(0.0) is Room.ENOUGH


def test_a_slow_operation_among_fast_ones_widens_no_window():
    pump = Pump(syphon_batch=2)
    for took in (0.0001, 0.001, 0.0001):
        flowing(pump, took, rounds=1)
    assert pump.machine.ahead == 10


@pytest.mark.parametrize(("count", "ahead"), [(4, 160), (8, 20)])
def test_what_many_messages_take_widens_no_window(count: int, ahead: int):
    pump = Pump(syphon_batch=2)
    flowing(pump, 0.001)
    assert pump.machine.ahead == 20
    pump.lines[ORDERS].gate.most = count
    for first in range(100, 400, count):
        pump.receive(*map(envelope, range(first, first + count)), first=first)
        items = pump.send(*[None] * count, took=0.02).settle
        pump.machine.settled(items, [item.delivery for item in items], [None] * count, 0.02)
    assert pump.machine.ahead == ahead


def test_no_more_is_received_than_fits_in_the_window():
    pump = Pump(syphon_batch=2)
    assert pump.machine.room(0.0) is Room.ENOUGH
    pump.receive(envelope(1), envelope(2))
    assert pump.machine.room(0.0) is Room.SOON


MIB = 1 << 20


def test_while_nothing_is_known_of_the_size_of_messages_one_is_received():
    pump = Pump()
    assert pump.machine.receives == 1
    pump.receive(envelope(1))
    assert pump.machine.receives == 100
    pump.receive()
    assert pump.machine.receives == 1


@pytest.mark.parametrize(("size", "receives"), [(100 << 10, 100), (MIB, 16), (5 * MIB, 3), (100 * MIB, 1), (0, 100)])
def test_no_more_is_received_at_once_than_16_mib_of_messages_like_the_last_ones(size, receives):
    pump = Pump()
    pump.receive(envelope(1, body=bytes(size)))
    assert pump.machine.receives == receives


def test_a_receive_that_failed_is_followed_by_smaller_ones_until_more_may_fit():
    pump = Pump(syphon_batch=9)
    pump.receive(envelope(1))
    asked = []
    for _ in range(5):
        asked.append(pump.machine.receives)
        pump.machine.receive_ended(asked[-1], None, 20.0)
    for got, seconds in [(1, 9.0), (1, 2.0), (1, 2.0), (2, 3.0), (3, 0.1)]:
        pump.machine.receive_ended(asked[-1], got, seconds)
        asked.append(pump.machine.receives)
    assert asked == [9, 4, 2, 1, 1, 1, 2, 2, 3, 9]


def test_no_more_than_16_mib_are_on_their_way():
    pump = Pump()
    settle = pump.receive(*(envelope(n, body=bytes(4 * MIB)) for n in range(3)))
    assert pump.machine.room(0.0) is Room.ENOUGH
    pump.receive(envelope(3, body=bytes(4 * MIB)), first=4)
    assert (settle, pump.machine.room(0.0)) == ([], Room.SOON)
    pump.settle(pump.send(None).settle)
    assert pump.machine.room(0.0) is Room.ENOUGH


@pytest.mark.parametrize(("ordered", "room"), [(False, Room.POSTPONE), (True, Room.NONE)])
def test_no_more_than_16_mib_are_held_for_a_destination_that_is_unavailable(ordered, room):
    pump = Pump(ordered=ordered)
    pump.receive(*(envelope(n, body=bytes(6 * MIB)) for n in range(2)))
    pump.gates.shut(pump.lines[ORDERS].gate)
    assert pump.machine.room(0.0) is Room.ENOUGH
    pump.receive(envelope(2, body=bytes(6 * MIB)), first=3)
    assert pump.machine.room(0.0) is room


def test_what_was_released_makes_room():
    pump = Pump()
    pump.receive(envelope(1, body=bytes(20 * MIB)))
    pump.machine.release()
    assert pump.machine.room(0.0) is Room.ENOUGH


def test_a_full_batch_that_waits_is_postponed():
    pump = Pump(syphon_batch=2)
    pump.receive(envelope(1), envelope(2))
    pump.send(AWAY, AWAY)
    assert pump.machine.room(0.0) is Room.POSTPONE


def test_where_order_is_kept_several_batches_are_held_while_the_primary_answers():
    pump = Pump(syphon_batch=2, ordered=True)
    for n in range(10):
        pump.receive(envelope(2 * n, session="s"), envelope(2 * n + 1, session="s"), first=2 * n + 1)
        pump.gates.shut(pump.lines[ORDERS].gate)
        held = pump.machine.room(0.0)
        assert (n, held) == (n, Room.ASK if n < 9 else Room.NONE)
    assert pump.machine.room(0.0, primary_answers=True) is Room.NONE


def test_where_order_is_kept_no_more_is_held_while_the_primary_does_not_answer():
    pump = Pump(syphon_batch=1, ordered=True)
    pump.receive(envelope(1))
    pump.send(AWAY)
    answers = [pump.machine.room(0.0, primary_answers=answer) for answer in (False, True)]
    assert answers == [Room.NONE, Room.ENOUGH]


@pytest.mark.parametrize(("rate", "batch"), [(None, 100), (20, 20), (0.5, 1)])
def test_a_low_rate_makes_small_batches(rate, batch):
    assert Pump(syphon_max_rate=rate).machine.batch == batch


# Order by key.


def test_where_order_is_kept_one_message_a_key_is_sent_at_once():
    pump = Pump(ordered=True)
    pump.receive(*(envelope(n, session=session) for n, session in enumerate("aba")))
    taken = pump.machine.take(pump.lines[ORDERS], 0.0)
    assert ([item.message.message_id for item in taken], pump.waiting()) == (["m0", "m1"], ["m2"])


def test_where_a_sender_keeps_order_messages_of_a_key_that_follow_each_other_are_sent_at_once():
    pump = Pump(ordered=True, batches=True)
    pump.receive(*(envelope(n, session=session) for n, session in enumerate("aabba")))
    assert (len(pump.machine.take(pump.lines[ORDERS], 0.0)), pump.waiting(), pump.machine.in_order) == (4, ["m4"], True)
    assert not Pump(batches=True).machine.in_order


@pytest.mark.parametrize("failure", [AWAY, IN_DOUBT, BUSY])
@pytest.mark.parametrize("reported", [None, BEHIND, IN_DOUBT])
def test_nothing_of_a_key_counts_as_delivered_behind_a_failure(failure, reported):
    pump = Pump(ordered=True, batches=True)
    pump.receive(*(envelope(n, session=session) for n, session in enumerate("aaabb")))
    sent = pump.send(None, failure, reported, None, None)
    assert [item.message.message_id for item in sent.settle] == ["m0", "m3", "m4"]
    assert (pump.waiting(), sent.failure) == (["m1", "m2"], failure)
    assert [item.unknown for item in pump.lines[ORDERS].items] == [failure is IN_DOUBT, reported is not BEHIND]


def test_a_refused_message_of_a_key_is_gone_before_the_next_one_is_sent_again():
    pump = Pump(ordered=True, batches=True)
    pump.receive(*(envelope(n, session=session) for n, session in enumerate("aaab")))
    sent = pump.send(None, TOO_LARGE, BEHIND, None)
    assert [item.message.message_id for item in sent.settle] == ["m0", "m3", "m1"]
    assert (pump.waiting(), sent.failure, pump.lines[ORDERS].gate.is_open) == (["m2"], None, True)
    assert pump.machine.waits_for(sent.settle)


def test_without_order_all_go_at_once():
    pump = Pump()
    pump.receive(*(envelope(n, session=session) for n, session in enumerate("aba")))
    assert len(pump.machine.take(pump.lines[ORDERS], 0.0)) == 3


def test_where_order_is_kept_a_dead_letter_is_waited_for():
    for ordered in (False, True):
        pump = Pump(ordered=ordered)
        pump.receive(envelope(1))
        settle = pump.send(TOO_LARGE).settle
        assert pump.machine.waits_for(settle) is ordered
        pump.settle(settle)
        assert not pump.machine.waits_for(settle)


def test_where_order_is_kept_a_lost_lock_releases_all_that_is_held():
    for ordered in (False, True):
        pump = Pump(ordered=ordered)
        pump.receive(*map(envelope, range(3)))
        pump.machine.miss(pump.lines[ORDERS].items[1])
        assert (pump.machine.broken, len(pump.machine)) == (ordered, 0 if ordered else 2)


def test_where_order_is_kept_what_is_sent_or_stored_stays_locked_when_another_lock_is_lost():
    pump = Pump(ordered=True)
    pump.receive(*(envelope(number, session=session) for number, session in enumerate("aabbc")))
    line = pump.lines[ORDERS]
    line.gate.most = 1
    [stored] = pump.send(None).settle
    line.gate.most = 2
    poison, sent = pump.machine.take(line, 0.0)
    pump.machine.sent(line.gate, [poison], [TOO_LARGE], 0.0, 0.0)
    pump.machine.miss(line.items[0])
    assert [item.state for item in (stored, poison, sent)] == [State.SETTLING, State.LAPSED, State.SENDING]
    assert (pump.machine.delivering, len(pump.machine), pump.machine.next(line, 0.0)) == (True, 2, Next.END)
    pump.settle([stored])
    assert pump.machine.delivering
    pump.machine.ended(line)
    assert not pump.machine.delivering


def test_where_order_was_lost_with_a_lock_nothing_is_sent_that_was_not():
    pump = Pump(ordered=True)
    pump.receive(envelope(1, session="a"), envelope(2, session="b"))
    missed, other = pump.machine.take(pump.lines[ORDERS], 0.0)
    pump.machine.miss(missed)
    assert pump.machine.screened([other], AT) == ([], [])


def test_where_order_is_kept_a_completion_that_lost_its_lock_makes_all_locks_doubtful():
    for ordered in (False, True):
        pump = Pump(ordered=ordered)
        pump.receive(envelope(1, session="a"), envelope(2, session="a"))
        pump.lines[ORDERS].gate.most = 1
        pump.settle(pump.send(None).settle, LOCK_LOST)
        assert bool(pump.machine.stale(pump.lines[ORDERS].items, 0.0)) is ordered


# Postponing.


def test_the_fullest_line_that_can_not_go_on_is_postponed():
    pump = Pump(syphon_batch=2)
    pump.receive(envelope(1), envelope(2, PRICES), envelope(3, PRICES))
    pump.send(AWAY)
    pump.send(AWAY, AWAY, entity=PRICES)
    line = pump.machine.fullest(0.0)
    assert line is pump.lines[PRICES]
    items = pump.machine.postpone(line, 0.0)
    settle, begun = pump.machine.copied(line, items, [None, None], 0.0)
    assert ([item.state for item in settle], begun) == ([State.SETTLING] * 2, None)
    assert not pump.machine.is_current(line)


def test_a_copy_in_doubt_is_not_made_again_at_once():
    pump = Pump(ping_primary_interval=5.0)
    pump.receive(envelope(1))
    pump.send(AWAY)
    line = pump.lines[ORDERS]
    for now, wait in ((0.0, 5.0), (5.0, 10.0), (15.0, 20.0)):
        pump.machine.copied(line, pump.machine.postpone(line, now), [IN_DOUBT], now)
        assert pump.machine.postpone(line, now + wait - 0.1) == []


def test_a_copy_of_a_message_that_may_have_one_is_marked():
    pump = Pump()
    pump.receive(envelope(1), envelope(2))
    pump.send(IN_DOUBT, AWAY)
    items = pump.machine.postpone(pump.lines[ORDERS], 0.0)
    copies = pump.machine.copies(items, 0.0, AT)
    assert not any(copy.scheduled_enqueue_at for copy in copies)
    assert [MAYBE_DUPLICATE in copy.application_properties for copy in copies] == [True, False]


def item_at(place: str, number: int = 1) -> Item:
    return Item(Delivery(envelope(number), object(), sequence_number=place), envelope(number), DIVERSION, 0.0, 0.0)


def delivered(place: str, stored_at: datetime | None) -> Delivery:
    return Delivery(envelope(1), object(), sequence_number=place, enqueued_at=stored_at)


@pytest.mark.parametrize("ahead", [-900.0, 0.0, 900.0])
def test_copies_are_scheduled_by_the_clock_of_the_secondary_as_the_first_ones_have_shown_it(ahead):
    clock, item = QueueClock(), item_at("1")
    assert clock.due([item], 5.0, 0.0, AT) is None
    clock.seen(delivered("2", AT + timedelta(seconds=ahead)), item.identity, 3.0, AT + timedelta(seconds=3))
    later = AT + timedelta(seconds=10)
    assert clock.due([item], 5.0, 10.0, later) == later + timedelta(seconds=ahead + 5.0)
    assert clock.due([item], 5.0, 1000.0, AT) is None  # and again, as clocks drift, and are set


def test_what_was_copied_and_is_redelivered_shows_no_clock():
    clock, item = QueueClock(), item_at("1")
    clock.due([item], 5.0, 0.0, AT)
    clock.seen(delivered("1", AT - timedelta(hours=1)), item.identity, 3.0, AT)
    assert clock.due([item], 5.0, 3.0, AT) is None


def test_a_broker_that_dates_no_messages_schedules_by_the_clocks_of_its_clients():
    clock, item = QueueClock(), item_at("1")
    clock.due([item], 5.0, 0.0, AT)
    clock.seen(delivered("2", None), item.identity, 3.0, AT)
    assert clock.due([item], 5.0, 3.0, AT) == AT + timedelta(seconds=5)


def test_a_message_that_was_stored_after_the_present_shows_that_the_clock_is_further_ahead():
    """A message that was diverted twice looks like a copy of the other one, and a clock may be set."""
    clock, item = QueueClock(), item_at("1")
    clock.due([item], 5.0, 0.0, AT)
    clock.seen(delivered("2", AT - timedelta(hours=1)), item.identity, 3.0, AT)
    clock.seen(delivered("3", AT + timedelta(minutes=15)), ("another", "", 0), 4.0, AT)
    assert clock.due([item], 5.0, 4.0, AT) == AT + timedelta(minutes=15, seconds=5)


def test_copies_that_show_no_clock_for_a_while_are_reported():
    clock = QueueClock()
    assert not clock.asks_in_vain(5.0, 100.0)
    for number in range(3000):
        clock.due([item_at(str(number), number)], 5.0, 100.0, AT)
    assert len(clock._copies) <= 1001  # however many there are
    assert [clock.asks_in_vain(5.0, now) for now in (105.0, 105.1)] == [False, True]


@pytest.mark.parametrize(("schedules", "waits"), [(True, [0.0, 0.0, 1.0]), (False, [1.0, 1.0, 1.0])])
def test_the_pump_waits_after_copies_that_are_seen_again_at_once(schedules, waits):
    pump = Pump(schedules=schedules, ping_primary_interval=5.0)
    pump.receive(envelope(1))
    pump.send(AWAY)
    pump.machine.copies(pump.machine.postpone(pump.lines[ORDERS], 0.0), 0.0, AT)
    assert [pump.machine.wait_after_copies(now) for now in (0.0, 5.0, 5.1)] == waits


def test_copies_are_scheduled_only_where_they_are_counted():
    for schedules in (True, False):
        pump = Pump(schedules=schedules, ping_primary_interval=5.0)
        pump.receive(envelope(1))
        pump.send(AWAY)
        items = pump.machine.postpone(pump.lines[ORDERS], 0.0)
        [copy] = pump.machine.copies(items, 0.0, AT)
        seen = replace(items[0].delivery, message=copy, sequence_number="9", enqueued_at=AT)
        pump.machine.received([seen], 1.0, AT)  # shows the secondary's clock
        [again] = pump.machine.copies(items, 1.0, AT)
        assert (again.scheduled_enqueue_at == AT + timedelta(seconds=5)) is schedules


def test_nothing_is_postponed_while_a_settlement_is_tried_again():
    pump = Pump()
    pump.receive(envelope(1), envelope(2))
    pump.settle(pump.send(None, AWAY).settle, BUSY)
    assert pump.machine.postpone(pump.lines[ORDERS], 0.0) == []


def test_what_is_left_of_a_line_that_was_dropped_begins_another():
    pump = Pump()
    pump.receive(envelope(1))
    pump.send(AWAY)
    line = pump.lines[ORDERS]
    items = pump.machine.postpone(line, 0.0)
    assert pump.machine.next(line, 0.0) is Next.END
    _, begun = pump.machine.copied(line, items, [AWAY], 0.0)
    assert begun is not None
    assert list(begun.items) == items


# What is locked in vain.


@pytest.mark.parametrize("lane", [True, False])
def test_of_a_lane_what_can_not_be_delivered_is_let_go(lane):
    pump = Pump(lane=lane)
    pump.receive(envelope(1))
    assert not pump.machine.lets_go
    pump.send(AWAY)
    assert pump.machine.lets_go is lane


@pytest.mark.parametrize(("lane", "works"), [(True, True), (False, False)])
def test_a_pump_that_begins_anew_first_completes_what_is_stored_where_its_queue_works(lane, works):
    pump = Pump(lane=lane)
    pump.receive(envelope(1))
    pump.send(AWAY)
    line = pump.lines[ORDERS]
    assert pump.machine.begin_anew() is works
    assert not pump.machine.is_current(line)


def test_a_pump_that_lost_its_order_begins_anew_with_a_queue_that_works():
    pump = Pump(ordered=True)
    pump.receive(envelope(1), envelope(2))
    pump.machine.miss(pump.lines[ORDERS].items[0])
    assert pump.machine.begin_anew()


# Locks and settlements.


def settled_by(pump: Pump, stored: int, dead: int) -> list[list[int]]:
    """How many are settled in each operation, those side by side in one list."""
    pump.gates.of(ORDERS).most = 10_000
    first = pump.receive(*(Message(b"forged", message_id=str(n)) for n in range(dead)), first=stored + 1)
    if stored:
        pump.receive(*map(envelope, range(stored)))
    left = [*first]
    while stored and (line := pump.lines.get(ORDERS)) and line.items:
        count = len(pump.machine.take(line, 0.0))
        left = [*pump.machine.sent(line.gate, line.taken, [None] * count, 0.5, 0.0).settle, *left]
        pump.machine.ended(line)
    rounds = []
    items: Sequence[Item] = left
    while items:
        operations, items = pump.machine.settlements(items)
        assert all(len({item.poison is None for item in each}) == 1 for each in operations)
        rounds.append([len(each) for each in operations])
    return rounds


def test_completions_go_first_and_then_dead_letters_side_by_side():
    assert settled_by(Pump(), 150, 30) == [[100], [50], [25], [5]]


def test_completions_go_side_by_side_when_the_largest_ones_fit():
    pump = Pump()
    pump.machine.complete_at_once = MOST_COMPLETED
    assert settled_by(pump, 2500, 1) == [[1000, 1000, 500], [1]]


def test_a_lock_is_renewed_after_a_third_of_it():
    pump = Pump(lock=30.0)
    pump.receive(envelope(1), now=100.0)
    assert (pump.machine.to_renew(109.0), pump.machine.renewal_due_in(109.0)) == ([], 1.0)
    [item] = pump.machine.to_renew(110.0)
    pump.machine.renewing(item, 110.0)
    assert pump.machine.renewed(item, item.delivery, item.delivery, 110.0)
    assert (item.locked_until, pump.machine.to_renew(119.0)) == (140.0, [])


def test_as_many_are_renewed_at_once_as_all_locks_need_and_not_only_those_that_are_due():
    pump = Pump(lock=30.0)
    pump.receive(*map(envelope, range(80)))
    pump.receive(*map(envelope, range(80, 150)), now=9.0, first=81)
    pump.machine.renewals_took(5.0)  # half of a third of a lock
    assert len(pump.machine.to_renew(11.0)) == 75


def test_those_are_renewed_first_whose_locks_end_soonest():
    pump = Pump(lock=30.0)
    for number in range(40):
        pump.receive(envelope(number), now=number / 10, first=number + 1)
    renewed = pump.machine.to_renew(15.0)
    assert 1 < len(renewed) < 40
    assert [item.locked_until for item in renewed] == [30.0 + number / 10 for number in range(len(renewed))]


def test_a_lock_that_lasts_as_long_as_the_connection_is_not_renewed():
    pump = Pump(lock=None)
    pump.receive(envelope(1))
    assert (pump.machine.to_renew(1e9), pump.machine.stale(pump.lines[ORDERS].items, 1e9)) == ([], [])


def test_a_lock_with_less_than_half_of_its_time_is_stale():
    pump = Pump(lock=60.0)
    pump.receive(envelope(1))
    items = pump.lines[ORDERS].items
    assert (pump.machine.stale(items, 29.0), pump.machine.stale(items, 31.0)) == ([], list(items))


def test_an_operation_ends_before_half_of_a_lock():
    assert [Pump(lock=lock, attempt_timeout=20.0).machine.time_limit for lock in (None, 60.0, 10.0)] == [20, 20, 4.5]


def test_a_completion_that_fails_in_passing_is_tried_again():
    pump = Pump()
    pump.receive(envelope(1))
    items = pump.send(None).settle
    reports, failures = pump.settle(items, BUSY)
    assert (reports, failures, list(pump.machine.unsettled)) == ([], [BUSY], items)
    reports, _ = pump.settle(items)
    assert ([completed for _, completed in reports], len(pump.machine.unsettled)) == ([True], 0)


def test_a_completion_under_a_lock_that_was_replaced_is_tried_again():
    pump = Pump()
    pump.receive(envelope(1))
    [item] = pump.send(None).settle
    used = item.delivery
    pump.receive(envelope(1), count=2)
    assert pump.machine.settled([item], [used], [LOCK_LOST]) == ([], [])
    assert list(pump.machine.unsettled) == [item]


def test_what_is_given_up_is_reported_once():
    pump = Pump()
    pump.receive(envelope(1))
    items = pump.send(None).settle
    pump.machine.release()
    assert [completed for _, completed in pump.machine.give_up()] == [False]
    assert pump.settle(items) == ([], [])
    assert pump.machine.moved == 1


# Invariants, whatever happens.

ANSWERS = [None, None, None, None, None, AWAY, IN_DOUBT, CUT_OFF, TOO_LARGE, NOT_FOUND, BUSY]


class Operation:
    """What a line is doing: it waits for dead-letters, or for an answer."""

    def __init__(self, line: DestinationLine) -> None:
        self.line = line
        self.sent: list[Item] = []
        self.waits_for: list[Item] = []


class AnyPump:
    """A pump between a primary and a secondary that do as they like, and keep account.

    A message is named by its number. Nothing may be lost, nothing may be settled that is not stored elsewhere, and each
    settlement is reported once. Where order is kept, a message is sent only when none before it is in doubt, but those
    that are sent together with it by a sender that keeps their order.
    """

    def __init__(self, seed: int, *, ordered: bool, batches: bool) -> None:
        self.random = random.Random(seed)
        self.pump = Pump(
            ordered=ordered,
            batches=batches,
            syphon_batch=self.random.randint(1, 5),
            allowed_entities=("orders", "prices"),
        )
        self.machine, self.ordered = self.pump.machine, ordered
        self.numbers = self.positions = 0
        self.queue: dict[int, Message] = {}  # by position
        self.tokens: dict[int, object] = {}  # of those that are locked
        self.counts: Counter[int] = Counter()
        self.stored: set[str] = set()  # in the primary
        self.confirmed: set[str] = set()  # as the pump was told
        self.copied: set[str] = set()
        self.dead: set[str] = set()
        self.keys: dict[str, str | None] = {}
        self.operations: dict[DestinationLine, Operation | None] = {}
        self.settlements: list[tuple[list[Item], list[Delivery]]] = []
        self.items: dict[Item, None] = {}
        self.reports: Counter[Item] = Counter()
        self.batch = 0
        self.now = 0.0

    def settle(self, items: list[Item]) -> None:
        if items:
            self.settlements.append((items, [item.delivery for item in items]))

    @staticmethod
    def name(message: Message) -> str:
        return message.message_id or ""

    def divert(self) -> None:
        entity = self.random.choice([ORDERS, PRICES])
        self.numbers += 1
        self.add(envelope(self.numbers, entity, session=f"{entity}-{self.random.choice('ab')}"))

    def add(self, message: Message) -> None:
        self.positions += 1
        self.queue[self.positions] = message
        self.keys[self.name(message)] = message.application_properties["x-ms-sessionid"]

    def receive(self) -> None:
        room = self.machine.room(self.now)
        if room is Room.ASK:
            room = self.machine.room(self.now, primary_answers=True)
        if room is not Room.ENOUGH or self.machine.broken:
            return
        free = [position for position in self.queue if position not in self.tokens][: self.machine.batch]
        deliveries = []
        for position in free:
            self.tokens[position] = object()
            self.counts[position] += 1
            delivery = Delivery(self.queue[position], self.tokens[position], self.counts[position], str(position))
            deliveries.append(delivery)
        settle, begun = self.machine.received(deliveries, self.now, AT)
        for line in begun:
            self.operations[line] = None
        self.items.update(dict.fromkeys([*settle, *(item for line in self.operations for item in line.items)]))
        self.settle(settle)

    def lines(self, *, busy: bool) -> list[DestinationLine]:
        return [line for line, operation in self.operations.items() if (operation is not None) is busy]

    def begin_operation(self) -> None:
        line = self.random.choice(self.lines(busy=False))
        step = self.machine.next(line, self.now)
        if step is Next.END:
            del self.operations[line]
            self.pump.gates.leave(line.gate)
        if step is Next.SEND:
            self.machine.take(line, self.now)
            self.operations[line] = operation = Operation(line)
            self.screen(operation)

    def screen(self, operation: Operation) -> None:
        taken = operation.line.taken
        for item in self.machine.stale(taken, self.now):
            if not self.renew(item):
                self.machine.miss(item)
        fresh = [item for item in taken if item.state is State.SENDING]
        operation.sent, settle = self.machine.screened(fresh, AT)
        self.settle(settle)
        assert not self.machine.waits_for(settle)
        for item in operation.sent:
            assert item.message.message_id not in self.confirmed - self.copied
            self.check_order(item, operation.sent)
        if not operation.sent:
            self.end(operation)

    def renew(self, item: Item) -> bool:
        began_at, used = self.now, item.delivery
        self.machine.renewing(item, began_at)
        outcome: Delivery | TransportError = BUSY
        if self.tokens.get(int(used.sequence_number)) is not used.lock_token:
            outcome = LOCK_LOST
        elif self.random.random() < 0.5:
            outcome = replace(used)
        return self.machine.renewed(item, used, outcome, began_at)

    def check_order(self, item: Item, sent: Sequence[Item]) -> None:
        together = {self.name(each.message) for each in sent[: sent.index(item)]} if self.machine.in_order else set()
        if self.ordered:
            place, key = int(item.delivery.sequence_number), item.message.session_id
            earlier = [self.name(self.queue[each]) for each in sorted(self.queue) if each < place]
            assert {name for name in earlier if self.keys[name] == key} <= self.confirmed | together

    def answer(self) -> None:
        operation = self.operations[self.random.choice(self.lines(busy=True))]
        assert operation is not None
        if operation.waits_for:
            if not self.machine.waits_for(operation.waits_for):
                self.end(operation)
            return
        line, sent = operation.line, operation.sent
        results: list[TransportError | None] = [self.random.choice(ANSWERS) for _ in sent]
        failed, missing = set(), set()
        for place, (item, result) in enumerate(zip(sent, results, strict=True)):
            session = item.message.session_id
            if self.machine.in_order and session in failed:
                result = results[place] = self.random.choice([BEHIND, IN_DOUBT])
            stored = result is None or (result.maybe_applied and self.random.random() < 0.5)
            if result is not None:
                failed.add(session)
            if stored and not (self.machine.in_order and session in missing):
                self.stored.add(self.name(item.message))
            else:
                missing.add(session)
            if result is None:
                self.confirmed.add(self.name(item.message))
        outcome = self.machine.sent(line.gate, sent, results, self.random.random(), self.now)
        if outcome.failure is not None:
            self.pump.gates.shut(line.gate)
        self.settle(outcome.settle)
        operation.waits_for = outcome.settle
        if not self.machine.waits_for(outcome.settle):
            self.end(operation)

    def end(self, operation: Operation) -> None:
        self.machine.ended(operation.line)
        self.operations[operation.line] = None

    def open_gate(self) -> None:
        self.pump.gates.open(self.pump.gates.of(self.random.choice([ORDERS, PRICES])))

    def end_settlement(self) -> None:
        items, used = self.settlements.pop(self.random.randrange(len(self.settlements)))
        errors: list[TransportError | None] = []
        for item, delivery in zip(items, used, strict=True):
            position = int(delivery.sequence_number)
            if self.tokens.get(position) is not delivery.lock_token:
                errors.append(LOCK_LOST)
            elif self.random.random() < 0.2:
                errors.append(BUSY)
            else:
                errors.append(None)
                del self.tokens[position]
                message = self.queue.pop(position)
                if item.poison is not None:
                    self.dead.add(self.name(message))
        self.report(self.machine.settled(items, used, errors)[0])

    def report(self, reports: Sequence[Any]) -> None:
        for item, _ in reports:
            self.reports[item] += 1

    def try_settlements_again(self) -> None:
        under_way = {item for items, _ in self.settlements for item in items}
        self.settle([item for item in self.machine.unsettled if item not in under_way])

    def lose_a_lock(self) -> None:
        if self.ordered:
            self.tokens.clear()  # another process has the queue now
        else:
            del self.tokens[self.random.choice(sorted(self.tokens))]

    def let_time_pass(self) -> None:
        self.now += self.random.choice([1.0, 25.0, 100.0])
        for item in self.machine.to_renew(self.now):
            if self.machine.is_held(item):
                self.renew(item)

    def postpone(self) -> None:
        if self.machine.room(self.now) is not Room.POSTPONE:
            return
        line = self.machine.fullest(self.now)
        if line is None or not self.machine.primary_seen(line, answers=self.random.random() < 0.5):
            return
        items = self.machine.postpone(line, self.now)
        results = [self.random.choice([None, None, AWAY, IN_DOUBT]) for _ in items]
        for copy, result in zip(self.machine.copies(items, 0.0, AT), results, strict=True):
            if result is None or (result.maybe_applied and self.random.random() < 0.5):
                self.add(copy)
                self.copied.add(self.name(copy))
        settle, begun = self.machine.copied(line, items, results, self.now)
        self.settle(settle)
        if begun is not None:
            self.operations[begun] = None
        if not self.machine.is_current(line) and line in self.operations:
            del self.operations[line]
            self.pump.gates.leave(line.gate)

    def begin_anew(self) -> None:
        self.machine.drop_lines()
        self.machine.release()
        self.report(self.machine.give_up())
        self.settlements.clear()
        self.tokens.clear()

    def steps(self) -> list[Callable[[], None]]:
        """What can happen now; what is there twice happens more often."""
        if self.machine.broken:
            ways = [self.answer] * bool(self.lines(busy=True)) + [self.end_settlement] * bool(self.settlements)
            return [*ways, self.try_settlements_again] if self.machine.delivering else [self.begin_anew]
        steps = [self.divert, self.divert, self.receive, self.receive, self.open_gate, self.postpone]
        steps += [self.begin_operation] * 3 * bool(self.lines(busy=False)) + [self.answer] * 3 * bool(
            self.lines(busy=True)
        )
        steps += [self.end_settlement] * 3 * bool(self.settlements) + [self.try_settlements_again]
        rare = [self.let_time_pass, self.begin_anew] + [self.lose_a_lock] * bool(self.tokens)
        return rare if self.random.random() < 0.05 else steps

    def check(self) -> None:
        """What holds at any time."""
        stored_or_queued = {self.name(message) for message in self.queue.values()} | self.stored | self.dead
        assert {f"m{number}" for number in range(1, self.numbers + 1)} <= stored_or_queued
        assert set(self.reports.values()) <= {1}
        assert self.machine.moved + self.machine.dead_lettered == len(self.reports)
        assert all(self.machine.is_held(item) is (item.state < State.LOST) for item in self.items)
        somewhere = {item for line in self.operations for item in [*line.items, *line.taken]}
        somewhere.update(item for items, _ in self.settlements for item in items)
        assert {item for item in self.items if self.machine.is_held(item)} <= somewhere | set(self.machine.unsettled)
        under_way = {item for items, _ in self.settlements for item in items}
        assert set(self.machine._settling) <= under_way | set(self.machine.unsettled), "nothing would ever report it"
        self.batch = max(self.batch, self.machine.batch)  # it shrinks before what is on its way does
        assert len(self.machine) <= (17 if self.ordered else 6) * self.batch

    def end_all(self) -> None:
        self.begin_anew()
        for line in self.lines(busy=True):
            operation = self.operations[line]
            assert operation is not None
            if not operation.waits_for:
                self.machine.sent(line.gate, operation.sent, [AWAY] * len(operation.sent), 0.0, self.now)
            self.end(operation)
        assert (len(self.machine), len(self.machine.unsettled)) == (0, 0)
        assert {item.state for item in self.items} <= {State.LOST, State.LAPSED, State.FORFEIT, State.GONE}


@pytest.mark.parametrize(("ordered", "batches"), [(False, False), (True, False), (True, True)])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_happens_nothing_is_lost_or_settled_twice_or_out_of_order(ordered, batches, seed):
    world = AnyPump(seed, ordered=ordered, batches=batches)
    for _ in range(300):
        world.random.choice(world.steps())()
        world.check()
    world.end_all()
