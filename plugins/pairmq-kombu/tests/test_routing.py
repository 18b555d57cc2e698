"""Which publishes go through the pair."""

from __future__ import annotations

from typing import Any

import amqp
import pytest

from pairmq import Entity, EntityKind
from pairmq_kombu._message import NotCarried
from pairmq_kombu._routing import Exchange, routed

DECLARED = {
    "tasks": Exchange("direct", durable=True),
    "feeds": Exchange("topic", durable=True),
    "pidbox": Exchange("fanout", durable=False),
    "news": Exchange("fanout", durable=True),
    "replies": Exchange("direct", durable=False),
}


def where(exchange: str, routing_key: str, **properties: Any) -> Entity | None:
    found = routed(amqp.Message(b"", **{"delivery_mode": 2, **properties}), exchange, routing_key, DECLARED)
    return found[0] if found else None


def test_the_default_exchange_leads_to_the_queue_of_the_routing_key() -> None:
    assert where("", "celery") == Entity("celery")


@pytest.mark.parametrize("exchange", ["tasks", "feeds"])
def test_a_durable_direct_or_topic_exchange_is_a_topic(exchange: str) -> None:
    assert where(exchange, "key") == Entity(exchange, EntityKind.TOPIC)


@pytest.mark.parametrize("exchange", ["pidbox", "news", "replies"])
def test_what_is_for_those_who_listen_now_is_not_kept(exchange: str) -> None:
    assert where(exchange, "key") is None


def test_a_transient_message_is_not_kept() -> None:
    assert where("", "celery", delivery_mode=1) is None


@pytest.mark.parametrize(
    ("exchange", "routing_key"), [("unknown", "key"), ("", "amq.gen-1"), ("", "pairmq.ping"), ("", ""), ("", "a*b")]
)
def test_what_no_pair_can_send_to_is_said(exchange: str, routing_key: str) -> None:
    with pytest.raises(NotCarried):
        where(exchange, routing_key)
