"""Iterating over first deliveries, and stores and brokers that are unavailable."""

from __future__ import annotations

import asyncio

import pytest

from pairmq import Deduplicator, LockLost, MemoryClaims
from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.testing import Fault, Operation, in_virtual_time
from received_orders import orders

# Iterating.


@in_virtual_time
async def test_iterating_gives_first_deliveries_only():
    async with orders("a", "b", "a", "b", "c") as (it, receiver):
        found = []
        async for delivery in Deduplicator().first_only(receiver):
            found.append(delivery.message.message_id)
            await delivery.complete()
            if found[-1] == "c":
                break
        assert found == ["a", "b", "c"]
        assert it.delivered("orders") == []


@in_virtual_time
async def test_an_abandoned_delivery_is_redelivered_in_the_iteration():
    async with orders("a") as (_, receiver):
        found = []
        async for delivery in Deduplicator().first_only(receiver):
            found.append(delivery.delivery.delivery.delivery_count)
            if len(found) == 2:
                await delivery.complete()
                break
            await delivery.abandon()
        assert found == [1, 2]


@in_virtual_time
async def test_a_dead_lettered_delivery_is_remembered():
    async with orders("a", "a", "b") as (_, receiver):
        async for delivery in Deduplicator().first_only(receiver):
            if delivery.message.message_id == "b":
                break
            await delivery.dead_letter("bad")
        assert delivery.body == b"2"


@in_virtual_time
async def test_renewing_a_delivery_renews_its_lease_and_reports_when_that_is_lost():
    async with orders("a") as (_, receiver):
        dedupe = Deduplicator(lease=20)
        async for delivery in dedupe.first_only(receiver):
            await asyncio.sleep(15)
            await delivery.renew_lock()
            await asyncio.sleep(15)
            await delivery.renew_lock()
            await asyncio.sleep(25)
            with pytest.raises(LockLost, match="claim on message a"):
                await delivery.renew_lock()
            break


@in_virtual_time
async def test_a_copy_of_what_this_consumer_holds_waits_until_that_is_settled():
    async with orders("a", "a", "b") as (it, receiver):
        firsts = Deduplicator(lease=60).first_only(receiver)
        held = await anext(firsts)
        following = asyncio.ensure_future(anext(firsts))
        await asyncio.sleep(30)
        assert not following.done(), "neither the copy nor what comes behind it"
        await held.complete()
        assert (await following).body == b"2"
        assert [delivery.body for delivery in it.delivered("orders")] == [b"2"]


@in_virtual_time
async def test_a_copy_of_what_is_held_for_longer_than_its_lease_is_given_too():
    async with orders("a", "a") as (_, receiver):
        firsts = Deduplicator(lease=60).first_only(receiver)
        assert [(await anext(firsts)).body, (await anext(firsts)).body] == [b"0", b"1"]


# A store that is unavailable.


def away(kind=FailureKind.UNAVAILABLE):
    return TransportError("the store is unavailable", kind, FailureReason.CONNECTION)


class Store(MemoryClaims):
    """Fails as often as it is told."""

    def __init__(self, **failures):
        super().__init__()
        self.failures = failures
        self.kind = FailureKind.UNAVAILABLE

    def _fail(self, call):
        if self.failures.get(call, 0) > 0:
            self.failures[call] -= 1
            raise away(self.kind)

    async def claim(self, *arguments):
        self._fail("claim")
        return await super().claim(*arguments)

    async def confirm(self, *arguments):
        self._fail("confirm")
        return await super().confirm(*arguments)

    async def release(self, *arguments):
        self._fail("release")
        return await super().release(*arguments)


@in_virtual_time
async def test_nothing_is_handled_while_it_is_unknown_whether_it_was():
    async with orders("m") as (it, receiver):
        (delivery,) = await receiver.receive()
        with pytest.raises(TransportError, match="unavailable"):
            async with Deduplicator(Store(claim=1)).once(delivery):
                pytest.fail("it was handled")
        assert len(it.delivered("orders")) == 1


@in_virtual_time
async def test_an_iteration_waits_until_the_store_is_back():
    async with orders("m") as (_, receiver):
        async for delivery in Deduplicator(Store(claim=5)).first_only(receiver):
            assert delivery.body == b"0"
            break


