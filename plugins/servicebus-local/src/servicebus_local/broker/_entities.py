"""Queues, topics and subscriptions: what happens to a message before it can be taken, and after it cannot any more.

Rules: Service Bus documentation: "Service Bus queues, topics, and subscriptions", "Chaining Service Bus entities with
autoforwarding" and "Overview of Service Bus dead-letter queues".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from servicebus_local.broker._descriptions import (
    MessageCounts,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from servicebus_local.broker._errors import EXISTS, NOT_FOUND, BrokerError, check_name
from servicebus_local.broker._hub import Hub
from servicebus_local.broker._rules import DEFAULT_RULE, CompiledRule, FilterFailure, Rule, TrueFilter
from servicebus_local.broker._source import Source, SourceSettings
from servicebus_local.broker._values import NEVER, Incoming, MessageId, MessageState, Stored, copy_of


class Duplicates:
    """Ids that an entity has seen within its window of seconds."""

    def __init__(self, hub: Hub, entity: int, window: float) -> None:
        self.window = window
        self.armed_at = NEVER
        self._hub = hub
        self._entity = entity
        self._seen: dict[MessageId, float] = {}
        self._order: deque[tuple[float, MessageId]] = deque()

    def restore(self, entries: Iterable[tuple[MessageId, float]]) -> None:
        for message_id, at in sorted(entries, key=lambda entry: entry[1]):
            self._seen[message_id] = at
            self._order.append((at, message_id))
        self._arm()

    def repeats(self, message: Incoming, now: float) -> bool:
        """Whether the id was seen within the window; if not, it is from now on. Without an id, nothing repeats."""
        message_id = message.message_id
        if message_id is None:
            return False
        at = self._seen.get(message_id)
        if at is not None and now < at + self.window:
            return True
        self._seen[message_id] = now
        self._order.append((now, message_id))
        self._hub.journal.duplicate(self._entity, message_id, now)
        self._arm()
        return False

    def configure(self, window: float) -> None:
        self.window = window
        self._arm()

    def next_deadline(self) -> float:
        return self._order[0][0] + self.window if self._order else NEVER

    def run_due(self, now: float) -> None:
        order = self._order
        dropped = False
        while order and order[0][0] + self.window <= now:  # Exactly as next_deadline adds it up.
            at, message_id = order.popleft()
            if self._seen.get(message_id) == at:
                del self._seen[message_id]
            dropped = True
        if dropped:
            self._hub.journal.forget_duplicates(self._entity, now - self.window)

    def _arm(self) -> None:
        self._hub.arm(self, self.next_deadline())


DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
NO_SESSION_ID = "Session ID is null"
_NO_SESSION_TEXT = "A message without a session id cannot be kept by an entity that requires sessions."
RETRY_FORWARD = 10.0
"""Seconds after which an entity tries again to forward what its target would not take."""

FILTER_FAILED = "FilterEvaluationException"
_ORIGIN = "RuleName"


class Forwarder(Protocol):
    """Moves messages between entities; the broker does this."""

    def forward(self, holder: Holder, target: str, message: Stored, now: float) -> bool:
        """Move a message that is in no entity now; False: the holder keeps it and tries again later."""
        ...


class _Entity:
    """What queues, subscriptions and topics have in common: they are deleted when they have been idle for long."""

    description: QueueDescription | SubscriptionDescription | TopicDescription

    def __init__(self, hub: Hub, identity: int, path: str, now: float) -> None:
        self.path = path
        self.identity = identity
        self.created_at = self.updated_at = self.accessed_at = now
        self.armed_at = NEVER
        self.duplicates: Duplicates | None = None
        self.on_idle: Callable[[], None] | None = None
        self._hub = hub

    def touch(self, now: float) -> None:
        """Counts as a use, for the deletion of idle entities."""
        self.accessed_at = now

    def next_deadline(self) -> float:
        """When the entity has been idle for too long, unix seconds; infinity for never."""
        idle = self.description.auto_delete_on_idle
        return NEVER if idle is None or self.on_idle is None else self.accessed_at + idle

    def run_due(self, now: float) -> None:
        """Deletes the entity if it is idle."""
        if self.on_idle is not None and self.next_deadline() <= now:
            self.on_idle()

    def delete(self) -> None:
        """Ends it; subscriptions of a topic are deleted before."""
        self.on_idle = None
        self._hub.journal.no_entity(self.identity)


class Holder(_Entity):
    """A queue or a subscription: a source, its dead-letter queue, and how messages come in."""

    description: QueueDescription | SubscriptionDescription

    def __init__(
        self,
        hub: Hub,
        forwarder: Forwarder,
        identity: int,
        path: str,
        description: QueueDescription | SubscriptionDescription,
        now: float,
    ) -> None:
        super().__init__(hub, identity, path, now)
        self.description = description
        self._forwarder = forwarder
        self._retry_at = NEVER
        dead_path = path + DEAD_LETTER_SUFFIX
        self.dead = Source(hub, 2 * identity + 1, dead_path, _dead_settings(description), touch=self.touch)
        self.source = Source(
            hub,
            2 * identity,
            path,
            _settings(description),
            requires_session=description.requires_session,
            bury=self._bury,
            activate=self.deliver,
            touch=self.touch,
        )

    @property
    def size(self) -> int:
        """Bytes of all messages, dead letters too, as the quota counts them."""
        return self.source.shelf.size + self.dead.shelf.size

    @property
    def counts(self) -> MessageCounts:
        counts = self.source.shelf.counts
        return MessageCounts(
            active=counts[MessageState.ACTIVE],
            dead_letter=len(self.dead.shelf.messages),
            scheduled=counts[MessageState.SCHEDULED],
            deferred=counts[MessageState.DEFERRED],
        )

    def deliver(self, message: Stored, now: float) -> int:
        if message.state is MessageState.SCHEDULED:
            message.state = MessageState.ACTIVE
            message.enqueued_at = now
        if self.description.forward_to is not None:
            message.sequence_number = self.source.shelf.number()
            number = message.sequence_number
            if self._forwarder.forward(self, self.description.forward_to, message, now):
                return number
            self._retry_later(now)
        elif self.description.requires_session and message.session_id is None:
            self.dead_letter(message, NO_SESSION_ID, _NO_SESSION_TEXT)
            return 0
        return self.source.add(message)

    def dead_letter(self, message: Stored, reason: str, description: str) -> None:
        """Dead-letters a message that is in no entity."""
        message.dead_letter_reason = reason
        message.dead_letter_description = description
        message.dead_letter_source = self.path
        self._bury(message)

    def keep_dead(self, message: Stored) -> None:
        """Puts a message into the dead-letter queue, wherever dead letters are forwarded."""
        message.enqueued_sequence_number = message.enqueued_sequence_number or message.sequence_number
        message.state = MessageState.ACTIVE
        message.expires_at = NEVER
        self.dead.add(message)

    def fail_transfer(self, message: Stored, reason: str, description: str) -> None:
        """Dead-letters a message that cannot be forwarded; one that was a dead letter before keeps its reason."""
        if message.dead_letter_reason is None:
            message.dead_letter_reason = reason
            message.dead_letter_description = description
            message.dead_letter_source = self.path
        self.keep_dead(message)

    def _bury(self, message: Stored) -> None:
        target = self.description.forward_dead_lettered_messages_to
        message.expires_at = NEVER  # A dead letter has its whole life ahead of it, wherever it goes.
        if target is None or not self._forwarder.forward(self, target, message, self._hub.clock()):
            self.keep_dead(message)

    def configure(self, description: QueueDescription | SubscriptionDescription, now: float) -> None:
        forwards = description.forward_to is not None and description.forward_to != self.description.forward_to
        self.description = description
        self.updated_at = now
        self.source.configure(_settings(description))
        self.dead.configure(_dead_settings(description))
        self.touch(now)
        self._hub.arm(self, self.next_deadline())
        if forwards:
            self._forward_kept(now)

    def delete(self) -> None:
        self.source.delete()
        self.dead.delete()
        self._retry_at = NEVER
        super().delete()

    def next_deadline(self) -> float:
        """When the entity has been idle for too long, or forwarding is tried again; infinity for never."""
        return min(self._retry_at, super().next_deadline())

    def run_due(self, now: float) -> None:
        """Deletes the entity if it is idle and no receiver waits at it, or tries to forward."""
        if self._retry_at <= now:
            self._retry_at = NEVER
            self._forward_kept(now)
        if super().next_deadline() <= now and (self.source.waited_for or self.dead.waited_for):
            self.touch(now)
        super().run_due(now)

    def _retry_later(self, now: float) -> None:
        if self._retry_at == NEVER:
            self._retry_at = now + RETRY_FORWARD
            self._hub.arm(self, self._retry_at)

    def _forward_kept(self, now: float) -> None:
        target = self.description.forward_to
        if target is None:
            return
        kept = self.source.drain()
        for at, message in enumerate(kept):
            if not self._forwarder.forward(self, target, message, now):
                for rest in kept[at:]:
                    self.source.add(rest)
                self._retry_later(now)
                break


def _settings(description: QueueDescription | SubscriptionDescription) -> SourceSettings:
    return SourceSettings(
        lock_duration=description.lock_duration,
        max_delivery_count=description.max_delivery_count,
        dead_letters_expired=description.dead_lettering_on_message_expiration,
        receivable=description.status.receives,
    )


def _dead_settings(description: QueueDescription | SubscriptionDescription) -> SourceSettings:
    return SourceSettings(lock_duration=description.lock_duration, receivable=description.status.receives)


class Subscription(Holder):
    """A subscription: holds copies of the messages of its topic that a rule lets through."""

    description: SubscriptionDescription

    def __init__(
        self,
        hub: Hub,
        forwarder: Forwarder,
        identity: int,
        topic: str,
        name: str,
        description: SubscriptionDescription,
        now: float,
        rules: Iterable[Rule] | None = None,
    ) -> None:
        super().__init__(hub, forwarder, identity, f"{topic}/Subscriptions/{name}", description, now)
        self.topic = topic
        self.name = name
        self._rules: dict[str, CompiledRule] = {}
        for rule in (Rule(DEFAULT_RULE, TrueFilter(), created_at=now),) if rules is None else rules:
            self._rules[rule.name.lower()] = CompiledRule(rule)

    @property
    def rules(self) -> list[Rule]:
        return sorted((each.rule for each in self._rules.values()), key=lambda rule: rule.name.lower())

    def rule(self, name: str) -> Rule:
        found = self._rules.get(name.lower())
        if found is None:
            raise BrokerError(NOT_FOUND, f"'{self.path}' has no rule '{name}'.")
        return found.rule

    def put_rule(self, rule: Rule, now: float, *, is_new: bool) -> Rule:
        check_name(rule.name, "rule")
        key = rule.name.lower()
        if is_new and key in self._rules:
            raise BrokerError(EXISTS, f"'{self.path}' has a rule '{rule.name}' already.")
        created_at = now if is_new else self.rule(rule.name).created_at
        compiled = CompiledRule(replace(rule, created_at=created_at))
        self._rules[key] = compiled
        self.touch(now)
        return compiled.rule

    def remove_rule(self, name: str, now: float) -> None:
        """Removes a rule; without any, the subscription gets nothing."""
        self.rule(name)
        del self._rules[name.lower()]
        self.touch(now)

    def offer(self, message: Stored, now: float) -> None:
        """Keeps a copy for each match: one for all rules without an action, and one for each with an action."""
        plain = False
        for compiled in list(self._rules.values()):
            try:
                if not compiled.matches(message):
                    continue
                changed = compiled.apply(message)
            except FilterFailure as failure:
                if self.description.dead_lettering_on_filter_evaluation_exceptions:
                    text = f"Rule '{compiled.rule.name}' cannot be evaluated: {failure}"
                    copy = copy_of(message, now, self.description.default_message_time_to_live)
                    self.dead_letter(copy, FILTER_FAILED, text)
                continue
            if changed is None:
                plain = True
            else:
                copy = copy_of(message, now, self.description.default_message_time_to_live)
                copy.added_properties |= changed
                copy.added_properties[_ORIGIN] = compiled.rule.name
                self.deliver(copy, now)
        if plain:
            self.deliver(copy_of(message, now, self.description.default_message_time_to_live), now)


class Topic(_Entity):
    """A topic: numbers messages and offers them to its subscriptions; keeps scheduled ones itself."""

    description: TopicDescription

    def __init__(self, hub: Hub, identity: int, path: str, description: TopicDescription, now: float) -> None:
        super().__init__(hub, identity, path, now)
        self.description = description
        self.subscriptions: dict[str, Subscription] = {}
        self.source = Source(
            hub, 2 * identity, path, SourceSettings(receivable=False), bury=_drop, activate=self.deliver
        )

    @property
    def size(self) -> int:
        """Bytes of all messages in subscriptions and of those that are scheduled."""
        return self.source.shelf.size + sum(each.size for each in self.subscriptions.values())

    @property
    def counts(self) -> MessageCounts:
        each = [subscription.counts for subscription in self.subscriptions.values()]
        return MessageCounts(
            active=sum(counts.active for counts in each),
            dead_letter=sum(counts.dead_letter for counts in each),
            deferred=sum(counts.deferred for counts in each),
            scheduled=self.source.shelf.counts[MessageState.SCHEDULED],
        )

    def deliver(self, message: Stored, now: float) -> int:
        if message.state is MessageState.SCHEDULED:
            message.state = MessageState.ACTIVE
            message.enqueued_at = now
        message.sequence_number = self.source.shelf.number()
        for subscription in list(self.subscriptions.values()):
            subscription.offer(message, now)
        return message.sequence_number

    def subscription(self, name: str) -> Subscription:
        found = self.subscriptions.get(name.lower())
        if found is None:
            raise BrokerError(NOT_FOUND, f"'{self.path}/Subscriptions/{name}' does not exist.")
        return found

    def configure(self, description: TopicDescription, now: float) -> None:
        self.description = description
        self.updated_at = self.accessed_at = now
        self._hub.arm(self, self.next_deadline())

    def delete(self) -> None:
        self.source.delete()
        super().delete()


def _drop(message: Stored) -> None:
    """A topic keeps no dead letters: what expires before it is due is gone."""
