"""The entities that a server makes at its start, named on a command line or in a settings file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from servicebus_local.broker import (
    Broker,
    BrokerError,
    CorrelationFilter,
    Filter,
    QueueDescription,
    Rule,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from servicebus_local.descriptions import CORRELATION, Description, PropertyError, read_properties

_MAX_FILE_BYTES = 4 * 1024 * 1024
_EXISTS = "com.microsoft:entity-already-exists"

_QUEUE, _TOPIC, _SUBSCRIPTION = QueueDescription(), TopicDescription(), SubscriptionDescription()


class EntityError(ValueError):
    """An entity can't be named or set up like that."""


@dataclass(frozen=True, slots=True)
class _Subscription:
    name: str
    description: SubscriptionDescription = _SUBSCRIPTION
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class _Topic:
    name: str
    description: TopicDescription = _TOPIC
    subscriptions: tuple[_Subscription, ...] = ()


@dataclass(frozen=True, slots=True)
class _Queue:
    name: str
    description: QueueDescription = _QUEUE


@dataclass(frozen=True, slots=True)
class EntityPlan:
    """Entities to be made; empty ones are false."""

    queues: tuple[_Queue, ...] = ()
    topics: tuple[_Topic, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.queues or self.topics)

    def and_also(self, other: EntityPlan) -> EntityPlan:
        """Both plans; the other's entities come second."""
        return EntityPlan(self.queues + other.queues, self.topics + other.topics)

    def make(self, broker: Broker) -> None:
        """Create what does not exist; raises `EntityError`, which names the entity, if the broker refuses one."""
        try:
            for queue in self.queues:
                _unless_there(partial(broker.create_queue, queue.name, queue.description))
            for topic in self.topics:
                _unless_there(partial(broker.create_topic, topic.name, topic.description))
                for subscription in topic.subscriptions:
                    _make_subscription(broker, topic.name, subscription)
        except BrokerError as error:
            raise EntityError(error.description) from None


def entities(queues: Iterable[str], topics: Iterable[str]) -> EntityPlan:
    """Read a command line's queues, and topics: ``NAME`` or ``NAME:SUBSCRIPTION,SUBSCRIPTION``."""
    return EntityPlan(tuple(_Queue(_named(name, "a queue")) for name in queues), tuple(_topic(text) for text in topics))


def read_config(path: Path) -> EntityPlan:
    """Read a settings file in the shape of ``Config.json`` of the emulator (Service Bus documentation: "Test locally
    by using the Azure Service Bus emulator").
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise EntityError(f"{path} is larger than {_MAX_FILE_BYTES} bytes")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, EntityError):
            raise
        raise EntityError(f"{path} can't be read: {error}") from None
    try:
        return _plan(content)
    except EntityError as error:
        raise EntityError(f"{path}: {error}") from None


def _unless_there(make: Callable[[], object]) -> None:
    try:
        make()
    except BrokerError as error:
        if error.condition != _EXISTS:
            raise


def _make_subscription(broker: Broker, topic: str, subscription: _Subscription) -> None:
    first = subscription.rules[0] if subscription.rules else None
    try:
        broker.create_subscription(topic, subscription.name, subscription.description, first)
    except BrokerError as error:
        if error.condition != _EXISTS:
            raise
        return
    for rule in subscription.rules[1:]:
        broker.add_rule(topic, subscription.name, rule)


def _topic(text: str) -> _Topic:
    name, separator, subscriptions = text.partition(":")
    names = subscriptions.split(",") if separator else []
    return _Topic(
        _named(name, "a topic"), subscriptions=tuple(_Subscription(_named(one, "a subscription")) for one in names)
    )


def _named(text: str, what: str) -> str:
    name = text.strip()
    if not name:
        raise EntityError(f"the name of {what} is empty")
    return name


# ------------------------------------------------------------------------------------------------- the settings file


def _plan(content: object) -> EntityPlan:
    plan = EntityPlan()
    config = _object(_object(content, "the file").get("UserConfig"), "UserConfig")
    for namespace in _objects(config, "Namespaces", "UserConfig"):
        where = f"namespace {namespace.get('Name', '?')!s}"
        queues = tuple(
            _Queue(_name(entry, where), _described(QueueDescription(), entry))
            for entry in _objects(namespace, "Queues", where)
        )
        topics = tuple(
            _Topic(
                _name(entry, where),
                _described(TopicDescription(), entry),
                tuple(_subscription(one) for one in _objects(entry, "Subscriptions", str(entry.get("Name")))),
            )
            for entry in _objects(namespace, "Topics", where)
        )
        plan = plan.and_also(EntityPlan(queues, topics))
    return plan


def _subscription(entry: Mapping[str, object]) -> _Subscription:
    name = _name(entry, "a topic")
    rules = tuple(_rule(one, name) for one in _objects(entry, "Rules", name))
    return _Subscription(name, _described(SubscriptionDescription(), entry), rules)


def _rule(entry: Mapping[str, object], where: str) -> Rule:
    name = _name(entry, f"subscription {where}")
    properties = _object(entry.get("Properties"), f"rule {name}")
    action = properties.get("Action")
    expression = _object(action, f"action of rule {name}").get("SqlExpression") if action is not None else None
    return Rule(name, _filter(properties, name), None if not expression else str(expression))


def _filter(properties: Mapping[str, object], name: str) -> Filter:
    kind = str(properties.get("FilterType", "Sql")).lower()
    if kind == "sql":
        expression = _object(properties.get("SqlFilter"), f"SqlFilter of rule {name}").get("SqlExpression")
        if not isinstance(expression, str):
            raise EntityError(f"rule {name} has no SqlExpression")
        return SqlFilter(expression)
    if kind != "correlation":
        raise EntityError(f"rule {name}: FilterType is {kind!r}, neither Sql nor Correlation")
    given = _object(properties.get("CorrelationFilter"), f"CorrelationFilter of rule {name}")
    custom = given.get("Properties")
    fields = {field: str(given[key]) for key, field in CORRELATION.items() if given.get(key) is not None}
    return CorrelationFilter(**fields, properties={} if custom is None else dict(_object(custom, f"rule {name}")))


def _described(base: Description, entry: Mapping[str, object]) -> Description:
    given = entry.get("Properties")
    if given is None:
        return base
    # As text, the way the XML has them: `True` is read like `true`, and numbers like their digits.
    texts = {
        key: "" if value is None else str(value)
        for key, value in _object(given, f"Properties of {entry.get('Name')}").items()
    }
    try:
        return read_properties(base, texts)
    except PropertyError as error:
        raise EntityError(f"{entry.get('Name')}: {error}") from None


def _objects(parent: Mapping[str, object], key: str, where: str) -> list[Mapping[str, object]]:
    found = parent.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise EntityError(f"{key} of {where} is no list")
    return [_object(one, f"{key} of {where}") for one in found]


def _object(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise EntityError(f"{what} is no JSON object")
    return value


def _name(entry: Mapping[str, object], where: str) -> str:
    name = entry.get("Name")
    if not isinstance(name, str) or not name:
        raise EntityError(f"an entity of {where} has no Name")
    return name
