"""Sends: SPEC 3, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest

from pairmq import (
    BacklogUnavailable,
    Entity,
    EntityNotFound,
    Message,
    MessageTooLarge,
    PrimaryUnavailable,
    Receipt,
    ReservedPropertyError,
    Route,
    SendError,
    SendRefused,
    SendUnknown,
    Unauthorized,
)
from pairmq import testing as simulated
from pairmq.model import EntityState
from pairmq.model.events import AttemptFailed, SendCompleted, SendOutcome, Warned
from pairmq.testing import Fault, Operation, SimulatedBroker, in_virtual_time
from pairmq.transport import Capabilities

FAULTS = [None, *Fault]
SETTINGS = [(interval, while_failing) for interval in (0, 2, 60) for while_failing in ("wait", "raise")]


def pairs_of_faults() -> list[Any]:
    """Each two faults with two of the settings, so that each fault of either broker meets all of them."""
    pairs = [
        (one, other, one_at + other_at) for one_at, one in enumerate(FAULTS) for other_at, other in enumerate(FAULTS)
    ]
    return [(one, other, *SETTINGS[at % len(SETTINGS)]) for one, other, first in pairs for at in (first, first + 3)]


@in_virtual_time
async def test_a_healthy_send_is_a_plain_send(world):
    async with world() as w:
        receipt = await w.pair.sender("orders").send(Message(b"1"))
        assert receipt.route is Route.PRIMARY
        assert (receipt.attempts, receipt.maybe_duplicate, receipt.backlog_queue) == (1, False, None)
        assert w.east.messages("orders")[0].message_id == receipt.message_id
        assert w.east.operations == {"SEND": 1}


@in_virtual_time
async def test_a_message_id_of_the_callers_is_kept(world):
    async with world() as w:
        receipt = await w.pair.sender("orders").send(Message(b"1", message_id="mine"))
        assert receipt.message_id == "mine"


@pytest.mark.parametrize(("primary", "secondary", "interval", "while_failing"), pairs_of_faults())
@in_virtual_time
async def test_every_send_ends_by_its_deadline_with_a_correct_outcome(
    world, primary, secondary, interval, while_failing
):
    """Whatever both brokers do: no send hangs, none is called refused that was accepted, none accepted that was not."""
    async with world(failover_interval=interval, while_failing=while_failing) as w:
        sender = w.pair.sender("orders")
        if primary:
            w.east.fail(primary, delay=0.3)
        if secondary:
            w.west.fail(secondary, delay=0.3)
        loop = asyncio.get_running_loop()
        for number in range(3):
            started = loop.time()
            stored = await _outcome(sender, Message(b"%d" % number, message_id=str(number)), 6.0)
            assert loop.time() - started <= 6.25
            w.east.heal(), w.west.heal()
            copies = [m for m in (*w.east.messages("orders"), *w.backlog()) if m.message_id == str(number)]
            if stored is not None:
                assert bool(copies) == stored, (stored, copies)
            if primary:
                w.east.fail(primary, delay=0.3)
            if secondary:
                w.west.fail(secondary, delay=0.3)


async def _outcome(sender, message: Message, timeout: float) -> bool | None:
    """Whether a send was accepted; None if it said that it does not know."""
    try:
        await sender.send(message, timeout=timeout)
    except SendUnknown:
        return None
    except SendRefused:
        return False
    return True


@in_virtual_time
async def test_a_lost_confirmation_marks_the_copy(world):
    async with world(failover_interval=0) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.CONFIRM_LOST, Operation.SEND)
        receipt = await sender.send(Message(b"1"))
        assert (receipt.route, receipt.maybe_duplicate, receipt.attempts) == (Route.BACKLOG, True, 2)
        assert w.backlog()[0].application_properties["x-pairmq-maybe-duplicate"] == "true"


@in_virtual_time
async def test_a_certain_failure_marks_nothing(world):
    async with world(failover_interval=0) as w:
        w.east.fail(Fault.DOWN)
        receipt = await w.pair.sender("orders").send(Message(b"1"))
        assert (receipt.route, receipt.maybe_duplicate) == (Route.BACKLOG, False)


@in_virtual_time
async def test_a_transient_failure_is_retried_inside_the_send(world):
    async with world() as w:
        w.east.fail(Fault.TRANSIENT, Operation.SEND, times=3)
        receipt = await w.pair.sender("orders").send(Message(b"1"))
        assert (receipt.route, receipt.attempts) == (Route.PRIMARY, 4)
        assert w.pair.state("orders") is EntityState.HEALTHY


@in_virtual_time
async def test_a_transient_failure_that_outlives_its_retries_counts_toward_failover(world):
    async with world(failover_interval=0) as w:
        w.east.fail(Fault.TRANSIENT, Operation.SEND)
        receipt = await w.pair.sender("orders").send(Message(b"1"))
        assert (receipt.route, receipt.attempts) == (Route.BACKLOG, 5)


@in_virtual_time
async def test_throttling_is_waited_out_and_never_diverted(world):
    async with world(failover_interval=0) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.BUSY, Operation.SEND, times=5)
        assert (await sender.send(Message(b"1"))).route is Route.PRIMARY
        w.east.fail(Fault.BUSY, Operation.SEND)
        with pytest.raises(PrimaryUnavailable, match="too many requests"):
            await sender.send(Message(b"2"))
        assert w.backlog() == []


@pytest.mark.parametrize("interval", [0, 2])
@in_virtual_time
async def test_nothing_is_diverted_while_sends_are_throttled_until_deadlines_that_cut_their_last_attempts_short(
    world, interval
):
    async with world(failover_interval=interval, send_timeout=5.0) as w:
        sender = w.pair.sender("orders")
        w.east.latency = 0.4
        w.east.fail(Fault.BUSY, Operation.SEND)
        sends = []
        for _ in range(300):
            sends.append(asyncio.create_task(sender.send(Message(b"1"))))
            await asyncio.sleep(0.1)
        results = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(result, SendError) for result in results)
        assert w.backlog() == []
        assert w.pair.state("orders") is EntityState.HEALTHY


@in_virtual_time
async def test_a_failing_entity_that_throttles_responds_and_is_not_failed_over(world):
    async with world(failover_interval=2) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.LOST_BEFORE, Operation.SEND, times=1)
        w.east.fail(Fault.BUSY, Operation.SEND)
        with pytest.raises(SendError, match="too many requests"):
            await sender.send(Message(b"1"))
        assert w.pair.state("orders") is EntityState.HEALTHY
        assert w.backlog() == []


@in_virtual_time
async def test_throttling_diverts_with_failover_on_busy(world):
    async with world(failover_interval=0, failover_on_busy=True) as w:
        w.east.fail(Fault.BUSY, Operation.SEND)
        assert (await w.pair.sender("orders").send(Message(b"1"))).route is Route.BACKLOG


@pytest.mark.parametrize(("fault", "error"), [(Fault.REFUSE, EntityNotFound), (Fault.UNAUTHORIZED, Unauthorized)])
@in_virtual_time
async def test_a_refusal_is_raised_and_never_diverted(world, fault, error):
    async with world(failover_interval=0) as w:
        w.east.fail(fault)
        with pytest.raises(error):
            await w.pair.sender("orders").send(Message(b"1"))
        assert w.pair.state("orders") is EntityState.HEALTHY
        assert w.backlog() == []


@in_virtual_time
async def test_raise_gives_the_failure_to_the_caller_at_once(world):
    async with world(while_failing="raise") as w:
        loop = asyncio.get_running_loop()
        w.east.fail(Fault.DOWN)
        started = loop.time()
        with pytest.raises(PrimaryUnavailable, match="connection refused") as caught:
            await w.pair.sender("orders").send(Message(b"1"))
        assert loop.time() - started < 0.1
        assert caught.value.causes
        assert w.pair.state("orders") is EntityState.FAILING


@in_virtual_time
async def test_raise_says_unknown_when_the_primary_may_have_taken_it(world):
    async with world(while_failing="raise") as w:
        w.east.fail(Fault.CONFIRM_LOST, Operation.SEND)
        with pytest.raises(SendUnknown):
            await w.pair.sender("orders").send(Message(b"1"))
        assert w.home() == [b"1"]


@in_virtual_time
async def test_a_failure_that_is_remembered_keeps_no_message(world):
    async with world(while_failing="raise", failover_interval=60) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        for path in ("orders", "prices"):
            if path == "prices":
                w.pair.hold(path)
            with contextlib.suppress(PrimaryUnavailable, BacklogUnavailable):
                await w.pair.sender(path).send(Message(b"remembered", message_id=path))
        gc.collect()
        held = [one.message_id for one in gc.get_objects() if type(one) is Message and one.body == b"remembered"]
        assert held == []


@in_virtual_time
async def test_a_send_reports_no_failure_that_was_over_before_it(world):
    async with world(ordering="session", failover_interval=60, attempt_timeout=5.0) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN)
        with pytest.raises(PrimaryUnavailable, match="connection refused"):
            await sender.send(Message(b"1"), timeout=1)
        w.east.heal()
        await sender.send(Message(b"2"))
        w.east.fail(Fault.SLOW, Operation.SEND, delay=2)
        first = asyncio.create_task(sender.send(Message(b"3")))
        await asyncio.sleep(0)
        with pytest.raises(PrimaryUnavailable, match="earlier sends") as caught:
            await sender.send(Message(b"4"), timeout=1)  # in line behind it, and never tried
        assert caught.value.causes == ()
        await first


@in_virtual_time
async def test_a_send_reports_no_failure_of_a_backlog_that_was_over_before_it(world):
    async with world(failover_interval=0, backlog_retry_interval=10, backlog_queue_count=1) as w:
        sender = w.pair.sender("orders")
        w.pair.hold("orders")
        w.west.fail(Fault.DOWN)
        with pytest.raises(BacklogUnavailable, match="connection refused"):
            await sender.send(Message(b"x"))
        w.west.heal()
        await asyncio.sleep(11)
        w.west.fail(Fault.BUSY, Operation.SEND)  # the only queue: it is waited for
        with pytest.raises(BacklogUnavailable) as caught:
            await sender.send(Message(b"x"))
        assert {str(cause) for cause in caught.value.causes} == {"too many requests"}


@in_virtual_time
async def test_a_refusal_after_a_lost_confirmation_is_unknown(world):
    async with world() as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.CONFIRM_LOST, Operation.SEND, times=1)
        w.east.fail(Fault.REFUSE, Operation.SEND)
        with pytest.raises(SendUnknown, match="may have been accepted"):
            await sender.send(Message(b"1"))


@in_virtual_time
async def test_an_error_that_no_transport_should_raise_counts_as_unavailable(world):
    async with world(failover_interval=0) as w:
        w.east.fail(Fault.BUG, Operation.SEND)
        receipt = await w.pair.sender("orders").send(Message(b"1"))
        assert (receipt.route, receipt.maybe_duplicate) == (Route.BACKLOG, True)
        assert "unexpected RuntimeError" in w.of(AttemptFailed)[0].error


@in_virtual_time
async def test_a_cancelled_send_is_unknown_and_leaves_the_state_alone(world):
    """A send that is cancelled is never reported as not sent, and never diverted by itself."""
    async with world(failover_interval=0) as w:
        w.east.fail(Fault.HANG)
        task = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert w.pair.state("orders") is EntityState.HEALTHY
        assert w.pair.in_flight == 0
        assert [event.outcome for event in w.of(SendCompleted)] == [SendOutcome.UNKNOWN]
        assert w.backlog() == []


@in_virtual_time
async def test_a_cancelled_send_to_the_primary_is_no_longer_in_flight(world):
    async with world() as w:
        w.east.fail(Fault.HANG, Operation.SEND)
        task = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(0.5)
        machine = w.pair._engine.runner(w.pair._entity("orders", "queue")).machine
        assert machine.sending == 1
        task.cancel()
        await asyncio.wait((task,))
        assert machine.sending == 0


@in_virtual_time
async def test_a_cancelled_diverted_send_is_no_longer_in_flight(world):
    async with world() as w:
        w.pair.force_failover("orders")
        w.west.fail(Fault.HANG, Operation.SEND)
        task = asyncio.create_task(w.pair.sender("orders").send(Message(b"1")))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait((task,))
        assert w.pair._engine.runner(w.pair._entity("orders", "queue")).machine.diverting == 0


@in_virtual_time
async def test_a_batch_with_too_few_results_leaves_no_attempt_in_flight(world, monkeypatch):
    async def forgetful(self, messages):
        return [None]

    async with world() as w:
        sender = w.pair.sender("orders")
        monkeypatch.setattr(simulated.SimulatedSender, "send_batch", forgetful)
        with pytest.raises(ValueError, match="1 results for 2 messages"):
            await sender.send_batch([Message(b"1"), Message(b"2")])
        assert w.pair._engine.runner(Entity("orders")).machine.sending == 0


@in_virtual_time
async def test_an_alias_as_own_property_is_refused_also_while_healthy(world):
    async with world() as w:
        with pytest.raises(ReservedPropertyError, match="x-ms-path"):
            await w.pair.sender("orders").send(Message(b"1", application_properties={"x-ms-path": "elsewhere"}))
        assert w.home() == []
        assert w.east.operations == {}


@in_virtual_time
async def test_a_message_whose_backlog_form_is_too_large_is_refused_before_it_is_accepted_anywhere(world):
    small = SimulatedBroker("west", capabilities=Capabilities(max_message_bytes=1000, lock_renewal=True, probes=True))
    async with world(west=small) as w:
        sender = w.pair.sender("orders")
        assert (await sender.send(Message(b"x" * 990))).route is Route.PRIMARY
        warnings = [event.text for event in w.of(Warned) if event.subject == "orders"]
        assert "it would be refused in an outage" in warnings[0]
        w.pair.force_failover("orders")
        with pytest.raises(MessageTooLarge, match=r"the backlog can't hold it: .* takes at most 1000"):
            await sender.send(Message(b"x" * 990))
        assert w.backlog() == []
        assert (await sender.send(Message(b"x" * 100))).route is Route.BACKLOG


@in_virtual_time
async def test_a_batch_says_what_became_of_each_message(world):
    async with world() as w:
        messages = [
            Message(b"ok", message_id="ok"),
            Message(b"bad", message_id="bad", application_properties={"x-ms-path": "x"}),
            Message(b"x" * (1 << 20) + b"x", message_id="large"),
        ]
        receipt, reserved, large = await w.pair.sender("orders").send_batch(messages)
        assert isinstance(receipt, Receipt)
        assert isinstance(reserved, ReservedPropertyError)
        assert isinstance(large, MessageTooLarge)


@in_virtual_time
async def test_a_batch_that_fails_over_in_its_middle_loses_nothing(world):
    async with world(failover_interval=1) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.DOWN)
        results = await sender.send_batch([Message(b"%d" % n) for n in range(1200)])
        assert all(isinstance(result, Receipt) and result.route is Route.BACKLOG for result in results)
        assert len(w.backlog()) == 1200


@pytest.mark.parametrize(("delay", "at_once"), [(0.3, 8), (0.01, 1)])
@in_virtual_time
async def test_a_batch_takes_few_round_trips_to_a_broker_that_is_far(world, monkeypatch, delay, at_once):
    """It was as slow as its round trips, one for each 500 messages."""
    begun, now, most = [], 0, 0
    send_batch = simulated.SimulatedSender.send_batch

    async def counted(self, messages):
        nonlocal now, most
        begun.extend(message.body for message in messages)
        now += 1
        most = max(most, now)
        try:
            return await send_batch(self, messages)
        finally:
            now -= 1

    monkeypatch.setattr(simulated.SimulatedSender, "send_batch", counted)
    async with world() as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.SLOW, Operation.SEND, delay=delay)
        await sender.send(Message(b""))  # shows the distance
        began = asyncio.get_running_loop().time()
        results = await sender.send_batch([Message(b"%d" % n, message_id=str(n)) for n in range(4000)])
        assert [result.message_id for result in results] == [str(n) for n in range(4000)]
        assert asyncio.get_running_loop().time() - began == pytest.approx(delay * 8 / at_once, abs=0.02)
    assert begun == [b"%d" % n for n in range(4000)]
    assert most == at_once


@in_virtual_time
async def test_a_batch_that_is_cancelled_as_it_ends_has_its_results(world):
    """An event said that its messages were refused, and its caller knew only that it had been cancelled."""
    async with world() as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.3)
        await sender.send(Message(b""))  # shows the distance
        results = []

        async def send():
            results.extend(await sender.send_batch([Message(b"1"), Message(b"2")]))

        sending = asyncio.create_task(send())
        w.pair.subscribe(lambda event: sending.cancel() if isinstance(event, SendCompleted) else None)
        await asyncio.wait([sending])
        assert [result.route for result in results] == [Route.PRIMARY] * 2


@in_virtual_time
async def test_a_batch_that_is_cancelled_leaves_nothing_in_flight(world):
    async with world() as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.3)
        await sender.send(Message(b""))
        w.east.heal()
        w.east.fail(Fault.HANG, Operation.SEND)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await sender.send_batch([Message(b"%d" % n) for n in range(4000)])
        assert w.pair._engine.sends.in_flight == 0


@in_virtual_time
async def test_where_an_order_is_kept_a_batch_has_as_many_sends_under_way_as_ever(world, monkeypatch):
    now = most = 0
    send = simulated.SimulatedSender.send

    async def counted(self, message):
        nonlocal now, most
        now += 1
        most = max(most, now)
        try:
            await send(self, message)
        finally:
            now -= 1

    monkeypatch.setattr(simulated.SimulatedSender, "send", counted)
    async with world(ordering="session") as w:
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.3)
        sender = w.pair.sender("orders")
        await sender.send(Message(b"", session_id="s"))
        await sender.send_batch([Message(b"", session_id=str(number)) for number in range(1200)])
    assert most == 500


@in_virtual_time
async def test_the_first_operation_of_a_batch_shows_how_far_the_broker_is(world):
    async with world() as w:
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.3)
        began = asyncio.get_running_loop().time()
        await w.pair.sender("orders").send_batch([Message(b"%d" % n) for n in range(4500)])
        assert asyncio.get_running_loop().time() - began < 0.7
        assert len(w.home()) == 4500


@in_virtual_time
async def test_receipts_of_a_stream_come_in_the_order_of_the_source(world):
    async with world() as w:
        sender = w.pair.sender("orders")
        ids = [str(n) for n in range(3000)]
        received = [r.message_id async for r in sender.send_stream(Message(b"", message_id=i) for i in ids)]
        assert received == ids


@in_virtual_time
async def test_a_stream_reads_no_further_than_its_window(world):
    async with world() as w:
        read = 0

        async def source():
            nonlocal read
            for _ in range(100):
                read += 1
                yield Message(b"x")

        w.east.fail(Fault.HANG, Operation.SEND)
        stream = w.pair.sender("orders").send_stream(source(), window=8)
        task = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.5)
        # The window, one chunk that waits for its turn, and what the source's reader has at hand.
        assert read <= 8 + 2 + 3
        task.cancel()
        await asyncio.wait((task,))
        await stream.aclose()


@in_virtual_time
async def test_a_slow_source_gets_each_receipt_at_once(world):
    async with world() as w:
        loop = asyncio.get_running_loop()
        sent_at = []

        async def source():
            for _ in range(3):
                await asyncio.sleep(10)
                sent_at.append(loop.time())
                yield Message(b"x")

        seen_at = [loop.time() async for _ in w.pair.sender("orders").send_stream(source())]
        assert all(seen - sent < 0.1 for seen, sent in zip(seen_at, sent_at, strict=True))


class Narrow:
    """A link to a broker that takes 10 MB/s, of all operations together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.operations: list[int] = []
        self._link = asyncio.Lock()
        send_batch = simulated.SimulatedSender.send_batch

        async def crawl(sender, messages):
            taken = sum(len(message.body) for message in messages)
            self.operations.append(taken)
            results = await send_batch(sender, messages)  # the broker has stored them when it confirms the last byte
            async with self._link:
                await asyncio.sleep(taken / 10e6)
            return results

        monkeypatch.setattr(simulated.SimulatedSender, "send_batch", crawl)


