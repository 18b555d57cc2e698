"""The entities that a server makes at its start, named on a command line or in a settings file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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

Step = Callable[[Broker], object]
"""Makes one entity, unless it is there; raises `BrokerError`."""


class EntityError(ValueError):
    """An entity can't be named or set up like that."""


def make_all(steps: Iterable[Step], broker: Broker) -> None:
    """Make entities; raises `EntityError`, which names the entity, if the broker refuses one."""
    try:
        for step in steps:
            step(broker)
    except BrokerError as error:
        raise EntityError(error.description) from None


def entities(queues: Iterable[str], topics: Iterable[str]) -> list[Step]:
    """Read a command line's queues, and topics: ``NAME`` or ``NAME:SUBSCRIPTION,SUBSCRIPTION``."""
    steps = [_queue(_named(name, "a queue"), QueueDescription()) for name in queues]
    for text in topics:
        name, separator, subscriptions = text.partition(":")
        topic = _named(name, "a topic")
        steps.append(_topic(topic, TopicDescription()))
        for one in subscriptions.split(",") if separator else ():
            steps.append(_subscription(topic, _named(one, "a subscription"), SubscriptionDescription()))
    return steps


def read_config(path: Path) -> list[Step]:
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
        return _steps(content)
    except EntityError as error:
        raise EntityError(f"{path}: {error}") from None


def _queue(name: str, description: QueueDescription) -> Step:
    return lambda broker: _made(partial(broker.create_queue, name, description))


def _topic(name: str, description: TopicDescription) -> Step:
    return lambda broker: _made(partial(broker.create_topic, name, description))


def _subscription(topic: str, name: str, description: SubscriptionDescription, rules: Sequence[Rule] = ()) -> Step:
    def make(broker: Broker) -> None:
        if _made(partial(broker.create_subscription, topic, name, description, rules[0] if rules else None)):
            for rule in rules[1:]:
                broker.add_rule(topic, name, rule)

    return make


def _made(make: Callable[[], object]) -> bool:
    """Whether it was not there yet."""
    try:
        make()
    except BrokerError as error:
        if error.condition != _EXISTS:
            raise
        return False
    return True


def _named(text: str, what: str) -> str:
    name = text.strip()
    if not name:
        raise EntityError(f"the name of {what} is empty")
    return name


# ------------------------------------------------------------------------------------------------- the settings file


def _steps(content: object) -> list[Step]:
    steps: list[Step] = []
    config = _object(_object(content, "the file").get("UserConfig"), "UserConfig")
    for namespace in _objects(config, "Namespaces", "UserConfig"):
        where = f"namespace {namespace.get('Name', '?')!s}"
        for entry in _objects(namespace, "Queues", where):
            steps.append(_queue(_name(entry, where), _described(QueueDescription(), entry)))
        for entry in _objects(namespace, "Topics", where):
            topic = _name(entry, where)
            steps.append(_topic(topic, _described(TopicDescription(), entry)))
            for one in _objects(entry, "Subscriptions", topic):
                name = _name(one, f"topic {topic}")
                rules = [_rule(each, name) for each in _objects(one, "Rules", name)]
                steps.append(_subscription(topic, name, _described(SubscriptionDescription(), one), rules))
    return steps


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
        raise EntityError(f"{key} of {where} is not a list")
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
