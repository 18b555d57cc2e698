"""How long to wait before a retry (SPEC 3.6)."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pairmq.core import Backoff
from pairmq.core.backoff import TRANSIENT_RETRIES, Pace


@pytest.mark.parametrize(("retry", "seconds"), [(0, 0.05), (1, 0.1), (2, 0.2), (5, 1.6), (6, 2.0), (7, 2.0)])
def test_each_wait_is_twice_the_last_up_to_the_cap(retry: int, seconds: float):
    assert Backoff().wait(retry, 0.0) == pytest.approx(seconds)


def test_chance_takes_off_at_most_the_jitters_share():
    backoff = Backoff(first=1.0, cap=1.0, jitter=0.25)
    assert (backoff.wait(0, 0.0), backoff.wait(0, 1.0)) == (1.0, 0.75)


def test_without_jitter_chance_has_no_say():
    assert Backoff(first=1.0, cap=9.0, jitter=0.0).wait(1, 0.7) == 2.0


@given(st.integers(0, 10**9), st.floats(0, 1, exclude_max=True))
def test_a_wait_is_never_longer_than_the_cap_nor_shorter_than_half_the_first(retry: int, chance: float):
    assert 0.025 <= Backoff().wait(retry, chance) <= 2.0


@given(st.integers(0, 200), st.floats(0, 1, exclude_max=True))
def test_waits_never_shrink_from_retry_to_retry(retry: int, chance: float):
    backoff = Backoff()
    assert backoff.wait(retry, chance) <= backoff.wait(retry + 1, chance)


def test_transient_failures_are_retried_a_few_times():
    assert TRANSIENT_RETRIES == 3


def test_the_first_need_not_wait_and_the_others_follow_at_the_rate():
    pace = Pace(rate=10, burst=2)
    turns = []
    for _ in range(6):
        free = pace.is_free(100.0)
        turns.append(pace.delay(100.0))
        assert free == (turns[-1] == 0)
    assert turns == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])


def test_what_was_not_taken_is_not_saved_up():
    pace = Pace(rate=10, burst=2)
    for _ in range(20):
        pace.delay(100.0)
    assert not pace.is_free(101.0)
    assert [pace.delay(1000.0) for _ in range(4)] == pytest.approx([0, 0, 0, 0.1])
