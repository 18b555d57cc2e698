"""What the commands do beside the pipeline that they start."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from pairmq.pipeline.follow import Stop
from pairmq.pipeline.report import Report
from pairmq.pipeline.transforms.verdicts import Verdict

RUN = ("pipeline", "run", "--journal", "journal", "--out", "tables")


def report_of(verdicts, faults):
    blank = dict.fromkeys((field.name for field in fields(Report)), 0)
    known = {"bad": (), "processes": {"closed": 2}, "verdicts": verdicts, "faults": faults, "tables": {}}
    return Report(**blank | known)  # type: ignore[arg-type]


@pytest.fixture
def shown(cli, monkeypatch) -> Callable[..., str]:
    """What a run prints that found these verdicts and faults, on one line."""

    def show(verdicts, faults, **more) -> str:
        monkeypatch.setattr("pairmq.pipeline.run", lambda *_, **__: replace(report_of(verdicts, faults), **more))
        ended = cli(*RUN)
        return " ".join(f"{ended.err} {ended.out}".split())

    return show


def test_a_message_id_cannot_steer_the_terminal(shown):
    out = shown({"lost": 1}, {"lost": [("east>west", "orders", "\x1b]0;owned\x07")]})
    assert "lost: \\x1b]0;owned\\x07 of orders" in out


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("not journalled", "7 messages without a send in the journal: the sender keeps none, or samples, or its"),
        (
            "delivery not observed",
            "7 messages accepted for topics, or for queues of which no delivery is in the",
        ),
    ],
)
def test_of_what_one_side_alone_has_written_is_warned_and_no_more_claimed_than_was_read(shown, verdict, said):
    out = shown({"delivered": 9, verdict: 7}, {})
    assert verdict in set(Verdict)
    assert f"warning: {said}" in out
    assert "nothing lost in what was read; tables in tables" in out


def test_of_programs_whose_segments_are_missing_is_warned(shown):
    out = shown({"delivered": 9}, {}, missing_programs=("a\x1b[2J", "b"))
    assert "warning: the latest segments of 2 runs of programs are missing, or all, as others saw them write" in out
    assert "such as a\\x1b[2J" in out
    assert "nothing is known to be lost, but the journal has holes" in out


def test_where_both_sides_have_written_nothing_is_lost(shown):
    assert "nothing lost; tables in tables" in shown({"delivered": 9}, {})


@pytest.mark.usefixtures("with_hangups")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_run_in_order(cli, monkeypatch, number: int, status: int) -> None:
    monkeypatch.setattr("pairmq.pipeline.run", lambda *_, **__: signal.raise_signal(number))
    assert cli(*RUN).status == status


@pytest.fixture
def following(cli, monkeypatch) -> Callable[..., int]:
    """Follows a journal without Spark: gives the exit status after a signal before its start, or others meanwhile."""

    def call(*numbers: int, starting: int = 0) -> int:
        def follow(*_: object, stop: Stop, **__: object) -> SimpleNamespace:
            if starting:
                signal.raise_signal(starting)
            with stop:
                for number in numbers:
                    signal.raise_signal(number)
                asked.append(stop.asked)
            return SimpleNamespace(lost=0)

        asked: list[bool] = []
        monkeypatch.setattr("pairmq.pipeline.follow.follow", follow)
        status = cli(*RUN, "--follow").status
        assert asked == ([] if starting else [bool(numbers)])
        return status

    return call


@pytest.mark.usefixtures("with_hangups")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_follower_in_order_also_while_it_starts(following, number: int, status: int) -> None:
    assert following(number) == status
    assert following(starting=number) == status


@pytest.mark.usefixtures("with_hangups")
def test_of_a_terminal_that_is_closed_a_follower_may_get_two_signals(following) -> None:
    assert following(signal.SIGHUP, signal.SIGHUP) == 129
    assert following(signal.SIGTERM, signal.SIGHUP) == 0


def test_nohup_keeps_a_follower(following) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert following(signal.SIGHUP, signal.SIGTERM) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
