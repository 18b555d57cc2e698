"""What each condition, status and exception means for failover: the whole table, by name."""

from __future__ import annotations

import ssl
from typing import Any

import pytest
from azure.core import exceptions as core
from azure.servicebus import exceptions as client
from azure.servicebus._pyamqp.error import (
    AMQPConnectionError,
    AMQPLinkError,
    ErrorCondition,
    MessageException,
    MessageSendFailed,
    TokenAuthFailure,
)
from azure.servicebus._transport._pyamqp_transport import _LOGGER, PyamqpTransport

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq_servicebus import _errors
from pairmq_servicebus._errors import CONDITIONS, STATUSES, failure, send_failure

BUSY, REFUSED, UNAVAILABLE = FailureKind.BUSY, FailureKind.REFUSED, FailureKind.UNAVAILABLE

TABLE = {
    "amqp:unauthorized-access": (REFUSED, FailureReason.UNAUTHORIZED),
    "com.microsoft:auth-failed": (REFUSED, FailureReason.UNAUTHORIZED),
    "amqp:not-found": (REFUSED, FailureReason.NOT_FOUND),
    "amqp:resource-deleted": (REFUSED, FailureReason.NOT_FOUND),
    "com.microsoft:message-not-found": (REFUSED, FailureReason.NOT_FOUND),
    "com.microsoft:session-not-found": (REFUSED, FailureReason.NOT_FOUND),
    "com.microsoft:entity-disabled": (REFUSED, FailureReason.DISABLED),
    "com.microsoft:entity-already-exists": (REFUSED, FailureReason.ALREADY_EXISTS),
    "amqp:not-allowed": (REFUSED, FailureReason.NOT_SUPPORTED),
    "amqp:not-implemented": (REFUSED, FailureReason.NOT_SUPPORTED),
    "amqp:link:message-size-exceeded": (REFUSED, FailureReason.TOO_LARGE),
    "com.microsoft:argument-error": (REFUSED, FailureReason.MALFORMED),
    "com.microsoft:argument-out-of-range": (REFUSED, FailureReason.MALFORMED),
    "amqp:invalid-field": (REFUSED, FailureReason.MALFORMED),
    "amqp:decode-error": (REFUSED, FailureReason.MALFORMED),
    "amqp:precondition-failed": (REFUSED, FailureReason.OTHER),
    "com.microsoft:precondition-failed": (REFUSED, FailureReason.OTHER),
    "com.microsoft:message-lock-lost": (REFUSED, FailureReason.LOCK_LOST),
    "com.microsoft:session-lock-lost": (REFUSED, FailureReason.LOCK_LOST),
    "com.microsoft:session-cannot-be-locked": (BUSY, FailureReason.OTHER),
    "amqp:resource-locked": (BUSY, FailureReason.OTHER),
    "amqp:resource-limit-exceeded": (UNAVAILABLE, FailureReason.QUOTA),
    "com.microsoft:server-busy": (BUSY, FailureReason.OTHER),
    "com.microsoft:timeout": (UNAVAILABLE, FailureReason.TIMEOUT),
    "com.microsoft:operation-cancelled": (UNAVAILABLE, FailureReason.OTHER),
    "com.microsoft:container-close": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:internal-error": (UNAVAILABLE, FailureReason.OTHER),
    "amqp:link:detach-forced": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:link:stolen": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:link:redirect": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:link:transfer-limit-exceeded": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:connection:forced": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:connection:redirect": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:connection:framing-error": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:session:window-violation": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:session:errant-link": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:session:handle-in-use": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:session:unattached-handle": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:illegal-state": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:frame-size-too-small": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:socket-error": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:unknown-error": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:vendor-error": (UNAVAILABLE, FailureReason.CONNECTION),
    "amqp:client-error": (UNAVAILABLE, FailureReason.CONNECTION),
    "com.contoso:never-heard-of": (UNAVAILABLE, FailureReason.OTHER),
}


def as_the_client_reports(inner: Exception, **options: Any) -> client.ServiceBusError:
    return PyamqpTransport.create_servicebus_exception(_LOGGER, inner, **options)


