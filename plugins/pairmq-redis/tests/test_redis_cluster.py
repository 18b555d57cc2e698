"""Scripted nodes of a cluster: slots move under a call, nodes contradict each other, and are lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import cast

import pytest
from redis.crc import key_slot

from pairmq.model import Entity, FailureKind, Message, TransportError
from pairmq.plugins import registry
from pairmq.transport import Sender, is_nothing_sent
from scripted_redis import ScriptedRedis, bulk, listening

SLOT = key_slot(b"orders")
STORED = b"$3\r\n1-1\r\n"
Answer = Callable[[list[bytes]], bytes]


class Node(ScriptedRedis):
    """Owns what it says; answers commands with keys by its `reply`."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: Node = self
        self.reply: Answer = lambda command: STORED
        self.names_itself = True

    def answer(self, command: list[bytes], writer: asyncio.StreamWriter) -> bytes:
        if command[:2] == [b"CLUSTER", b"SLOTS"]:
            host, port = self.owner.address
            named = bulk(host) if self.owner is not self or self.names_itself else "$-1\r\n"
            return f"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n{named}:{port}\r\n{bulk('id')}".encode()
        if command[0] == b"WAIT":
            return b":1\r\n"
        return self.reply(command) if command[0] in (b"XADD", b"EVALSHA") else super().answer(command, writer)

    def sends_to(self, other: Node, how: str = "MOVED") -> Answer:
        return lambda command: f"-{how} {SLOT} {other.address[0]}:{other.address[1]}\r\n".encode()

    @property
    def bodies(self) -> list[bytes]:
        """Of the messages, in the order in which they came."""
        return [command[-1] for command in self.commands if command[0] == b"XADD"]


@pytest.fixture
async def nodes(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Node, Node]]:
    """Two; the first one owns all slots, and both say so. A call is repeated for longer than a busy machine takes."""
    monkeypatch.setattr("pairmq_redis._cluster._PATIENCE", 300.0)
    first, second = Node(), Node()
    second.owner = first
    async with listening(first, second):
        yield first, second


@asynccontextmanager
async def sending(*nodes: Node, options: str = "") -> AsyncIterator[Sender]:
    hosts = ",".join(f"{host}:{port}" for host, port in (node.address for node in nodes))
    async with registry.transport(f"redis+cluster://alice:hunter2@{hosts}{options}") as transport:
        yield transport.sender(Entity("orders"))


def messages(count: int) -> list[Message]:
    return [Message(b"%d" % number, message_id=str(number)) for number in range(count)]


async def failure(sender: Sender) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await sender.send(messages(1)[0])
    assert "hunter2" not in str(caught.value)
    return caught.value


def after(count: int, reply: Answer) -> Answer:
    """Messages are stored until so many have been."""
    stored = iter(range(count))
    return lambda command: STORED if next(stored, None) is not None else reply(command)


@pytest.mark.parametrize("how", ["MOVED", "ASK"])
async def test_a_batch_follows_a_slot_in_order(nodes: tuple[Node, Node], how: str) -> None:
    """Also a batch of two chunks, of which some messages were stored before the slot moved."""
    first, second = nodes
    first.reply = after(100, first.sends_to(second, how))
    async with sending(first) as sender:
        assert await sender.send_batch(messages(600)) == [None] * 600
    assert first.bodies[:100] + second.bodies == [b"%d" % number for number in range(600)]
    asked = [second.commands[place - 1] for place, command in enumerate(second.commands) if command[0] == b"XADD"]
    assert ([b"ASKING"] in asked) is (how == "ASK")


