"""What the broker refuses: error conditions of AMQP, and rules for the names of entities and the paths of links.

The conditions are those of the service (Service Bus documentation: "AMQP 1.0 in Azure Service Bus and Event Hubs
protocol guide" and "Service Bus messaging exceptions"), and so are the rules ("Service Bus quotas", naming): letters,
digits, periods, hyphens, underscores and, in paths of queues and topics, slashes; a letter or digit at both ends. Case
does not matter.
"""

from __future__ import annotations

import re
from typing import NamedTuple

NOT_FOUND = "amqp:not-found"
NOT_ALLOWED = "amqp:not-allowed"
QUOTA = "amqp:resource-limit-exceeded"
TOO_LARGE = "amqp:link:message-size-exceeded"
LOCK_LOST = "com.microsoft:message-lock-lost"
SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
SESSION_TAKEN = "com.microsoft:session-cannot-be-locked"
DISABLED = "com.microsoft:entity-disabled"
ARGUMENT = "com.microsoft:argument-error"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
EXISTS = "com.microsoft:entity-already-exists"

# Service Bus documentation: reference of the REST API, "Error codes" of the entities' operations.
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


class BrokerError(Exception):
    """An operation that the broker refuses; nothing of it was done."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description


def status_of(condition: str) -> int:
    """The status code that goes with a condition, in answers of nodes and over HTTP; 500 for unknown ones."""
    return _STATUS.get(condition, 500)


MAX_PATH = 260
MAX_NAME = 50

_PATH = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._~/-]*[A-Za-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9$](?:[A-Za-z0-9._~-]*[A-Za-z0-9_~-])?")
_SUBSCRIPTIONS = "subscriptions"
_DEAD = "$deadletterqueue"
_TRANSFER = "$transfer"


class ReceivePath(NamedTuple):
    entity: str
    subscription: str | None
    dead_letter: bool


def check_path(path: str) -> None:
    if len(path) > MAX_PATH:
        raise BrokerError(ARGUMENT, f"The entity path has {len(path)} characters, and {MAX_PATH} are allowed.")
    if not _PATH.fullmatch(path) or "//" in path:
        raise BrokerError(ARGUMENT, f"'{path}' cannot be the path of an entity.")
    if _SUBSCRIPTIONS in path.lower().split("/"):
        raise BrokerError(ARGUMENT, f"'{path}' cannot be the path of an entity: it reads as a subscription's.")


def check_name(name: str, what: str) -> None:
    if len(name) > MAX_NAME:
        raise BrokerError(ARGUMENT, f"The name of the {what} has {len(name)} characters, and {MAX_NAME} are allowed.")
    if not _NAME.fullmatch(name):
        raise BrokerError(ARGUMENT, f"'{name}' cannot be the name of a {what}.")


def parse_receive_path(path: str) -> ReceivePath:
    """Read the path of a receiving link: of a queue, a subscription, or the dead-letter queue of one."""
    segments = path.strip("/").split("/")
    dead_letter = segments[-1].lower() == _DEAD
    if dead_letter:
        segments.pop()
    if segments and segments[-1].lower() == _TRANSFER:
        raise BrokerError(NOT_FOUND, f"'{path}' does not exist: there are no transfer dead-letter queues here.")
    if len(segments) > 2 and segments[-2].lower() == _SUBSCRIPTIONS:
        return ReceivePath("/".join(segments[:-2]), segments[-1], dead_letter)
    return ReceivePath("/".join(segments), None, dead_letter)


def forward_path(target: str) -> str:
    """The path in what `forward_to` holds, which may be a full URL."""
    if "://" in target:
        target = target.split("://", 1)[1].partition("/")[2]
    return target.strip("/")