def rejected(condition: str) -> client.ServiceBusError:
    """As the client reports the answer to a transfer."""
    try:
        return as_the_client_reports(MessageSendFailed(ErrorCondition(condition.encode()), description="words"))
    except ValueError:
        return as_the_client_reports(MessageException(condition.encode(), description="words"))


def test_the_table_names_every_condition_that_the_code_knows() -> None:
    assert TABLE.keys() - CONDITIONS.keys() == {"com.contoso:never-heard-of"}
    assert CONDITIONS.keys() <= TABLE.keys()


@pytest.mark.parametrize("condition", TABLE)
def test_a_condition_means_what_the_table_says(condition: str) -> None:
    found = failure(rejected(condition), "send to q")
    assert (found.kind, found.reason) == TABLE[condition]
    assert str(found).startswith("send to q: ")


@pytest.mark.parametrize("condition", sorted(TABLE))
def test_only_an_answer_that_refuses_or_throttles_or_finds_no_room_is_certain(condition: str) -> None:
    answered = send_failure(rejected(condition), "send to q")
    assert answered.maybe_applied is (answered.kind is UNAVAILABLE and answered.reason is not FailureReason.QUOTA)
    detached = send_failure(as_the_client_reports(AMQPLinkError(condition.encode(), description="words")), "send to q")
    assert detached.maybe_applied is (detached.reason not in (FailureReason.TOO_LARGE, FailureReason.NOT_FOUND))


@pytest.mark.parametrize(
    ("status", "kind", "reason"),
    [
        (400, REFUSED, FailureReason.MALFORMED),
        (401, REFUSED, FailureReason.UNAUTHORIZED),
        (403, REFUSED, FailureReason.UNAUTHORIZED),
        (404, REFUSED, FailureReason.NOT_FOUND),
        (408, UNAVAILABLE, FailureReason.TIMEOUT),
        (409, REFUSED, FailureReason.ALREADY_EXISTS),
        (410, REFUSED, FailureReason.LOCK_LOST),
        (413, REFUSED, FailureReason.TOO_LARGE),
        (418, REFUSED, FailureReason.OTHER),
        (429, BUSY, FailureReason.OTHER),
        (500, UNAVAILABLE, FailureReason.OTHER),
        (502, UNAVAILABLE, FailureReason.OTHER),
        (503, BUSY, FailureReason.OTHER),
        (504, UNAVAILABLE, FailureReason.TIMEOUT),
    ],
)
def test_a_status_means_the_same_from_the_administration_and_a_management_link(
    status: int, kind: FailureKind, reason: FailureReason
) -> None:
    over_http = core.HttpResponseError("words")
    over_http.status_code = status
    over_amqp = client.ServiceBusError("words", status_code=status)
    for error in (over_http, over_amqp):
        found = failure(error, "do")
        assert (found.kind, found.reason) == (kind, reason)
    assert STATUSES.keys() <= {400, 401, 403, 404, 408, 409, 410, 413, 429, 503, 504}


