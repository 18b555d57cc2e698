"""The errors' family, and what receipts, deliveries and events show of themselves."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass
from typing import Any

import pytest

from pairmq.model import (
    BacklogUnavailable,
    ConfigurationError,
    Delivery,
    Entity,
    EntityNotFound,
    EntityState,
    EnvelopeError,
    FailureKind,
    FailureReason,
    LockLost,
    Message,
    MessageTooLarge,
    PairClosed,
    PairFaulted,
    PairMQError,
    PrimaryUnavailable,
    Receipt,
    ReservedPropertyError,
    Route,
    SendError,
    SendRefused,
    SendUnknown,
    TransportError,
    Unauthorized,
    errors,
    events,
)

EVENTS = [
    kind
    for _, kind in inspect.getmembers(events, inspect.isclass)
    if issubclass(kind, events.Event) and kind is not events.Event
]
REFUSALS = (
    MessageTooLarge,
    EntityNotFound,
    Unauthorized,
    BacklogUnavailable,
    PrimaryUnavailable,
    ReservedPropertyError,
)


def test_errors_survive_pickling():
    error = TransportError("gone", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT, maybe_applied=True)
    assert repr(pickle.loads(pickle.dumps(error))) == repr(error)
    refused = SendRefused("no", entity="orders", message_id="1", causes=(error,))
    copy = pickle.loads(pickle.dumps(refused))
    assert (str(copy), copy.entity, copy.message_id, repr(copy.causes)) == ("no", "orders", "1", repr((error,)))


def test_every_error_is_one_of_pairmqs():
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, BaseException)]
    assert [kind for kind in kinds if not issubclass(kind, PairMQError)] == []


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_is_a_refused_send(kind: type[SendError]):
    assert issubclass(kind, SendRefused)


def test_an_unknown_send_is_no_refused_one():
    assert not issubclass(SendUnknown, SendRefused)
    assert issubclass(SendUnknown, SendError)


@pytest.mark.parametrize("kind", [PairClosed, PairFaulted, EnvelopeError, LockLost, TransportError, ConfigurationError])
def test_what_did_not_end_a_send_is_no_send_error(kind: type[PairMQError]):
    assert not issubclass(kind, SendError)


def test_a_bad_setting_is_a_value_error():
    assert issubclass(ConfigurationError, ValueError)


@pytest.mark.parametrize("kind", [SendRefused, SendUnknown, *REFUSALS])
def test_a_send_error_has_its_entity_message_and_causes(kind: type[SendError]):
    cause = TransportError("no", FailureKind.UNAVAILABLE)
    error = kind("went wrong", entity="orders", message_id="m", causes=[cause])
    assert (str(error), error.entity, error.message_id, error.causes) == ("went wrong", "orders", "m", (cause,))


def test_a_send_error_may_know_nothing():
    error = SendRefused("went wrong")
    assert (error.entity, error.message_id, error.causes) == (None, None, ())


def test_a_transport_error_has_its_kind_and_reason():
    error = TransportError("no answer", FailureKind.UNAVAILABLE, FailureReason.TIMEOUT, maybe_applied=True)
    assert (str(error), error.kind, error.reason, error.maybe_applied) == ("no answer", "unavailable", "timeout", True)


def test_a_transport_error_is_of_no_known_reason_and_was_not_applied_by_default():
    error = TransportError("no", FailureKind.REFUSED)
    assert (error.reason, error.maybe_applied) == (FailureReason.OTHER, False)


def test_a_transport_errors_repr_shows_all_of_it():
    assert repr(TransportError("no", FailureKind.BUSY)) == (
        "TransportError('no', kind=busy, reason=other, maybe_applied=False)"
    )


# ---------------------------------------------------------------------------------------------------------- values


def test_a_lock_token_is_not_in_a_deliverys_repr():
    delivery = Delivery(Message(b"x"), lock_token="hunter2")
    assert "hunter2" not in repr(delivery)
    assert delivery.lock_token == "hunter2"


def test_a_delivery_is_the_first_one_by_default():
    assert Delivery(Message(), None).delivery_count == 1


def test_a_receipt_is_of_one_attempt_and_no_duplicate_by_default():
    receipt = Receipt(Route.PRIMARY, Entity("a"), "m")
    assert (receipt.attempts, receipt.maybe_duplicate, receipt.backlog_queue) == (1, False, None)


@pytest.mark.parametrize("value", [Receipt(Route.BACKLOG, Entity("a"), "m"), Delivery(Message(), None)])
def test_outcomes_can_not_be_changed(value: Any):
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(value)[0].name, None)


def test_the_states_are_the_four_that_people_see():
    assert [state.value for state in EntityState] == ["healthy", "failing", "failed-over", "draining"]


def test_the_kinds_of_failure_are_four():
    assert [kind.value for kind in FailureKind] == ["transient", "busy", "unavailable", "refused"]


# ---------------------------------------------------------------------------------------------------------- events


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_is_a_value_given_by_name(kind: type):
    assert is_dataclass(kind)
    parameters = kind.__dataclass_params__  # type: ignore[attr-defined]
    assert parameters.eq
    assert not parameters.frozen, "one is made for every send, and a frozen one takes several times as long"
    assert all(entry.kw_only for entry in fields(kind))
    assert not hasattr(kind(**dict.fromkeys([f.name for f in fields(kind)])), "__dict__")


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_says_when_and_whose_it_is(kind: type):
    assert [entry.name for entry in fields(kind)][:2] == ["at", "pair"]


@pytest.mark.parametrize("kind", EVENTS)
def test_no_event_has_room_for_a_body_or_a_secret(kind: type):
    names = {entry.name for entry in fields(kind)}
    assert names.isdisjoint({"message", "body", "delivery", "url", "password", "key", "properties"})
