"""The documents' commands that take a moment only are run, on two Redis servers with a message or two in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import run
from doc_blocks import in_languages
from doc_commands import commands
from pairmq import Entity, Message
from pairmq.sync import Pair
from pairmq_redis.testing import RedisServer

SLOW = {"--open", "--pipeline", "--real", "--shrink", "--watch", "dashboard", "demo", "pipeline", "servicebus-server"}
SLOW |= {"--every", "upgrade"}
"""What takes long, has no end or wants a screen: these have tests of their own, where their options are."""

READER_HAS = {
    "s3://bucket/journal": "memory://journal",
    "/etc/pairmq/orders.toml": "pair.toml",
    "/var/lib/pairmq/journal": "journal",
    "journal/": "journal",
}


def is_quick(words: tuple[str, ...]) -> bool:
    if SLOW & set(words) or (words[0] == "syphon" and "--until-empty" not in words):
        return False
    if words[0] == "conformance":
        return "--only" in words
    if words[0] == "postgres":
        return "--sql" in words  # else it wants a PostgreSQL server: its plugin's tests have one
    return words[0] != "simulate" or not ({"--seeds", "--replay"} & set(words))


QUICK = sorted({command.words[1:] for command in commands() if command.words[0] == "pairmq"} - {()})
QUICK = [words for words in QUICK if is_quick(words)]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """Where a reader sits who has two servers, a journal and some files; and the reader's environment."""
    folder = tmp_path_factory.mktemp("reader")
    with RedisServer() as east, RedisServer() as west:
        with Pair.connect(east.url, west.url, journal=str(folder / "journal")) as pair:
            for name in ("orders", "lines"):
                pair.primary.admin.create(Entity(name))
                pair.sender(name).send(Message(b"1", message_id="1"))
        (folder / "pair.toml").write_text(f'[pair]\nprimary = "{east.url}"\nsecondary = "{west.url}"\n')
        (prices,) = [block.text for block in in_languages("toml") if "prices.toml" in block.text]
        (folder / "prices.toml").write_text(prices)
        for name in ("orders.txt", "in.txt", "left.txt"):
            (folder / name).write_text("1\n2\n3\n")
        yield folder, {"PAIRMQ_PRIMARY": east.url, "PAIRMQ_SECONDARY": west.url}


@pytest.mark.real_server
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("words", QUICK, ids=" ".join)
def test_a_command_does_what_it_is_asked(
    words: tuple[str, ...],
    desk: tuple[Path, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder, urls = desk
    for name in [name for name in os.environ if name.startswith("PAIRMQ_")]:
        monkeypatch.delenv(name)
    for name, url in urls.items():
        monkeypatch.setenv(name, url)
    monkeypatch.chdir(folder)
    given = [READER_HAS.get(word, word) for word in words]
    if "--idle" in given:  # nothing more comes here: nobody needs to wait for it
        given[given.index("--idle") + 1] = "0.2"
    if given[0] == "simulate" and "--hours" not in given:  # an hour takes a second or two
        given += ["--hours", "0.1"]
    with (folder / "in.txt").open("rb") as lines:
        monkeypatch.setattr(sys, "stdin", lines)
        status = run(given)
    assert status == 0, capfd.readouterr().err


def test_most_commands_are_quick() -> None:
    assert {words[0] for words in QUICK} == {
        "backlog",
        "conformance",
        "cost",
        "doctor",
        "entity",
        "journal",
        "ping",
        "postgres",
        "receive",
        "send",
        "simulate",
        "switch",
        "syphon",
    }
