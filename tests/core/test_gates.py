"""Which destinations are open: SPEC 7.3 and 7.5, without probes and time."""

from __future__ import annotations

import pytest

from pairmq.core import gates
from pairmq.core.gates import Gate, Gates, Probed
from pairmq.model import Entity, FailureKind, FailureReason, TransportError

ORDERS, PRICES = Entity("orders"), Entity("prices")
NOT_FOUND = TransportError("no such queue", FailureKind.REFUSED, FailureReason.NOT_FOUND)
UNAUTHORIZED = TransportError("no right", FailureKind.REFUSED, FailureReason.UNAUTHORIZED)
UNAVAILABLE = TransportError("no answer", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)


def test_a_destination_is_open_until_it_fails():
    them = Gates(60.0)
    gate = them.of(ORDERS)
    assert (gate.is_open, them.shut(gate), gate.is_open, them.shut(gate)) == (True, True, False, False)
    assert (them.open(gate), gate.is_open, them.open(gate)) == (True, True, False)


def test_only_an_operator_opens_what_an_operator_holds():
    them = Gates(60.0)
    gate = them.of(ORDERS)
    them.hold(gate)
    assert (them.held, them.open(gate), gate.is_open) == ({ORDERS}, False, False)
    assert (them.release(gate), gate.is_open, them.held) == (True, True, frozenset())


def probed(them: Gates, error: TransportError | None) -> tuple[Probed, bool, bool]:
    gate = them.of(ORDERS)
    return them.probed(gate, error, 90.0), gate.is_open, gate.on_trial


def test_a_good_probe_opens_a_gate_once():
    them = Gates(60.0)
    them.shut(them.of(ORDERS))
    assert [probed(them, None) for _ in range(2)] == [(Probed.OPENED, True, False), (Probed.NOTHING, True, False)]


def test_a_probe_without_an_answer_opens_nothing():
    them = Gates(60.0)
    them.shut(them.of(ORDERS))
    assert probed(them, UNAVAILABLE) == (Probed.NOTHING, False, False)


def test_a_gate_is_on_trial_from_a_probe_that_lacks_a_right_to_the_next_delivery_or_good_probe():
    them = Gates(60.0)
    gate = them.of(ORDERS)
    them.shut(gate)
    assert [probed(them, UNAUTHORIZED) for _ in range(2)] == [(Probed.TRIAL, True, True), (Probed.NOTHING, True, True)]
    assert them.shut(gate)  # the delivery failed
    assert (gate.is_open, gate.on_trial) == (False, False)
    probed(them, UNAUTHORIZED)
    assert probed(them, None) == (Probed.OPENED, True, False)


def test_a_gate_opens_for_what_must_be_dead_lettered():
    them = Gates(60.0)
    them.shut(them.of(ORDERS))
    malformed = TransportError("no", FailureKind.REFUSED, FailureReason.MALFORMED)
    assert probed(them, malformed) == (Probed.OPENED, True, False)


@pytest.mark.parametrize("error", ["none", "a right"])
def test_no_probe_opens_what_an_operator_holds(error):
    them = Gates(60.0)
    gate = them.of(ORDERS)
    them.shut(gate)
    probed(them, UNAUTHORIZED)
    them.hold(gate)
    assert probed(them, None if error == "none" else UNAUTHORIZED) == (Probed.NOTHING, False, False)


def test_probes_of_a_destination_that_stays_unavailable_become_rarer():
    them = Gates(4.0)
    gate = them.of(ORDERS)
    waits = []
    for _ in range(5):
        waits.append(them.wait(gate, 0.0))
        them.probing(gate, 0.0)
    assert waits == [0.5, 1.0, 2.0, 4.0, 4.0]
    them.delivered(gate)
    assert them.wait(gate, 0.0) == 0.5


def test_a_destination_is_not_asked_out_of_turn_more_often_than_its_waits_allow():
    them = Gates(60.0)
    gate = them.of(ORDERS)
    assert not them.may_try(gate, 0.0)  # it is open
    them.shut(gate)
    assert [them.may_try(gate, now) for now in (0.0, 0.4, 0.5, 1.0, 1.5)] == [True, False, True, False, True]


