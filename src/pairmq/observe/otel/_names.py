"""The names of metrics and attributes: the conventions' own where they have one, else ``pairmq.``.

The conventions' names are written out, as the package that lists them is made for programs that pin it; a test compares
these with that list. What they ask about a broker is read off its URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

SCOPE: Final = "pairmq"
"""The instrumentation scope of everything here."""

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the conventions that the names are of."""

# Attributes of the conventions.
SYSTEM: Final = "messaging.system"
DESTINATION: Final = "messaging.destination.name"
SUBSCRIPTION: Final = "messaging.destination.subscription.name"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGE_ID: Final = "messaging.message.id"
BODY_SIZE: Final = "messaging.message.body.size"
BATCH_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

# PairMQ's own attributes.
PAIR: Final = "pairmq.pair"
OUTCOME: Final = "pairmq.outcome"
STATE: Final = "pairmq.state"
PREVIOUS_STATE: Final = "pairmq.state.previous"
CAUSE: Final = "pairmq.cause"
SIDE: Final = "pairmq.side"
FAILURE_KIND: Final = "pairmq.failure.kind"
QUEUE: Final = "pairmq.backlog.queue"
QUEUE_IN_USE: Final = "pairmq.backlog.queue.in_use"
MESSAGE_STATE: Final = "pairmq.message.state"
RESULT: Final = "pairmq.result"
REASON: Final = "pairmq.reason"
SETTLEMENT: Final = "pairmq.settlement"
OPERATION: Final = "pairmq.operation"
ATTEMPTS: Final = "pairmq.attempts"
MAYBE_DUPLICATE: Final = "pairmq.maybe_duplicate"
WAITED: Final = "pairmq.backlog.waited"

# Metrics of the conventions.
OPERATION_DURATION: Final = "messaging.client.operation.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
PROCESS_DURATION: Final = "messaging.process.duration"

# PairMQ's own metrics.
ENTITY_STATE: Final = "pairmq.entity.state"
TRANSITIONS: Final = "pairmq.entity.transitions"
FAILED_ATTEMPTS: Final = "pairmq.send.failed_attempts"
DOUBTFUL_SENDS: Final = "pairmq.send.maybe_duplicates"
PINGS: Final = "pairmq.pings"
QUEUES_IN_USE: Final = "pairmq.backlog.queues.in_use"
ROTATION_CHANGES: Final = "pairmq.backlog.rotation.changes"
BACKLOG_MESSAGES: Final = "pairmq.backlog.messages"
BACKLOG_WAIT: Final = "pairmq.backlog.wait"
OUTBOX_MESSAGES: Final = "pairmq.outbox.messages"
OUTBOX_WAIT: Final = "pairmq.outbox.wait"
MOVED: Final = "pairmq.syphon.moved"
DEAD_LETTERED: Final = "pairmq.syphon.dead_lettered"
SYPHON_ERRORS: Final = "pairmq.syphon.errors"
OPERATIONS: Final = "pairmq.broker.operations"
PAIR_FAULTS: Final = "pairmq.pair.faults"
WARNINGS: Final = "pairmq.warnings"


_SYSTEMS = {"amqp": "rabbitmq", "amqps": "rabbitmq", "rediss": "redis", "sb": "servicebus"}
"""By scheme, where the scheme is not the product's name."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One side of a pair, with the product as the conventions call it, and host and port as far as the URL has them."""

    system: str
    address: str | None = None
    port: int | None = None

    @property
    def attributes(self) -> Mapping[str, str | int]:
        found: dict[str, str | int] = {SYSTEM: self.system}
        if self.address is not None:
            found[SERVER_ADDRESS] = self.address
            if self.port is not None:
                found[SERVER_PORT] = self.port
        return found


UNKNOWN = Broker("pairmq")
"""Placeholder for a broker with unknown URL."""


def broker_of(url: str) -> Broker:
    """Read a broker's URL, which has no password in it; one that can't be read is `UNKNOWN`."""
    try:
        parts = urlsplit(url)
        # Of several hosts none is the broker's.
        address, port = (None, None) if "," in parts.netloc else (parts.hostname, parts.port)
    except ValueError:
        return UNKNOWN
    if not parts.scheme:
        return UNKNOWN
    scheme = parts.scheme.partition("+")[0]
    return Broker(_SYSTEMS.get(scheme, scheme), address or None, port)


class Brokers:
    """Both sides of each pair by the pair's name, from its `PairOpened`."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Broker, Broker]] = {}

    def opened(self, pair: str, primary: str, secondary: str) -> None:
        self._of[pair] = broker_of(primary), broker_of(secondary)

    def knows(self, pair: str) -> bool:
        return pair in self._of

    def primary(self, pair: str) -> Broker:
        return self._of.get(pair, (UNKNOWN, UNKNOWN))[0]

    def secondary(self, pair: str) -> Broker:
        return self._of.get(pair, (UNKNOWN, UNKNOWN))[1]
