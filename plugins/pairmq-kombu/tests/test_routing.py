"""Which publishes go through the pair."""

from __future__ import annotations

from typing import Any

import amqp
import pytest
from celery import Celery
from kombu import Exchange as KombuExchange
from kombu import Queue, binding

from pairmq import Entity, EntityKind
from pairmq_kombu._message import Exchange, NotCarried, routed

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


@pytest.mark.parametrize(
    "exchange", ["celery_delayed_27", "celery_delayed_0", "celery_delayed_delivery", "shop_celery_delayed_27"]
)
def test_an_exchange_of_delayed_delivery_is_a_topic_though_only_workers_declare_it(exchange: str) -> None:
    assert where(exchange, "0.1.orders") == Entity(exchange, EntityKind.TOPIC)


@pytest.fixture
def application() -> Celery:
    application = Celery("routing", set_as_current=False)
    several = [binding(KombuExchange("prices", "direct"), "a"), binding(KombuExchange("flashes", "fanout"))]
    application.conf.task_queues = [
        Queue("orders", KombuExchange("shop", "topic"), "orders.#"),
        Queue("bound", bindings=several),
        Queue("gone", KombuExchange("passing", "topic", durable=False), "#"),
    ]
    assert application.conf.task_queues  # read, as by whatever publishes
    return application


@pytest.mark.parametrize("exchange", ["shop", "prices"])
def test_an_exchange_of_task_queues_is_a_topic_when_this_process_has_not_declared_it(
    application: Celery, exchange: str
) -> None:
    assert where(exchange, "orders.new") == Entity(exchange, EntityKind.TOPIC)


@pytest.mark.parametrize("exchange", ["flashes", "passing"])
def test_an_exchange_of_task_queues_is_not_kept_when_it_fans_out_or_passes(application: Celery, exchange: str) -> None:
    assert where(exchange, "orders.new") is None


def test_an_application_that_publishes_nothing_is_not_configured_by_others() -> None:
    application = Celery("idle", set_as_current=False)
    with pytest.raises(NotCarried):
        where("unheard-of", "key")
    assert not application.configured


def test_a_request_with_a_direct_reply_is_not_kept() -> None:
    assert where("", "celery", reply_to="amq.rabbitmq.reply-to.abc") is None
    assert where("", "celery", reply_to="answers") == Entity("celery")


def test_a_transient_message_is_not_kept() -> None:
    assert where("", "celery", delivery_mode=1) is None


@pytest.mark.parametrize(
    ("exchange", "routing_key"), [("unknown", "key"), ("", "amq.gen-1"), ("", "pairmq.ping"), ("", ""), ("", "a*b")]
)
def test_what_no_pair_can_send_to_is_said(exchange: str, routing_key: str) -> None:
    with pytest.raises(NotCarried):
        where(exchange, routing_key)
