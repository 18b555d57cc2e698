"""The search: every state that a system can reach, breadth first, and what is wrong with it.

Safety is asked of each state as it is found, so that the first counterexample is a shortest one. Liveness is asked of
the whole graph: a state from which no goal can be reached any more is stranded, and an edge that must not be repeated
forever must not lie on a circle. Nothing here knows what is searched.

Memory: each state once, and two numbers for each edge, where liveness is asked.
"""

from __future__ import annotations

import enum
import gc
from array import array
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from core_search._design import Verdict

S = TypeVar("S", bound=Hashable)


class Kind(enum.IntFlag):
    """Whose step it is; liveness asks what can be reached by some kinds alone."""

    STEP = 1
    """The system's own: of a process, a timer, or a broker that works."""
    RECOVERY = 2
    """Likewise, and an entity recovers by it."""
    DIVERT = 4
    """Likewise, and a message is in flight to the backlog."""
    HEAL = 8
    """Something is repaired: a broker, a queue, a process."""
    USER = 16
    """A caller begins something, cancels or closes."""
    FAULT = 32
    """Something breaks."""


OWN = Kind.STEP | Kind.RECOVERY | Kind.DIVERT
"""What happens without any help from outside."""


class Step(NamedTuple, Generic[S]):
    """One way on from a state."""

    kind: Kind  # whose step
    text: str  # what happens, in a sentence
    state: S  # where it leads


class Goal(NamedTuple, Generic[S]):
    """What must stay possible in every state of the system."""

    verdict: Verdict  # what it means that it is not
    holds: Callable[[S], bool]  # whether a state is such a goal
    within: Kind  # the kinds of steps that may lead there


class Circle(NamedTuple):
    """What must not go round forever."""

    verdict: Verdict  # what it means that it can
    through: Kind  # the kind of step that is on the circle
    within: Kind  # the kinds of steps that the circle is made of


@dataclass(frozen=True, slots=True)
class System(Generic[S]):
    """What is searched."""

    initial: S  # where it begins
    steps: Callable[[S], Iterable[Step[S]]]  # every way on from a state
    broken: Callable[[S], Verdict | None]  # what is wrong with a state; None where nothing is
    goals: tuple[Goal[S], ...] = ()  # what must stay possible
    circles: tuple[Circle, ...] = ()  # what must not go round forever


