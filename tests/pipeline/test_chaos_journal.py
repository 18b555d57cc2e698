"""A journal that a chaos run kept on real servers, judged twice: by the pipeline, and by hand from the ledgers.

Then rows are taken out of it on purpose, and what the pipeline says of each message is what must be said.

The plan is fixed by its seed; what comes of it is not, and both judges must agree whatever it is. Other runs:
``PAIRMQ_TEST_CHAOS_PAIR=rabbitmq,redis``, ``PAIRMQ_TEST_CHAOS_SEED=12``, ``PAIRMQ_TEST_CHAOS_SECONDS=60``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from chaos_cases import Message
from chaos_copies import Copy, segment_keys, written
from chaos_episodes import episodes_of
from chaos_holes import ends_of
from chaos_mutations import Mutation, Mutations
from chaos_rows import Told, told_rows
from chaos_truth import Judge
from chaos_world import contradiction, world_of
from pairmq.pipeline import run
from pairmq.testing.chaos import ChaosReport, Settings, carry_out, chaos_broker, planned

pytestmark = [pytest.mark.long, pytest.mark.real_server]

PATIENCE = 1.0
PAIR = os.environ.get("PAIRMQ_TEST_CHAOS_PAIR", "redis,redis")
SETTINGS = Settings(
    seed=int(os.environ.get("PAIRMQ_TEST_CHAOS_SEED", "11")),
    seconds=float(os.environ.get("PAIRMQ_TEST_CHAOS_SECONDS", "12")),
    every=1.2,
    longest=2.0,
    clients=2,
    consumers=2,
)
LEFT_ALONE = ("client-b", "consumer-a")
"""Processes that are neither killed nor restarted: somebody's journal must be whole, or nothing could be proven."""
MUTATIONS = ("dropped", "torn", "unmoved", "unsent", "unchanged", "segmentless")
MILDER = {
    "lost": ("unproven", "diverted", "in flight", "delivery not observed"),
    "duplicated, unexplained": ("duplicated, unproven",),
    "out of order": ("delivered",),
    "phantom": ("not journalled",),
}
"""What may be said instead of a fault when more is missing."""
FOUND = Copy("found")


@dataclass(frozen=True)
class Kept:
    """A run and its journal."""

    report: ChaosReport
    ledgers: Path
    journal: Path
    told: list[Told]
    cut: dict[str, int]


@dataclass(frozen=True)
class Judged:
    """The tables of all copies of the journal, and the second judge's view of the same."""

    mutations: dict[str, Mutation]
    told: list[Told]
    judge: Judge
    tables: Path

    def table(self, name: str) -> list[dict[str, Any]]:
        return [_seconds(row) for row in pq.read_table(self.tables / name).to_pylist()]

    def verdicts(self, pair: str) -> dict[Message, str]:
        rows = (row for row in self.table("reconciliation") if row["pair"] == pair)
        return {(row["pair"], row["entity"], row["message_id"]): row["verdict"] for row in rows}

    def told_of(self, pair: str) -> dict[Message, str]:
        return {message: verdict for message, verdict in self.judge.verdicts().items() if message[0] == pair}


def _seconds(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value.replace(tzinfo=UTC).timestamp() if hasattr(value, "timestamp") else value
        for name, value in row.items()
    }


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    products = PAIR.split(",")
    primary, secondary = (chaos_broker(product) for product in products)
    slower = max(primary.attempt_timeout, secondary.attempt_timeout)
    plan = planned((products[0], products[1]), SETTINGS, (primary.faults, secondary.faults), slower)
    strikes = [strike for strike in plan.strikes if strike.side or strike.client not in LEFT_ALONE]
    plan = replace(plan, strikes=tuple(strikes))
    ledgers, journal = tmp_path_factory.mktemp("ledgers"), tmp_path_factory.mktemp("journal")
    report = carry_out(plan, (primary, secondary), ledgers, journal=journal)
    print(report.text(timeline=True))
    told, cut = told_rows(ledgers, journal)
    return Kept(report, ledgers, journal, told, cut)


