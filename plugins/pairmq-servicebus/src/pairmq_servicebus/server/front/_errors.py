"""Errors on the wire, and the status codes of nodes that answer requests."""

from __future__ import annotations

from pairmq_servicebus.server.amqp import AmqpError
from pairmq_servicebus.server.broker import BrokerError
from pairmq_servicebus.server.faults import FaultRule

_STATUS = {
    "amqp:not-found": 404,
    "amqp:not-allowed": 400,
    "amqp:unauthorized-access": 401,
    "amqp:not-implemented": 501,
    "amqp:resource-limit-exceeded": 403,
    "amqp:link:message-size-exceeded": 400,
    "amqp:precondition-failed": 412,
    "com.microsoft:argument-error": 400,
    "com.microsoft:argument-out-of-range": 400,
    "com.microsoft:auth-failed": 401,
    "com.microsoft:entity-already-exists": 409,
    "com.microsoft:entity-disabled": 403,
    "com.microsoft:message-lock-lost": 410,
    "com.microsoft:message-not-found": 404,
    "com.microsoft:server-busy": 503,
    "com.microsoft:session-cannot-be-locked": 409,
    "com.microsoft:session-lock-lost": 410,
    "com.microsoft:timeout": 408,
}


def wire_error(error: BrokerError) -> AmqpError:
    """The error of a broker as AMQP has it."""
    return AmqpError(error.condition, error.description, {})


def fault_error(rule: FaultRule) -> AmqpError:
    """The error that a fault asks for."""
    return AmqpError(rule.condition, rule.description, {} if rule.info else None)


def status_of(condition: str) -> int:
    """The status code that goes with a condition in the answer of a node; 500 for unknown ones."""
    return _STATUS.get(condition, 500)