async def test_a_batch_stays_in_order_while_nodes_contradict_each_other(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk that is sent to and fro is not overtaken by the next one, which was sent elsewhere less often."""
    for name in ("_REST", "_SILENCE"):  # asked again, both nodes would name the first one each time
        monkeypatch.setattr(f"pairmq_redis._cluster.{name}", 300.0)
    first, second = nodes
    first.reply = after(100, first.sends_to(second))
    back = iter([True] * 150)  # what is left of the first chunk, once
    sends_back = second.sends_to(first)
    second.reply = lambda command: sends_back(command) if next(back, False) else STORED
    async with sending(first) as sender:
        assert await sender.send_batch(messages(600)) == [None] * 600
    assert first.bodies[:100] + second.bodies[150:] == [b"%d" % number for number in range(600)]


async def test_replicas_are_waited_for_where_a_message_was_stored(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    first.reply = first.sends_to(second)
    async with sending(first, options="?wait_replicas=1") as sender:
        await sender.send(messages(1)[0])
    assert [command[0] for command in second.commands[-2:]] == [b"XADD", b"WAIT"]


async def test_a_call_waits_until_all_keys_have_arrived(nodes: tuple[Node, Node]) -> None:
    first, _ = nodes
    arrived = after(0, lambda command: b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n")
    first.reply = lambda command: arrived(command) if len(first.bodies) < 4 else STORED
    async with sending(first) as sender:
        await sender.send(messages(1)[0])
    assert len(first.bodies) == 4


async def test_nodes_that_send_a_call_to_each_other_are_unavailable(
    nodes: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairmq_redis._cluster._PATIENCE", 0.1)
    first, second = nodes
    first.reply, second.reply = first.sends_to(second), second.sends_to(first)
    async with sending(first) as sender:
        error = await failure(sender)
    assert (error.kind, error.maybe_applied) == (FailureKind.UNAVAILABLE, False)


async def test_of_a_batch_exactly_what_was_stored_counts_as_sent_when_the_new_node_is_down(
    nodes: tuple[Node, Node],
) -> None:
    first, second = nodes
    second.stop()
    first.reply = after(2, first.sends_to(second))
    async with sending(first) as sender:
        outcomes = await sender.send_batch(messages(4))
    assert outcomes[:2] == [None, None]
    assert [(each.kind, each.maybe_applied) for each in outcomes[2:] if each] == [(FailureKind.UNAVAILABLE, False)] * 2


async def test_a_cancelled_batch_is_in_doubt_when_a_part_was_stored(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    first.reply = after(1, first.sends_to(second))
    second.hangs = True
    async with sending(first) as sender:
        batch = asyncio.ensure_future(sender.send_batch(messages(2)))
        while not second.commands:  # it hangs before it is logged in to
            await asyncio.sleep(0.01)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await batch
    assert not is_nothing_sent(caught.value)


async def test_another_owner_is_found_after_one_is_lost(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    async with sending(first, second) as sender:
        await sender.send(messages(1)[0])
        second.owner = second  # it was promoted
        first.stop()
        while True:
            try:
                await sender.send(messages(1)[0])
            except TransportError:
                await asyncio.sleep(0.02)
            else:
                break
        assert len(second.bodies) == 1


async def test_a_node_that_hangs_loses_its_connections_when_another_one_owns_its_slots(
    nodes: tuple[Node, Node],
) -> None:
    """What it would still confirm when it wakes is lost."""
    first, second = nodes
    async with sending(first, second) as sender:
        await sender.send(messages(1)[0])
        first.hangs = True
        waiting = asyncio.ensure_future(failure(sender))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await sender.send(messages(1)[0])
        second.owner = second
        while not second.bodies:
            try:
                async with asyncio.timeout(10):
                    await sender.send(messages(1)[0])
            except TimeoutError:
                await asyncio.sleep(0.05)
        assert (await waiting).maybe_applied


async def test_a_node_that_does_not_know_its_own_name_is_where_it_was_asked(nodes: tuple[Node, Node]) -> None:
    first, _ = nodes
    first.names_itself = False
    async with sending(first) as sender:
        await sender.send(messages(1)[0])
    assert first.bodies


async def test_a_node_that_announces_an_address_which_leads_nowhere_is_named(nodes: tuple[Node, Node]) -> None:
    """As behind NAT; the address is none of the URL's."""
    first, _ = nodes
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # and never answers
        first.owner = cast("Node", SimpleNamespace(address=silent.getsockname()))
        async with sending(first, options="?connect_timeout=0.2") as sender:
            error = await failure(sender)
    host, port = first.owner.address
    assert f"the cluster's node {host}:{port}: " in str(error)
    assert (error.kind, error.maybe_applied) == (FailureKind.UNAVAILABLE, False)


async def test_a_cluster_that_does_not_answer_is_one_error_without_secrets(nodes: tuple[Node, Node]) -> None:
    for node in nodes:
        node.stop()
    async with sending(*nodes) as sender:
        error = await failure(sender)
    assert (error.kind, error.maybe_applied) == (FailureKind.UNAVAILABLE, False)
    assert all(str(node.address[1]) in str(error) for node in nodes)


async def test_closing_ends_a_call_that_waits_for_the_nodes(nodes: tuple[Node, Node]) -> None:
    first, second = nodes
    first.hangs = second.hangs = True
    async with sending(first, second, options="?connect_timeout=300") as sender:
        waiting = asyncio.ensure_future(failure(sender))
        await asyncio.sleep(0.05)
        await sender.close()
        assert (await waiting).maybe_applied is False