@pytest.fixture(scope="module")
def judged(spark: Any, kept: Kept, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    folder = tmp_path_factory.mktemp("judged")
    mutations = Mutations(kept.told, segment_keys(kept.journal), PATIENCE)
    several = {each.copy.name: each for each in mutations.all()}
    copies = [FOUND, mutations.reference, *(each.copy for each in several.values())]
    told = written(copies, kept.told, kept.journal, folder / "journal")
    report = run(folder / "journal", folder / "tables", spark=spark, patience=PATIENCE)
    assert report.bad == ()
    assert report.rows == len(told)
    return Judged(several, told, Judge(told, PATIENCE), folder / "tables")


def test_the_run_kept_every_promise_and_something_happened(kept: Kept) -> None:
    """The journal is held against the ledgers row by row when it is read: see `told_rows`."""
    assert kept.report.ok, kept.report.text()
    assert kept.report.counts.faults > 3
    assert kept.report.counts.primary > 50
    assert len(kept.told) > 200


def test_every_message_has_the_verdict_that_a_second_judge_gives_it(judged: Judged) -> None:
    for pair in (FOUND.name, "reference", *MUTATIONS):
        assert judged.verdicts(pair) == judged.told_of(pair), pair


def test_what_was_late_is_what_a_second_judge_finds_late(judged: Judged) -> None:
    late = {(row["pair"], row["entity"], row["message_id"]): row["late"] for row in judged.table("reconciliation")}
    assert late == {message: judged.judge.late(message) for message in judged.judge.cases}


def test_every_outage_is_the_one_that_happened(judged: Judged) -> None:
    told = {key: asdict(episode) for key, episode in episodes_of(judged.told, PATIENCE).items()}
    names = ("process", "pair", "entity", "number")
    found = {tuple(row[name] for name in names): row for row in judged.table("episodes")}
    assert found.keys() == told.keys()
    for key, episode in told.items():
        assert {name: found[key][name] for name in episode} == pytest.approx(episode, abs=2e-6), key


def test_every_process_ended_as_it_did(judged: Judged) -> None:
    found = {row["process"]: row["ended"] for row in judged.table("processes")}
    assert found == ends_of(judged.told, PATIENCE)


def test_no_verdict_contradicts_what_callers_and_brokers_know(kept: Kept, judged: Judged) -> None:
    world = world_of(kept.ledgers)
    found = []
    for row in judged.table("reconciliation"):
        if row["pair"] == FOUND.name:
            repeated = row["redelivered"] > 0 or row["unconfirmed"] > 0
            problem = contradiction(world, row["message_id"], row["verdict"], repeated)
            found += [] if problem is None else [f"{row['message_id']}: {problem}"]
    assert found == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_was_taken_out_is_found_and_named_and_nothing_else_is(judged: Judged, name: str) -> None:
    mutation = judged.mutations[name]
    before = {message[1:]: verdict for message, verdict in judged.verdicts("reference").items()}
    after = {message[1:]: verdict for message, verdict in judged.verdicts(name).items()}
    changed = {message[1]: verdict for message, verdict in after.items() if before.get(message) != verdict}
    named = {id_: verdict for id_, verdict in changed.items() if id_ in mutation.touched}
    assert mutation.expected.items() <= named.items()
    if name != "segmentless":  # which tells of some messages by the way, too
        assert named == mutation.expected
        assert before.keys() == after.keys()
    # What somebody can see to be missing takes the certainty from other faults, and changes nothing else.
    others = {
        id_: (before[key], after[key]) for key in before for _, id_ in [key] if id_ in changed.keys() - named.keys()
    }
    assert all(became in MILDER.get(was, ()) for was, became in others.values()), others
    assert mutation.copy.hidden <= (others == {})
    assert mutation.expected or name in ("unmoved", "unchanged"), "nothing was taken out"