@dataclass(frozen=True, slots=True)
class Counterexample:
    """A shortest way to what is wrong."""

    verdict: Verdict  # what
    story: tuple[str, ...]  # the texts of the steps from the beginning
    # What can happen from there to where nothing new happens any more, if it is a goal that is out of reach.
    then: tuple[str, ...] = ()
    # The texts of the steps that go round forever after that; empty where nothing happens at all.
    again: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        """How many steps it takes, with one round of the circle that a livelock is."""
        return len(self.story) + (len(self.again) if self.verdict is Verdict.LIVELOCK else 0)


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a search."""

    states: int  # how many different ones were reached
    edges: int  # how many steps were tried
    depth: int  # steps from the beginning to the farthest state
    goals: int  # in how many states a goal holds, of the goal that holds in the fewest
    # The first that was found; None means that the whole space was searched and is clean.
    counterexample: Counterexample | None


class SpaceTooLargeError(Exception):
    """There are more states than the caller allowed: the search says nothing about the rest."""


def search(system: System[S], *, only: Verdict | None = None, most: int = 2_000_000) -> Found:
    """Search every reachable state, for one verdict or for all; without a counterexample the space is exhausted.

    Raises `SpaceTooLargeError` when there are more states than ``most``.
    """
    collects = gc.isenabled()
    gc.disable()  # a search makes no circles, and hundreds of thousands of tuples, which would be looked through often
    try:
        return _searched(system, only, most)
    finally:
        if collects:
            gc.enable()


def _searched(system: System[S], only: Verdict | None, most: int) -> Found:
    goals = [goal for goal in system.goals if only in (None, goal.verdict)]
    circles = [circle for circle in system.circles if only in (None, circle.verdict)]
    graph = _Graph(system, keep_edges=bool(goals or circles))
    verdict = graph.explore(only, most)
    counterexample: Counterexample | None = None
    if verdict is not None:
        counterexample = Counterexample(verdict, graph.story(len(graph.states) - 1))
    held = len(graph.states) if goals else 0
    for goal in goals:
        if counterexample is None:
            holds = bytearray(map(goal.holds, graph.states))
            held = min(held, sum(holds))
            counterexample = graph.stranded(goal, holds)
    for circle in circles:
        if counterexample is None:
            counterexample = graph.round_trip(circle)
    return Found(len(graph.states), graph.tried, graph.depth, held, counterexample)


class _Graph(Generic[S]):
    """The reached states by number, in the order in which they were found, and the edges between them."""

    def __init__(self, system: System[S], *, keep_edges: bool) -> None:
        self._system = system
        self._keep_edges = keep_edges
        self.states: list[S] = [system.initial]
        self._numbers: dict[S, int] = {system.initial: 0}
        self._parents = array("l", [-1])
        self._edges_end = array("l")
        """Of each state, the number of the edges that lead from it or from those before it."""
        self._targets, self._kinds = array("l"), array("b")
        self.tried = 0
        self.depth = 0

    def explore(self, only: Verdict | None, most: int) -> Verdict | None:
        """Reach every state; stops at the first that is broken, which is then the last of the states."""
        broken, steps, states, numbers = self._system.broken, self._system.steps, self.states, self._numbers
        first = broken(self._system.initial)
        if first is not None and only in (None, first):
            return first
        add_target, add_kind = self._targets.append, self._kinds.append
        layer_ends, number = 1, 0
        while number < len(states):
            if number == layer_ends:
                self.depth, layer_ends = self.depth + 1, len(states)
            for kind, _, state in steps(states[number]):
                self.tried += 1
                target = numbers.get(state)
                if target is None:
                    target = numbers[state] = len(states)
                    states.append(state)
                    self._parents.append(number)
                    verdict = broken(state)
                    if verdict is not None and only in (None, verdict):
                        return verdict
                    if target >= most:
                        raise SpaceTooLargeError(f"more than {most} states")
                if self._keep_edges:
                    add_target(target)
                    add_kind(kind)
            self._edges_end.append(len(self._targets))
            number += 1
        return None

    def stranded(self, goal: Goal[S], reached: bytearray) -> Counterexample | None:
        """The way to the first state from which no goal can be reached; backwards from where it holds."""
        before: list[list[int]] = [[] for _ in self.states]
        for source, target in self._edges(goal.within):
            before[target].append(source)
        waiting = [number for number, there in enumerate(reached) if there]
        while waiting:
            for number in before[waiting.pop()]:
                if not reached[number]:
                    reached[number] = True
                    waiting.append(number)
        number = reached.find(0)
        if number < 0:
            return None
        after = self._after(goal.within)
        way, circle = _to_the_end(number, after, _components(len(self.states), after))
        return Counterexample(goal.verdict, self.story(number), self._texts(way), self._texts(circle))

    def round_trip(self, circle: Circle) -> Counterexample | None:
        """A circle through a step of the given kind: the way to it, and the way round."""
        through = [*self._edges(circle.through)]
        if not through:
            return None
        after = self._after(circle.within)
        component = _components(len(self.states), after)
        for source, target in through:
            if component[source] == component[target]:
                way = [source, *_way(after, target, {source})]
                return Counterexample(circle.verdict, self.story(source), again=self._texts(way))
        return None

    def story(self, number: int) -> tuple[str, ...]:
        """The texts of the steps from the beginning to a state; steps are taken again, for their texts alone."""
        way = [number]
        while self._parents[way[-1]] >= 0:
            way.append(self._parents[way[-1]])
        return self._texts(way[::-1])

    def _texts(self, way: list[int]) -> tuple[str, ...]:
        return tuple(self._text(source, target) for source, target in pairwise(way))

    def _text(self, source: int, target: int) -> str:
        wanted = self.states[target]
        return next(step.text for step in self._system.steps(self.states[source]) if step.state == wanted)

    def _after(self, within: Kind) -> dict[int, list[int]]:
        after: dict[int, list[int]] = {}
        for source, target in self._edges(within):
            after.setdefault(source, []).append(target)
        return after

    def _edges(self, within: Kind) -> Iterator[tuple[int, int]]:
        mask = int(within)  # flags are slow to combine
        start = 0
        for source, end in enumerate(self._edges_end):
            for target, kind in zip(self._targets[start:end], self._kinds[start:end], strict=True):
                if kind & mask:
                    yield source, target
            start = end


def _to_the_end(number: int, after: dict[int, list[int]], component: list[int]) -> tuple[list[int], list[int]]:
    """The shortest way to a component that nothing leaves, and a shortest round in it, if there is one."""
    leaving = {
        component[source]
        for source, targets in after.items()
        if any(component[target] != component[source] for target in targets)
    }
    way = _way(after, number, {each for each, its in enumerate(component) if its not in leaving})
    last = way[-1]
    rounds = [[last, *_way(after, target, {last})] for target in after.get(last, ())]
    return way, min(rounds, key=len, default=[])


def _way(after: dict[int, list[int]], start: int, ends: Set[int]) -> list[int]:
    """A shortest way to one of several ends, of which one can be reached."""
    parents = {start: -1}
    waiting = deque((start,))
    while waiting[0] not in ends:
        number = waiting.popleft()
        for target in after.get(number, ()):
            if target not in parents:
                parents[target] = number
                waiting.append(target)
    way = [waiting[0]]
    while way[-1] != start:
        way.append(parents[way[-1]])
    return way[::-1]


def _components(count: int, after: dict[int, list[int]]) -> list[int]:
    """Number the strongly connected components (Tarjan), without recursion: spaces are deeper than the stack."""
    component, low, order = list(range(-1, -count - 1, -1)), [0] * count, [0] * count
    stack: list[int] = []
    clock = 0
    for root in after:
        if order[root]:
            continue
        clock += 1
        order[root] = low[root] = clock
        stack.append(root)
        work = [(root, iter(after[root]))]
        while work:
            number, targets = work[-1]
            for target in targets:
                if not order[target]:
                    clock += 1
                    order[target] = low[target] = clock
                    stack.append(target)
                    work.append((target, iter(after.get(target, ()))))
                    break
                if component[target] < 0:
                    low[number] = min(low[number], order[target])
            else:
                work.pop()
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[number])
                if low[number] == order[number]:
                    while True:
                        member = stack.pop()
                        component[member] = number
                        if member == number:
                            break
    return component
