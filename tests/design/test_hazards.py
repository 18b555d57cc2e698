"""Each hazard, planted, is found; each world with the real rules is clean, in every state that it has."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from core_search import HAZARDS, MEANING, WORLDS, Design, Found, Hazard, Naive, Verdict, World, search, system
from core_search import _design as worlds
from core_search._model import Model
from core_search._state import Fate, Message, Phase
from pairmq.core.machine import ImpossibleInputError
from pairmq.core.order import KeyOrder
from pairmq.core.pump import ITEM, Item, PumpMachine
from pairmq.core.pump import State as ItemState
from pairmq.core.pump import Symbol as ItemSymbol
from pairmq.core.send import Job
from pairmq.model import Delivery, FailureReason

ROOT = Path(__file__).resolve().parents[2]
KEPT = json.loads((ROOT / "docs" / "explanation" / "model.json").read_text(encoding="utf-8"))
FEWEST_STATES = 4_000
# What has more states, with the real rules or a planted hazard, is searched by `scripts/model.py --check`, in
# `.ci/run`.
MOST_STATES = 7_700
MOST_STATES_PLANTED = 2_500
CHECKS = [
    (hazard, place)
    for hazard in HAZARDS
    for place, kept in enumerate(KEPT["hazards"][str(hazard.number)])
    if kept["states"] <= MOST_STATES_PLANTED
]
SMALL = [world for world in WORLDS if KEPT["worlds"][world.name]["states"] <= MOST_STATES]


# The table.


def test_the_hazards_are_numbered_from_1_to_28():
    assert [hazard.number for hazard in HAZARDS] == list(range(1, 29))


def test_each_naive_behaviour_belongs_to_one_hazard():
    assert [hazard.naive for hazard in HAZARDS] == list(Naive)


def test_each_hazard_names_a_test_of_the_real_code():
    assert [hazard.number for hazard in HAZARDS if not hazard.tests] == []


def test_every_verdict_has_a_meaning():
    assert set(MEANING) == set(Verdict)


# Searched.


# Of each large world what a second finds: with less trouble, fewer messages or fewer processes.
PARTS = [
    replace(worlds.DRAIN, faults=2),
    replace(worlds.RESTART, senders=(0,)),
    replace(worlds.SESSIONS, faults=1),
    replace(worlds.SESSION_QUEUES, faults=1),
    replace(worlds.TWO_SYPHONS, senders=(0,)),
    replace(worlds.TWO_SYPHONS, hosts=(True,)),
    replace(worlds.SETTLEMENTS, crashes=0),
    replace(worlds.CLOSE_ALONE, faults=1),
    replace(worlds.LANE, senders=(0,)),
    replace(worlds.LANE_LOCKS, crashes=0),
    replace(worlds.TAIL, faults=1, postpones=1),
]


@pytest.mark.parametrize("world", PARTS, ids=[f"{place}-{world.name}" for place, world in enumerate(PARTS)])
def test_the_real_rules_keep_every_promise_in_what_is_small_of_large_worlds(world: World):
    assert KEPT["worlds"][world.name]["states"] > MOST_STATES
    found = search(system(Design(world)))
    assert (found.counterexample, found.states > 300) == (None, True)


def test_twenty_worlds_are_large():
    assert len(WORLDS) - len(SMALL) == 20


@pytest.mark.parametrize(
    ("hazard", "place"), CHECKS, ids=[f"{hazard.number}-{hazard.checks[place].world.name}" for hazard, place in CHECKS]
)
def test_a_planted_hazard_is_found_with_the_story_in_the_documents(hazard: Hazard, place: int):
    check = hazard.checks[place]
    found = search(system(hazard.planted(check)), only=check.verdict)
    assert found.counterexample is not None
    assert KEPT["hazards"][str(hazard.number)][place] == {
        "world": check.world.name,
        "verdict": found.counterexample.verdict.value,
        "states": found.states,
        "story": list(found.counterexample.story),
        "then": list(found.counterexample.then),
        "again": list(found.counterexample.again),
    }


@pytest.mark.parametrize("world", SMALL, ids=lambda world: world.name)
def test_the_real_rules_keep_every_promise_in_all_the_states_that_the_documents_count(world: World):
    assert search(system(Design(world))) == Found(**KEPT["worlds"][world.name], counterexample=None)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_a_world_is_large_enough_to_say_something(world: World):
    counted = KEPT["worlds"][world.name]  # which the test before has compared with a search
    assert counted["states"] > FEWEST_STATES
    assert counted["goals"] > 0


def test_every_verdict_but_one_is_shown_by_a_hazard():
    shown = {check.verdict for hazard in HAZARDS for check in hazard.checks}
    assert set(Verdict) - shown == {Verdict.PHANTOM}


@pytest.mark.search
def test_what_the_worlds_are_for_happens_in_them():
    """A rule is only tested by what can happen: everything that stories tell of does, somewhere."""
    wanted = {
        "dies", "is started again", "begins to close", "is closed", "cancelled by its caller",
        "its confirmation is lost", "its connection dies", "applies a late write", "falls silent", "goes down",
        "lets pings pass", "can't be reached", "can be reached again", "failed over", "back at the primary",
        "a successful ping; more are needed",
        "drained", "is not empty", "receives message", "completes message", "waits no longer", "the gate opens",
        "dead-letters", "runs out in queue", "is lost", "its syphon ends", "is unknown", "is refused",
        "looks at the lane", "releases what the primary does not take", "of the lane",
        "a consumer's lock", "completes message 1 in the lane", "of the primary", "receives nothing",
        "postpones what it holds", "is copied to the tail",
    }  # fmt: skip
    for world in WORLDS:
        texts = set()
        ways = system(Design(world))
        seen, waiting = {ways.initial}, [ways.initial]
        while waiting and len(seen) < 700:  # the last ones first, so that these lead deep into the world
            for step in ways.steps(waiting.pop()):
                texts.add(step.text)
                if step.state not in seen:
                    seen.add(step.state)
                    waiting.append(step.state)
        wanted = {words for words in wanted if not any(words in text for text in texts)}
        if not wanted:
            break
    assert wanted == set()


@pytest.mark.long
def test_a_pump_that_completes_again_forever_is_found_where_a_settlement_has_no_answer(monkeypatch):
    taken = PumpMachine.settled

    def settled(self: PumpMachine, items: list[Item], tried: list[Delivery], errors: list, took: float | None) -> None:
        if took is None or errors[0] is None or errors[0].reason is not FailureReason.LOCK_LOST:
            taken(self, items, tried, errors, took)

    monkeypatch.setattr(PumpMachine, "settled", settled)
    found = search(system(Design(worlds.SETTLEMENTS)), only=Verdict.STRANDED)
    assert found.counterexample is not None
    assert "the confirmation of that is lost" in " ".join(found.counterexample.story)


# The judge: what no planted hazard shows.


def verdict(messages: tuple[Message, ...], home: tuple[int, ...]) -> Verdict | None:
    """What is wrong with these messages, once the primary has these copies."""
    model = Model(Design(WORLDS[0]))
    return model.judge(model.beginning()._replace(messages=messages, home=home))


def test_a_message_that_was_refused_and_arrives_is_a_phantom():
    assert verdict((Message(Phase.REFUSED), Message()), (0,)) is Verdict.PHANTOM


def test_a_message_that_was_never_sent_and_arrives_is_a_phantom():
    assert verdict((Message(), Message()), (0,)) is Verdict.PHANTOM


def test_a_second_copy_that_is_marked_is_no_duplicate():
    assert verdict((Message(Phase.AT_HOME, explained=True), Message()), (0, 0)) is None


def test_a_message_that_was_dead_lettered_is_not_lost():
    assert verdict((Message(Phase.AT_BACKLOG, fate=Fate.SET_ASIDE), Message()), ()) is None


# The core itself is searched: what is wrong with it is found.


def test_a_bug_of_a_send_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Job, "failed", lambda *_: None)
    found = search(system(Design(worlds.SENDS)), only=Verdict.DUPLICATE)
    assert found.counterexample is not None


def test_a_bug_of_a_session_s_order_is_found(monkeypatch: pytest.MonkeyPatch):
    def clean(key: KeyOrder, _: object) -> bool:
        key._clean = True
        return True

    monkeypatch.setattr(KeyOrder, "seen", clean)
    found = search(system(Design(worlds.LONG_SESSION)), only=Verdict.ORDER)
    assert found.counterexample is not None


def test_an_input_that_an_entity_takes_for_impossible_ends_the_search(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pairmq.core.machine.starts_epoch", lambda *_: False)
    with pytest.raises(ImpossibleInputError, match="FAILED in DOWN"):
        search(system(Design(worlds.SENDS)))


def test_a_bug_of_a_pump_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ITEM[ItemState.SENDING], ItemSymbol.NOT_TAKEN, ItemState.GONE)
    found = search(system(Design(worlds.SESSION_RESTART)), only=Verdict.STRANDED)
    assert found.counterexample is not None