@in_virtual_time
async def test_a_batch_of_large_messages_over_a_narrow_and_long_link_is_no_outage(world, monkeypatch):
    link = Narrow(monkeypatch)
    async with world(attempt_timeout=2.0, failover_interval=0.0) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.SLOW, Operation.SEND, delay=0.3)
        await sender.send(Message(b""))
        results = await sender.send_batch([Message(bytes(500_000)) for _ in range(60)])
        assert {result.route for result in results} == {Route.PRIMARY}
    assert max(link.operations) == 1_000_000  # of which each takes a tenth of a second


@pytest.mark.parametrize("asynchronous", [False, True])
@in_virtual_time
async def test_a_stream_of_large_messages_over_a_narrow_link_is_no_outage(world, monkeypatch, asynchronous):
    link = Narrow(monkeypatch)
    messages = [Message(bytes(500_000), message_id=str(n)) for n in range(300)]  # all of them take 15 s

    async def source():
        for message in messages:
            yield message

    async with world(attempt_timeout=10.0, failover_interval=10.0, send_timeout=60.0) as w:
        stream = w.pair.sender("orders").send_stream(source() if asynchronous else messages)
        results = [result async for result in stream]
        assert [result for result in results if isinstance(result, SendError) or result.maybe_duplicate] == []
        assert w.pair.state("orders") is EntityState.HEALTHY
        assert len(w.home()) == 300
    assert max(link.operations) < (1 << 20) + 500_000  # a chunk ends with the message that fills it


