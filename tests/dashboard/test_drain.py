"""The speed of a drain, and the time that is left."""

from __future__ import annotations

from pairmq.dashboard._looks import MOST_SAMPLES, Drain, Progress, Sample


def drain_of(*samples: tuple[float, int, int], own: bool = True) -> Drain:
    drain = Drain(own=own)
    for sample in samples:
        drain.counted(Sample(*sample))
    return drain


def progress_of(*samples: tuple[float, int, int], own: bool = True, **given: bool) -> Progress:
    """How far it is, as of the last count."""
    return drain_of(*samples, own=own).progress(samples[-1][0], **given)


def test_nothing_is_known_before_the_first_count():
    assert drain_of().progress(0.0) == Progress(0, 0.0, None)


def test_an_own_syphon_is_as_fast_as_it_moves_however_many_come_new():
    assert progress_of((0, 100, 0), (10, 150, 50)) == Progress(150, 5.0, 30.0)


def test_another_process_s_syphon_is_as_fast_as_the_backlog_shrinks():
    assert progress_of((0, 100, 0), (10, 80, 0), own=False) == Progress(100, 2.0, 40.0)


def test_time_left_is_not_shown_when_the_backlog_grows():
    assert progress_of((0, 100, 0), (10, 180, 0), own=False) == Progress(180, 0.0, None)


def test_the_peak_is_of_this_backlog_and_not_of_the_last_one():
    assert progress_of((0, 900, 0), (2, 0, 900), (4, 10, 900)).peak == 10


def test_old_counts_do_not_weigh_on_the_speed():
    fast = [(float(second), 1000, 100 * second) for second in range(0, 60, 2)]
    stopped = [(float(second), 1000, 5800) for second in range(60, 120, 2)]
    assert progress_of(*fast, *stopped).per_second == 0.0


def test_counts_are_bounded():
    assert len(drain_of(*((float(n), n, 0) for n in range(5000))).samples) == MOST_SAMPLES


def test_counts_of_a_while_ago_give_no_speed():
    drain = drain_of((0, 100, 0), (10, 50, 50))
    assert drain.progress(12.0) == Progress(100, 5.0, 10.0)
    assert drain.progress(60.0) == Progress(100, 0.0, None)


def test_nothing_moves_while_a_broker_does_not_answer():
    assert progress_of((0, 100, 0), (10, 50, 50), stopped=True) == Progress(100, 0.0, None)
