"""What the commands do beside the pipeline that they start."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace

import pytest

from pairmq.cli import _demo, _pipeline
from pairmq.pipeline.report import Report
from pairmq.pipeline.transforms.verdicts import Verdict

RUN = ("pipeline", "run", "--journal", "journal", "--out", "tables")


def report_of(verdicts, faults):
    blank = dict.fromkeys((field.name for field in fields(Report)), 0)
    known = {"bad": (), "processes": {"closed": 2}, "verdicts": verdicts, "faults": faults, "tables": {}}
    return Report(**blank | known)  # type: ignore[arg-type]


def test_a_message_id_cannot_steer_the_terminal(capsys):
    _pipeline._show(report_of({"lost": 1}, {"lost": [("east>west", "orders", "\x1b]0;owned\x07")]}), "out")
    assert "lost: \\x1b]0;owned\\x07 of orders" in capsys.readouterr().out


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
def test_what_one_side_alone_has_written_is_said_and_no_more_claimed_than_was_read(capsys, verdict, said):
    _pipeline._show(report_of({"delivered": 9, verdict: 7}, {}), "out")
    shown = " ".join(capsys.readouterr().out.split())
    assert verdict in set(Verdict)
    assert said in shown
    assert "nothing lost in what was read; tables in out" in shown


def test_where_both_sides_have_written_nothing_is_lost(capsys):
    _pipeline._show(report_of({"delivered": 9}, {}), "out")
    assert "nothing lost; tables in out" in capsys.readouterr().out


def test_a_demo_keeps_its_journal_where_there_is_none_yet(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("pairmq.pipeline.session.check_java", lambda: 17)
    for folder in (tmp_path, tmp_path / "new"):
        assert _demo.DemoReport(str(folder), aside=False, open=False).journal == str(folder)


def test_a_demo_that_was_stopped_has_no_report(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("pairmq.pipeline.session.check_java", lambda: 17)
    made = _demo.DemoReport(None, aside=False, open=False)
    assert made.make(130) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("with_hangups")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_run_in_order(cli, monkeypatch, number: int, status: int) -> None:
    monkeypatch.setattr(_pipeline, "run_pipeline", lambda *_, **__: signal.raise_signal(number))
    assert cli(*RUN).status == status


@pytest.fixture
def following(cli, monkeypatch) -> Callable[..., int]:
    """Follows a journal without Spark: gives the exit status after a signal before its start, or others meanwhile."""

    def call(*numbers: int, starting: int = 0) -> int:
        def follow(*_: object, stop: _pipeline.Stop, **__: object) -> SimpleNamespace:
            if starting:
                signal.raise_signal(starting)
            with stop:
                for number in numbers:
                    signal.raise_signal(number)
                asked.append(stop.asked)
            return SimpleNamespace(lost=0)

        asked: list[bool] = []
        monkeypatch.setattr(_pipeline, "follow_journal", follow)
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
