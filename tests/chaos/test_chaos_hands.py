"""Each thing that chaos can do to a server is felt, ends with its cure, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from pairmq.model import Entity, Message, TransportError
from pairmq.plugins import registry
from pairmq.testing.chaos import ChaosBroker, chaos_broker
from pairmq_postgres.testing_chaos import PostgresChaos
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_rabbitmq.testing_chaos import RabbitChaos
from pairmq_redis.testing_chaos import RedisChaos
from pairmq_servicebus.testing_chaos import ServiceBusChaos

pytestmark = pytest.mark.real_server

QUEUE = Entity("orders")
UNFELT = {"drop-clients", "late", "settlements-lost", "settlements-late"}
"""Who connects anew, and sends one message, does not meet these."""

PRODUCTS: dict[str, type[ChaosBroker]] = {
    "redis": RedisChaos,
    "rabbitmq": RabbitChaos,
    "postgres": PostgresChaos,
    "servicebus": ServiceBusChaos,
}
FAULTS = [(product, fault.name) for product, broker in PRODUCTS.items() for fault in broker.faults]


@pytest.fixture(scope="module")
def brokers(rabbit_servers: Callable[[int], list[RabbitServer]]) -> Iterator[Callable[[str], ChaosBroker]]:
    """Gives the broker of a product, the same one each time, with a queue that has held something from the start."""
    made: dict[str, ChaosBroker] = {}
    with ExitStack() as stack:

        def broker_of(product: str) -> ChaosBroker:
            if product not in made:
                broker = RabbitChaos(rabbit_servers(1)[0]) if product == "rabbitmq" else PRODUCTS[product]()
                stack.callback(broker.close)
                broker.start()
                asyncio.run(fill(broker.url))
                made[product] = broker
            return made[product]

        yield broker_of


async def fill(url: str) -> None:
    async with registry.transport(url) as transport:
        await transport.admin.create(QUEUE)
        for number in range(3):
            await transport.sender(QUEUE).send(Message(b"kept", message_id=f"kept-{number}"))


async def send_one(url: str, seconds: float) -> None:
    async with registry.transport(url) as transport, asyncio.timeout(seconds):
        await transport.sender(QUEUE).send(Message(b"one", message_id="one"))


@pytest.mark.parametrize(("product", "fault"), FAULTS)
def test_a_fault_is_felt_and_cured_and_loses_nothing(
    brokers: Callable[[str], ChaosBroker], product: str, fault: str
) -> None:
    broker = brokers(product)
    before = broker.count(QUEUE.path)
    broker.apply(fault)
    try:
        if fault not in UNFELT:
            with pytest.raises((TransportError, TimeoutError)):
                asyncio.run(send_one(broker.url, 1.5))
    finally:
        broker.cure(fault)
    asyncio.run(send_one(broker.url, 30))
    # One more at least: what failed under the fault may have been stored all the same.
    assert broker.count(QUEUE.path) > before


@pytest.mark.parametrize("product", PRODUCTS)
def test_a_sound_server_can_be_healed(brokers: Callable[[str], ChaosBroker], product: str) -> None:
    broker = brokers(product)
    before = broker.count(QUEUE.path)
    broker.heal()
    asyncio.run(send_one(broker.url, 30))
    assert broker.count(QUEUE.path) == before + 1


def test_a_product_is_known_by_the_scheme_of_its_urls() -> None:
    broker = chaos_broker("postgresql")
    broker.close()
    assert isinstance(broker, PostgresChaos)


@pytest.mark.parametrize("product", PRODUCTS)
def test_an_unknown_fault_is_refused(brokers: Callable[[str], ChaosBroker], product: str) -> None:
    with pytest.raises(ValueError, match="flood"):
        brokers(product).apply("flood")


def test_a_queue_that_is_busy_when_it_becomes_full_keeps_its_messages() -> None:
    queue = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{QUEUE.path}">>))'
    with RabbitServer() as server:
        broker = RabbitChaos(server)
        broker.start()
        asyncio.run(fill(broker.url))
        server.erl(f"{queue}, sys:suspend(amqqueue:get_pid(Q))")
        broker.apply("queue-full")
        server.erl(f"{queue}, sys:resume(amqqueue:get_pid(Q))")
        broker.cure("queue-full")
        assert broker.count(QUEUE.path) == 3
