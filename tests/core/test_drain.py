"""When all backlog queues may be called empty (SPEC 4.5)."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from pairmq.core.lanes import EmptyWatch


def test_nothing_is_known_at_the_beginning():
    assert EmptyWatch(1).all_since() is None


def test_one_queue_alone_speaks_for_all():
    assert EmptyWatch(1).seen_empty(0, 7.0) == 7.0


def test_a_later_look_at_a_queue_replaces_the_earlier_one():
    watch = EmptyWatch(1)
    watch.seen_empty(0, 7.0)
    assert watch.seen_empty(0, 9.0) == 9.0


def test_a_look_that_began_at_zero_counts():
    assert EmptyWatch(1).seen_empty(0, 0.0) == 0.0


def test_a_queue_that_held_something_counts_again_once_seen_empty():
    watch = EmptyWatch(2)
    watch.seen_empty(0, 1.0)
    watch.seen_empty(1, 2.0)
    watch.not_empty(1)
    assert watch.seen_empty(1, 3.0) == 1.0


looks = st.lists(st.tuples(st.integers(0, 1), st.none() | st.floats(0, 100)), max_size=40)


@given(looks)
def test_the_last_look_at_each_queue_decides_and_the_oldest_of_these_is_reported(story: list[tuple[int, float | None]]):
    watch, last = EmptyWatch(2), dict[int, float | None]()
    for index, began_at in story:
        last[index] = began_at
        if began_at is None:
            watch.not_empty(index)
        else:
            watch.seen_empty(index, began_at)
        known = [last.get(0), last.get(1)]
        assert watch.all_since() == (None if None in known else min(at for at in known if at is not None))