@in_virtual_time
async def test_a_stream_has_a_bounded_number_of_bytes_on_the_way(world):
    async with world(attempt_timeout=30.0, send_timeout=60.0) as w:
        w.east.fail(Fault.HANG, Operation.SEND)
        read = 0

        def source():
            nonlocal read
            for _ in range(100):
                read += 1
                yield Message(bytes(1 << 19))

        stream = w.pair.sender("orders").send_stream(source())
        task = asyncio.create_task(anext(stream))
        await asyncio.sleep(1)
        assert read == 10  # 4 MiB, and one chunk that waits for its turn
        w.east.heal()
        await task
        assert len([result async for result in stream]) == 99


@in_virtual_time
async def test_a_message_larger_than_all_the_room_goes_alone(world):
    large = SimulatedBroker(
        "east", capabilities=Capabilities(max_message_bytes=1 << 24, lock_renewal=True, probes=True)
    )
    async with world(east=large) as w:
        messages = [Message(bytes(size)) for size in (5, 5 << 20, 5 << 20, 5)]
        results = [result async for result in w.pair.sender("orders").send_stream(messages)]
        assert [result.route for result in results] == [Route.PRIMARY] * 4


@pytest.mark.parametrize("asynchronous", [False, True])
@in_virtual_time
async def test_a_stream_sends_what_came_before_something_that_is_no_message(world, asynchronous):
    things = [Message(b"1"), Message(b"2"), b"3"]

    async def source():
        for thing in things:
            yield thing

    async with world() as w:
        results = []

        async def collect():
            async for result in w.pair.sender("orders").send_stream(source() if asynchronous else things):
                results.append(result)

        with pytest.raises(TypeError, match="make a Message of it"):
            await collect()
        assert len(results) == len(w.home()) == 2


