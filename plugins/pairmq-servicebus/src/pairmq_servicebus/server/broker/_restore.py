"""Builds a namespace from what its store holds."""

from __future__ import annotations

from typing import Any, cast

from pairmq_servicebus.server.broker._codec import Decoder, from_micros
from pairmq_servicebus.server.broker._errors import BrokerError
from pairmq_servicebus.server.broker._namespace import Namespace
from pairmq_servicebus.server.broker._queue import Holder
from pairmq_servicebus.server.broker._records import description_of, rules_of
from pairmq_servicebus.server.broker._session_source import Source
from pairmq_servicebus.server.broker._store import Loaded, Store
from pairmq_servicebus.server.broker._topic import Topic
from pairmq_servicebus.server.broker._values import MessageId


def restore(namespace: Namespace, store: Store) -> None:
    """Puts everything back where it was; locks are gone, delivery counts stay.

    Args:
        namespace: an empty one, whose journal has this store.
        store: it.

    Raises:
        StoreError: the store cannot be read, or what it holds makes no sense.
    """
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
