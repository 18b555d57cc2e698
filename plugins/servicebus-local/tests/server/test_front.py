"""Links, locks and sessions over the wire: what a client is told, and what is left when it is gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from servicebus_local import LocalServer, ServerSettings, amqp
from servicebus_local.amqp import performatives as p
from servicebus_local.testing import ServerProcess

pytestmark = pytest.mark.real_server

Dial = Callable[..., Any]
MakeQueue = Callable[..., str]
LOCK = 1.0
"""Seconds; the shortest that the administration takes."""
QUIET = 0.15
SESSION = amqp.Symbol("com.microsoft:session-filter")


# --------------------------------------------------------------------------- credit


def test_nothing_comes_without_credit_and_never_more_than_was_granted(peer: Any, make_queue: MakeQueue) -> None:
    queue = make_queue()
    peer.fill(queue, b"0", b"1", b"2", b"3")
    receiver = peer.attach(queue, sends=False)
    assert peer.silent(QUIET)
    peer.credit(receiver, 1)
    assert peer.texts(1) == [b"0"]
    assert peer.silent(QUIET)
    # Two more, of which one was used already.
    peer.credit(receiver, 2)
    assert peer.texts(1) == [b"1"]
    assert peer.silent(QUIET)
    peer.credit(receiver, 0, seen=2)
    peer.credit(receiver, 5, seen=2)
    assert peer.texts(2) == [b"2", b"3"]


def test_a_drain_uses_up_the_credit_or_gives_it_back(peer: Any, make_queue: MakeQueue) -> None:
    queue = make_queue()
    sender = peer.fill(queue, b"0")
    receiver = peer.attach(queue, sends=False)
    peer.credit(receiver, 10, drain=True)
    assert peer.texts(1) == [b"0"]
    flow = peer.expect(p.Flow)
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (10, 0, True)
    assert isinstance(peer.send(sender, b"1"), amqp.Accepted)
    assert peer.silent(QUIET)
    peer.credit(receiver, 0, seen=10, drain=True)
    assert peer.expect(p.Flow).link_credit == 0
    peer.credit(receiver, 1, seen=10)
    assert peer.texts(1) == [b"1"]


def test_asking_in_vain_is_counted_when_the_client_stops_waiting(
    server: ServerProcess, peer: Any, make_queue: MakeQueue
) -> None:
    def count() -> int:
        return server.operations().get("empty-receive", 0) - before

    before = server.operations().get("empty-receive", 0)
    queue = make_queue()
    sender = peer.attach(queue, sends=True)
    receiver = peer.attach(queue, sends=False)
    peer.credit(receiver, 1)
    assert peer.silent(QUIET)
    assert count() == 0
    for _ in range(2):
        # It asks again.
        peer.credit(receiver, 1)
    peer.credit(receiver, 1, drain=True)
    assert peer.expect(p.Flow).link_credit == 0
    assert count() == 3
    # With an answer, it was not in vain.
    peer.credit(receiver, 1, seen=1)
    peer.transfer(sender, amqp.encode_message(body=b"x"))
    assert peer.texts(1) == [b"x"]
    peer.credit(receiver, 0, seen=2, drain=True)
    assert peer.expect(p.Flow).link_credit == 0
    assert count() == 3


def test_the_session_window_holds_back_frames(peer: Any, make_queue: MakeQueue) -> None:
    queue = make_queue()
    peer.fill(queue, b"0", b"1", b"2")
    peer.begin(channel=1)
    attach = p.Attach("w", 0, p.RECEIVER, source=p.Source(address=queue), target=p.Target(address="x"))
    peer.frame(attach, channel=1)
    peer.expect(p.Attach)
    flow = {"next_outgoing_id": 0, "outgoing_window": 1, "handle": 0, "delivery_count": 0, "link_credit": 9}
    peer.frame(p.Flow(next_incoming_id=1, incoming_window=1, **flow), channel=1)
    assert peer.texts(1) == [b"0"]
    assert peer.silent(QUIET)
    peer.frame(p.Flow(next_incoming_id=2, incoming_window=5, **flow), channel=1)
    assert peer.texts(2) == [b"1", b"2"]


def test_a_sender_gets_credit_again_before_it_runs_out(peer: Any, make_queue: MakeQueue) -> None:
    handle = peer.attach(make_queue(), sends=True)
    payload = amqp.encode_message(body=b"x")
    for _ in range(6):
        last = [peer.transfer(handle, payload) for _ in range(400)][-1]
        while True:
            answer = peer.expect(p.DispositionFrame)
            assert isinstance(answer.state, amqp.Accepted)
            if (answer.last or answer.first) == last:
                break


async def test_sending_without_credit_costs_the_link(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    server = LocalServer(ServerSettings(port=0, admin_port=0))
    addresses = await server.start()
    server.broker.create_queue("orders")
    try:
        peer = await asyncio.to_thread(dial, addresses.port)
        handle = await asyncio.to_thread(lambda: peer.attach("orders", sends=True))
        said: list[bytes] = []
        monkeypatch.setattr(peer, "say", said.append)
        for _ in range(peer.granted + 1):
            peer.transfer(handle, amqp.encode_message(body=b"x"))
        # Over a socket it would read them in as many pieces as the system likes, and grant new credit after each: only
        # what it is given in one piece is surely too much.
        (client,) = server._shared.clients
        client.data_received(b"".join(said))
        detached = await asyncio.to_thread(peer.expect, p.Detach)
    finally:
        await server.stop()
    assert detached.error.condition == "amqp:link:transfer-limit-exceeded"


def test_a_settled_transfer_is_kept_and_not_answered(peer: Any, make_queue: MakeQueue) -> None:
    queue = make_queue()
    handle = peer.attach(queue, sends=True)
    peer.transfer(handle, amqp.encode_message(body=b"sure"), settled=True)
    assert peer.silent(QUIET)
    peer.credit(peer.attach(queue, sends=False), 1)
    assert peer.texts(1) == [b"sure"]


# --------------------------------------------------------------------------- settling


def test_every_outcome_is_echoed_and_settled(
    peer: Any, make_queue: MakeQueue, admin: ServiceBusAdministrationClient
) -> None:
    queue = make_queue()
    peer.fill(queue, b"0", b"1", b"2", b"3", b"4")
    receiver = peer.attach(queue, sends=False)
    peer.credit(receiver, 5)
    found = peer.deliveries(5)
    outcomes = [
        amqp.Accepted(),
        amqp.Released(),
        amqp.Modified(delivery_failed=True),
        amqp.Modified(undeliverable_here=True, annotations={"mine": 1}),
        amqp.Rejected(amqp.AmqpError("com.microsoft:dead-letter", "", {"DeadLetterReason": "r"})),
    ]
    for (number, _), outcome in zip(found, outcomes, strict=True):
        peer.settle(number, outcome)
        answer = peer.expect(p.DispositionFrame)
        assert (answer.first, answer.settled, answer.role) == (number, True, p.SENDER)
        # An error in it would read as a refusal.
        assert answer.state == (amqp.Rejected() if isinstance(outcome, amqp.Rejected) else outcome)
    counts = admin.get_queue_runtime_properties(queue)
    assert (counts.active_message_count, counts.dead_letter_message_count, counts.total_message_count) == (2, 1, 4)
    peer.credit(receiver, 2, seen=5)
    for count in (0, 1):
        # What was released was not counted as a delivery.
        peer.expect(p.TransferFrame)
        sections = amqp.split_message(peer.payload)
        assert sections.header is not None
        assert sections.header.delivery_count == count


def test_many_are_settled_at_once(peer: Any, make_queue: MakeQueue, admin: ServiceBusAdministrationClient) -> None:
    queue = make_queue()
    peer.fill(queue, *(b"x" for _ in range(20)))
    peer.credit(peer.attach(queue, sends=False), 20)
    numbers = [number for number, _ in peer.deliveries(20)]
    peer.frame(p.DispositionFrame(p.RECEIVER, numbers[0], last=numbers[-1], settled=True, state=amqp.Accepted()))
    peer.frame(p.Flow(None, 1, 1, 1, echo=True))
    peer.expect(p.Flow)
    assert admin.get_queue_runtime_properties(queue).total_message_count == 0


def test_a_state_that_is_no_outcome_settles_nothing(peer: Any, make_queue: MakeQueue) -> None:
    queue = make_queue()
    peer.fill(queue, b"x")
    peer.credit(peer.attach(queue, sends=False), 1)
    ((number, _),) = peer.deliveries(1)
    peer.settle(number, amqp.Received(0, 0))
    assert peer.silent(QUIET)
    peer.settle(number, amqp.Accepted())
    assert peer.outcome() == amqp.Accepted()


def test_settling_under_a_lost_lock_is_rejected(
    peer: Any, make_queue: MakeQueue, lock_longer: Callable[[str], None]
) -> None:
    queue = make_queue(lock_duration=timedelta(seconds=LOCK))
    peer.fill(queue, b"x")
    receiver = peer.attach(queue, sends=False)
    peer.credit(receiver, 1)
    ((number, token),) = peer.deliveries(1)
    time.sleep(LOCK + 0.05)
    peer.settle(number, amqp.Accepted())
    assert peer.outcome().error.condition == "com.microsoft:message-lock-lost"
    # It can be had again, under another lock.
    lock_longer(queue)
    peer.credit(receiver, 2)
    ((again, other),) = peer.deliveries(1)
    assert other != token
    peer.settle(again, amqp.Accepted())
    assert peer.outcome() == amqp.Accepted()


STATUS = {"completed": (0, 0), "abandoned": (1, 0), "defered": (0, 0), "suspended": (0, 1)}


@pytest.mark.parametrize("status", STATUS)
def test_messages_are_settled_through_management(
    peer: Any, make_queue: MakeQueue, admin: ServiceBusAdministrationClient, status: str
) -> None:
    queue = make_queue()
    peer.fill(queue, b"x")
    peer.credit(peer.attach(queue, sends=False), 1)
    ((_, token),) = peer.deliveries(1)
    node = peer.node(f"{queue}/$management")
    request = {"disposition-status": status, "lock-tokens": amqp.Array([token], UUID)}
    arguments, _ = node.ask(request, operation="com.microsoft:update-disposition")
    assert arguments["statusCode"] == 200
    counts = admin.get_queue_runtime_properties(queue)
    assert (counts.active_message_count, counts.dead_letter_message_count) == STATUS[status]
    arguments, _ = node.ask(request, operation="com.microsoft:update-disposition")
    assert (arguments["statusCode"], arguments["errorCondition"]) == (410, "com.microsoft:message-lock-lost")


def test_a_lock_outlives_its_link_until_it_runs_out(peer: Any, make_queue: MakeQueue) -> None:
    queue = make_queue(lock_duration=timedelta(seconds=LOCK))
    peer.fill(queue, b"x")
    first = peer.attach(queue, sends=False)
    before = time.monotonic()
    peer.credit(first, 1)
    peer.deliveries(1)
    peer.frame(p.Detach(first, closed=True))
    peer.expect(p.Detach)
    peer.credit(peer.attach(queue, sends=False), 1)
    assert peer.texts(1) == [b"x"]
    assert time.monotonic() - before > 0.9 * LOCK


# --------------------------------------------------------------------------- sessions


def test_a_session_link_says_which_session_it_got_and_until_when(peer: Any, make_queue: MakeQueue) -> None:
    queue = make_queue(requires_session=True)
    peer.fill(queue, b"1", session_id="a")
    before = time.time()
    peer.attach(queue, sends=False, session=None)
    after = time.time()
    assert peer.attached.source.filter[SESSION].value == "a"
    ticks = peer.attached.properties["com.microsoft:locked-until-utc"]
    until = (ticks - 621_355_968_000_000_000) / 10_000_000
    assert before - 0.01 < until - 60 < after + 0.01


@pytest.mark.parametrize("leaves", ["detach", "end", "close", "hang up", "reset"])
def test_a_vanished_client_releases_its_session(
    server: ServerProcess, dial: Dial, peer: Any, make_queue: MakeQueue, leaves: str
) -> None:
    queue = make_queue(requires_session=True)
    peer.fill(queue, b"1", session_id="s")
    holder = dial(server)
    holder.login()
    handle = holder.attach(queue, sends=False, session="s")
    holder.credit(handle, 1)
    assert holder.texts(1) == [b"1"]
    peer.attach(queue, sends=False, session="s")
    assert peer.expect(p.Detach).error.condition == "com.microsoft:session-cannot-be-locked"
    waiting = peer.attach(queue, sends=False, session=None, waits=False)
    assert peer.silent(QUIET)
    if leaves == "detach":
        holder.frame(p.Detach(handle, closed=True))
    elif leaves == "end":
        holder.frame(p.End())
    elif leaves == "close":
        holder.frame(p.Close())
    elif leaves == "hang up":
        holder.socket.close()
    else:
        server.fault({"at": "connection", "action": "drop", "times": 1})
        holder.frame(p.End())
    assert peer.expect(p.Attach).source.filter[SESSION].value == "s"
    peer.credit(waiting, 1)
    peer.expect(p.TransferFrame)
    sections = amqp.split_message(peer.payload)
    assert sections.header is not None
    assert (sections.data, sections.header.delivery_count) == ([b"1"], 0)


def test_a_session_link_is_detached_when_its_lock_runs_out(peer: Any, make_queue: MakeQueue) -> None:
    queue = make_queue(requires_session=True, lock_duration=timedelta(seconds=LOCK))
    before = time.monotonic()
    peer.attach(queue, sends=False, session="empty")
    detached = peer.expect(p.Detach)
    assert detached.error.condition == "com.microsoft:session-lock-lost"
    assert time.monotonic() - before > 0.9 * LOCK


def test_waiting_for_a_session_ends_when_the_client_said(peer: Any, make_queue: MakeQueue) -> None:
    queue = make_queue(requires_session=True)
    options = {"com.microsoft:timeout": amqp.UInt(200)}
    properties = {amqp.Symbol(name): value for name, value in options.items()}
    before = time.monotonic()
    peer.attach(queue, sends=False, session=None, properties=properties)
    assert peer.attached.source is None
    assert peer.expect(p.Detach).error.condition == "com.microsoft:timeout"
    assert time.monotonic() - before > 0.18


def test_a_session_is_managed_only_by_who_holds_it(
    server: ServerProcess, dial: Dial, peer: Any, make_queue: MakeQueue
) -> None:
    queue = make_queue(requires_session=True)
    holder = dial(server)
    holder.login()
    holder.attach(queue, sends=False, session="s")
    for client, status in ((holder, 200), (peer, 410)):
        node = client.node(f"{queue}/$management")
        for operation in ("renew-session-lock", "get-session-state", "set-session-state"):
            request = {"session-id": "s", "session-state": b"x"}
            assert node.ask(request, operation=f"com.microsoft:{operation}")[0]["statusCode"] == status
