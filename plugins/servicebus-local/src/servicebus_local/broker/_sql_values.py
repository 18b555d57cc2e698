"""How a rule's expression computes: values, with unknown among them, and what properties it may read.

Unknown is `None` and stands for a property that is not there, for null, and for whatever is made of it
(Service Bus documentation: "Subscription rule SQL filter syntax", remarks on unknown).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any
from uuid import UUID

from servicebus_local.broker._values import NEVER, Stored


class EvaluationError(Exception):
    """An expression has no value for a message: a division by zero, or a sum of things that have none."""


class Scope:
    """What an expression sees of a message."""

    __slots__ = ("message", "properties")

    def __init__(self, message: Stored) -> None:
        self.message = message
        self.properties: Mapping[str, object] = message.current_properties


Expression = Callable[[Scope], object]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WILDCARDS = {"%": "*", "_": "?"}


def _utc(seconds: float | None) -> datetime | None:
    if seconds is None or seconds == NEVER:
        return None
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _text(value: object) -> object:
    return str(value) if isinstance(value, UUID | int) else value


SYSTEM: dict[str, Callable[[Stored], object]] = {
    "messageid": lambda message: _text(message.message_id),
    "correlationid": lambda message: _text(message.correlation_id),
    "label": lambda message: message.subject,
    "subject": lambda message: message.subject,
    "to": lambda message: message.to,
    "replyto": lambda message: message.reply_to,
    "replytosessionid": lambda message: message.reply_to_session_id,
    "sessionid": lambda message: message.session_id,
    "partitionkey": lambda message: message.partition_key,
    "contenttype": lambda message: message.content_type,
    "enqueuedtimeutc": lambda message: _utc(message.enqueued_at),
    "expiresatutc": lambda message: _utc(message.expires_at),
    "scheduledenqueuetimeutc": lambda message: _utc(message.scheduled_at),
    "timetolive": lambda message: message.time_to_live,
    "sequencenumber": lambda message: message.sequence_number,
    "enqueuedsequencenumber": lambda message: message.enqueued_sequence_number,
    "deliverycount": lambda message: message.delivery_count,
    "size": lambda message: message.size,
    "deadlettersource": lambda message: message.dead_letter_source,
}
"""System properties by their names in small letters; case does not matter there."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def compare(sign: str, left: object, right: object) -> bool | None:
    """Two values compared; unknown if one is, or if they are of kinds that cannot be compared."""
    if left is None or right is None:
        return None
    if isinstance(left, datetime) and isinstance(right, datetime):
        comparable = (left.tzinfo is None) == (right.tzinfo is None)
    else:
        comparable = (_is_number(left) and _is_number(right)) or any(
            isinstance(left, kind) and isinstance(right, kind) for kind in (str, bool, UUID, bytes)
        )
    if not comparable:
        return None
    return bool(_COMPARE[sign](left, right))


def compute(sign: str, left: object, right: object) -> object:
    """Arithmetic; `None` if an operand is unknown. Whole numbers give whole numbers, rounded towards zero."""
    if left is None or right is None:
        return None
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        return left + right
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        raise EvaluationError(f"'{sign}' is not defined for these values")
    if isinstance(left, bool) or isinstance(right, bool):
        raise EvaluationError(f"'{sign}' is not defined for true and false")
    try:
        return _arithmetic(sign, left, right)
    except ZeroDivisionError:
        raise EvaluationError("a division by zero") from None
    except (OverflowError, ValueError):
        raise EvaluationError("a number that is too large") from None


def _arithmetic(sign: str, left: float, right: float) -> float:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if not (isinstance(left, int) and isinstance(right, int)):
        if sign == "/":
            return left / right
        return left - right * int(left / right)
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return quotient if sign == "/" else left - right * quotient


def is_like(text: str, pattern: str, escape: str | None) -> bool:
    """Whether a text fits a pattern of LIKE."""
    glob: list[str] = []
    characters = iter(pattern)
    for each in characters:
        if each != escape and each in _WILDCARDS:
            glob.append(_WILDCARDS[each])
        else:
            literal = next(characters, each) if each == escape else each
            glob.append(f"[{literal}]" if literal in "*?[" else literal)
    return fnmatchcase(text, "".join(glob))