@in_virtual_time
async def test_a_claim_whose_answer_was_lost_is_not_waited_for():
    class Forgetful(MemoryClaims):
        lost = 0

        async def claim(self, *arguments):
            answer = await super().claim(*arguments)
            if self.lost < 2:
                self.lost += 1
                raise away()
            return answer

    async with orders("m") as (_, receiver):
        started = asyncio.get_running_loop().time()
        async for _delivery in Deduplicator(Forgetful(), lease=600).first_only(receiver):
            break
        assert asyncio.get_running_loop().time() - started < 60


@in_virtual_time
async def test_an_iteration_ends_when_the_store_refuses():
    async with orders("m") as (_, receiver):
        store = Store(claim=1)
        store.kind = FailureKind.REFUSED
        with pytest.raises(TransportError):
            await anext(Deduplicator(store).first_only(receiver))


@in_virtual_time
async def test_noting_is_tried_again():
    async with orders("m", "m") as (_, receiver):
        dedupe = Deduplicator(Store(confirm=2))
        async with dedupe.once((await receiver.receive())[0]):
            pass
        async with dedupe.once((await receiver.receive())[0]) as first:
            assert not first


@in_virtual_time
async def test_what_could_not_be_noted_is_completed_and_reported(caplog):
    """Left in the queue it would be handled again for certain."""
    async with orders("m") as (it, receiver):
        async with Deduplicator(Store(confirm=99)).once((await receiver.receive())[0]):
            pass
        assert it.delivered("orders") == []
    assert "a duplicate would be handled again" in caplog.text


@in_virtual_time
async def test_a_claim_that_cannot_be_released_hides_no_error():
    async with orders("m") as (_, receiver):
        with pytest.raises(ZeroDivisionError):
            async with Deduplicator(Store(release=99)).once((await receiver.receive())[0]):
                raise ZeroDivisionError


@in_virtual_time
async def test_a_store_that_hangs_is_given_up():
    class Hanging(MemoryClaims):
        async def claim(self, *arguments):
            await asyncio.get_running_loop().create_future()

    async with orders("m") as (_, receiver):
        with pytest.raises(TransportError, match=r"^Hanging\(\): no answer within the time limit") as caught:
            async with Deduplicator(Hanging()).once((await receiver.receive())[0]):
                pass
        assert (caught.value.kind, caught.value.reason) == (FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)


@in_virtual_time
async def test_a_broker_that_is_unavailable_at_the_end_is_no_error():
    async with orders("m") as (it, receiver):
        dedupe = Deduplicator()
        async with dedupe.once((await receiver.receive())[0]):
            it.primary.fail(Fault.DOWN, Operation.SETTLE)
        it.primary.heal()
        await asyncio.sleep(120)
        async with dedupe.once((await receiver.receive())[0]) as first:
            assert not first


# Settlements that the broker does not confirm (SPEC 12.7).

_LOCK = 120  # s: longer than the lock of the queue


async def lost_lock(it, settle):
    """Settle after the lock has ended."""
    await asyncio.sleep(_LOCK)
    with pytest.raises(LockLost):
        await settle()


async def unavailable(it, settle):
    """Settle while the broker is unavailable."""
    it.primary.fail(Fault.DOWN, Operation.SETTLE)
    with pytest.raises(TransportError):
        await settle()
    it.primary.heal()
    await asyncio.sleep(_LOCK)


async def cancelled(it, settle):
    """Settle, and be cancelled while the broker does not respond."""
    it.primary.fail(Fault.HANG, Operation.SETTLE)
    task = asyncio.ensure_future(settle())
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    it.primary.heal()
    await asyncio.sleep(_LOCK)


failures = pytest.mark.parametrize("failing", [lost_lock, unavailable, cancelled])


@failures
@in_virtual_time
async def test_a_message_that_was_not_dead_lettered_is_given_again(failing):
    async with orders("m") as (it, receiver):
        firsts = Deduplicator(lease=600).first_only(receiver)
        delivery = await anext(firsts)
        await failing(it, lambda: delivery.dead_letter("bad"))
        async with asyncio.timeout(60):
            again = await anext(firsts)
        await again.dead_letter("bad")
        assert len(it.primary.dead_letters("orders")) == 1


