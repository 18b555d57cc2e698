"""The search, on systems whose answers are known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core_search import OWN, Circle, Goal, Kind, SpaceTooLargeError, Step, System, Verdict, search

Edges = dict[str, list[tuple[Kind, str]]]


def never(_: object) -> None:
    """Nothing is wrong with any state."""


def graph(edges: Edges, *, bad: str = "", goals: tuple[Goal[str], ...] = (), circles: tuple[Circle, ...] = ()):
    """A system that is drawn by hand; it begins at ``a``, and is lost at ``bad``."""

    def steps(state: str) -> Iterator[Step[str]]:
        for kind, target in edges.get(state, ()):
            yield Step(kind, f"{state}{target}", target)

    return System("a", steps, lambda state: Verdict.LOST if state == bad else None, goals, circles)


def jugs(state: tuple[int, int]) -> Iterator[Step[tuple[int, int]]]:
    """A jug of three and a jug of five: fill, empty, pour."""
    three, five = state
    yield Step(Kind.STEP, "fill three", (3, five))
    yield Step(Kind.STEP, "fill five", (three, 5))
    yield Step(Kind.STEP, "empty three", (0, five))
    yield Step(Kind.STEP, "empty five", (three, 0))
    poured = min(three, 5 - five)
    yield Step(Kind.STEP, "three into five", (three - poured, five + poured))
    poured = min(five, 3 - three)
    yield Step(Kind.STEP, "five into three", (three + poured, five - poured))


# Safety.


def test_every_state_is_reached_once():
    found = search(System((0, 0), jugs, never))
    # Of the 24 fillings those are reached in which one jug is empty or full.
    assert (found.states, found.edges) == (16, 16 * 6)
    assert found.counterexample is None


def test_the_depth_is_that_of_the_farthest_state():
    edges: Edges = {"a": [(Kind.STEP, "b"), (Kind.STEP, "d")], "b": [(Kind.STEP, "c")], "c": [(Kind.STEP, "d")]}
    assert search(graph(edges)).depth == 2


def test_a_counterexample_is_a_shortest_one():
    found = search(System((0, 0), jugs, lambda state: Verdict.LOST if state[1] == 4 else None))
    assert found.counterexample is not None
    assert found.counterexample.story == (
        "fill five",
        "five into three",
        "empty three",
        "five into three",
        "fill five",
        "five into three",
    )


def test_the_search_stops_at_the_first_counterexample():
    edges: Edges = {"a": [(Kind.STEP, "b")], "b": [(Kind.STEP, "c")], "c": [(Kind.STEP, "d")]}
    found = search(graph(edges, bad="b"))
    assert found.states == 2


def test_a_beginning_that_is_broken_has_an_empty_story():
    found = search(graph({}, bad="a"))
    assert found.counterexample is not None
    assert found.counterexample.story == ()


def test_another_verdict_than_the_one_asked_for_is_passed_by():
    edges: Edges = {"a": [(Kind.STEP, "b")], "b": [(Kind.STEP, "c")]}
    verdicts = {"b": Verdict.LOST, "c": Verdict.ORDER}
    system = System("a", graph(edges).steps, verdicts.get)
    found = search(system, only=Verdict.ORDER)
    assert found.counterexample is not None
    assert (found.counterexample.verdict, found.counterexample.story) == (Verdict.ORDER, ("ab", "bc"))


def test_a_space_that_is_larger_than_allowed_is_an_error_and_not_clean():
    def count(state: int) -> Iterator[Step[int]]:
        yield Step(Kind.STEP, "one more", state + 1)

    with pytest.raises(SpaceTooLargeError, match="more than 1000 states"):
        search(System(0, count, never), most=1000)


# What must stay possible.

ARRIVES = Goal[str](Verdict.STRANDED, lambda state: state == "z", OWN | Kind.HEAL)


def test_a_state_that_no_goal_can_be_reached_from_is_stranded():
    edges: Edges = {"a": [(Kind.STEP, "z"), (Kind.FAULT, "b")], "b": [(Kind.STEP, "c")], "c": [(Kind.STEP, "b")]}
    found = search(graph(edges, goals=(ARRIVES,)))
    assert found.counterexample is not None
    assert found.counterexample.verdict is Verdict.STRANDED
    assert found.counterexample.story == ("ab",)


def test_a_stranded_story_goes_on_to_what_goes_round_forever():
    edges: Edges = {
        "a": [(Kind.STEP, "z"), (Kind.FAULT, "b")],
        "b": [(Kind.STEP, "c"), (Kind.STEP, "b")],
        "c": [(Kind.STEP, "d")],
        "d": [(Kind.STEP, "c")],
    }
    found = search(graph(edges, goals=(ARRIVES,)))
    assert found.counterexample is not None
    assert (found.counterexample.then, found.counterexample.again) == (("bc",), ("cd", "dc"))


def test_a_stranded_story_may_end_where_nothing_happens():
    edges: Edges = {"a": [(Kind.STEP, "z"), (Kind.FAULT, "b")], "b": [(Kind.STEP, "c")]}
    found = search(graph(edges, goals=(ARRIVES,)))
    assert found.counterexample is not None
    assert (found.counterexample.then, found.counterexample.again) == (("bc",), ())


@pytest.mark.parametrize("kind", [Kind.STEP, Kind.HEAL, Kind.RECOVERY, Kind.DIVERT])
def test_a_goal_that_can_still_be_reached_strands_nothing(kind: Kind):
    edges: Edges = {"a": [(Kind.STEP, "z"), (Kind.FAULT, "b")], "b": [(kind, "z"), (Kind.STEP, "b")]}
    assert search(graph(edges, goals=(ARRIVES,))).counterexample is None


@pytest.mark.parametrize("kind", [Kind.FAULT, Kind.USER])
def test_a_goal_that_only_more_trouble_leads_to_is_out_of_reach(kind: Kind):
    edges: Edges = {"a": [(Kind.STEP, "z"), (Kind.FAULT, "b")], "b": [(kind, "z")]}
    assert search(graph(edges, goals=(ARRIVES,))).counterexample is not None


def test_the_states_of_the_rarest_goal_are_counted():
    either = Goal[str](Verdict.HANG, lambda state: state in "bz", OWN)
    edges: Edges = {"a": [(Kind.STEP, "b")], "b": [(Kind.STEP, "z")]}
    assert search(graph(edges, goals=(either, ARRIVES))).goals == 1


# What must not go round for ever.

FLAPS = Circle(Verdict.LIVELOCK, Kind.RECOVERY, Kind.STEP | Kind.RECOVERY)


def test_a_circle_through_a_recovery_is_a_livelock():
    edges: Edges = {
        "a": [(Kind.STEP, "b")],
        "b": [(Kind.RECOVERY, "c")],
        "c": [(Kind.STEP, "d"), (Kind.STEP, "e")],
        "d": [(Kind.STEP, "b")],
    }
    found = search(graph(edges, circles=(FLAPS,)))
    assert found.counterexample is not None
    assert found.counterexample.verdict is Verdict.LIVELOCK
    assert (found.counterexample.story, found.counterexample.again) == (("ab",), ("bc", "cd", "db"))
    assert found.counterexample.length == 4


def test_the_way_round_a_circle_is_a_shortest_one():
    edges: Edges = {
        "a": [(Kind.RECOVERY, "b")],
        "b": [(Kind.STEP, "c"), (Kind.STEP, "e")],
        "c": [(Kind.STEP, "d")],
        "d": [(Kind.STEP, "a")],
        "e": [(Kind.STEP, "a")],
    }
    found = search(graph(edges, circles=(FLAPS,)))
    assert found.counterexample is not None
    assert found.counterexample.again == ("ab", "be", "ea")


def test_a_recovery_to_where_one_is_already_is_a_circle():
    found = search(graph({"a": [(Kind.RECOVERY, "a")]}, circles=(FLAPS,)))
    assert found.counterexample is not None
    assert found.counterexample.again == ("aa",)


@pytest.mark.parametrize("kind", [Kind.DIVERT, Kind.FAULT, Kind.HEAL, Kind.USER])
def test_a_circle_with_another_kind_of_step_in_it_is_not_reported(kind: Kind):
    edges: Edges = {"a": [(Kind.RECOVERY, "b")], "b": [(kind, "a")]}
    assert search(graph(edges, circles=(FLAPS,))).counterexample is None


def test_a_circle_without_a_recovery_is_not_reported():
    edges: Edges = {"a": [(Kind.STEP, "b"), (Kind.RECOVERY, "c")], "b": [(Kind.STEP, "a")]}
    assert search(graph(edges, circles=(FLAPS,))).counterexample is None


def test_spaces_deeper_than_the_stack_are_searched():
    def ring(state: int) -> Iterator[Step[int]]:
        yield Step(Kind.RECOVERY if state == 0 else Kind.STEP, str(state), (state + 1) % 20_000)

    found = search(System(0, ring, never, circles=(FLAPS,)))
    assert found.counterexample is not None
    assert len(found.counterexample.again) == 20_000