@pytest.mark.parametrize("custom", [None, "sb://127.0.0.1:9"])
@pytest.mark.parametrize(("status", "reason"), [(401, FailureReason.UNAUTHORIZED), (404, FailureReason.NOT_FOUND)])
def test_a_refused_token_is_no_lost_connection(custom: str | None, status: int, reason: FailureReason) -> None:
    # With an endpoint of its own, the client calls it a connection error.
    refused = as_the_client_reports(TokenAuthFailure(status, b"words"), custom_endpoint_address=custom)
    found = failure(refused, "send to q")
    assert (found.kind, found.reason) == (REFUSED, reason)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (client.OperationTimeoutError(), UNAVAILABLE, FailureReason.TIMEOUT),
        (client.MessageLockLostError(), REFUSED, FailureReason.LOCK_LOST),
        (client.MessageAlreadySettled(), REFUSED, FailureReason.LOCK_LOST),
        (client.SessionLockLostError(), REFUSED, FailureReason.LOCK_LOST),
        (client.SessionCannotBeLockedError(), BUSY, FailureReason.OTHER),
        (client.MessageSizeExceededError(), REFUSED, FailureReason.TOO_LARGE),
        (client.ServiceBusQuotaExceededError(), UNAVAILABLE, FailureReason.QUOTA),
        (client.ServiceBusServerBusyError(), BUSY, FailureReason.OTHER),
        (client.MessagingEntityDisabledError(), REFUSED, FailureReason.DISABLED),
        (client.MessagingEntityNotFoundError(), REFUSED, FailureReason.NOT_FOUND),
        (client.MessageNotFoundError(), REFUSED, FailureReason.NOT_FOUND),
        (client.MessagingEntityAlreadyExistsError(), REFUSED, FailureReason.ALREADY_EXISTS),
        (client.ServiceBusAuthorizationError(), REFUSED, FailureReason.UNAUTHORIZED),
        (client.ServiceBusAuthenticationError(), REFUSED, FailureReason.UNAUTHORIZED),
        (client.ServiceBusConnectionError(), UNAVAILABLE, FailureReason.CONNECTION),
        (client.ServiceBusCommunicationError(), UNAVAILABLE, FailureReason.CONNECTION),
        (core.ClientAuthenticationError("words"), REFUSED, FailureReason.UNAUTHORIZED),
        (core.ResourceNotFoundError("words"), REFUSED, FailureReason.NOT_FOUND),
        (core.ResourceExistsError("words"), REFUSED, FailureReason.ALREADY_EXISTS),
        (core.ServiceRequestError("words"), UNAVAILABLE, FailureReason.CONNECTION),
        (core.ServiceRequestTimeoutError("words"), UNAVAILABLE, FailureReason.TIMEOUT),
        (core.ServiceResponseError("words"), UNAVAILABLE, FailureReason.CONNECTION),
        (core.ServiceResponseTimeoutError("words"), UNAVAILABLE, FailureReason.TIMEOUT),
        (TimeoutError(), UNAVAILABLE, FailureReason.TIMEOUT),
        (ConnectionRefusedError(), UNAVAILABLE, FailureReason.CONNECTION),
        (ssl.SSLCertVerificationError(), UNAVAILABLE, FailureReason.CONNECTION),
        (ValueError("anything else"), UNAVAILABLE, FailureReason.CONNECTION),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_without_a_condition_is_reported_by_its_class(
    error: Exception, kind: FailureKind, reason: FailureReason
) -> None:
    found = failure(error, "do")
    assert (found.kind, found.reason) == (kind, reason)


def test_a_host_that_is_no_namespace_is_no_missing_queue() -> None:
    found = failure(as_the_client_reports(AMQPConnectionError(b"amqp:not-found", description="words")), "do")
    assert found.kind is UNAVAILABLE


def test_no_secret_of_the_service_s_answer_is_shown() -> None:
    words = "bad token sr=x&sig=SECRET%3d&se=1 SharedAccessKey=SECRET; SharedAccessSignature = SECRET"
    for error in (client.ServiceBusError(words), client.ServiceBusAuthorizationError(message=words)):
        found = failure(error, "do")
        assert "SECRET" not in str(found)
    assert failure(client.ServiceBusAuthorizationError(message=words), "do").__cause__ is None


def test_the_cause_stays_behind_the_error_and_a_copy_is_another_one() -> None:
    cause = client.ServiceBusServerBusyError()
    found = failure(cause, "do", maybe_applied=True)
    assert found.__cause__ is cause
    copy = _errors.again(found)
    assert copy is not found
    assert (str(copy), copy.kind, copy.maybe_applied, copy.__cause__) == (str(found), found.kind, True, cause)
    own = TransportError("mine", BUSY)
    assert failure(own, "do") is own


def test_a_secret_that_the_service_quotes_stands_nowhere_behind_the_error() -> None:
    quoted = client.ServiceBusError("SharedAccessSignature sr=x&sig=PLANTED&se=1&skn=k")
    failed = failure(quoted, "send to orders")
    assert "PLANTED" not in str(failed)
    assert failed.__cause__ is None
    behind = client.ServiceBusError("internal error")
    behind.__cause__ = quoted
    assert failure(behind, "send to orders").__cause__ is None
    harmless = client.ServiceBusError("internal error")
    assert failure(harmless, "send to orders").__cause__ is harmless
