"""What the search takes for one state of a machine, and what it does not."""

from __future__ import annotations

import pytest

from core_search import WORLDS, Design
from core_search._cells import Cells, snapshot
from core_search._sends import Sending, facts
from pairmq.core.order import KeyOrder, Look
from pairmq.core.rotation import Rotation


def test_a_machine_at_another_instant_is_the_same_state():
    assert snapshot(KeyOrder(1.0)) == snapshot(KeyOrder(2.0))


def test_a_machine_that_decides_otherwise_is_another_state():
    key = KeyOrder(1.0)
    key.seen(Look(1.0, None, 0))
    assert snapshot(key) != snapshot(KeyOrder(1.0))


def test_an_object_that_two_places_share_is_another_state_than_two_objects():
    one = Rotation(1, 1.0)
    assert snapshot((one, one)) != snapshot((one, Rotation(1, 1.0)))


def test_an_instant_that_no_view_explains_is_an_error():
    class Clock:
        def __init__(self) -> None:
            self.at = 1.0

    with pytest.raises(TypeError, match="an instant that no view explains"):
        snapshot(Clock())


def test_a_step_is_asked_once_and_leaves_the_state_before_it_as_it_was():
    cells = Cells(facts)
    start = cells.number(Sending(Design(WORLDS[0]), 0))
    first = cells.after(start, 0.0, "begin", 0)
    assert first == cells.after(start, 0.0, "begin", 0)
    assert (len(cells), cells.moves) == (2, 1)
    assert cells.facts[start].waits == ()