def test_all_deliver_again_once_each_that_failed_has_taken_a_message():
    them = Gates(60.0)
    gate = them.of(ORDERS)
    them.use(gate)
    them.shut(gate)
    them.open(gate)
    assert not them.all_deliver
    them.delivered(gate)
    assert them.all_deliver


@pytest.mark.parametrize("users", [0, 1])
def test_a_destination_without_messages_that_wait_holds_up_no_other(users):
    them = Gates(60.0)
    gate = them.of(ORDERS)
    if users:
        them.use(gate)
    them.shut(gate)
    them.open(gate)
    assert them.all_deliver is not bool(users)


def test_the_gates_that_were_not_asked_for_the_longest_are_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gates, "_MOST", 2)
    them = Gates(60.0)
    used, idle, held, newest = (them.of(Entity(name)) for name in ("used", "idle", "held", "newest"))
    them.use(used)
    them.hold(held)
    assert them.drop_idle() == [idle]
    assert len(them) == 3
    assert them.of(newest.entity) is newest
    them.leave(used)
    assert them.drop_idle() == [used]


def test_dropping_gates_looks_at_none_that_are_in_use():
    """With ten thousand destinations in use, a look at each for each new one would stop the drain."""
    looks = 0

    class Watched(Gate):
        @property
        def held(self) -> bool:
            nonlocal looks
            looks += 1
            return False

        @held.setter
        def held(self, value: bool) -> None:
            pass

    them = Gates(60.0)
    for number in range(3000):
        gate = them._gates[Entity(f"e{number}")] = Watched(Entity(f"e{number}"))
        them.use(them.of(gate.entity))
        assert them.drop_idle() == []
    assert looks == 0


def test_an_open_gate_of_a_destination_that_does_not_exist_is_forgotten():
    them = Gates(60.0)
    them.of(ORDERS)
    them.shut(them.of(PRICES))
    them.forget(ORDERS)
    them.forget(PRICES)
    assert (them.get(ORDERS), len(them)) == (None, 1)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FailureKind.REFUSED, FailureReason.UNAUTHORIZED),
        (FailureKind.REFUSED, FailureReason.DISABLED),
        (FailureKind.BUSY, FailureReason.OTHER),
        (FailureKind.UNAVAILABLE, FailureReason.CONNECTION),
        (FailureKind.UNAVAILABLE, FailureReason.CLOSED),
        (FailureKind.UNAVAILABLE, FailureReason.NOT_FOUND),
    ],
)
def test_what_an_operator_or_time_can_fix_is_no_poison(kind: FailureKind, reason: FailureReason):
    assert not Gates(60.0).is_poison(ORDERS, TransportError("", kind, reason), 0.0)


def poison(them: Gates, *instants: float, entity: Entity = ORDERS) -> list[bool]:
    return [them.is_poison(entity, NOT_FOUND, now) for now in instants]


def test_messages_are_poison_when_their_destination_is_missing_for_three_of_the_longest_waits():
    assert poison(Gates(60.0), 10, 100, 189, 190, 200, 300, 480) == [False] * 3 + [True] * 4


def test_a_destination_not_asked_for_a_while_is_waited_for_again():
    them = Gates(60.0)
    assert poison(them, 0, 90, 180, 360, 541, 700, 721) == [False, False, True, True, False, False, True]


@pytest.mark.parametrize(
    "found", [lambda them: them.is_poison(ORDERS, UNAVAILABLE, 90), lambda them: them.delivered(them.of(ORDERS))]
)
def test_a_destination_that_was_there_or_did_not_answer_is_waited_for_from_then_on(found):
    them = Gates(60.0)
    assert poison(them, 0, 90) == [False, False]
    found(them)
    assert poison(them, 180, 270, 359, 360) == [False, False, False, True]


def test_of_forged_destinations_no_more_are_waited_for_than_there_is_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gates, "_MOST_MISSING", 2)
    them = Gates(60.0)
    forged = [Entity(f"e{number}") for number in range(4)]
    assert [poison(them, 0, entity=entity) for entity in forged] == [[False], [False], [True], [True]]
    assert poison(them, 100, entity=forged[1]) == [False]
    assert poison(them, 181, entity=forged[3]) == [False]  # the first one is not asked for any more
    assert [poison(them, 181, entity=entity) for entity in forged[:2]] == [[True], [True]]
