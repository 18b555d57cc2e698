"""Queues and subscriptions: what happens to a message before it can be taken, and after it cannot any more.

Rules: Service Bus documentation: "Chaining Service Bus entities with autoforwarding" and "Overview of Service Bus
dead-letter queues".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pairmq_servicebus.server.broker._descriptions import MessageCounts, QueueDescription, SubscriptionDescription
from pairmq_servicebus.server.broker._duplicates import Duplicates
from pairmq_servicebus.server.broker._hub import Hub
from pairmq_servicebus.server.broker._session_source import Source
from pairmq_servicebus.server.broker._source_base import SourceSettings
from pairmq_servicebus.server.broker._values import NEVER, MessageState, Stored

DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
NO_SESSION_ID = "Session ID is null"
_NO_SESSION_TEXT = "A message without a session id cannot be kept by an entity that requires sessions."
RETRY_FORWARD = 10.0
"""Seconds after which an entity tries again to forward what its target would not take."""


class Forwarder(Protocol):
    """Moves messages between entities; the broker does this."""

    def forward(self, holder: Holder, target: str, message: Stored, now: float) -> bool:
        """Moves a message that is in no entity now.

        Args:
            holder: where it was.
            target: `forward_to` of the holder, or where its dead letters go.
            message: it.
            now: unix seconds.

        Returns:
            Whether the message is dealt with; if not, the holder keeps it and tries again later.
        """
        ...


class Holder:
    """A queue or a subscription: a source, its dead-letter queue, and how messages come in.

    Args:
        hub: of the broker.
        forwarder: moves messages elsewhere.
        identity: in the store; its sources get two numbers made of it.
        path: ``queue`` or ``topic/Subscriptions/name``.
        description: how it is set up.
        now: unix seconds.
    """

    def __init__(
        self,
        hub: Hub,
        forwarder: Forwarder,
        identity: int,
        path: str,
        description: QueueDescription | SubscriptionDescription,
        now: float,
    ) -> None:
        self.path = path
        self.identity = identity
        self.description = description
        self.created_at = self.updated_at = self.accessed_at = now
        self.armed_at = NEVER
        self.duplicates: Duplicates | None = None
        self.on_idle: Callable[[], None] | None = None
        self._hub = hub
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
        """How many messages there are."""
        counts = self.source.shelf.counts
        return MessageCounts(
            active=counts[MessageState.ACTIVE],
            dead_letter=len(self.dead.shelf.messages),
            scheduled=counts[MessageState.SCHEDULED],
            deferred=counts[MessageState.DEFERRED],
        )

    def deliver(self, message: Stored, now: float) -> int:
        """Keeps a message that nobody keeps, or forwards it.

        Returns:
            The sequence number that it has or had here.
        """
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
        """Dead-letters a message that nobody keeps."""
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
        """Goes by another description from now on."""
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
        """Ends both sources."""
        self.source.delete()
        self.dead.delete()
        self.on_idle = None
        self._retry_at = NEVER
        self._hub.journal.no_entity(self.identity)

    # ------------------------------------------------------------------ time

    def touch(self, now: float) -> None:
        self.accessed_at = now

    def next_deadline(self) -> float:
        """When the entity has been idle for too long, or forwarding is tried again; infinity for never."""
        idle = self.description.auto_delete_on_idle
        if idle is None or self.on_idle is None:
            return self._retry_at
        return min(self._retry_at, self.accessed_at + idle)

    def run_due(self, now: float) -> None:
        """Deletes the entity if it is idle, or tries to forward."""
        if self._retry_at <= now:
            self._retry_at = NEVER
            self._forward_kept(now)
        idle = self.description.auto_delete_on_idle
        if idle is not None and self.on_idle is not None and self.accessed_at + idle <= now:
            if self.source.waited_for or self.dead.waited_for:
                self.touch(now)
            else:
                self.on_idle()

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