@in_virtual_time
async def test_what_the_source_raises_comes_after_the_receipts(world):
    async with world() as w:

        def source():
            yield Message(b"1")
            raise RuntimeError("end of file is torn")

        stream = w.pair.sender("orders").send_stream(source(), window=1)
        assert isinstance(await anext(stream), Receipt)
        with pytest.raises(RuntimeError, match="torn"):
            await anext(stream)


@in_virtual_time
async def test_sends_over_the_limit_wait_their_turn_inside_their_own_deadline(world):
    async with world(max_pending_sends=2) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.HANG, Operation.SEND)
        first = [asyncio.create_task(sender.send(Message(b"x"))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(SendRefused, match="max_pending_sends"):
            await sender.send(Message(b"late"), timeout=0.5)
        w.east.heal()
        await asyncio.gather(*first)
        assert (await sender.send(Message(b"now"))).route is Route.PRIMARY


@in_virtual_time
async def test_what_waits_is_bounded_with_both_brokers_down(world):
    async with world(failover_interval=0, max_pending_sends=100) as w:
        sender = w.pair.sender("orders")
        w.east.fail(Fault.HANG)
        w.west.fail(Fault.HANG)
        results = await asyncio.gather(
            *(sender.send(Message(b"x"), timeout=5) for _ in range(500)), return_exceptions=True
        )
        assert all(isinstance(result, SendError) for result in results)
        assert w.pair.in_flight == 0


@pytest.mark.parametrize(
    "failure", [RuntimeError("observer bug"), asyncio.CancelledError()], ids=["error", "cancelled"]
)
@in_virtual_time
async def test_a_failing_observer_is_reported_once_and_disturbs_nothing(world, caplog, failure):
    """Nor one that raises what the future of somebody else's work gave it: the send would look cancelled."""
    async with world() as w:

        def broken(event):
            raise failure

        w.pair.subscribe(broken)
        for _ in range(3):
            await w.pair.sender("orders").send(Message(b"1"))
        assert len([r for r in caplog.records if "an observer failed" in r.message]) == 1


@in_virtual_time
async def test_a_short_send_to_a_healthy_distant_primary_is_not_diverted(world):
    """Half of its time is less than a round trip: without a measure no attempt could ever succeed."""
    async with world(east=SimulatedBroker("east", latency=0.3), failover_interval=0, attempt_timeout=10) as w:
        sender = w.pair.sender("orders")
        await sender.send(Message(b"measured"))
        receipts = [await sender.send(Message(b"1"), timeout=0.5) for _ in range(20)]
        assert {(receipt.route, receipt.attempts) for receipt in receipts} == {(Route.PRIMARY, 1)}
        assert w.of(AttemptFailed) == []


@in_virtual_time
async def test_short_sends_to_a_distant_primary_are_accepted_there_before_one_was_measured(world):
    async with world(east=SimulatedBroker("east", latency=0.3), failover_interval=10, attempt_timeout=10) as w:
        sender = w.pair.sender("orders")
        with contextlib.suppress(SendError):
            await sender.send(Message(b"0"), timeout=0.5)
        for _ in range(10):
            assert (await sender.send(Message(b"1"), timeout=0.5)).route is Route.PRIMARY
        assert w.pair.state("orders") is EntityState.HEALTHY


@in_virtual_time
@pytest.mark.parametrize("fault", [Fault.HANG, Fault.CONFIRM_LOST, Fault.SLOW])
@pytest.mark.parametrize("timeout", [0.05, 0.3, 0.5, 0.9, 3.0])
async def test_a_short_send_to_a_distant_primary_that_fails_ends_by_its_deadline(world, fault, timeout):
    async with world(east=SimulatedBroker("east", latency=0.3), failover_interval=0, attempt_timeout=10) as w:
        sender = w.pair.sender("orders")
        await sender.send(Message(b"measured"))
        w.east.fail(fault, Operation.SEND, delay=60)
        started = asyncio.get_running_loop().time()
        with contextlib.suppress(SendError):
            await sender.send(Message(b"1"), timeout=timeout)
        assert asyncio.get_running_loop().time() <= started + timeout + 0.001
        assert (await sender.send(Message(b"2"), timeout=0.5)).route is Route.BACKLOG


@in_virtual_time
async def test_a_send_with_time_for_both_brokers_keeps_half_of_it_for_the_backlog(world):
    async with world(east=SimulatedBroker("east", latency=0.3), failover_interval=0, attempt_timeout=10) as w:
        sender = w.pair.sender("orders")
        await sender.send(Message(b"measured"))
        w.east.fail(Fault.HANG)
        receipt = await sender.send(Message(b"1"), timeout=3)
        assert receipt.route is Route.BACKLOG
        assert receipt.elapsed == pytest.approx(1.5, abs=0.1)


@in_virtual_time
async def test_a_short_diverted_send_reaches_a_distant_secondary(world):
    async with world(west=SimulatedBroker("west", latency=0.3), attempt_timeout=10) as w:
        w.pair.hold("orders")
        sender = w.pair.sender("orders")
        await sender.send(Message(b"measured"))
        for _ in range(10):
            assert (await sender.send(Message(b"1"), timeout=0.5)).attempts == 1
