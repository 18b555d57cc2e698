"""Rules made ready to be asked: filters with their expressions read once, and actions."""

from __future__ import annotations

from typing import Protocol

from servicebus_local.broker._filters import (
    CorrelationFilter,
    CorrelationMatcher,
    FalseFilter,
    Filter,
    Rule,
    SqlFilter,
)
from servicebus_local.broker._sql import parse_action, parse_condition
from servicebus_local.broker._sql_values import EvaluationError, Scope
from servicebus_local.broker._values import Stored


class FilterFailure(Exception):
    """A filter or action cannot be evaluated for a message."""


class _Matcher(Protocol):
    def matches(self, message: Stored) -> bool: ...


class _Always:
    def __init__(self, answer: bool) -> None:
        self._answer = answer

    def matches(self, message: Stored) -> bool:
        return self._answer


class _SqlMatcher:
    def __init__(self, wanted: SqlFilter) -> None:
        self._condition = parse_condition(wanted.expression, wanted.parameters)

    def matches(self, message: Stored) -> bool:
        try:
            value = self._condition(Scope(message))
        except EvaluationError as error:
            raise FilterFailure(str(error)) from error
        if value is None or isinstance(value, bool):
            return value is True
        raise FilterFailure("the expression is neither true nor false")


class CompiledRule:
    """A rule, ready."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._matcher = _matcher(rule.filter)
        self._action = None if not rule.action else parse_action(rule.action, {})

    def matches(self, message: Stored) -> bool:
        """Whether the filter lets a message through."""
        return self._matcher.matches(message)

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


def _matcher(wanted: Filter) -> _Matcher:
    if isinstance(wanted, CorrelationFilter):
        return CorrelationMatcher(wanted)
    if isinstance(wanted, SqlFilter):
        return _SqlMatcher(wanted)
    return _Always(not isinstance(wanted, FalseFilter))
