"""The broker: a namespace that one can send to and receive from.

Operations are counted as the service bills them (Service Bus pricing, frequently asked questions): a send by units of
64 KiB of the whole batch, a receive by the same units of each message, and everything else by the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from servicebus_local.broker._descriptions import QueueDescription, TopicDescription
from servicebus_local.broker._entities import Holder, Topic
from servicebus_local.broker._errors import (
    DISABLED,
    NOT_ALLOWED,
    NOT_FOUND,
    OUT_OF_RANGE,
    QUOTA,
    TOO_LARGE,
    BrokerError,
    forward_path,
    parse_receive_path,
)
from servicebus_local.broker._namespace import Namespace, description_of, rules_of
from servicebus_local.broker._source import BILLED_BYTES, Source
from servicebus_local.broker._store import Loaded, SqliteStore
from servicebus_local.broker._values import (
    Decoder,
    Incoming,
    MessageId,
    MessageState,
    Stored,
    copy_of,
    from_micros,
    stored_from,
)

PING = "application/vnd.ms-servicebus-ping"
"""The content type of messages that only try out a link; they are accepted and dropped."""
MAX_HOPS = 4
"""How often a message is forwarded (Service Bus documentation: "Chaining Service Bus entities with autoforwarding")."""
MAX_ID = 128
"""Characters of a message id, session id or partition key (Service Bus documentation: "Service Bus quotas")."""
HOPS_EXCEEDED = "MaxTransferHopCountExceeded"
NO_TARGET = "TransferDestinationNotFound"

_MEGABYTE = 1024 * 1024


class Broker(Namespace):
    """What a Service Bus namespace does, without any IO (Service Bus documentation: "Message transfers, locks, and
    settlement" and the pages that the modules name).

    ``clock`` gives unix seconds and must not go back. The broker closes the store.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        store: SqliteStore | None = None,
        *,
        max_message_bytes: int = 262144,
        max_entities: int = 10000,
    ) -> None:
        super().__init__(clock, store, max_entities=max_entities)
        self.max_message_bytes = max_message_bytes
        if store is not None:
            try:
                restore(self, store)
            except BaseException:
                store.close()  # It would stay locked.
                raise

    @property
    def operations(self) -> Counter[str]:
        return self._hub.operations

    def resolve_send(self, path: str) -> int:
        """The bytes of the largest message that may be sent to a path."""
        self._hub.begin()
        entity = self._send_entity(path)
        if not entity.description.status.sends:
            raise BrokerError(DISABLED, f"'{path}' is disabled for sending.")
        return self._max_bytes(entity)

    def resolve_receive(self, path: str) -> Source:
        """What a path to receive from leads to, always the same object for the same entity."""
        self._hub.begin()
        parsed = parse_receive_path(path)
        entity = self._entity(parsed.entity)
        if isinstance(entity, Topic):
            if parsed.subscription is None:
                raise BrokerError(NOT_ALLOWED, f"'{path}' is a topic: messages are received from its subscriptions.")
            holder: Holder = entity.subscription(parsed.subscription)
        elif parsed.subscription is not None:
            raise BrokerError(NOT_FOUND, f"'{parsed.entity}' is not a topic.")
        else:
            holder = entity
        forwards_to = holder.description.forward_to
        if parsed.dead_letter:
            return holder.dead
        if forwards_to is not None:
            raise BrokerError(NOT_ALLOWED, f"'{path}' forwards its messages, and can't be received from.")
        return holder.source

    def send(self, path: str, messages: Sequence[Incoming]) -> list[int]:
        """Takes a batch in, all of it or nothing; gives sequence numbers, 0 for a ping."""
        return self._submit("send", path, messages)

    def schedule(self, path: str, messages: Sequence[Incoming]) -> list[int]:
        """Takes messages in that have a schedule; a message gets another number when its time has come."""
        return self._submit("schedule", path, messages)

    def cancel(self, path: str, sequence_numbers: Iterable[int]) -> None:
        """Removes scheduled messages, all of them or none."""
        now = self._hub.begin()
        entity = self._send_entity(path)
        self._hub.operations["schedule"] += 1
        entity.touch(now)
        entity.source.cancel(sequence_numbers)

    def _submit(self, operation: str, path: str, messages: Sequence[Incoming]) -> list[int]:
        now = self._hub.begin()
        entity = self._send_entity(path)
        size = self._check_messages(entity, messages)
        entity.touch(now)
        self._hub.operations[operation] += max(1, -(-size // BILLED_BYTES))
        numbers = [self._enter(entity, message, now) for message in messages]
        self._hub.notify()
        return numbers

    def _enter(self, entity: Holder | Topic, message: Incoming, now: float) -> int:
        if message.content_type == PING:
            return 0
        if entity.duplicates is not None and entity.duplicates.repeats(message, now):
            return entity.source.shelf.number()  # Accepted and dropped, under a number that nothing has.
        stored = stored_from(message, now, entity.description.default_message_time_to_live)
        if stored.state is MessageState.SCHEDULED:
            return entity.source.add(stored)
        return entity.deliver(stored, now)

    def _check_messages(self, entity: Holder | Topic, messages: Sequence[Incoming]) -> int:
        description = entity.description
        if not description.status.sends:
            raise BrokerError(DISABLED, f"'{entity.path}' is disabled for sending.")
        requires_session = isinstance(entity, Holder) and entity.description.requires_session
        limit = self._max_bytes(entity)
        total = 0
        for message in messages:
            if message.content_type == PING:
                continue
            total += message.size
            if message.size > limit:
                text = f"A message for '{entity.path}' has {message.size} bytes, and {limit} are allowed."
                raise BrokerError(TOO_LARGE, text)
            session_id = message.session_id
            if requires_session and session_id is None:
                raise BrokerError(NOT_ALLOWED, f"'{entity.path}' requires sessions, and a message has no session id.")
            partition_key = message.partition_key
            if partition_key is not None and session_id is not None and partition_key != session_id:
                raise BrokerError(NOT_ALLOWED, f"A message for '{entity.path}' has two different partition keys.")
            for value in (message.message_id, session_id, partition_key):
                if isinstance(value, str | bytes) and len(value) > MAX_ID:
                    raise BrokerError(OUT_OF_RANGE, f"A message for '{entity.path}' has an id longer than {MAX_ID}.")
        if total and _is_full(entity, total):
            raise BrokerError(QUOTA, f"'{entity.path}' is full.")
        return total

    def _send_entity(self, path: str) -> Holder | Topic:
        found = self._entities.get(path.strip("/").lower())
        if found is None:
            parsed = parse_receive_path(path)
            if (parsed.subscription is not None or parsed.dead_letter) and parsed.entity.lower() in self._entities:
                raise BrokerError(NOT_ALLOWED, f"'{path}' takes no messages from senders.")
            raise BrokerError(NOT_FOUND, f"'{path}' does not exist.")
        return found

    def _max_bytes(self, entity: Holder | Topic) -> int:
        description = entity.description
        if isinstance(description, QueueDescription | TopicDescription):
            kilobytes = description.max_message_size_in_kilobytes
            if kilobytes is not None:
                return kilobytes * 1024
        return self.max_message_bytes

    def forward(self, holder: Holder, target: str, message: Stored, now: float) -> bool:
        """Moves a message to another entity; see `Forwarder`."""
        if message.hops >= MAX_HOPS:
            text = f"The message was forwarded {MAX_HOPS} times, and no more is allowed."
            holder.fail_transfer(message, HOPS_EXCEEDED, text)
            return True
        entity = self._entities.get(forward_path(target).lower())
        if entity is None:
            holder.fail_transfer(message, NO_TARGET, f"'{forward_path(target)}' does not exist.")
            return True
        if not entity.description.status.sends or _is_full(entity, message.size):
            return False
        copy = copy_of(message, now, entity.description.default_message_time_to_live)
        copy.hops += 1
        entity.touch(now)
        if entity.duplicates is None or not entity.duplicates.repeats(copy, now):
            entity.deliver(copy, now)
        return True

    def flush(self) -> None:
        """Makes everything durable that was done so far; where that fails the next flush tries again."""
        self._hub.journal.flush()

    def next_deadline(self) -> float | None:
        """When `advance` has something to do, unix seconds; `None` for never."""
        return self._hub.next_deadline()

    def advance(self) -> None:
        """Does what is due by now: locks, schedules, expiry, duplicate windows, idle entities; then calls waiters."""
        self._hub.begin()
        self._hub.notify()

    def close(self) -> None:
        """Makes everything durable and closes the store; the broker is not used after that."""
        self._hub.journal.flush(exact_numbers=True)
        self._hub.journal.close()


def _is_full(entity: Holder | Topic, more: int) -> bool:
    description = entity.description
    if not isinstance(description, QueueDescription | TopicDescription):
        return False
    return entity.size + more > description.max_size_in_megabytes * _MEGABYTE


def restore(namespace: Namespace, store: SqliteStore) -> None:
    """Puts everything back where it was; locks are gone, delivery counts stay."""
    loaded = namespace.load_store()
    try:
        _restore(namespace, loaded, Decoder(store.scalar_types))
    except (BrokerError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise store.damaged(f"{type(error).__name__}: {error}") from error


def _restore(namespace: Namespace, loaded: Loaded, decoder: Decoder) -> None:
    entities: dict[int, Holder | Topic] = {}
    records = [(identity, cast("dict[str, Any]", decoder.decode(data))) for identity, data in loaded.entities]
    for identity, record in sorted(records, key=lambda entry: (entry[1]["kind"] == "subscription", entry[0])):
        entities[identity] = namespace.restore_entity(
            identity, record, description_of(record), rules_of(record) if "rules" in record else None
        )
    sources: dict[int, Source] = {}
    for entity in entities.values():
        owned = [entity.source] if isinstance(entity, Topic) else [entity.source, entity.dead]
        for source in owned:
            identity = source.shelf.identity
            sources[identity] = source
            numbers = source.shelf.numbers
            numbers.following = numbers.reserved = loaded.numbers.get(identity, 1)
    messages = [
        (sources[source], key, decoder.decode_message(row, content)) for key, source, row, content in loaded.messages
    ]
    for source, key, message in sorted(messages, key=lambda entry: entry[2].sequence_number):
        message.key = key
        source.restore(message)
    for identity, session_id, at, state in loaded.sessions:
        lane = sources[identity].shelf.lane(session_id.decode())
        lane.state, lane.state_at = state, from_micros(at)
    histories: dict[int, list[tuple[MessageId, float]]] = {}
    for identity, message_id, at in loaded.duplicates:
        histories.setdefault(identity, []).append((cast(MessageId, decoder.decode(message_id)), from_micros(at)))
    for identity, entries in histories.items():
        duplicates = entities[identity].duplicates
        if duplicates is not None:
            duplicates.restore(entries)
