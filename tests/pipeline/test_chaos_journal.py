"""A journal that a chaos run kept on real servers: what the pipeline makes of it is held against two others.

The judge of the run knows what callers were told and what the brokers held; another engine has the same rows, and must
find the same. Then rows are taken out of the journal on purpose, and what the pipeline says of each message is what
must be said.

The plan is fixed by its seed; what comes of it is not, and all must agree whatever it is. Other runs:
``PAIRMQ_TEST_CHAOS_PAIR=rabbitmq,redis``, ``PAIRMQ_TEST_CHAOS_SEED=12``, ``PAIRMQ_TEST_CHAOS_SECONDS=60``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import duck
from chaos_copies import Copy, segment_keys
from chaos_mutations import Mutation, Mutations, without_the_killed
from chaos_rows import Row, checked_rows, history_in
from pairmq.core import PairOptions
from pairmq.pipeline import run
from pairmq.pipeline.transforms.verdicts import Verdict
from pairmq.testing.chaos import ChaosReport, Settings, carry_out, chaos_broker, planned
from pairmq.testing.history import Result
from pairmq.testing.judge import Facts
from pipeline_claims import AS_SAID

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


CLAIMS = AS_SAID | {
    # A killed process took its caller's result along, and rows of its journal.
    Verdict.DIVERTED: lambda it: it.results[0] in (Result.BACKLOG, None),
    Verdict.UNKNOWN: lambda it: it.results[0] not in (Result.PRIMARY, Result.BACKLOG),
    Verdict.UNKNOWN_DELIVERED: lambda it: it.at_primary > 0,
    Verdict.NOT_JOURNALLED: lambda _: True,
    Verdict.UNPROVEN: lambda _: True,
    Verdict.OUT_OF_ORDER: lambda it: it.at_primary > 0,
    # No message of chaos has a time to live, and none is refused for good.
    Verdict.EXPIRED: lambda _: False,
    Verdict.DEAD_LETTERED: lambda _: False,
}
REPEATED = (Verdict.DUPLICATED, Verdict.DUPLICATED_UNPROVEN, Verdict.DUPLICATED_UNEXPLAINED)

Message = tuple[str, str, str]
"""Pair, entity and id."""


@dataclass(frozen=True)
class Kept:
    """A run and its journal."""

    report: ChaosReport
    ledgers: Path
    journal: Path
    rows: list[Row]


@dataclass(frozen=True)
class Judged:
    """The tables of all copies of the journal, and what the other engine finds in the same."""

    mutations: dict[str, Mutation]
    tables: Path
    others: dict[str, list[Row]]

    def table(self, name: str) -> list[Row]:
        return [_seconds(row) for row in pq.read_table(self.tables / name).to_pylist()]

    def verdicts(self, pair: str) -> dict[Message, str]:
        return _named((row for row in self.table("reconciliation") if row["pair"] == pair), "verdict")


def _named(rows: Iterable[Row], column: str) -> dict[Message, Any]:
    return {(row["pair"], row["entity"], row["message_id"]): row[column] for row in rows}


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
    rows, _ = checked_rows(ledgers, journal)
    return Kept(report, ledgers, journal, rows)


def asked_of_another_engine(journal: Path, *queries: str) -> list[list[Row]]:
    files = [str(path) for path in sorted(journal.rglob("*.parquet"))]
    with duck.opened(files, patience=PATIENCE) as connection:
        return [list(duck.asked(connection, query, patience=PATIENCE)) for query in queries]


@pytest.fixture(scope="module")
def judged(spark: Any, kept: Kept, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    folder = tmp_path_factory.mktemp("judged")
    without_the_killed(kept.rows).write(kept.journal, folder / "reference")
    (plain,) = asked_of_another_engine(folder / "reference", duck.VERDICTS)
    mutations = Mutations(kept.rows, segment_keys(kept.journal), plain, PATIENCE)
    several = {each.copy.name: each for each in mutations.all()}
    copies = [FOUND, without_the_killed(kept.rows, days=1), *(each.copy for each in several.values())]
    for copy in copies:
        copy.write(kept.journal, folder / "journal")
    report = run(folder / "journal", folder / "tables", spark=spark, patience=PATIENCE)
    assert report.bad == ()
    assert report.rows == sum(len(kept.rows) - len(copy.gone) for copy in copies)
    queries = {"reconciliation": duck.VERDICTS, "episodes": duck.EPISODES, "processes": duck.PROCESSES}
    others = dict(zip(queries, asked_of_another_engine(folder / "journal", *queries.values()), strict=True))
    return Judged(several, folder / "tables", others)


def test_the_run_kept_every_promise_and_something_happened(kept: Kept) -> None:
    """The journal is held against the ledgers row by row when it is read: see `checked_rows`."""
    assert kept.report.ok, kept.report.text()
    assert kept.report.counts.faults > 3
    assert kept.report.counts.primary > 50
    assert len(kept.rows) > 200


def test_every_message_has_the_verdict_that_another_engine_gives_it(judged: Judged) -> None:
    told = _named(judged.others["reconciliation"], "verdict")
    for pair in (FOUND.name, "reference", *MUTATIONS):
        assert judged.verdicts(pair) == {message: verdict for message, verdict in told.items() if message[0] == pair}


def test_what_was_late_is_what_another_engine_finds_late(judged: Judged) -> None:
    assert _named(judged.table("reconciliation"), "late") == _named(judged.others["reconciliation"], "late")


def test_every_outage_is_the_one_that_another_engine_finds(judged: Judged) -> None:
    names = ("process", "pair", "entity", "number")
    told = {tuple(row[name] for name in names): row for row in judged.others["episodes"] if row["number"]}
    found = {tuple(row[name] for name in names): row for row in judged.table("episodes")}
    assert found.keys() == told.keys()
    for key, episode in told.items():
        assert {name: found[key][name] for name in episode} == pytest.approx(episode, abs=2e-6), key


def test_every_process_ended_as_another_engine_finds(judged: Judged) -> None:
    found = {row["process"]: row["ended"] for row in judged.table("processes")}
    assert found == {row["process"]: row["ended"] for row in judged.others["processes"]}


def test_no_verdict_contradicts_what_the_judge_knows(kept: Kept, judged: Judged) -> None:
    plan = kept.report.plan
    history = history_in(kept.ledgers, plan)
    facts = Facts(history, PairOptions(**plan.options))
    accounts = {sent.message.message_id: facts.account(sent) for sent in history.sent.values()}
    wrong = []
    for row in judged.table("reconciliation"):
        if row["pair"] == FOUND.name:
            account, verdict = accounts[row["message_id"]], Verdict(row["verdict"])
            evidence = row["evidence"] or {}
            repeated = evidence.get("redelivered") or evidence.get("unconfirmed")
            so = account.announced or repeated if verdict in REPEATED else CLAIMS.get(verdict, lambda _: False)(account)
            wrong += [] if so else [(row["message_id"], verdict, account)]
    assert wrong == []


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