@failures
@in_virtual_time
async def test_a_message_that_was_not_completed_is_given_again(failing):
    """The failed completion may have undone the handler's work, as in a transaction of its own around both."""
    async with orders("m") as (it, receiver):
        firsts = Deduplicator(lease=600).first_only(receiver)
        await failing(it, (await anext(firsts)).complete)
        async with asyncio.timeout(60):
            await (await anext(firsts)).complete()
        assert it.delivered("orders") == []


@failures
@pytest.mark.parametrize("how", ["dead_letter", "complete", "abandon"])
@in_virtual_time
async def test_a_handler_that_hides_a_failed_settlement_gets_the_message_again(how, failing):
    async with orders("m") as (it, receiver):
        dedupe = Deduplicator(lease=600)
        (delivery,) = await receiver.receive()
        settle = getattr(delivery, how)
        async with dedupe.once(delivery):
            await failing(it, lambda: settle("bad") if how == "dead_letter" else settle())
        assert not delivery.settled
        async with dedupe.once((await receiver.receive())[0]) as first:
            assert first


@in_virtual_time
async def test_a_settlement_that_fails_after_another_one_was_confirmed_changes_nothing():
    """What was abandoned is redelivered, whatever is tried with it later."""
    async with orders("m", prefetch=1) as (it, receiver):
        dedupe = Deduplicator(lease=600)
        (delivery,) = await receiver.receive()
        async with dedupe.once(delivery):
            await delivery.abandon()
            with pytest.raises(LockLost):
                await delivery.complete()
        firsts = dedupe.first_only(receiver)
        async with asyncio.timeout(60):
            delivery = await anext(firsts)
        await delivery.abandon()
        with pytest.raises(LockLost):
            await delivery.complete()
        async with asyncio.timeout(60):
            await (await anext(firsts)).complete()
        assert it.delivered("orders") == []


@in_virtual_time
async def test_a_settlement_that_is_tried_again_is_remembered():
    async with orders("a", "a", "b") as (it, receiver):
        firsts = Deduplicator(lease=600).first_only(receiver)
        delivery = await anext(firsts)
        it.primary.fail(Fault.DOWN, Operation.SETTLE)
        with pytest.raises(TransportError):
            await delivery.complete()
        it.primary.heal()
        await delivery.complete()
        assert (await anext(firsts)).body == b"2"


@in_virtual_time
async def test_work_that_is_done_is_remembered_when_its_completion_is_cancelled():
    async with orders("m") as (it, receiver):
        dedupe = Deduplicator(lease=600)
        (delivery,) = await receiver.receive()

        async def handle():
            async with dedupe.once(delivery):
                it.primary.fail(Fault.HANG, Operation.SETTLE)

        await cancelled(it, handle)
        async with asyncio.timeout(60), dedupe.once((await receiver.receive())[0]) as first:
            assert not first
        assert it.delivered("orders") == []


@in_virtual_time
async def test_a_claim_lasts_until_its_delivery_is_completed():
    """A copy that is waiting would be handled while the first one is still being completed."""
    async with orders("m", "m", prefetch=2) as (it, receiver):
        dedupe, firsts = Deduplicator(lease=0.2), []
        one, two = await receiver.receive(2)

        async def handle(delivery):
            async with dedupe.once(delivery) as first:
                firsts.append(first)
                if first:
                    it.primary.fail(Fault.HANG, Operation.SETTLE)

        working = asyncio.ensure_future(handle(one))
        await asyncio.sleep(0.1)
        copy = asyncio.ensure_future(handle(two))
        await asyncio.sleep(0.8)
        assert firsts == [True], "longer than the lease, and the copy still waits"
        it.primary.heal()
        await asyncio.gather(working, copy)
        assert firsts == [True, False]


@in_virtual_time
async def test_a_copy_is_handled_again_when_a_store_fails_after_the_settlement():
    async with orders("a", "a") as (it, receiver):
        firsts = Deduplicator(Store(confirm=99), lease=30).first_only(receiver)
        await (await anext(firsts)).dead_letter("bad")
        async with asyncio.timeout(60):
            await (await anext(firsts)).complete()
        assert len(it.primary.dead_letters("orders")) == 1
        assert it.delivered("orders") == []
