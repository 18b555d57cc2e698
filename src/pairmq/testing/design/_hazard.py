"""What a hazard is."""

from __future__ import annotations

from dataclasses import dataclass

from pairmq.testing.design._design import Design, Naive
from pairmq.testing.design._verdict import Verdict
from pairmq.testing.design._worlds import World


@dataclass(frozen=True, slots=True)
class Check:
    """Where a planted behaviour shows, and as what."""

    world: World
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Hazard:
    """One way in which a plainer design breaks a promise.

    Args:
        number: by which documents name it.
        name: of what happens.
        naive: the behaviour that leads to it.
        checks: the worlds in which it must be found, and the promise that it breaks there.
        rule: what rules it out.
        clauses: of the specification.
        code: how PairMQ's code keeps the rule.
        tests: of the real code that would notice, as ``file::name``.
        mutants: names of the bugs of ``scripts/planted`` that plant it in the real code.
    """

    number: int
    name: str
    naive: Naive
    checks: tuple[Check, ...]
    rule: str
    clauses: str
    code: str
    tests: tuple[str, ...]
    mutants: tuple[str, ...] = ()

    def planted(self, check: Check) -> Design:
        """The design with this behaviour in it, in the world of one of its checks."""
        return Design(check.world, frozenset((self.naive,)))
