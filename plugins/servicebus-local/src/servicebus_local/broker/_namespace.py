"""Entities, their administration (Service Bus documentation: "Service Bus REST API"), and their records in the store.

Records are plain dictionaries, in which an unknown property is no error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from typing import Any

from servicebus_local.broker._descriptions import (
    Description,
    EntityInfo,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    check,
    check_update,
)
from servicebus_local.broker._entities import Duplicates, Forwarder, Holder, Subscription, Topic
from servicebus_local.broker._errors import (
    ARGUMENT,
    EXISTS,
    NOT_FOUND,
    QUOTA,
    BrokerError,
    check_name,
    check_path,
    forward_path,
)
from servicebus_local.broker._hub import Hub, Journal
from servicebus_local.broker._rules import CorrelationFilter, FalseFilter, Filter, Rule, SqlFilter, TrueFilter
from servicebus_local.broker._store import Loaded, SqliteStore

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
    kind = _DESCRIPTIONS[record["kind"]]
    known = {field.name for field in fields(kind)}
    values = {name: value for name, value in record["description"].items() if name in known}
    values["status"] = EntityStatus(values["status"])
    return kind(**values)


def rules_of(record: Mapping[str, Any]) -> list[Rule]:
    return [
        Rule(each["name"], _FILTERS[each["filter"]](**each["values"]), each["action"], each["created_at"])
        for each in record["rules"]
    ]


def _rule_record(rule: Rule) -> dict[str, object]:
    values = {field.name: getattr(rule.filter, field.name) for field in fields(rule.filter)}
    kind = _FILTER_NAMES[type(rule.filter)]
    return {"name": rule.name, "filter": kind, "values": values, "action": rule.action, "created_at": rule.created_at}


MAX_SUBSCRIPTIONS = 2000
"""Of one topic (Service Bus documentation: "Service Bus quotas")."""
MAX_RULES = 2000
"""SQL filters of one topic, counted here per subscription (the same page)."""


class Namespace(Forwarder):
    """Queues, topics, subscriptions and rules; `Broker` adds sending and receiving."""

    def __init__(self, clock: Callable[[], float], store: SqliteStore | None, *, max_entities: int) -> None:
        self._hub = Hub(clock, Journal(store))
        self._entities: dict[str, Holder | Topic] = {}
        self._next_identity = 1
        self._max_entities = max_entities

    def load_store(self) -> Loaded:
        return self._hub.journal.load()

    def restore_entity(
        self, identity: int, record: Mapping[str, Any], description: Description, rules: list[Rule] | None
    ) -> Holder | Topic:
        """Makes an entity from its record, and its description from that; its messages come after it."""
        now = self._hub.clock()
        self._next_identity = max(self._next_identity, identity + 1)
        entity: Holder | Topic
        if isinstance(description, SubscriptionDescription):
            topic = self._topic(record["topic"])
            entity = self._add_subscription(identity, topic, record["name"], description, rules, now)
        else:
            entity = self._add(identity, record["path"], description, now)
        entity.created_at, entity.updated_at = record["created_at"], record["updated_at"]
        self._hub.journal.entity_is_stored(identity)
        return entity

    def create_queue(self, path: str, description: QueueDescription | None = None) -> None:
        """Makes a queue, unless the path or the description is not allowed, or something has the path."""
        self._create(path, description or QueueDescription())

    def update_queue(self, path: str, description: QueueDescription) -> None:
        """Changes how a queue is set up; what is fixed at creation has to stay."""
        now = self._administer()
        self._update(self._queue(path), description, now)

    def delete_queue(self, path: str) -> None:
        self._administer()
        self._delete(self._queue(path))

    def get_queue(self, path: str) -> EntityInfo[QueueDescription]:
        self._administer()
        return _info(self._queue(path))

    def queues(self) -> list[EntityInfo[QueueDescription]]:
        self._administer()
        return [_info(each) for _, each in sorted(self._entities.items()) if isinstance(each, Holder)]

    def create_topic(self, path: str, description: TopicDescription | None = None) -> None:
        self._create(path, description or TopicDescription())

    def update_topic(self, path: str, description: TopicDescription) -> None:
        now = self._administer()
        self._update(self._topic(path), description, now)

    def delete_topic(self, path: str) -> None:
        """Removes a topic with its subscriptions and their messages."""
        self._administer()
        self._delete(self._topic(path))

    def get_topic(self, path: str) -> EntityInfo[TopicDescription]:
        self._administer()
        return _info(self._topic(path))

    def topics(self) -> list[EntityInfo[TopicDescription]]:
        self._administer()
        return [_info(each) for _, each in sorted(self._entities.items()) if isinstance(each, Topic)]

    def create_subscription(
        self, topic: str, name: str, description: SubscriptionDescription | None = None, rule: Rule | None = None
    ) -> None:
        """Makes a subscription, which gets what is sent from now on; without a rule everything."""
        now = self._administer()
        owner = self._topic(topic)
        description = description or SubscriptionDescription()
        check_name(name, "subscription")
        if name.lower() in owner.subscriptions:
            raise BrokerError(EXISTS, f"'{owner.path}/Subscriptions/{name}' exists already.")
        if len(owner.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise BrokerError(QUOTA, f"'{owner.path}' has {MAX_SUBSCRIPTIONS} subscriptions, and no more are allowed.")
        self._check_description(f"{owner.path}/Subscriptions/{name}", description)
        if rule is not None:
            check_name(rule.name, "rule")
        rules = None if rule is None else [replace(rule, created_at=now)]
        self._add_subscription(self._identity(), owner, name, description, rules, now)
        owner.touch(now)

    def update_subscription(self, topic: str, name: str, description: SubscriptionDescription) -> None:
        now = self._administer()
        self._update(self._topic(topic).subscription(name), description, now)

    def delete_subscription(self, topic: str, name: str) -> None:
        self._administer()
        self._delete(self._topic(topic).subscription(name))

    def get_subscription(self, topic: str, name: str) -> EntityInfo[SubscriptionDescription]:
        self._administer()
        return _info(self._topic(topic).subscription(name))

    def subscriptions(self, topic: str) -> list[EntityInfo[SubscriptionDescription]]:
        self._administer()
        return [_info(each) for _, each in sorted(self._topic(topic).subscriptions.items())]

    def add_rule(self, topic: str, name: str, rule: Rule) -> Rule:
        return self._put_rule(topic, name, rule, is_new=True)

    def update_rule(self, topic: str, name: str, rule: Rule) -> Rule:
        """Replaces the rule of the same name."""
        return self._put_rule(topic, name, rule, is_new=False)

    def remove_rule(self, topic: str, name: str, rule_name: str) -> None:
        now = self._administer()
        subscription = self._topic(topic).subscription(name)
        subscription.remove_rule(rule_name, now)
        self._changed(subscription)

    def rules(self, topic: str, name: str) -> list[Rule]:
        self._administer()
        return self._topic(topic).subscription(name).rules

    def get_rule(self, topic: str, name: str, rule_name: str) -> Rule:
        self._administer()
        return self._topic(topic).subscription(name).rule(rule_name)

    def _put_rule(self, topic: str, name: str, rule: Rule, *, is_new: bool) -> Rule:
        now = self._administer()
        subscription = self._topic(topic).subscription(name)
        if is_new and len(subscription.rules) >= MAX_RULES:
            raise BrokerError(QUOTA, f"'{subscription.path}' has {MAX_RULES} rules, and no more are allowed.")
        kept = subscription.put_rule(rule, now, is_new=is_new)
        self._changed(subscription)
        return kept

    def _administer(self) -> float:
        self._hub.operations["administration"] += 1
        return self._hub.begin()

    def _identity(self) -> int:
        identity = self._next_identity
        self._next_identity = identity + 1
        return identity

    def _changed(self, entity: Holder | Topic) -> None:
        if self._hub.journal.on:
            self._hub.journal.entity(entity.identity, record_of(entity))

    def _check_new(self, path: str) -> None:
        check_path(path)
        if path.lower() in self._entities:
            raise BrokerError(EXISTS, f"'{path}' exists already.")
        if len(self._entities) >= self._max_entities:
            raise BrokerError(QUOTA, f"There are {self._max_entities} entities, and no more are allowed.")

    def _check_description(self, path: str, description: Description) -> None:
        check(path, description)
        if isinstance(description, TopicDescription):
            return
        for target in (description.forward_to, description.forward_dead_lettered_messages_to):
            if target is not None and forward_path(target).lower() not in self._entities:
                raise BrokerError(ARGUMENT, f"'{path}' cannot forward to '{forward_path(target)}': it does not exist.")

    def _create(self, path: str, description: QueueDescription | TopicDescription) -> None:
        now = self._administer()
        self._check_new(path)
        self._check_description(path, description)
        self._add(self._identity(), path, description, now)

    def _add(
        self, identity: int, path: str, description: QueueDescription | TopicDescription, now: float
    ) -> Holder | Topic:
        entity: Holder | Topic
        if isinstance(description, TopicDescription):
            entity = Topic(self._hub, identity, path, description, now)
        else:
            entity = Holder(self._hub, self, identity, path, description, now)
        self._entities[path.lower()] = entity
        self._equip(entity, description)
        return entity

    def _add_subscription(
        self,
        identity: int,
        topic: Topic,
        name: str,
        description: SubscriptionDescription,
        rules: list[Rule] | None,
        now: float,
    ) -> Subscription:
        subscription = Subscription(self._hub, self, identity, topic.path, name, description, now, rules)
        topic.subscriptions[name.lower()] = subscription
        self._equip(subscription, None)
        return subscription

    def _equip(self, entity: Holder | Topic, description: QueueDescription | TopicDescription | None) -> None:
        if description is not None and description.requires_duplicate_detection:
            window = description.duplicate_detection_history_time_window
            entity.duplicates = Duplicates(self._hub, entity.identity, window)
        entity.on_idle = partial(self._remove, entity)
        self._hub.arm(entity, entity.next_deadline())
        self._changed(entity)

    def _update(self, entity: Any, description: Description, now: float) -> None:
        check_update(entity.path, entity.description, description)
        self._check_description(entity.path, description)
        entity.configure(description, now)
        self._changed(entity)
        self._hub.notify()

    def _delete(self, entity: Holder | Topic) -> None:
        self._remove(entity)
        self._hub.notify()

    def _remove(self, entity: Holder | Topic) -> None:
        if isinstance(entity, Subscription):
            del self._topic(entity.topic).subscriptions[entity.name.lower()]
        else:
            del self._entities[entity.path.lower()]
        if isinstance(entity, Topic):
            for subscription in list(entity.subscriptions.values()):
                subscription.delete()
            entity.subscriptions.clear()
        entity.delete()

    def _entity(self, path: str) -> Holder | Topic:
        found = self._entities.get(path.strip("/").lower())
        if found is None:
            raise BrokerError(NOT_FOUND, f"'{path}' does not exist.")
        return found

    def _queue(self, path: str) -> Holder:
        found = self._entity(path)
        if not isinstance(found, Holder):
            raise BrokerError(NOT_FOUND, f"'{path}' is not a queue.")
        return found

    def _topic(self, path: str) -> Topic:
        found = self._entity(path)
        if not isinstance(found, Topic):
            raise BrokerError(NOT_FOUND, f"'{path}' is not a topic.")
        return found


def _info(entity: Holder | Topic) -> EntityInfo[Any]:
    return EntityInfo(
        entity.path,
        entity.description,
        entity.counts,
        entity.created_at,
        entity.updated_at,
        entity.accessed_at,
        entity.size,
        topic=entity.topic if isinstance(entity, Subscription) else "",
        name=entity.name if isinstance(entity, Subscription) else entity.path,
        subscription_count=len(entity.subscriptions) if isinstance(entity, Topic) else 0,
    )
