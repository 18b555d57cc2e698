"""What the administration does to a namespace: paths of requests and entries for them, without HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import unquote
from xml.etree.ElementTree import Element  # the type

from servicebus_local.atom._entries import (
    Entry,
    XmlError,
    child,
    child_text,
    entity_entry,
    local_name,
    namespace_entry,
    parse,
    read_rule,
    rule_entry,
)
from servicebus_local.broker import Broker, BrokerError, QueueDescription, SubscriptionDescription, TopicDescription
from servicebus_local.descriptions import Description, read_properties

NOT_FOUND = "amqp:not-found"

T = TypeVar("T")

_SUBSCRIPTIONS = re.compile(
    r"(?P<topic>.+?)/subscriptions(?:/(?P<name>[^/]+)(?:/(?P<rules>rules)(?:/(?P<rule>[^/]+))?)?)?", re.IGNORECASE
)


class Path(NamedTuple):
    """What a request is about: one thing of a kind, or all of them within what the names say.

    Service Bus documentation: reference of the REST API, "Entities". Names of queues and topics may hold slashes, and
    case does not matter anywhere.
    """

    kind: Literal["namespace", "entity", "subscription", "rule", "entities", "subscriptions", "rules"]
    names: tuple[str, ...] = ()

    @property
    def is_list(self) -> bool:
        """Whether it is about all of a kind."""
        return self.kind in ("entities", "subscriptions", "rules")


def decoded(raw: str) -> str:
    """Decode a path as it came, without its outer slashes; raises `ValueError` for what is no UTF-8."""
    return unquote(raw.partition("?")[0], errors="strict").strip("/")


def parse_path(path: str) -> Path:
    """Read a decoded path without outer slashes; the broker decides whether it can exist, and does."""
    lowered = path.lower()
    if lowered == "$namespaceinfo":
        return Path("namespace")
    if lowered.startswith("$resources/"):
        return Path("entities", (lowered.removeprefix("$resources/"),))
    found = _SUBSCRIPTIONS.fullmatch(path)
    if found is None:
        return Path("entity", (path,))
    topic, name, rule = found["topic"], found["name"], found["rule"]
    if name is None:
        return Path("subscriptions", (topic,))
    if found["rules"] is None:
        return Path("subscription", (topic, name))
    return Path("rules", (topic, name)) if rule is None else Path("rule", (topic, name, rule))


class Namespace:
    """Reads and changes a broker as the administration asks.

    Its methods raise `BrokerError` for what the broker refuses, `XmlError` for a body that can't be read, and
    `PropertyError` for a property that can't be. ``since`` is the Unix time of the server's start.
    """

    def __init__(self, broker: Broker, name: str, since: float) -> None:
        self._broker = broker
        self._about = namespace_entry(name, since)

    def get(self, path: Path) -> Entry | None:
        """Show one thing; None when it is not there."""
        broker = self._broker
        match path:
            case "namespace", _:
                return self._about
            case "entity", (name,):
                entity = _found(lambda: broker.get_queue(name)) or _found(lambda: broker.get_topic(name))
                return entity_entry(entity) if entity else None
            case "subscription", (topic, name):
                broker.get_topic(topic)
                subscription = _found(lambda: broker.get_subscription(topic, name))
                return entity_entry(subscription) if subscription else None
            case "rule", (topic, subscription_name, name):
                broker.get_subscription(topic, subscription_name)
                rule = _found(lambda: broker.get_rule(topic, subscription_name, name))
                return rule_entry(topic, subscription_name, rule) if rule else None
        raise _nothing(path)

    def list(self, path: Path) -> tuple[str, list[Entry]]:
        """Show everything of a kind, with a title; in the order of names."""
        match path:
            case "entities", ("queues",):
                return "Queues", [entity_entry(info) for info in self._broker.queues()]
            case "entities", ("topics",):
                return "Topics", [entity_entry(info) for info in self._broker.topics()]
            case "subscriptions", (topic,):
                return "Subscriptions", [entity_entry(info) for info in self._broker.subscriptions(topic)]
            case "rules", (topic, subscription):
                rules = self._broker.rules(topic, subscription)
                return "Rules", [rule_entry(topic, subscription, rule) for rule in rules]
        raise _nothing(path)

    def put(self, path: Path, body: bytes, *, update: bool) -> Entry:
        """Create one thing, or update one that must exist: what its description leaves out then stays as it is."""
        if path.kind not in ("entity", "subscription", "rule"):
            raise _nothing(path)
        description, broker = _described(body), self._broker
        kind = local_name(description)
        match path.kind, path.names, kind:
            case "entity", (name,), "QueueDescription":
                queue = broker.get_queue(name).description if update else QueueDescription()
                (broker.update_queue if update else broker.create_queue)(name, _changed(queue, description))
            case "entity", (name,), "TopicDescription":
                made = broker.get_topic(name).description if update else TopicDescription()
                (broker.update_topic if update else broker.create_topic)(name, _changed(made, description))
            case "subscription", (topic, name), "SubscriptionDescription":
                self._put_subscription(topic, name, description, update)
            case "rule", (topic, subscription, name), "RuleDescription":
                rule = read_rule(description, name)
                if rule.name.lower() != name.lower():
                    raise XmlError(f"The rule is called {rule.name!r} in the body and {name!r} in the URL.")
                (broker.update_rule if update else broker.add_rule)(topic, subscription, rule)
            case _:
                raise XmlError(f"A {kind} can't be put there.")
        entry = self.get(path)
        if entry is None:
            raise BrokerError(NOT_FOUND, "It was deleted at once.")
        return entry

    def delete(self, path: Path) -> None:
        broker = self._broker
        match path:
            case "entity", (name,):
                is_queue = _found(lambda: broker.get_queue(name)) is not None
                (broker.delete_queue if is_queue else broker.delete_topic)(name)
            case "subscription", (topic, name):
                broker.delete_subscription(topic, name)
            case "rule", (topic, subscription, name):
                broker.remove_rule(topic, subscription, name)
            case _:
                raise _nothing(path)

    def _put_subscription(self, topic: str, name: str, given: Element, update: bool) -> None:
        if update:
            base = self._broker.get_subscription(topic, name).description
            self._broker.update_subscription(topic, name, _changed(base, given))
            return
        first = child(given, "DefaultRuleDescription")
        rule = None if first is None else read_rule(first, "$Default")
        self._broker.create_subscription(topic, name, _changed(SubscriptionDescription(), given), rule)


def _found(get: Callable[[], T]) -> T | None:
    try:
        return get()
    except BrokerError as error:
        if error.condition != NOT_FOUND:
            raise
        return None


def _nothing(path: Path) -> BrokerError:
    return BrokerError(NOT_FOUND, f"The administration has nothing of this kind: {path}.")


def _described(body: bytes) -> Element:
    root = parse(body)
    content = child(root, "content") if local_name(root) == "entry" else None
    if content is None or not len(content):
        raise XmlError("The body is no Atom entry with a description as its content.")
    return content[0]


def _changed(base: Description, given: Element) -> Description:
    return read_properties(base, _texts(given))


def _texts(given: Element) -> Mapping[str, str]:
    texts = {local_name(element): child_text(given, local_name(element)) for element in given}
    return {name: value.strip() for name, value in texts.items() if value is not None}
