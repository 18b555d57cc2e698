"""``memory://``: what is its own beside the contract of all transports."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
import weakref
from typing import Any, cast

import pytest

from pairmq import ConfigurationError
from pairmq.memory import MemoryTransport, Queue
from pairmq.model import Entity, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing import in_virtual_time, memory_broker, virtual_wall
from pairmq.transport import QueueProperties

QUEUE = Entity("orders")


async def test_what_a_caller_changes_later_is_not_in_the_broker() -> None:
    async with memory_broker() as broker, broker.transport() as transport:
        await transport.admin.create(QUEUE)
        body = bytearray(b"sent")
        properties: dict[str, Any] = {"list": [1, [2]], "map": {"key": {"inner": 1}}}
        message = Message(body, message_id="1", application_properties=properties)  # type: ignore[arg-type]
        before = Message(b"sent", message_id="1", application_properties=properties)
        await transport.sender(QUEUE).send(message)
        body[:] = b"lost"
        own = cast("dict[str, Any]", message.application_properties)
        own["map"]["key"]["inner"] = own["new"] = 2
        receiver = transport.receiver(Source(QUEUE))
        (delivery,) = await receiver.receive(1, 0)
        assert delivery.message == before
        cast("dict[str, Any]", delivery.message.application_properties)["map"]["key"]["inner"] = 3
        (shown,) = await transport.admin.peek(Source(QUEUE), 1)
        assert shown.message == before
        await receiver.abandon(delivery)
        (again,) = await receiver.receive(1, 0)
        assert again.message == before


@in_virtual_time
async def test_waiting_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, take = 0, Queue.take

    def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return take(*arguments)

    async with memory_broker() as broker, broker.transport() as transport:
        await transport.admin.create(QUEUE)
        monkeypatch.setattr(Queue, "take", counted)
        waiting = [asyncio.create_task(transport.receiver(Source(QUEUE)).receive(1, 900)) for _ in range(10)]
        assert await asyncio.gather(*waiting) == [[]] * 10
    assert looks == 20  # at the begin and at the end


async def test_settings_that_no_queue_can_have_are_refused() -> None:
    async with memory_broker() as broker, broker.transport() as transport:
        for settings in (
            QueueProperties(lock_duration=0),
            QueueProperties(default_time_to_live=float("nan")),
            QueueProperties(max_delivery_count=0),
        ):
            with pytest.raises(TransportError) as caught:
                await transport.admin.create(QUEUE, settings)
            assert caught.value.reason is FailureReason.MALFORMED
        await transport.admin.create(QUEUE, QueueProperties(lock_duration=None))
        assert (await transport.admin.properties(QUEUE)).lock_duration == 60


async def test_an_abandoned_session_message_is_received_again_in_its_order() -> None:
    async with memory_broker() as broker, broker.transport() as transport:
        await transport.admin.create(QUEUE, QueueProperties(requires_session=True))
        await transport.sender(QUEUE).send_batch([Message(body, session_id="s") for body in (b"a", b"b", b"c")])
        receiver = await transport.accept_session(Source(QUEUE), wait=0)
        assert receiver is not None
        first, _ = await receiver.receive(2, 0)
        await receiver.abandon(first)
        assert [each.message.body for each in await receiver.receive(9, 0)] == [b"a", b"c"]


@in_virtual_time
async def test_a_dead_letter_reader_is_woken_when_accepting_a_session_buries_an_expired_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time", virtual_wall)
    async with memory_broker() as broker, broker.transport() as transport:
        await transport.admin.create(QUEUE, QueueProperties(requires_session=True))
        await transport.sender(QUEUE).send(Message(b"x", session_id="s", time_to_live=1))
        reader = asyncio.create_task(transport.receiver(Source(QUEUE, dead_letter=True)).receive(1, 900))
        await asyncio.sleep(2)
        assert await transport.accept_session(Source(QUEUE), wait=0) is None
        await asyncio.sleep(1)
        assert reader.done()
        assert [each.dead_letter_reason for each in await reader] == ["expired"]


@pytest.mark.parametrize("stores", [True, False])
async def test_what_waited_in_a_closed_loop_is_forgotten_at_the_next_wake_up(stores: bool) -> None:
    async with memory_broker() as broker, broker.transport() as transport:
        await transport.admin.create(QUEUE)

        def wait_and_close() -> weakref.ref[asyncio.AbstractEventLoop]:
            loop = asyncio.new_event_loop()
            loop.set_exception_handler(lambda loop, context: None)  # the task is destroyed while it waits
            receiver = MemoryTransport(broker.url).receiver(Source(QUEUE))
            waiting = loop.create_task(receiver.receive(1, 900))
            for _ in range(5):
                loop.run_until_complete(asyncio.sleep(0))
            assert not waiting.done()
            loop.close()
            return weakref.ref(loop)

        closed = await asyncio.to_thread(wait_and_close)
        gc.collect()
        assert closed() is not None
        await (transport.sender(QUEUE).send(Message(b"x")) if stores else broker.hang())
        gc.collect()
        assert closed() is None
        await broker.restore()


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("memory://", "name one broker"),
        ("memory:///x", "name one broker"),
        ("memory://a/b", "name one broker"),
        ("memory://a#b", "'#'"),
        ("memory://a b", "space"),
        ("memory://[a", "bracket"),
        ("memory://a?nonsense=1", "nonsense"),
        ("memory://a?poll_interval=1", "poll_interval"),
        ("memory://a?name=b&name=c", "twice"),
        ("memory://a?name=b/c", "option name"),
        ("memory://a{", "name of the memory:// URL"),
        ("memory://a%0ab", "name of the memory:// URL"),
        ("memory://%ff", "name of the memory:// URL is not percent-encoded UTF-8"),
        ("memory://a?name=%ff", "not percent-encoded UTF-8"),
        ("memory://a#", "'#'"),
    ],
)
def test_an_invalid_url_is_refused(url: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        registry.transport(url)


@pytest.mark.parametrize("rest", ["a?hunter@b", "user:hunter@name", "hunter@"])
def test_what_may_be_a_password_is_refused_and_not_shown(rest: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        registry.transport(f"memory://{rest}")
    assert "hunter" not in str(caught.value)


def test_a_url_names_its_broker() -> None:
    endpoint = MemoryTransport("MEMORY://Primary-1?name=contoso").endpoint
    assert (endpoint.name, endpoint.identity) == ("contoso", ("memory", "Primary-1"))
    assert MemoryTransport("memory://a").endpoint.identity != MemoryTransport("memory://A").endpoint.identity


def test_it_is_registered_without_being_installed() -> None:
    (plugin,) = (plugin for plugin in registry.plugins if plugin.name == "memory")
    (record,) = plugin.transports
    assert (plugin.distribution or "").startswith("pairmq ")
    assert (record.schemes, record.capabilities.durable) == (("memory",), False)


def test_it_needs_no_package_besides_pairmq() -> None:
    program = (
        "import sys\n"
        "for name in ('fakeredis', 'lupa', 'redis', 'hiredis', 'pairmq_redis'): sys.modules[name] = None\n"
        "from pairmq import Entity, Message\n"
        "from pairmq.sync import Pair\n"
        "with Pair.connect('memory://east', 'memory://west') as pair:\n"
        "    pair.primary.admin.create(Entity('orders'))\n"
        "    print(pair.sender('orders').send(Message(b'x')).route.value)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (ended.stdout, ended.stderr) == ("primary\n", "")
