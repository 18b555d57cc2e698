"""What the commands do beside the pipeline that they start."""

from __future__ import annotations

from dataclasses import fields

from pairmq.cli import _demo, _pipeline
from pairmq.pipeline.report import Report


def test_a_message_id_cannot_steer_the_terminal(capsys):
    faults = {"lost": [("east>west", "orders", "\x1b]0;owned\x07")]}
    blank = dict.fromkeys((field.name for field in fields(Report)), 0)
    known = {"bad": (), "processes": {}, "verdicts": {"lost": 1}, "faults": faults, "tables": {}}
    _pipeline._show(Report(**blank | known), "out")  # type: ignore[arg-type]
    assert "lost: \\x1b]0;owned\\x07 of orders" in capsys.readouterr().out


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
