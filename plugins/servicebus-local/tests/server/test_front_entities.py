"""Links of entities that are not there, or go away; many clients at once; and servers that end, badly or well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from servicebus_local import LocalServer, ServerSettings, amqp
from servicebus_local.amqp import performatives as p
from servicebus_local.broker import StoreError
from servicebus_local.testing import ServerProcess

pytestmark = pytest.mark.real_server

Dial = Callable[..., Any]
MakeQueue = Callable[..., str]
QUIET = 0.15


# --------------------------------------------------------------------------- entities


@pytest.mark.parametrize(
    "path", ["nothing", "nothing/$management", "nothing/Subscriptions/s", "nothing/$DeadLetterQueue"]
)
@pytest.mark.parametrize("sends", [True, False])
def test_a_link_to_nothing_is_refused(peer: Any, path: str, sends: bool) -> None:
    peer.attach(path, sends=sends)
    assert (peer.attached.target if sends else peer.attached.source) is None
    detached = peer.expect(p.Detach)
    assert (detached.error.condition, detached.closed) == ("amqp:not-found", True)


@pytest.mark.parametrize("address", [None, ""])
def test_a_link_without_an_address_is_refused(peer: Any, address: str | None) -> None:
    peer.attach(address, sends=True)
    assert peer.expect(p.Detach).error.condition == "amqp:not-implemented"


def test_a_coordinator_of_transactions_is_not_implemented(peer: Any) -> None:
    peer.attach(None, sends=True, waits=False, target=amqp.Coordinator([]))
    assert peer.expect(p.Detach).error.condition == "amqp:not-implemented"


@pytest.mark.parametrize("form", ["amqps://host/{}", "sb://host:5671/{}/", "/{}", "{}/"])
def test_addresses_have_many_forms(peer: Any, make_queue: MakeQueue, form: str) -> None:
    queue = make_queue()
    handle = peer.attach(form.format(queue.upper()), sends=True)
    assert isinstance(peer.send(handle), amqp.Accepted)


def test_links_of_a_deleted_entity_are_detached(
    peer: Any, make_queue: MakeQueue, admin: ServiceBusAdministrationClient
) -> None:
    queue = make_queue(requires_session=True)
    peer.attach(queue, sends=True)
    peer.attach(queue, sends=False, session="held")
    peer.attach(queue, sends=False, session=None, waits=False)
    peer.attach(f"{queue}/$DeadLetterQueue", sends=False)
    admin.delete_queue(queue)
    found = [peer.expect(p.Detach) for _ in range(4)]
    assert {each.error.condition for each in found} == {"amqp:not-found"}
    assert sorted(each.handle for each in found) != []
    # One of the same name is another one.
    admin.create_queue(queue)
    assert isinstance(peer.send(peer.attach(queue, sends=True)), amqp.Accepted)


@pytest.mark.parametrize("status", ["Disabled", "SendDisabled", "ReceiveDisabled"])
def test_links_of_a_disabled_entity_are_detached(
    peer: Any, make_queue: MakeQueue, admin: ServiceBusAdministrationClient, status: str
) -> None:
    queue = make_queue()
    peer.attach(queue, sends=False)
    peer.attach(queue, sends=True)
    description = admin.get_queue(queue)
    description.status = status
    admin.update_queue(description)
    disabled = {"Disabled": {True, False}, "SendDisabled": {True}, "ReceiveDisabled": {False}}[status]
    for _ in disabled:
        assert peer.expect(p.Detach).error.condition == "com.microsoft:entity-disabled"
    for sends in (True, False):
        peer.attach(queue, sends=sends)
        end = peer.attached.target if sends else peer.attached.source
        assert (end is None) == (sends in disabled)
        if end is None:
            assert peer.expect(p.Detach).error.condition == "com.microsoft:entity-disabled"


def test_a_link_needs_a_token_that_covers_its_entity(
    server: ServerProcess, dial: Dial, make_queue: MakeQueue, sign: Callable[..., str]
) -> None:
    queue, other = make_queue(), make_queue()
    peer = dial(server)
    peer.attach(queue, sends=True)
    assert peer.expect(p.Detach).error.condition == "amqp:unauthorized-access"
    node = peer.node("$cbs")
    scope = f"sb://127.0.0.1/{queue}"
    arguments, _ = node.ask(sign(server, scope), operation="put-token", type="x", name=scope)
    assert arguments["status-code"] == 202
    for path in (queue, f"{queue}/$management"):
        peer.attach(path, sends=True)
        assert peer.attached.target is not None
    for path in (other, f"{queue}er", f"{other}/$management"):
        peer.attach(path, sends=True)
        assert peer.expect(p.Detach).error.condition == "amqp:unauthorized-access"
    arguments, _ = node.ask(sign(server, scope), operation="put-token", type="x", name=f"sb://127.0.0.1/{other}")
    assert arguments["status-code"] == 401


def test_a_message_far_beyond_the_limit_costs_the_link(peer: Any, make_queue: MakeQueue) -> None:
    handle = peer.attach(make_queue(), sends=True)
    fields = {"delivery_id": 1000, "delivery_tag": b"x", "message_format": 0, "settled": False, "more": True}
    chunk = bytes(65_000)
    for _ in range(270):
        peer.frame(p.TransferFrame(handle=handle, **fields), chunk)
    assert peer.expect(p.Detach).error.condition == "amqp:link:message-size-exceeded"


# --------------------------------------------------------------------------- many, and again


def test_fifty_clients_at_once(server: ServerProcess, dial: Dial, make_queue: MakeQueue) -> None:
    queue = make_queue()
    before = server.operations().get("empty-receive", 0)
    peers = [dial(server) for _ in range(50)]
    receivers = {}
    for peer in peers:
        peer.login()
        receivers[peer] = peer.attach(queue, sends=False)
        peer.credit(receivers[peer], 2)
    senders = {peer: peer.attach(queue, sends=True) for peer in peers}
    for number, peer in enumerate(peers):
        for part in range(2):
            peer.transfer(senders[peer], amqp.encode_message(body=f"{number}-{part}".encode()))
    # Everybody has credit for two of the hundred messages.
    found = []
    for peer in peers:
        while len(found) % 2 or not found or len(found) < 2 * (peers.index(peer) + 1):
            peer.expect(p.TransferFrame)
            found += amqp.split_message(peer.payload).data
    assert sorted(found) == sorted(f"{number}-{part}".encode() for number in range(50) for part in range(2))
    # Who waits for a message that another one gets is not billed for it.
    assert server.operations().get("empty-receive", 0) == before


def test_everything_durable_is_there_after_a_kill(dial: Dial) -> None:
    with ServerProcess(durable=True, queues=["orders"], topics=["events:all"]) as server:
        peer = dial(server)
        peer.login()
        peer.fill("orders", b"completed", b"locked", b"deferred", b"dead", b"waiting")
        peer.fill("events", b"event")
        receiver = peer.attach("orders", sends=False)
        peer.credit(receiver, 4)
        (done, _), (_, token), (deferred, _), (dead, _) = peer.deliveries(4)
        for number, outcome in (
            (done, amqp.Accepted()),
            (deferred, amqp.Modified(undeliverable_here=True)),
            (dead, amqp.Rejected(amqp.AmqpError("com.microsoft:dead-letter", "", {"DeadLetterReason": "why"}))),
        ):
            peer.settle(number, outcome)
            peer.outcome()
        server.kill()
        server.start()
        peer = dial(server)
        peer.login()
        # Locks do not outlive the server: what was locked can be had at once, in its old place.
        node = peer.node("orders/$management")
        request = {"disposition-status": "completed", "lock-tokens": amqp.Array([token], UUID)}
        assert node.ask(request, operation="com.microsoft:update-disposition")[0]["statusCode"] == 410
        peer.credit(peer.attach("orders", sends=False), 9)
        assert peer.texts(2) == [b"locked", b"waiting"]
        numbers = amqp.Array([amqp.Long(3)], amqp.Long)
        request = {"sequence-numbers": numbers, "receiver-settle-mode": amqp.UInt(1)}
        _, found = node.ask(request, operation="com.microsoft:receive-by-sequence-number")
        assert amqp.split_message(found["messages"][0]["message"]).data == [b"deferred"]
        peer.credit(peer.attach("orders/$DeadLetterQueue", sends=False), 9)
        assert peer.texts(1) == [b"dead"]
        properties = amqp.split_message(peer.payload).application_properties
        assert properties is not None
        assert properties["DeadLetterReason"] == "why"
        peer.credit(peer.attach("events/Subscriptions/all", sends=False), 9)
        assert peer.texts(1) == [b"event"]


@pytest.fixture
async def local(tmp_path: Any) -> AsyncIterator[LocalServer]:
    """A durable server in this process."""
    server = LocalServer(ServerSettings(port=0, admin_port=0, data=tmp_path))
    await server.start()
    server.broker.create_queue("orders")
    yield server
    await server.stop()


async def test_nothing_is_confirmed_before_it_is_durable(
    local: LocalServer, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local.addresses is not None
    peer = await asyncio.to_thread(dial, local.addresses.port)
    handle = await asyncio.to_thread(lambda: peer.attach("orders", sends=True))
    flush = local.broker.flush

    def fail() -> None:
        raise StoreError("the disk is full")

    monkeypatch.setattr(local.broker, "flush", fail)
    peer.transfer(handle, amqp.encode_message(body=b"x"))
    assert await asyncio.to_thread(peer.silent, QUIET)
    monkeypatch.setattr(local.broker, "flush", flush)
    assert isinstance(await asyncio.to_thread(peer.outcome), amqp.Accepted)


async def test_a_defect_costs_one_client_its_connection(
    local: LocalServer, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert local.addresses is not None
    peer = await asyncio.to_thread(dial, local.addresses.port)
    other = await asyncio.to_thread(dial, local.addresses.port)
    handle = await asyncio.to_thread(lambda: peer.attach("orders", sends=True))
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))

    def fail(*_: Any) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(local.broker, "send", fail)
    peer.transfer(handle, amqp.encode_message(body=b"x"))
    closed = await asyncio.to_thread(peer.expect, p.Close)
    assert closed.error.condition == "amqp:internal-error"
    assert [str(each["exception"]) for each in complaints] == ["a defect"]
    await asyncio.to_thread(lambda: other.attach("orders", sends=False))


async def test_a_stopping_server_closes_its_connections(local: LocalServer, dial: Dial) -> None:
    assert local.addresses is not None
    peer = await asyncio.to_thread(dial, local.addresses.port)
    await local.stop()
    closed = await asyncio.to_thread(peer.expect, p.Close)
    assert closed.error.condition == "amqp:connection:forced"
