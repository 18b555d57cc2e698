"""A search of everything that can happen to the machines of the core, in worlds that are small enough for that.

    found = search(system(Design(WORLDS[0])))       # the real rules: clean, in every state
    found = search(system(HAZARDS[0].planted(...)))  # a naive one: a shortest counterexample

What decides is the code in `pairmq.core`, in cells (`_cells`): `_sends` holds the machines of an entity and its
sends, `_syphon` those of a syphon's pumps, each driven as the runner drives them. `_state` is what is around them,
`_model` what can happen there and what is wrong with it, `_design` how much of everything there is, and `_hazards`
which naive behaviour each rule stands against. The tasks and the I/O of the runner are not searched.
"""

from core_search._design import MEANING, WORLDS, Design, Naive, Trouble, Verdict, World
from core_search._hazards import HAZARDS, Check, Hazard
from core_search._model import system
from core_search._search import (
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
