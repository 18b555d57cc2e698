"""Rules of subscriptions as the management node has them: maps in, described lists out."""

from __future__ import annotations

from typing import Any

from pairmq_servicebus.server.amqp import Described, Symbol, Timestamp
from pairmq_servicebus.server.broker import (
    BrokerError,
    CorrelationFilter,
    FalseFilter,
    Rule,
    SqlFilter,
    TrueFilter,
)

_CORRELATION = (
    "correlation-id",
    "message-id",
    "to",
    "reply-to",
    "label",
    "session-id",
    "reply-to-session-id",
    "content-type",
)


def subscription_of(path: str) -> tuple[str, str]:
    """Take a subscription's path apart: topic and name.

    Raises:
        BrokerError: it is none.
    """
    topic, separator, name = path.rpartition("/")
    topic, inner, word = topic.rpartition("/")
    if not separator or not inner or word.lower() != "subscriptions":
        raise BrokerError("amqp:not-allowed", f"{path} is no subscription: it has no rules")
    return topic, name


def rule_of(body: dict[str, Any]) -> Rule:
    """Read the rule that shall be added.

    Args:
        body: of the request.

    Raises:
        BrokerError: it can't be read.
    """
    name, wanted = body.get("rule-name"), body.get("rule-description")
    if not isinstance(name, str) or not isinstance(wanted, dict):
        raise BrokerError("com.microsoft:argument-error", "add-rule needs rule-name and rule-description")
    description = {str(key): value for key, value in wanted.items()}
    action = description.get("sql-rule-action")
    expression = (
        {str(key): value for key, value in action.items()}.get("expression") if isinstance(action, dict) else None
    )
    return Rule(name, _filter(description), expression)


def _filter(description: dict[str, Any]) -> TrueFilter | FalseFilter | SqlFilter | CorrelationFilter:
    if isinstance(description.get("sql-filter"), dict):
        values = {str(key): value for key, value in description["sql-filter"].items()}
        return SqlFilter(str(values.get("expression", "")))
    if isinstance(description.get("correlation-filter"), dict):
        values = {str(key): value for key, value in description["correlation-filter"].items()}
        properties = values.get("properties") or {}
        fields = {name.replace("-", "_"): values[name] for name in _CORRELATION if values.get(name) is not None}
        return CorrelationFilter(**fields, properties={str(key): value for key, value in properties.items()})
    if "true-filter" in description:
        return TrueFilter()
    if "false-filter" in description:
        return FalseFilter()
    raise BrokerError("com.microsoft:argument-error", "rule-description holds no filter that is known here")


def described(rule: Rule) -> Described:
    """The rule as ``enumerate-rules`` shows it."""
    action = Described(Symbol("com.microsoft:empty-rule-action:list"), [])
    if rule.action is not None:
        action = Described(Symbol("com.microsoft:sql-rule-action:list"), [rule.action, None])
    created = Timestamp(int(rule.created_at * 1000))
    return Described(
        Symbol("com.microsoft:rule-description:list"), [_described_filter(rule), action, rule.name, created]
    )


def _described_filter(rule: Rule) -> Described:
    found = rule.filter
    if isinstance(found, SqlFilter):
        return Described(Symbol("com.microsoft:sql-filter:list"), [found.expression, None])
    if isinstance(found, CorrelationFilter):
        fields = [getattr(found, name.replace("-", "_")) for name in _CORRELATION]
        return Described(Symbol("com.microsoft:correlation-filter:list"), [*fields, dict(found.properties)])
    name = "true-filter" if isinstance(found, TrueFilter) else "false-filter"
    return Described(Symbol(f"com.microsoft:{name}:list"), [])
