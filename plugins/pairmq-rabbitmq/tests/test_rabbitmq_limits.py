"""Messages that RabbitMQ can never accept, refused without a server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from aiormq.exceptions import ChannelPreconditionFailed

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, TransportError
from pairmq.plugins import registry
from pairmq_rabbitmq import _transport
from pairmq_rabbitmq._capabilities import MAX_MESSAGE_BYTES
from pairmq_rabbitmq._publish import Lost

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


def test_a_message_with_nothing_but_a_body_and_an_id_is_not_encoded_to_be_checked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_transport, "_pack", None)
    registry.transport("amqp://127.0.0.1:1/").check_message(QUEUE, Message(bytes(1 << 20), message_id="0" * 32))


def test_known_limit_of_the_server_is_applied():
    transport = registry.transport("amqp://127.0.0.1:1/")
    transport._context.max_body_bytes = 1000
    with pytest.raises(TransportError, match="at most 1000"):
        transport.check_message(QUEUE, Message(bytes(1001)))


async def test_limit_of_the_server_is_learned_from_a_refusal():
    transport = registry.transport("amqp://127.0.0.1:1/")
    sender = transport.sender(QUEUE)
    told = "PRECONDITION_FAILED - message size 20971520 is larger than configured max size 16777216"
    failed = sender._lost(Lost(ChannelPreconditionFailed(told), alone=True))
    assert failed.reason is FailureReason.TOO_LARGE
    transport.check_message(QUEUE, Message(bytes(16_777_216)))
    with pytest.raises(TransportError, match="at most 16777216"):
        transport.check_message(QUEUE, Message(bytes(16_777_217)))
    await transport.close()
