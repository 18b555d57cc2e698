"""Properties of entities under the names that the service gives them, in XML and in settings files; and durations.

Behind them the entities that a server makes at its start, named on a command line or in a settings file. The names of
properties are those of the service's data contracts (Service Bus documentation: reference of the REST API, "Create
queue", "Create topic", "Create subscription"); the fields of the descriptions are the same words in Python's spelling.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from servicebus_local.broker import (
    CORRELATION_FIELDS,
    Broker,
    BrokerError,
    CorrelationFilter,
    EntityStatus,
    Filter,
    QueueDescription,
    Rule,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)

Description = TypeVar("Description", QueueDescription, TopicDescription, SubscriptionDescription)

UNLIMITED = "P10675199DT2H48M5.4775807S"
"""The largest time span of the service's own platform; it stands for no limit (Service Bus documentation: reference of
``QueueDescription``)."""

_DAY = 86_400
# Clients round its fraction, or take a little off.
_UNLIMITED_FROM = 10_675_199 * _DAY

# Years and months are not durations: how long they are depends on when they begin.
_FORM = re.compile(
    r"P(?=.)(?:(?P<weeks>\d{1,9})W)?(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?=.)(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,12}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)


_MAX_FILE_BYTES = 4 * 1024 * 1024
_EXISTS = "com.microsoft:entity-already-exists"
Step = Callable[[Broker], object]
"""Makes one entity, unless it is there; raises `BrokerError`."""


class PropertyError(ValueError):
    """A property's value can't be read; the text names the property."""


def xml_name(name: str) -> str:
    """The service's spelling of a name, such as ``ReplyTo`` for ``reply_to``."""
    return "".join(part.capitalize() for part in name.split("_"))


def read_flag(text: str) -> bool:
    """Read ``true`` or ``false`` as XML Schema allows them to be written."""
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text[:60]!r} is neither true nor false") from None


def parse_duration(text: str) -> float | None:
    """Read a duration such as ``P1DT2H3M4.5S``; returns seconds, or None for one without end."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"invalid duration {text[:60]!r}; use ISO 8601, e.g. PT30S")
    weeks, days, hours, minutes = (int(found[name] or 0) for name in ("weeks", "days", "hours", "minutes"))
    whole = ((weeks * 7 + days) * 24 + hours) * 3600 + minutes * 60
    seconds = float(whole + Decimal(found["seconds"] or 0))
    return None if seconds >= _UNLIMITED_FROM else seconds


def format_duration(seconds: float | None) -> str:
    """Write seconds, to the ten-millionth that the service keeps; None is without end."""
    if seconds is None or seconds >= _UNLIMITED_FROM:
        return UNLIMITED
    ticks = round(Decimal(repr(float(seconds))) * 10_000_000)
    whole, fraction = divmod(ticks, 10_000_000)
    days, rest = divmod(whole, _DAY)
    hours, rest = divmod(rest, 3600)
    minutes, last = divmod(rest, 60)
    text = "".join(f"{number}{letter}" for number, letter in ((hours, "H"), (minutes, "M")) if number)
    if fraction:
        text += f"{last}.{fraction:07d}".rstrip("0") + "S"
    elif last:
        text += f"{last}S"
    if not text and not days:
        text = "0S"
    return "P" + (f"{days}D" if days else "") + (f"T{text}" if text else "")


def _number(text: str) -> int:
    digits = text.strip()
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 18:
        raise ValueError(f"{text[:60]!r} is not a number")
    return int(digits)


def _status(text: str) -> EntityStatus:
    for status in EntityStatus:
        if status.lower() == text.strip().lower():
            return status
    raise ValueError(f"invalid value {text[:60]!r}; use {', '.join(EntityStatus)}")


def _text(text: str) -> str | None:
    # An empty text takes a forwarding or the metadata away.
    return text or None


_READERS: Mapping[str, Callable[[str], object]] = {
    "bool": read_flag,
    "int": _number,
    "float": parse_duration,
    "str": _text,
    "EntityStatus": _status,
}
"""By the type of a field, whose name is the service's in another spelling; all floats are durations."""


def _properties(description: type) -> dict[str, tuple[str, str]]:
    """Of a kind of entity: the service's names of its properties, with field and type."""
    return {xml_name(field.name): (field.name, str(field.type).partition(" ")[0]) for field in fields(description)}


def read_properties(base: Description, given: Mapping[str, str]) -> Description:
    """Change a description by texts under the service's names; unknown names are skipped. Raises `PropertyError`."""
    changes: dict[str, Any] = {}
    for name, (field, kind) in _properties(type(base)).items():
        if name in given:
            try:
                changes[field] = _READERS[kind](given[name])
            except ValueError as error:
                raise PropertyError(f"{name}: {error}") from None
    return replace(base, **changes)


def write_properties(description: QueueDescription | TopicDescription | SubscriptionDescription) -> dict[str, str]:
    """The text of each property by the service's name; unset texts are left out."""
    written = {}
    for name, (field, kind) in _properties(type(description)).items():
        value = getattr(description, field)
        if kind == "float":
            written[name] = format_duration(value)
        elif value is not None:
            written[name] = str(value).lower() if kind == "bool" else str(value)
    return written


CORRELATION = {xml_name(field): field for field in CORRELATION_FIELDS}
"""The fields of a correlation filter by the service's names."""


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
