"""What `pairmq receive --journal` tells has the pair's name, so that the pipeline finds whose deliveries they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairmq.observe.journal import read_rows


def pairs(journal: Path, kind: str) -> set[str]:
    return {row["pair"] for row in read_rows(journal) if row["kind"] == kind}


@pytest.fixture
def sent(cli, brokers, tmp_path):
    """The journal of a send of one message, and the pair's name in it."""
    journal = tmp_path / "journal"
    assert cli("send", "-e", "orders", "--create", "--journal", str(journal), *brokers, stdin=b"1\n").status == 0
    (name,) = pairs(journal, "SendCompleted")
    return journal, name


def test_with_the_secondary_named_a_delivery_has_the_name_that_its_send_has(cli, brokers, sent) -> None:
    journal, name = sent
    assert cli("receive", "-e", "orders", "--idle", "50ms", "--journal", str(journal), *brokers).status == 0
    assert pairs(journal, "MessageDelivered") == {name}


def test_the_environment_names_the_secondary_too(cli, brokers, sent, monkeypatch) -> None:
    journal, name = sent
    monkeypatch.setenv("PAIRMQ_SECONDARY", brokers[3])
    ended = cli("receive", "-e", "orders", "--idle", "50ms", "--journal", str(journal), *brokers[:2])
    assert (ended.status, "warning" in ended.err) == (0, False)
    assert pairs(journal, "MessageDelivered") == {name}


def test_without_it_the_command_warns_and_goes_on(cli, brokers, sent) -> None:
    journal, _ = sent
    ended = cli("receive", "-e", "orders", "--idle", "50ms", "--journal", str(journal), *brokers[:2])
    assert (ended.status, ended.out) == (0, "1\n")
    assert "give --secondary" in ended.err
    assert pairs(journal, "MessageDelivered") == {""}
