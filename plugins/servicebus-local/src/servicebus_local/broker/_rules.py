"""Rules of subscriptions (Service Bus documentation: "Topic filters and actions"), and rules made ready to be asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from servicebus_local.broker._errors import ARGUMENT, BrokerError
from servicebus_local.broker._sql import EvaluationError, Scope, parse_action, parse_condition
from servicebus_local.broker._values import Stored

DEFAULT_RULE = "$Default"
"""The rule that a subscription has if it is given no other."""


@dataclass(frozen=True, slots=True)
class TrueFilter:
    """Matches every message."""


@dataclass(frozen=True, slots=True)
class FalseFilter:
    """Matches no message."""


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Matches where an expression is true (Service Bus documentation: "Subscription rule SQL filter syntax")."""

    expression: str
    # Values of what the text calls `@name`, with or without the sign.
    parameters: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    """Matches messages that have every value given here, exactly and with regard to case."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: Mapping[str, object] = field(default_factory=dict)


CORRELATION_FIELDS = tuple(each.name for each in fields(CorrelationFilter) if each.name != "properties")
"""In the service's order, in which some clients read them."""

Filter = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(frozen=True, slots=True)
class Rule:
    """A filter of a subscription, with a name."""

    name: str  # unique in the subscription
    filter: Filter
    action: str | None = None  # `SET` and `REMOVE` statements for the copies of messages that match
    created_at: float = 0.0  # unix seconds; the broker sets it


class FilterFailure(Exception):
    """A filter or action cannot be evaluated for a message."""


class CompiledRule:
    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.matches = _matcher(rule.filter)
        """Whether the filter lets a message through."""
        self._action = None if not rule.action else parse_action(rule.action, {})

    def apply(self, message: Stored) -> dict[str, object] | None:
        """What the action makes of application properties, `None` for a removed one; `None` without an action."""
        if self._action is None:
            return None
        scope = Scope(message)
        changes: dict[str, object] = {}
        try:
            for name, value in self._action:
                changes[name] = None if value is None else value(scope)
                scope.properties = {**scope.properties, **changes}
        except EvaluationError as error:
            raise FilterFailure(str(error)) from error
        return changes


def _matcher(wanted: Filter) -> Callable[[Stored], bool]:
    if isinstance(wanted, CorrelationFilter):
        return _correlation(wanted)
    if isinstance(wanted, SqlFilter):
        return _sql(wanted)
    answer = not isinstance(wanted, FalseFilter)
    return lambda _: answer


def _sql(wanted: SqlFilter) -> Callable[[Stored], bool]:
    condition = parse_condition(wanted.expression, wanted.parameters)

    def matches(message: Stored) -> bool:
        try:
            value = condition(Scope(message))
        except EvaluationError as error:
            raise FilterFailure(str(error)) from error
        if value is None or isinstance(value, bool):
            return value is True
        raise FilterFailure("the expression is neither true nor false")

    return matches


def _correlation(wanted: CorrelationFilter) -> Callable[[Stored], bool]:
    given = ((name, getattr(wanted, name)) for name in CORRELATION_FIELDS)
    # A message calls its label the subject.
    fields = [("subject" if name == "label" else name, value) for name, value in given if value is not None]
    properties = dict(wanted.properties)
    if not fields and not properties:
        raise BrokerError(ARGUMENT, "A correlation filter has to ask for at least one property.")

    def matches(message: Stored) -> bool:
        for name, value in fields:
            actual = getattr(message, name)
            if actual != value and (actual is None or str(actual) != value):
                return False
        current = message.current_properties
        return all(name in current and _same(current[name], value) for name, value in properties.items())

    return matches


def _same(actual: object, wanted: object) -> bool:
    # True equals 1 in Python, and is another type for the service.
    return isinstance(actual, bool) == isinstance(wanted, bool) and actual == wanted
