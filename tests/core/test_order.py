"""Order of a key: its queue, and when it is clean (SPEC 8)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq.core.order import DrainView, DrainWait, Key, KeyOrder, KeyRoute, Look, LookAt, Way, backlog_queue_of
from pairmq.model import Entity, EntityKind

ORDERS = Entity("orders")


def look(began_at: float, oldest: int | None, newest: int = 9) -> Look:
    return Look(began_at, oldest, newest)


# The queue.


def test_the_queue_of_a_session_never_changes():
    # Written down once: another version that chose otherwise would let a session overtake itself.
    assert [backlog_queue_of(ORDERS, f"session-{n}", "sender", 10) for n in range(8)] == [2, 8, 7, 9, 6, 6, 6, 9]


def test_the_queue_of_a_session_is_the_same_in_every_process():
    program = (
        "from pairmq.core.order import backlog_queue_of; from pairmq.model import Entity\n"
        "print([backlog_queue_of(Entity('orders'), f'session-{n}', 'sender', 10) for n in range(8)])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
            timeout=100,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_the_sender_matters_only_without_a_session():
    assert backlog_queue_of(ORDERS, "s", "a", 1000) == backlog_queue_of(ORDERS, "s", "b", 1000)
    assert backlog_queue_of(ORDERS, None, "a", 1000) != backlog_queue_of(ORDERS, None, "b", 1000)


def test_a_session_and_a_sender_of_one_name_are_two_keys():
    assert backlog_queue_of(ORDERS, "x", "x", 1000) != backlog_queue_of(ORDERS, None, "x", 1000)
    assert backlog_queue_of(ORDERS, "x", "", 1000) != backlog_queue_of(
        Entity("orders", EntityKind.TOPIC), "x", "", 1000
    )


@given(session=st.none() | st.text(max_size=20), sender=st.text(max_size=20), count=st.integers(1, 1000))
def test_every_key_has_one_of_the_queues(session, sender, count):
    assert 0 <= backlog_queue_of(ORDERS, session, sender, count) < count


def test_sessions_spread_over_the_queues():
    chosen = [backlog_queue_of(ORDERS, str(n), "", 10) for n in range(1000)]
    assert all(60 < chosen.count(queue) < 140 for queue in range(10))


# Clean and dirty.


def test_an_unknown_key_is_dirty_and_a_fresh_one_is_not():
    assert not KeyOrder(0.0).clean
    assert KeyOrder(0.0, fresh=True).clean


def test_a_key_is_dirty_from_before_its_first_diverted_send_leaves():
    key = KeyOrder(0.0, fresh=True)
    key.diverting()
    assert not key.clean


def test_a_diverted_send_that_certainly_left_nothing_changes_nothing():
    key = KeyOrder(0.0, fresh=True)
    key.diverting()
    key.divert_ended(1.0, maybe_there=False)
    assert key.clean
    key.diverting()
    key.divert_ended(2.0, maybe_there=True)
    key.diverting()
    key.divert_ended(3.0, maybe_there=False)
    assert not key.clean


def test_an_empty_queue_makes_a_key_clean():
    assert KeyOrder(1.0).seen(look(1.0, None))


def test_a_look_from_before_the_last_diverted_send_ended_does_not_count():
    key = KeyOrder(0.0)
    key.diverting()
    key.divert_ended(5.0, maybe_there=True)
    assert not key.seen(look(4.9, None))
    assert key.seen(look(5.0, None))


def test_a_key_is_clean_once_the_queue_is_settled_beyond_its_mark():
    key = KeyOrder(0.0)
    assert not key.seen(look(0.0, 3, newest=7))
    assert not key.seen(look(1.0, 7, newest=20))  # its last message may be this one
    assert key.seen(look(2.0, 8, newest=30))


def test_the_first_look_alone_never_passes_its_own_mark():
    assert not KeyOrder(0.0).seen(look(0.0, 7, newest=7))


def test_a_diverted_send_takes_the_mark_back():
    key = KeyOrder(0.0)
    key.seen(look(0.0, 3, newest=7))
    key.diverting()
    key.divert_ended(1.0, maybe_there=True)
    assert not key.seen(look(1.0, 8, newest=8))
    assert key.seen(look(2.0, 9, newest=9))


def test_a_key_in_doubt_needs_a_new_look():
    key = KeyOrder(0.0, fresh=True)
    key.doubt(5.0)
    assert not key.seen(look(4.0, None))
    assert key.seen(look(5.0, None))


# Whether waiting is worth it.


def test_a_queue_that_did_not_move_for_two_seconds_is_not_waited_for_until_it_does():
    view = DrainView()
    assert view.worth_waiting(look(0.0, 3))
    assert view.worth_waiting(look(1.9, 3))
    assert not view.worth_waiting(look(2.0, 3))
    assert view.worth_waiting(look(4.0, 4))


def test_a_queue_that_moves_slowly_is_waited_for_however_short_each_wait_is():
    view = DrainView()
    # Twenty sends in line, each of which looks once or twice, at a queue that moves once a second.
    assert all(view.worth_waiting(look(0.1 * n, 3 + n // 10)) for n in range(100))


def test_short_waits_add_up_where_nothing_moves():
    view = DrainView()
    worth = [view.worth_waiting(look(0.1 * n, 3)) for n in range(30)]
    assert worth == [True] * 20 + [False] * 10


def test_an_empty_queue_is_never_stalled():
    view = DrainView()
    assert all(view.worth_waiting(look(at, None)) for at in (0.0, 10.0, 20.0))


# Where the sends of a key go.


@pytest.mark.parametrize(
    ("left", "lined_up", "waits"), [(60, 1, 2.0), (2, 1, 1.0), (60, 10, 0.2), (60, 1000, 0.02), (60, 10_000, 0.003)]
)
def test_those_in_line_share_the_wait_and_half_of_their_time(left, lined_up, waits):
    assert DrainWait(0.0, left, lined_up).ends_at == pytest.approx(waits)


def a_key(*, clean: bool) -> Key:
    key = Key(KeyOrder(0.0, fresh=clean), queue=3, now=0.0)
    key.lined_up = 1
    return key


def test_a_key_that_rested_is_in_doubt():
    key = a_key(clean=True)
    key.lined_up = 0
    key.used(30.0)
    assert key.facts.clean
    key.used(60.1)
    assert not key.facts.clean


def test_a_key_with_a_send_in_line_does_not_rest():
    key = a_key(clean=True)
    key.used(60.0)
    assert key.facts.clean


def test_a_look_is_waited_for_until_the_deadline_at_most():
    route = KeyRoute(a_key(clean=False), DrainView())
    assert route.way(0.0, 60.0) == LookAt(3, 2.0)
    assert route.way(0.5, 1.0) == LookAt(3, 1.0)


def test_a_queue_that_does_not_drain_is_not_waited_for():
    route = KeyRoute(a_key(clean=False), DrainView())
    route.way(0.0, 60.0)
    assert isinstance(route.looked(Look(0.0, 5, 9), 0.1), float)
    assert route.looked(Look(2.0, 5, 9), 2.1) is Way.DIVERT


def test_pauses_between_looks_grow_up_to_the_end_of_the_wait():
    route, now, pauses = KeyRoute(a_key(clean=False), DrainView()), 0.0, []
    route.way(now, 60.0)
    for oldest in range(20):
        until = route.looked(Look(now, oldest, 99), now)
        assert isinstance(until, float)
        pauses.append(until - now)
        now = until
    assert pauses[:3] == pytest.approx([0.01, 0.015, 0.0225])
    assert max(pauses) == pytest.approx(0.25)
    assert now == 2.0
