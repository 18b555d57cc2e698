"""PairMQ's errors as the ones that except clauses of today wait for."""

from __future__ import annotations

import pytest
from azure.servicebus import exceptions as client

from pairmq import (
    BacklogUnavailable,
    Entity,
    EntityNotFound,
    FailureKind,
    FailureReason,
    MessageTooLarge,
    PairFaulted,
    PairMQError,
    PrimaryUnavailable,
    Receipt,
    ReservedPropertyError,
    Route,
    SendRefused,
    SendUnknown,
    TransportError,
    Unauthorized,
)
from pairmq_servicebus.paired import PairedBatchError, SendOutcomeUnknownError
from pairmq_servicebus.paired._errors import as_client_error, batch_error


def failure(reason: FailureReason, kind: FailureKind = FailureKind.UNAVAILABLE) -> TransportError:
    return TransportError("it failed", kind, reason)


def away(reason: FailureReason, kind: FailureKind = FailureKind.UNAVAILABLE) -> PrimaryUnavailable:
    return PrimaryUnavailable("the deadline passed", causes=[failure(FailureReason.OTHER), failure(reason, kind)])


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        (MessageTooLarge("m"), (client.MessageSizeExceededError, ValueError)),
        (EntityNotFound("m"), (client.MessagingEntityNotFoundError,)),
        (Unauthorized("m"), (client.ServiceBusAuthorizationError, client.ServiceBusAuthenticationError)),
        (ReservedPropertyError("m"), (client.ServiceBusError, ValueError)),
        (SendUnknown("m"), (client.OperationTimeoutError, SendOutcomeUnknownError)),
        (away(FailureReason.TIMEOUT), (client.OperationTimeoutError,)),
        (
            away(FailureReason.CONNECTION),
            (client.ServiceBusConnectionError, client.ServiceBusCommunicationError),
        ),
        (away(FailureReason.CLOSED), (client.ServiceBusConnectionError,)),
        (away(FailureReason.OTHER, FailureKind.BUSY), (client.ServiceBusServerBusyError,)),
        (away(FailureReason.OTHER), (client.ServiceBusError,)),
        (PrimaryUnavailable("the deadline passed"), (client.OperationTimeoutError,)),
        (away(FailureReason.QUOTA), (client.ServiceBusQuotaExceededError,)),
        (
            SendRefused("m", causes=[failure(FailureReason.DISABLED, FailureKind.REFUSED)]),
            (client.MessagingEntityDisabledError,),
        ),
        (SendRefused("the pair closed"), (client.ServiceBusError,)),
        # The secondary's refusal must not be taken for the primary's.
        (
            BacklogUnavailable("m", causes=[failure(FailureReason.UNAUTHORIZED, FailureKind.REFUSED)]),
            (client.ServiceBusConnectionError,),
        ),
        (PairFaulted("lost"), (client.ServiceBusError,)),
        (failure(FailureReason.UNAUTHORIZED, FailureKind.REFUSED), (client.ServiceBusAuthorizationError,)),
    ],
)
def test_each_error_is_the_clients_own(error: PairMQError, kinds: tuple[type[Exception], ...]) -> None:
    made = as_client_error(error)
    assert all(isinstance(made, kind) for kind in kinds)
    assert made.__cause__ is error
    assert str(error) in str(made)


def test_backlog_unavailable_is_no_authorization_error() -> None:
    error = BacklogUnavailable("m", causes=[failure(FailureReason.UNAUTHORIZED, FailureKind.REFUSED)])
    assert not isinstance(as_client_error(error), client.ServiceBusAuthorizationError)


def receipt(number: int) -> Receipt:
    return Receipt(Route.PRIMARY, Entity("q"), str(number))


def test_the_error_of_several_names_those_that_failed_and_holds_the_receipts_of_the_others() -> None:
    made = batch_error(
        [receipt(0), MessageTooLarge("1 is large", message_id="1"), receipt(2), SendUnknown("3 is lost")]
    )
    assert type(made) is PairedBatchError
    assert [(entry.index, entry.message_id) for entry in made.failures] == [(1, "1"), (3, None)]
    assert made.receipts == (receipt(0), receipt(2))
    assert "2 of 4 messages were not accepted, 1 of these perhaps" in str(made)
    assert "1 is large" in str(made)
    assert "3 is lost" in str(made)
    assert isinstance(made.failures[0].error, client.MessageSizeExceededError)


def test_several_that_failed_alike_are_caught_by_that_class_too() -> None:
    made = batch_error([EntityNotFound("a"), EntityNotFound("b")])
    assert isinstance(made, PairedBatchError)
    assert isinstance(made, client.MessagingEntityNotFoundError)
    assert isinstance(made.__cause__, EntityNotFound)
    again = batch_error([EntityNotFound("c"), receipt(1)])
    assert type(again) is type(made)


@pytest.mark.parametrize("error", [MessageTooLarge("a"), Unauthorized("a"), SendUnknown("a"), PrimaryUnavailable("a")])
def test_every_class_can_be_that_of_a_batch(error: PairMQError) -> None:
    made = batch_error([error, error])  # type: ignore[list-item]
    assert isinstance(made, PairedBatchError)
    assert isinstance(made, type(as_client_error(error)))


def test_a_single_message_of_a_list_fails_with_its_own_error() -> None:
    made = batch_error([EntityNotFound("a")])
    assert not isinstance(made, PairedBatchError)
    assert isinstance(made, client.MessagingEntityNotFoundError)


def test_an_error_of_very_many_names_some_and_counts_the_rest() -> None:
    made = batch_error([EntityNotFound(f"number {index}") for index in range(100)])
    assert isinstance(made, PairedBatchError)
    assert len(made.failures) == 100
    assert "and 80 more" in str(made)
