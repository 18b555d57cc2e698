import json
import signal
from collections.abc import Sequence

import pytest

from pairmq.testing.conformance import Harness, MemoryHarness, mutation
from pairmq.testing.defects import Defect


class Weak(MemoryHarness):
    """One that can't tell a probe that reads from one that writes."""

    async def refuse_writes(self) -> bool:
        return False


class Dead(MemoryHarness):
    async def make(self) -> str:
        raise OSError("no server")


def test_a_planted_defect_is_found(cli) -> None:
    ended = cli("conformance", "memory://", "--mutate", "--only", "ListsInAnyOrder", "--only", "ProbesTheConnection")
    assert ended.status == 0, ended.err
    (row,) = (line for line in ended.out.splitlines() if line.startswith("ListsInAnyOrder"))
    assert "Admin.list_entities: entities are listed by path" in row
    assert row.rstrip().endswith("Admin.test_entities_are_listed_by_path")
    assert "memory://: 2 tests passed, 0 failed, 0 skipped, 2 defects found, 0 not found, 0 not applicable" in ended.out


def test_what_a_transport_can_not_have_is_not_applicable(cli) -> None:
    ended = cli("conformance", "memory://", "--mutate", "--only", "ShowsItsPassword", "--json")
    assert ended.status == 0, ended.err
    (defect,) = json.loads(ended.out)["defects"]
    assert defect["state"] == "not-applicable"
    assert defect["reason"] == "the harness's URL has no password"


def test_a_defect_that_no_test_finds_fails_and_says_what_the_harness_lacks(cli, monkeypatch) -> None:
    monkeypatch.setattr(
        "pairmq.testing.conformance.mutation.TESTS",
        (
            "Probe.test_a_broker_that_stores_nothing_fails_it_until_it_does",
            "Probe.test_a_missing_entity_fails_it",
        ),
    )
    weak = ("conformance", "memory://", "--harness", f"{__name__}:Weak", "--mutate", "--only", "ProbesByReading")
    ended = cli(*weak)
    assert ended.status == 1
    assert "NOT FOUND" in ended.out
    assert "implement Weak.refuse_writes()" in " ".join(ended.out.split())
    assert "1 test passed, 0 failed, 1 skipped, 0 defects found, 1 not found" in ended.out
    record = json.loads(cli(*weak, "--json").out)
    assert record["defects"][0]["state"] == "not-found"
    assert "Weak.refuse_writes()" in record["defects"][0]["reason"]
    assert [test["state"] for test in record["tests"]] == ["skipped", "passed"]


def test_a_transport_that_fails_without_a_defect_is_not_mutated(cli) -> None:
    ended = cli("conformance", "memory://", "--harness", f"{__name__}:Dead", "--mutate", "--only", "SendsTwice")
    assert ended.status == 1
    assert "Send.test_concurrent_sends_of_one_sender_all_arrive_once: OSError: no server" in ended.out
    assert "0 tests passed, 1 failed" in ended.out
    assert "defects" not in ended.out


@pytest.mark.usefixtures("with_hangups")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_run_ends_its_broker_and_prints_what_is_known(
    cli, monkeypatch, number: int, status: int
) -> None:
    planted = mutation.find
    closed: list[bool] = []

    def interrupted(harness: Harness, defects: Sequence[Defect], sound: Sequence[mutation.Outcome]):
        yield from planted(harness, defects[:1], sound)
        signal.raise_signal(number)

    monkeypatch.setattr(mutation, "find", interrupted)
    monkeypatch.setattr(MemoryHarness, "close", lambda harness: closed.append(True))
    ended = cli("conformance", "memory://", "--mutate", "--only", "ListsInAnyOrder", "--only", "PeeksByReceiving")
    assert ended.status == status
    assert closed == [True]
    assert "1 defect found" in ended.out
    assert "PeeksByReceiving" not in ended.out
    assert "(interrupted)" in ended.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("memory://", "--only", "SendsTwice"), "--only is for --mutate"),
        (("memory://", "--mutate", "--only", "NoDefect"), "no defect 'NoDefect': known are "),
        (("memory://broker",), "write memory://"),
        (("nothing://",), "no transport for nothing://"),
        (("memory://", "--harness", "nothing"), "write module:class"),
    ],
)
def test_a_conformance_run_that_can_not_be_is_refused(cli, arguments: tuple[str, ...], text: str) -> None:
    ended = cli("conformance", *arguments)
    assert ended.status == 2
    assert text in ended.error_lines[0]
