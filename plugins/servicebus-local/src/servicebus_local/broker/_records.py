"""Entities as the store keeps them: plain dictionaries, in which an unknown property is no error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from servicebus_local.broker._descriptions import (
    Description,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from servicebus_local.broker._entities import Holder, Subscription, Topic
from servicebus_local.broker._filters import (
    CorrelationFilter,
    FalseFilter,
    Filter,
    Rule,
    SqlFilter,
    TrueFilter,
)

_DESCRIPTIONS: dict[str, type[Description]] = {
    "queue": QueueDescription,
    "topic": TopicDescription,
    "subscription": SubscriptionDescription,
}
_FILTERS: dict[str, type[Filter]] = {
    "true": TrueFilter,
    "false": FalseFilter,
    "sql": SqlFilter,
    "correlation": CorrelationFilter,
}
_FILTER_NAMES = {kind: name for name, kind in _FILTERS.items()}


def record_of(entity: Holder | Topic) -> dict[str, object]:
    """What is stored of an entity: plain values only."""
    description = asdict(entity.description)
    description["status"] = entity.description.status.value
    record: dict[str, object] = {
        "kind": "topic" if isinstance(entity, Topic) else "queue",
        "path": entity.path,
        "created_at": entity.created_at,
        "updated_at": entity.updated_at,
        "description": description,
    }
    if isinstance(entity, Subscription):
        record |= {
            "kind": "subscription",
            "topic": entity.topic,
            "name": entity.name,
            "rules": [_rule_record(rule) for rule in entity.rules],
        }
    return record


def description_of(record: Mapping[str, Any]) -> Description:
    """The description in a record."""
    kind = _DESCRIPTIONS[record["kind"]]
    known = {field.name for field in fields(kind)}
    values = {name: value for name, value in record["description"].items() if name in known}
    values["status"] = EntityStatus(values["status"])
    return kind(**values)


def rules_of(record: Mapping[str, Any]) -> list[Rule]:
    """The rules in the record of a subscription."""
    return [
        Rule(each["name"], _FILTERS[each["filter"]](**each["values"]), each["action"], each["created_at"])
        for each in record["rules"]
    ]


def _rule_record(rule: Rule) -> dict[str, object]:
    values = {field.name: getattr(rule.filter, field.name) for field in fields(rule.filter)}
    kind = _FILTER_NAMES[type(rule.filter)]
    return {"name": rule.name, "filter": kind, "values": values, "action": rule.action, "created_at": rule.created_at}
