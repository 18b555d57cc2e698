"""What the administration does to a namespace: entries for requests, without HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar
from xml.etree.ElementTree import Element  # the type

from servicebus_local.atom._entries import (
    Entry,
    namespace_entry,
    queue_entry,
    read_rule,
    rule_entry,
    subscription_entry,
    topic_entry,
)
from servicebus_local.atom._paths import (
    AdministrationPath,
    EntityPath,
    NamespacePath,
    ResourcePath,
    RulePath,
    RulesPath,
    SubscriptionPath,
    SubscriptionsPath,
)
from servicebus_local.atom._xml import XmlError, child, child_text, local_name, parse
from servicebus_local.broker import (
    Broker,
    BrokerError,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from servicebus_local.descriptions import Description, read_properties

NOT_FOUND = "amqp:not-found"

T = TypeVar("T")


class Namespace:
    """Reads and changes a broker as the administration asks.

    Its methods raise `BrokerError` for what the broker refuses, `XmlError` for a body that can't be read, and
    `PropertyError` for a property that can't be.

    Args:
        since: Unix seconds of the server's start.
    """

    def __init__(self, broker: Broker, name: str, sku: str, since: float) -> None:
        self._broker = broker
        self._about = namespace_entry(name, sku, since)

    def get(self, path: AdministrationPath) -> Entry | None:
        """Show one thing; None when it is not there."""
        broker = self._broker
        match path:
            case NamespacePath():
                return self._about
            case EntityPath(name):
                queue = _found(lambda: broker.get_queue(name))
                if queue is not None:
                    return queue_entry(queue)
                topic = _found(lambda: broker.get_topic(name))
                return None if topic is None else topic_entry(topic)
            case SubscriptionPath(topic_name, name):
                broker.get_topic(topic_name)
                subscription = _found(lambda: broker.get_subscription(topic_name, name))
                return None if subscription is None else subscription_entry(subscription)
            case RulePath(topic_name, subscription_name, name):
                broker.get_subscription(topic_name, subscription_name)
                rule = _found(lambda: broker.get_rule(topic_name, subscription_name, name))
                return None if rule is None else rule_entry(topic_name, subscription_name, rule)
        raise _nothing(path)

    def list(self, path: AdministrationPath) -> tuple[str, list[Entry]]:
        """Show everything of a kind, with a title; in the order of names."""
        match path:
            case ResourcePath("queues"):
                return "Queues", [queue_entry(info) for info in self._broker.queues()]
            case ResourcePath("topics"):
                return "Topics", [topic_entry(info) for info in self._broker.topics()]
            case SubscriptionsPath(topic):
                return "Subscriptions", [subscription_entry(info) for info in self._broker.subscriptions(topic)]
            case RulesPath(topic, subscription):
                rules = self._broker.rules(topic, subscription)
                return "Rules", [rule_entry(topic, subscription, rule) for rule in rules]
        raise _nothing(path)

    def put(self, path: AdministrationPath, body: bytes, *, update: bool) -> Entry:
        """Create one thing, or update one that must exist: what its description leaves out then stays as it is."""
        if not isinstance(path, EntityPath | SubscriptionPath | RulePath):
            raise _nothing(path)
        description = _described(body)
        kind = local_name(description)
        match path, kind:
            case EntityPath(name), "QueueDescription":
                self._put_queue(name, description, update)
            case EntityPath(name), "TopicDescription":
                self._put_topic(name, description, update)
            case SubscriptionPath(), "SubscriptionDescription":
                self._put_subscription(path, description, update)
            case RulePath(), "RuleDescription":
                self._put_rule(path, description, update)
            case _:
                raise XmlError(f"A {kind} can't be put there.")
        made = self.get(path)
        if made is None:
            raise BrokerError(NOT_FOUND, "It was deleted at once.")
        return made

    def delete(self, path: AdministrationPath) -> None:
        """Delete one thing."""
        broker = self._broker
        match path:
            case EntityPath(name):
                if _found(lambda: broker.get_queue(name)) is not None:
                    broker.delete_queue(name)
                else:
                    broker.delete_topic(name)
            case SubscriptionPath(topic, name):
                broker.delete_subscription(topic, name)
            case RulePath(topic, subscription, name):
                broker.remove_rule(topic, subscription, name)
            case _:
                raise _nothing(path)

    def _put_queue(self, name: str, given: Element, update: bool) -> None:
        base = self._broker.get_queue(name).description if update else QueueDescription()
        change = self._broker.update_queue if update else self._broker.create_queue
        change(name, _changed(base, given))

    def _put_topic(self, name: str, given: Element, update: bool) -> None:
        base = self._broker.get_topic(name).description if update else TopicDescription()
        change = self._broker.update_topic if update else self._broker.create_topic
        change(name, _changed(base, given))

    def _put_subscription(self, path: SubscriptionPath, given: Element, update: bool) -> None:
        if update:
            base = self._broker.get_subscription(path.topic, path.name).description
            self._broker.update_subscription(path.topic, path.name, _changed(base, given))
            return
        first = child(given, "DefaultRuleDescription")
        rule = None if first is None else read_rule(first, "$Default")
        self._broker.create_subscription(path.topic, path.name, _changed(SubscriptionDescription(), given), rule)

    def _put_rule(self, path: RulePath, given: Element, update: bool) -> None:
        rule = read_rule(given, path.name)
        if rule.name.lower() != path.name.lower():
            raise XmlError(f"The rule is called {rule.name!r} in the body and {path.name!r} in the URL.")
        change = self._broker.update_rule if update else self._broker.add_rule
        change(path.topic, path.subscription, rule)


def _found(get: Callable[[], T]) -> T | None:
    try:
        return get()
    except BrokerError as error:
        if error.condition != NOT_FOUND:
            raise
        return None


def _nothing(path: AdministrationPath) -> BrokerError:
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
