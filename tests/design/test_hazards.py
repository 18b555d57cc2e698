"""Each hazard, planted, is found; each world with the real rules is clean, in every state that it has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pairmq.testing.design import HAZARDS, MEANING, WORLDS, Design, Found, Hazard, Naive, Verdict, World, search, system
from pairmq.testing.design._model import beginning, judge
from pairmq.testing.design._state import Fate, Message, Phase

ROOT = Path(__file__).resolve().parents[2]
KEPT = json.loads((ROOT / "docs" / "explanation" / "correctness.json").read_text(encoding="utf-8"))
CHECKS = [(hazard, place) for hazard in HAZARDS for place in range(len(hazard.checks))]
FEWEST_STATES = 4_000


# The table.


def test_the_hazards_are_numbered_from_1_to_21():
    assert [hazard.number for hazard in HAZARDS] == list(range(1, 22))


def test_each_naive_behaviour_belongs_to_one_hazard():
    assert [hazard.naive for hazard in HAZARDS] == list(Naive)


def test_each_hazard_names_a_test_of_the_real_code():
    assert [hazard.number for hazard in HAZARDS if not hazard.tests] == []


def test_every_verdict_has_a_meaning():
    assert set(MEANING) == set(Verdict)


# Searched.


@pytest.mark.parametrize(
    ("hazard", "place"), CHECKS, ids=[f"{hazard.number}-{hazard.checks[place].world.name}" for hazard, place in CHECKS]
)
def test_a_planted_hazard_is_found_with_the_story_that_the_documents_tell(hazard: Hazard, place: int):
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


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
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


def test_what_the_worlds_are_for_happens_in_them():
    """A rule is only tested by what can happen: everything that stories tell of does, somewhere."""
    wanted = {
        "dies", "is started again", "begins to close", "is closed", "cancelled by its caller",
        "its confirmation is lost", "its connection dies", "applies a late write", "falls silent", "goes down",
        "lets pings pass", "can't be reached", "can be reached again", "failed over", "back at the primary",
        "a successful ping; more are needed", "drained", "is not empty", "receives message", "completes message",
        "dead-lettered", "runs out in queue", "is lost", "gives message", "it is unknown", "it is refused",
    }  # fmt: skip
    texts = set()
    for world in WORLDS:
        ways = system(Design(world))
        seen, waiting = {ways.initial}, [ways.initial]
        while waiting and len(seen) < 2_000:  # the last ones first, so that these lead deep into the world
            for step in ways.steps(waiting.pop()):
                texts.add(step.text)
                if step.state not in seen:
                    seen.add(step.state)
                    waiting.append(step.state)
    assert {words for words in wanted if not any(words in text for text in texts)} == set()


# The judge: what no planted hazard shows.


def test_a_message_that_was_refused_and_arrives_is_a_phantom():
    design = Design(WORLDS[0])
    refused = (Message(Phase.REFUSED), Message())
    assert judge(design, beginning(design)._replace(messages=refused, home=(0,))) is Verdict.PHANTOM


def test_a_message_that_was_never_sent_and_arrives_is_a_phantom():
    design = Design(WORLDS[0])
    assert judge(design, beginning(design)._replace(home=(0,))) is Verdict.PHANTOM


def test_a_second_copy_that_is_marked_is_no_duplicate():
    design = Design(WORLDS[0])
    marked = (Message(Phase.AT_HOME, explained=True), Message())
    assert judge(design, beginning(design)._replace(messages=marked, home=(0, 0))) is None


def test_a_message_that_was_set_aside_is_not_lost():
    design = Design(WORLDS[0])
    aside = (Message(Phase.AT_BACKLOG, fate=Fate.SET_ASIDE), Message())
    assert judge(design, beginning(design)._replace(messages=aside)) is None
