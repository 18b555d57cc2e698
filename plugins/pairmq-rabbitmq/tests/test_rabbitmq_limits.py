"""Messages that RabbitMQ can never accept, refused without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, TransportError
from pairmq.plugins import registry

MAX_MESSAGE_BYTES = registry.transport("amqp://127.0.0.1:1/").capabilities.max_message_bytes
QUEUE, TOPIC = Entity("orders"), Entity("prices", EntityKind.TOPIC)


@pytest.mark.parametrize(
    ("entity", "message", "reason"),
    [
        (QUEUE, Message(b"x", application_properties={"a": "x" * 140_000}), FailureReason.TOO_LARGE),
        (QUEUE, Message(bytes(MAX_MESSAGE_BYTES + 1)), FailureReason.TOO_LARGE),
        (TOPIC, Message(b"x", subject="x" * 256), FailureReason.MALFORMED),
        (
            QUEUE,
            Message(b"x", scheduled_enqueue_at=datetime.now(UTC) + timedelta(days=60)),
            FailureReason.NOT_SUPPORTED,
        ),
    ],
    ids=["properties", "body", "routing key", "schedule"],
)
def test_a_message_that_is_never_taken_is_refused_without_a_server(entity, message, reason):
    with pytest.raises(TransportError) as caught:
        registry.transport("amqp://127.0.0.1:1/").check_message(entity, message)
    assert (caught.value.kind, caught.value.reason) == (FailureKind.REFUSED, reason)


def test_a_message_within_all_limits_passes():
    later = datetime.now(UTC) + timedelta(days=40)
    message = Message(bytes(1 << 20), time_to_live=60, scheduled_enqueue_at=later, subject="x" * 255, priority=9)
    registry.transport("amqp://127.0.0.1:1/").check_message(TOPIC, message)


def test_known_limit_of_the_server_is_applied():
    transport = registry.transport("amqp://127.0.0.1:1/")
    transport._context.max_body_bytes = 1000
    with pytest.raises(TransportError, match="at most 1000"):
        transport.check_message(QUEUE, Message(bytes(1001)))
