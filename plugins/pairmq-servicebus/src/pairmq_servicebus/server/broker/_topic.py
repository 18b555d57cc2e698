"""Topics and subscriptions (Service Bus documentation: "Service Bus queues, topics, and subscriptions")."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from pairmq_servicebus.server.broker._descriptions import MessageCounts, SubscriptionDescription, TopicDescription
from pairmq_servicebus.server.broker._duplicates import Duplicates
from pairmq_servicebus.server.broker._errors import EXISTS, NOT_FOUND, BrokerError
from pairmq_servicebus.server.broker._filters import DEFAULT_RULE, Rule, TrueFilter
from pairmq_servicebus.server.broker._hub import Hub
from pairmq_servicebus.server.broker._paths import check_name
from pairmq_servicebus.server.broker._queue import Forwarder, Holder
from pairmq_servicebus.server.broker._rules import CompiledRule, FilterFailure
from pairmq_servicebus.server.broker._session_source import Source
from pairmq_servicebus.server.broker._source_base import SourceSettings
from pairmq_servicebus.server.broker._values import NEVER, MessageState, Stored, copy_of

FILTER_FAILED = "FilterEvaluationException"
_ORIGIN = "RuleName"


class Subscription(Holder):
    """A subscription: holds copies of the messages of its topic that a rule lets through.

    Args:
        topic: the topic's path.
        name: of the subscription.
        rules: that it has at first; `None` for the default rule.

    The others are those of `Holder`.
    """

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
        """Its rules by name."""
        return sorted((each.rule for each in self._rules.values()), key=lambda rule: rule.name.lower())

    def rule(self, name: str) -> Rule:
        """The rule of a name.

        Raises:
            BrokerError: there is none.
        """
        found = self._rules.get(name.lower())
        if found is None:
            raise BrokerError(NOT_FOUND, f"'{self.path}' has no rule '{name}'.")
        return found.rule

    def put_rule(self, rule: Rule, now: float, *, is_new: bool) -> Rule:
        """Adds or replaces a rule.

        Raises:
            BrokerError: it is there already, or is not, or cannot be understood.
        """
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
        """Removes a rule; without any, the subscription gets nothing.

        Raises:
            BrokerError: there is none of the name.
        """
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


class Topic:
    """A topic: numbers messages and offers them to its subscriptions; keeps scheduled ones itself.

    Args:
        hub: of the broker.
        identity: in the store.
        path: its path.
        description: how it is set up.
        now: unix seconds.
    """

    def __init__(self, hub: Hub, identity: int, path: str, description: TopicDescription, now: float) -> None:
        self.path = path
        self.identity = identity
        self.description = description
        self.created_at = self.updated_at = self.accessed_at = now
        self.armed_at = NEVER
        self.duplicates: Duplicates | None = None
        self.on_idle: Callable[[], None] | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self._hub = hub
        self.source = Source(
            hub, 2 * identity, path, SourceSettings(receivable=False), bury=_drop, activate=self.deliver
        )

    @property
    def size(self) -> int:
        """Bytes of all messages in subscriptions and of those that are scheduled."""
        return self.source.shelf.size + sum(each.size for each in self.subscriptions.values())

    @property
    def counts(self) -> MessageCounts:
        """How many messages there are."""
        each = [subscription.counts for subscription in self.subscriptions.values()]
        return MessageCounts(
            active=sum(counts.active for counts in each),
            dead_letter=sum(counts.dead_letter for counts in each),
            deferred=sum(counts.deferred for counts in each),
            scheduled=self.source.shelf.counts[MessageState.SCHEDULED],
        )

    def deliver(self, message: Stored, now: float) -> int:
        """Offers a message that nobody keeps to every subscription.

        Returns:
            The sequence number that it has in the topic.
        """
        if message.state is MessageState.SCHEDULED:
            message.state = MessageState.ACTIVE
            message.enqueued_at = now
        message.sequence_number = self.source.shelf.number()
        for subscription in list(self.subscriptions.values()):
            subscription.offer(message, now)
        return message.sequence_number

    def subscription(self, name: str) -> Subscription:
        """The subscription of a name.

        Raises:
            BrokerError: there is none.
        """
        found = self.subscriptions.get(name.lower())
        if found is None:
            raise BrokerError(NOT_FOUND, f"'{self.path}/Subscriptions/{name}' does not exist.")
        return found

    def configure(self, description: TopicDescription, now: float) -> None:
        """Goes by another description from now on."""
        self.description = description
        self.updated_at = self.accessed_at = now
        self._hub.arm(self, self.next_deadline())

    def delete(self) -> None:
        """Ends the topic; its subscriptions are deleted before."""
        self.source.delete()
        self.on_idle = None
        self._hub.journal.no_entity(self.identity)

    def touch(self, now: float) -> None:
        """Counts as a use, for the deletion of idle topics."""
        self.accessed_at = now

    def next_deadline(self) -> float:
        """When the topic has been idle for too long, unix seconds; infinity for never."""
        idle = self.description.auto_delete_on_idle
        return NEVER if idle is None or self.on_idle is None else self.accessed_at + idle

    def run_due(self, now: float) -> None:
        """Deletes the topic if it is idle."""
        if self.next_deadline() <= now and self.on_idle is not None:
            self.on_idle()


def _drop(message: Stored) -> None:
    """A topic keeps no dead letters: what expires before it is due is gone."""
