"""An explicit-state model of the abstract design, and a search of everything that can happen in it.

    found = search(system(Design(WORLDS[0])))       # the real rules: clean, in every state
    found = search(system(HAZARDS[0].planted(...)))  # a naive one: a shortest counterexample

It is no model of the code. It says whether the rules of the specification keep the promises in every order of events
that a small world allows; tests and simulation say whether the code keeps the rules. The state (`_state`) is a tuple;
`_sends`, `_health`, `_syphon` and `_faults` say what can happen in it, `_judge` what is wrong with it, `_worlds` how
much of everything there is, and `_hazards` which naive behaviour each rule stands against.
"""

from pairmq.testing.design._design import Design, Naive
from pairmq.testing.design._hazard import Check, Hazard
from pairmq.testing.design._hazards import HAZARDS
from pairmq.testing.design._model import system
from pairmq.testing.design._search import (
    OWN,
    Circle,
    Counterexample,
    Found,
    Goal,
    Kind,
    SpaceTooLargeError,
    Step,
    System,
    search,
)
from pairmq.testing.design._verdict import MEANING, Verdict
from pairmq.testing.design._worlds import WORLDS, Trouble, World

__all__ = [
    "HAZARDS",
    "MEANING",
    "OWN",
    "WORLDS",
    "Check",
    "Circle",
    "Counterexample",
    "Design",
    "Found",
    "Goal",
    "Hazard",
    "Kind",
    "Naive",
    "SpaceTooLargeError",
    "Step",
    "System",
    "Trouble",
    "Verdict",
    "World",
    "search",
    "system",
]
