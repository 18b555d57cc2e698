"""An explicit-state model of the abstract design, and a search of everything that can happen in it.

    found = search(system(Design(WORLDS[0])))       # the real rules: clean, in every state
    found = search(system(HAZARDS[0].planted(...)))  # a naive one: a shortest counterexample

It is not a model of the code. It checks whether the rules of the specification keep the promises in every order of
events that a small world allows; tests and simulation say whether the code keeps the rules. The state (`_state`) is a
tuple; `_sends` and `_syphon` say what can happen in it, `_model` what is wrong with it, `_design` how much of
everything there is, and `_hazards` which naive behaviour each rule stands against.
"""

from pairmq.testing.design._design import MEANING, WORLDS, Design, Naive, Trouble, Verdict, World
from pairmq.testing.design._hazards import HAZARDS, Check, Hazard
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
