"""Journals of simulated hours: what the pipeline makes of each message is what the judge of the history says of it.

The judge knows what the brokers held; the pipeline has the journals' rows only. Each kind of fault is planted in both.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from facts_by_hand import tables_of
from journal_by_hand import Journal, rows_of
from pairmq.model.events import MessageDelivered, SendCompleted, SendOutcome
from pairmq.pipeline.transforms import Settings as PipelineSettings
from pairmq.pipeline.transforms.verdicts import FAULTS
from pairmq.pipeline.transforms.verdicts import Verdict as Row
from pairmq.testing.history import Note, Result
from pairmq.testing.judge import Verdict
from pairmq.testing.simulator import Settings, scenario_of
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._judge import judged
from pairmq.testing.simulator._judge_pair import Facts
from pairmq.testing.simulator._world import World
from pipeline_claims import AS_SAID

EPOCH = 1_700_000_000.0
PATIENCE = 5.0
SEED = 3

PLANTED = {Row.LOST: Verdict.LOST, Row.DUPLICATED_UNEXPLAINED: Verdict.DUPLICATE, Row.PHANTOM: Verdict.PHANTOM}


def simulated() -> History:
    """What happened in six minutes, with faults and without a violation."""
    history = World(scenario_of(Settings(seed=SEED, hours=0.1, mode="liveness"))).run()
    assert judged(history) == []
    return history


def plain(history: History) -> list[int]:
    """Messages that were accepted by the primary at once, and delivered once, with others behind them."""
    delivered: dict[str, list[Note]] = defaultdict(list)
    for note in history.notes:
        if isinstance(note.event, MessageDelivered):
            delivered[note.event.message_id].append(note)
    facts = Facts(history)
    return [
        number
        for number, sent in history.sent.items()
        if sent.result is Result.PRIMARY
        and len(facts.at_primary[number]) == len(facts.attempts[number]) == 1
        and len(notes := delivered[f"id-{number}"]) == 1
        and any(each.at > notes[0].at + 2 * PATIENCE for each in itertools.chain(*delivered.values()))
    ]


def lose(history: History, number: int) -> None:
    """The primary has never stored it."""
    history.copies = [copy for copy in history.copies if copy.message_number != number]
    history.notes = [note for note in history.notes if not _delivers(note, number)]
    history.handlings = [each for each in history.handlings if each.number != number]


def double(history: History, number: int) -> None:
    """The primary has stored it again, and nobody knows why."""
    (copy,) = (copy for copy in history.copies if copy.message_number == number)
    (note,) = (note for note in history.notes if _delivers(note, number))
    history.copies.append(replace(copy, number=copy.number + 1_000_000, attempt=None))
    history.notes.append(replace(note, event=replace(note.event, sequence_number="1000000", at=note.event.at + 0.001)))


def call_refused(history: History, number: int) -> None:
    """Its sender was told that no broker has it."""
    history.sent[number].result = Result.REFUSED
    for place, note in enumerate(history.notes):
        if isinstance(note.event, SendCompleted) and note.event.message_id == f"id-{number}":
            history.notes[place] = replace(note, event=replace(note.event, outcome=SendOutcome.REFUSED))


def _delivers(note: Note, number: int) -> bool:
    return isinstance(note.event, MessageDelivered) and note.event.message_id == f"id-{number}"


CASES: dict[Row | None, Callable[[History, int], None]] = {
    None: lambda *_: None,
    Row.LOST: lose,
    Row.DUPLICATED_UNEXPLAINED: double,
    Row.PHANTOM: call_refused,
}


def journals_of(history: History, case: str) -> list[Journal]:
    """What each life would have written, in a pair of the case's own."""
    found = {life.name: Journal(f"{life.name} of {case}", start=EPOCH).opened(life.at) for life in history.lives}
    for note in history.notes:
        found[note.life].noted(replace(note.event, pair=case))
    return [
        found[life.name] if life.killed else found[life.name].closed(history.ended_at + PATIENCE)
        for life in history.lives
    ]


@dataclass(frozen=True)
class Both:
    """A history, the message with the fault, and the pipeline's verdict on each message."""

    history: History
    planted: dict[int, Row]
    rows: dict[int | None, Row]
    numbers: dict[str | None, int | None]
    """By message ids, some of which are the pair's."""


@pytest.fixture(scope="module")
def judged_twice(spark) -> dict[Row | None, Both]:
    """All cases in one query, which costs more than its rows."""
    found: dict[Row | None, Both] = {}
    journals: list[Journal] = []
    for case, plant in CASES.items():
        history = simulated()
        number = plain(history)[1]
        numbers = {copy.message.message_id: copy.message_number for copy in history.copies}
        numbers |= {sent.message.message_id: sent.number for sent in history.sent.values()}
        plant(history, number)
        journals += journals_of(history, str(case))
        found[case] = Both(history, {} if case is None else {number: case}, {}, numbers)
    made = tables_of(rows_of(spark, *journals).cache(), PipelineSettings(patience=PATIENCE))
    for row in made["reconciliation"].collect():
        case = None if row.pair == "None" else Row(row.pair)
        both = found[case]
        both.rows[both.numbers[row.message_id]] = Row(row.verdict)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_pipeline_and_the_judge_find_the_same_faults(judged_twice, case):
    both = judged_twice[case]
    assert {number: row for number, row in both.rows.items() if row in FAULTS} == both.planted
    found = {violation.message: violation.verdict for violation in judged(both.history)}
    assert found == {number: PLANTED[row] for number, row in both.planted.items()}


@pytest.mark.parametrize("case", CASES)
def test_what_the_pipeline_says_of_a_message_is_so(judged_twice, case):
    both = judged_twice[case]
    facts = Facts(both.history)
    accounts = {number: facts.account(sent) for number, sent in both.history.sent.items()}
    wrong = {
        number: (row, accounts[number])
        for number, row in both.rows.items()
        if number not in both.planted and not AS_SAID.get(row, lambda _: False)(accounts[number])
    }
    assert wrong == {}
    assert both.rows.keys() == both.history.sent.keys()
