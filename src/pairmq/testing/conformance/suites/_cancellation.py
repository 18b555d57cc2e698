"""Promises of a cancelled call: it returns, the object stays usable, and *nothing sent* is true."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

import pytest

from pairmq.model import Entity, Source, TransportError
from pairmq.testing.conformance._broker import (
    Broker,
    Suite,
    bodies,
    capability,
    message,
    receive_all,
    receive_one,
    refused,
    up_to,
)
from pairmq.testing.conformance._limits import limits
from pairmq.testing.conformance.suites._timing import cut_off
from pairmq.transport import is_nothing_sent

_MOMENTS = 40
"""Sends that are cut off, each a little later than the one before: the last when it is all but done."""


class Cancellation(Suite):
    """Time limits come from above as cancellation (`pairmq.transport`), against a broker that never answers."""

    async def test_a_send_is_cut_off_and_the_sender_goes_on(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        await broker.freeze()
        await cut_off(sender.send(message("in doubt")))
        await broker.restore()
        await sender.send(message("after"))
        found = await up_to(broker, queue, "after")
        assert set(found) - {"in doubt"} == {"before", "after"}

    async def test_a_batch_is_cut_off_and_the_sender_goes_on(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        await broker.freeze()
        await cut_off(_all_fail(sender.send_batch([message("in doubt") for _ in range(3)])))
        await broker.restore()
        assert list(await sender.send_batch([message("after")])) == [None]
        assert {"before", "after"} <= set(await up_to(broker, queue, "after"))

    async def test_connecting_is_cut_off_and_the_sender_goes_on(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.connect().sender(queue)
        await broker.freeze()
        await cut_off(sender.send(message("in doubt")))
        await broker.restore()
        await sender.send(message("after"))
        assert "after" in await up_to(broker, queue, "after")

    async def test_a_long_poll_is_cut_off_and_the_receiver_goes_on(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        assert await receiver.receive(1, 0) == []
        await broker.freeze()
        await cut_off(receiver.receive(1, 300.0))
        await broker.restore()
        await broker.put(queue, "after")
        assert bodies([await receive_one(receiver)]) == ["after"]

    async def test_connecting_to_receive_is_cut_off_and_the_receiver_goes_on(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.connect().receiver(Source(queue))
        await broker.freeze()
        await cut_off(receiver.receive(1, 300.0))
        await broker.restore()
        await broker.put(queue, "after")
        assert bodies([await receive_one(receiver)]) == ["after"]

    async def test_settling_is_cut_off_and_the_receiver_goes_on(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, *"ab")
        receiver = broker.receiver(queue)
        first, second = await receive_all(receiver, 2)
        await broker.freeze()
        await cut_off(receiver.complete(first))
        await cut_off(_all_fail(receiver.complete_batch([second])))
        await broker.restore()
        await broker.put(queue, "after")
        found = []
        while "after" not in found:
            found += bodies([await receive_one(receiver)])
        assert set(found) <= {"a", "b", "after"}

    async def test_abandoning_is_cut_off(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, "a")
        receiver = broker.receiver(queue)
        delivery = await receive_one(receiver)
        await broker.freeze()
        await cut_off(receiver.abandon(delivery))

    async def test_administration_is_cut_off_and_goes_on(self, broker: Broker) -> None:
        queue = await broker.queue()
        admin = broker.admin
        await broker.freeze()
        await cut_off(admin.check())
        await cut_off(admin.exists(queue))
        await cut_off(admin.create(Entity("made-in-doubt")))
        await cut_off(admin.counts(Source(queue)))
        await broker.restore()
        await admin.check()
        assert await admin.exists(queue)

    @capability("peek", disclaimed=refused(lambda broker: broker.admin.peek(Source(Entity("orders")), 1)))
    async def test_peeking_is_cut_off(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, "a")
        await broker.freeze()
        await cut_off(broker.admin.peek(Source(queue), 1))

    @capability(
        "sessions", disclaimed=refused(lambda broker: broker.transport.accept_session(Source(Entity("orders")), wait=0))
    )
    async def test_a_wait_for_a_session_is_cut_off(self, broker: Broker) -> None:
        queue = await broker.queue(requires_session=True)
        await broker.freeze()
        await cut_off(broker.transport.accept_session(Source(queue), wait=300.0))
        await broker.restore()
        await broker.put(queue, "a1", session_id="a")
        receiver = await broker.transport.accept_session(Source(queue), wait=limits().patience)
        assert receiver is not None and receiver.session_id == "a"

    async def test_a_cancellation_is_not_swallowed(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        polling = asyncio.ensure_future(receiver.receive(1, 300.0))
        await asyncio.sleep(0.3)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(limits().patience):
                await polling

    async def test_a_cancelled_send_takes_no_other_with_it(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.sender(queue)
        sends = [asyncio.ensure_future(sender.send(message(str(number)))) for number in range(20)]
        await asyncio.sleep(0)
        for cancelled in sends[::5]:
            cancelled.cancel()
        ends = await asyncio.gather(*sends, return_exceptions=True)
        sound = [str(number) for number in range(20) if number % 5]
        assert [end for number, end in enumerate(ends) if number % 5] == [None] * 16
        found = await up_to(broker, queue, None, least=16)
        assert set(sound) <= set(found)

    async def test_what_says_that_nothing_was_sent_never_arrives(self, broker: Broker) -> None:
        queue = await broker.queue()
        used, fresh = broker.sender(queue), broker.connect().sender(queue)
        await used.send(message("before"))
        await broker.freeze()
        timeouts = {
            "connected": await cut_off(used.send(message("connected"))),
            "connecting": await cut_off(fresh.send(message("connecting"))),
        }
        await broker.restore()
        await broker.put(queue, "after")
        found = await up_to(broker, queue, "after")
        lies = [body for body, timeout in timeouts.items() if timeout and is_nothing_sent(timeout) and body in found]
        assert not lies, "marked as not sent, and there all the same"

    async def test_sends_cut_off_at_any_moment_report_a_correct_outcome(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        began = asyncio.get_running_loop().time()
        await sender.send(message("to see how long it takes"))
        took = min(asyncio.get_running_loop().time() - began, 0.25)
        marked = set()
        for number in range(_MOMENTS):
            sending = asyncio.ensure_future(sender.send(message(str(number))))
            await asyncio.sleep(took * number / _MOMENTS)
            sending.cancel()
            try:
                await sending
            except asyncio.CancelledError as cancellation:
                if is_nothing_sent(cancellation):
                    marked.add(str(number))
        await sender.send(message("after"))
        found = await up_to(broker, queue, "after")
        assert not marked & set(found), "marked as not sent, and there all the same"

    async def test_a_send_cut_off_while_connecting_leaves_no_doubt(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender = broker.connect().sender(queue)
        await broker.freeze()
        timeout = await cut_off(sender.send(message("connecting")))
        await broker.restore()
        await broker.put(queue, "after")
        if "connecting" not in await up_to(broker, queue, "after"):
            # It was not written: a transport that knows this has to report it, or each outage ends in duplicates.
            assert timeout is None or is_nothing_sent(timeout), (
                "nothing was sent, but the error does not have nothing_sent"
            )


async def _all_fail(batch: Awaitable[Sequence[TransportError | None]]) -> None:
    """Raise the failures of a batch, as a single call does."""
    for error in await batch:
        if error:
            raise error
