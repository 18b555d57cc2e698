"""A journal that can't be written is reported without -v: the command itself goes on, as messages come first."""

from __future__ import annotations

import errno
import json
import os

import pytest

from pairmq.observe.journal import recover


@pytest.fixture
def full_disk(monkeypatch):
    """No journal of this process, which alone writes in this way, gets a byte onto the disk."""

    def write(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", write)


@pytest.fixture
def journal(tmp_path) -> str:
    return str(tmp_path / "journal")


@pytest.mark.parametrize("command", ["send", "receive", "syphon"])
def test_a_journal_on_a_full_disk_is_reported_without_verbose(cli, brokers, journal, full_disk, command):
    given = {
        "send": ("-e", "orders", "--create", *brokers),
        "receive": ("-e", "orders", "--idle", "50ms", *brokers),
        "syphon": ("--until-empty", *brokers),
    }
    assert cli("send", "-e", "orders", "--create", *brokers, stdin=b"1\n").status == 0
    ended = cli(command, *given[command], "--journal", journal, stdin=b"1\n2\n")
    assert ended.status == 0
    (warned,) = (line for line in ended.err.splitlines() if "No space left on device" in line)
    assert warned.startswith("warning: journal: ")
    assert "events unwritten" in ended.err


def test_journal_stat_and_recover_report_what_was_not_written(cli, brokers, journal, full_disk, monkeypatch):
    cli("send", "-e", "orders", "--create", *brokers, "--journal", journal, stdin=b"1\n2\n")
    stat = cli("journal", "stat", journal)
    assert stat.status == 1
    assert "could not write" in stat.err
    assert json.loads(cli("journal", "stat", journal, "--json").out)["whole"] is False
    monkeypatch.undo()
    recovered = cli("journal", "recover", journal)
    assert "could not be written" in recovered.err
    assert recover(journal).lost == 0
    document = json.loads(cli("journal", "stat", journal, "--json").out)
    assert document["whole"] is False
    assert document["processes"][0]["dropped"] > 2


def test_events_are_not_shown_as_warnings_without_verbose(cli, brokers):
    ended = cli("send", "-e", "orders", *brokers, "--failover-interval", "0", "--send-timeout", "1s", stdin=b"1\n")
    assert ended.status == 1
    assert "StateChanged" not in ended.err
