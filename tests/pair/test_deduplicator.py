"""Each message handled once, as far as that can be had."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cut_calls import cancel_at_each_await
from pairmq import Deduplicator, Entity, EntityKind, MemoryClaims, Message, TransportError
from pairmq.model import Source
from pairmq.model.events import Settlement
from pairmq.testing import in_virtual_time, run_virtual, simulated_pair
from pairmq.transport import Claim
from received_orders import orders

# What happens to one delivery.


@in_virtual_time
async def test_a_message_is_handled_and_its_copy_is_completed_unseen():
    async with orders("m", "m") as (it, receiver):
        dedupe, handled = Deduplicator(), []
        for _ in range(2):
            async with dedupe.once((await receiver.receive())[0]) as first:
                if first:
                    handled.append(first)
        assert handled == [True]
        assert it.delivered("orders") == []


@in_virtual_time
async def test_a_handler_that_fails_leaves_the_message_to_be_handled_again():
    async with orders("m") as (it, receiver):
        dedupe = Deduplicator()
        (delivery,) = await receiver.receive()
        with pytest.raises(ZeroDivisionError):
            async with dedupe.once(delivery) as first:
                raise ZeroDivisionError
        assert delivery.settlement is None
        await delivery.abandon()
        (again,) = await receiver.receive()
        async with dedupe.once(again) as first:
            assert first
        assert it.delivered("orders") == []


@in_virtual_time
async def test_a_cancelled_handler_gives_its_claim_back_at_once():
    async with orders("m") as (_, receiver):
        dedupe = Deduplicator(lease=600)
        (delivery,) = await receiver.receive()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1), dedupe.once(delivery):
                await asyncio.sleep(60)
        async with asyncio.timeout(1), dedupe.once(delivery) as first:
            assert first


class SlowClaims(MemoryClaims):
    """Claims that take a while, as in a store on another machine."""

    async def confirm(self, key, token, window):
        await asyncio.sleep(0.1)
        return await super().confirm(key, token, window)

    async def release(self, key, token):
        await asyncio.sleep(0.1)
        await super().release(key, token)


@pytest.mark.parametrize("handled", [False, True])
@in_virtual_time
async def test_a_claim_ends_as_it_should_although_its_consumer_is_cancelled_at_each_await(handled):
    async with orders("m", "m") as (_, receiver):
        dedupe = Deduplicator(SlowClaims(), lease=600)
        (delivery,) = await receiver.receive()
        (copy,) = await receiver.receive()

        async def handle():
            async with dedupe.once(delivery):
                if not handled:
                    await asyncio.sleep(60)

        handling = asyncio.create_task(handle())
        await asyncio.sleep(0.05)
        await cancel_at_each_await(handling)
        async with asyncio.timeout(10), dedupe.once(copy) as first:
            assert first is not handled
        await dedupe.close()


@in_virtual_time
async def test_what_was_completed_is_remembered_although_its_consumer_is_cancelled_at_each_await():
    async with orders("m", "m", prefetch=2) as (it, receiver):
        dedupe = Deduplicator(SlowClaims(), lease=600)
        firsts = dedupe.first_only(receiver)
        delivery = await anext(firsts)
        completing = asyncio.create_task(delivery.complete())
        await asyncio.sleep(0.05)
        await cancel_at_each_await(completing)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await anext(firsts)
        assert it.delivered("orders") == []


def test_a_store_that_hangs_is_left_after_its_limit_in_a_second_event_loop_too():
    """The limit's timer was the first loop's."""

    class Hanging(MemoryClaims):
        hangs = False

        async def claim(self, key, token, lease):
            if self.hangs:
                await asyncio.sleep(1000)
            return await super().claim(key, token, lease)

    store = Hanging()
    dedupe = Deduplicator(store)

    async def handle():
        async with orders("m") as (_, receiver):
            (delivery,) = await receiver.receive()
            async with asyncio.timeout(100), dedupe.once(delivery) as first:
                assert first

    run_virtual(handle())
    store.hangs = True
    with pytest.raises(TransportError, match="time limit"):
        run_virtual(handle())


@pytest.mark.parametrize("named_alike", ["prices/audit", "orders (dead-letter)"])
@in_virtual_time
async def test_a_message_is_no_copy_of_one_from_another_source_whose_name_reads_alike(named_alike):
    """It would be completed, and never handled."""
    async with simulated_pair() as it:
        admin, dedupe = it.pair.primary.admin, Deduplicator()
        topic = Entity("prices", EntityKind.TOPIC)
        await admin.create(topic)
        await admin.create_subscription(topic, "audit")
        await admin.create(Entity(named_alike))
        if named_alike.startswith("prices"):
            await it.pair.sender("prices", kind="topic").send(Message(b"", "m"))
            other = it.pair.receiver("prices", subscription="audit")
        else:
            await it.pair.sender("orders").send(Message(b"", "m"))
            async with it.pair.receiver("orders") as receiver:
                await (await receiver.receive())[0].dead_letter("bad")
            other = it.pair.receiver("orders", dead_letter=True)
        await it.pair.sender(named_alike).send(Message(b"", "m"))
        for receiver in (other, it.pair.receiver(named_alike)):
            async with receiver, dedupe.once((await receiver.receive())[0]) as first:
                assert first


@in_virtual_time
async def test_a_handler_that_abandons_is_not_remembered():
    async with orders("m") as (_, receiver):
        dedupe = Deduplicator()
        (delivery,) = await receiver.receive()
        async with dedupe.once(delivery):
            await delivery.abandon()
        (again,) = await receiver.receive()
        async with dedupe.once(again) as first:
            assert first


@in_virtual_time
async def test_a_handler_may_dead_letter_and_its_copy_is_not_handled():
    async with orders("m", "m") as (it, receiver):
        dedupe = Deduplicator()
        (delivery,) = await receiver.receive()
        async with dedupe.once(delivery):
            await delivery.dead_letter("bad")
        (copy,) = await receiver.receive()
        async with dedupe.once(copy) as first:
            assert not first
        assert len(it.primary.dead_letters("orders")) == 1


@in_virtual_time
async def test_a_message_is_remembered_after_the_broker_confirmed_its_settlement():
    async with orders("m") as (it, receiver):
        left = []

        class Watched(MemoryClaims):
            async def confirm(self, key, token, window):
                left.append((delivery.settled, it.delivered("orders")))
                return await super().confirm(key, token, window)

        (delivery,) = await receiver.receive()
        async with Deduplicator(Watched()).once(delivery):
            pass
        assert left == [(True, [])]
        assert delivery.settlement is Settlement.COMPLETED


@in_virtual_time
async def test_a_lost_lock_is_no_error_as_the_message_is_known_when_it_is_redelivered():
    async with orders("m") as (it, receiver):
        dedupe = Deduplicator(lease=600)
        (delivery,) = await receiver.receive()
        async with dedupe.once(delivery):
            await asyncio.sleep(300)  # longer than the lock of the queue
        (again,) = await receiver.receive()
        assert again.delivery.delivery_count == 2
        async with dedupe.once(again) as first:
            assert not first
        assert it.delivered("orders") == []


@in_virtual_time
async def test_messages_without_an_id_are_all_handled():
    async with orders(None, None) as (_, receiver):
        dedupe = Deduplicator()
        for _ in range(2):
            async with dedupe.once((await receiver.receive())[0]) as first:
                assert first


@in_virtual_time
async def test_messages_of_one_id_in_two_queues_are_two_messages():
    async with simulated_pair(entities=("orders", "prices")) as it:
        dedupe = Deduplicator()
        for path in ("orders", "prices"):
            await it.pair.sender(path).send(Message(b"", message_id="m"))
            (delivery,) = await it.pair.receiver(path).receive()
            async with dedupe.once(delivery) as first:
                assert first


@in_virtual_time
async def test_two_scopes_each_handle_every_message():
    async with orders("m", "m") as (_, receiver):
        store = MemoryClaims()
        for scope in ("billing", "shipping"):
            async with Deduplicator(store, scope=scope).once((await receiver.receive())[0]) as first:
                assert first


# Two consumers.


@in_virtual_time
async def test_a_copy_waits_for_the_consumer_that_handles_the_message():
    async with orders("m", "m", prefetch=2) as (it, receiver):
        dedupe, steps = Deduplicator(), []
        one, two = await receiver.receive(2)

        async def handle(delivery, name):
            async with dedupe.once(delivery) as first:
                steps.append((name, first))
                await asyncio.sleep(10 if first else 0)
                steps.append((name, "end"))

        await asyncio.gather(handle(one, "one"), handle(two, "two"))
        assert steps == [("one", True), ("one", "end"), ("two", False), ("two", "end")]
        assert it.delivered("orders") == []


@in_virtual_time
async def test_a_waiting_copy_takes_over_from_a_handler_that_fails():
    async with orders("m", "m", prefetch=2) as (_, receiver):
        dedupe, firsts = Deduplicator(), []
        one, two = await receiver.receive(2)

        async def fail():
            async with dedupe.once(one):
                await asyncio.sleep(10)
                raise ZeroDivisionError

        async def handle():
            await asyncio.sleep(1)
            async with dedupe.once(two) as first:
                firsts.append(first)

        results = await asyncio.gather(fail(), handle(), return_exceptions=True)
        assert isinstance(results[0], ZeroDivisionError)
        assert firsts == [True]


@in_virtual_time
async def test_the_claim_of_a_consumer_that_died_ends_with_its_lease():
    async with orders("m") as (_, receiver):
        store = MemoryClaims()
        (delivery,) = await receiver.receive()
        # It claimed, and nothing was heard of it again.
        dead = Deduplicator(store, lease=30)
        assert await dead._claimed(delivery) is not None
        started = asyncio.get_running_loop().time()
        async with Deduplicator(store, lease=30).once(delivery) as first:
            assert first
        assert 29 < asyncio.get_running_loop().time() - started < 32


@in_virtual_time
async def test_a_claim_lasts_as_long_as_its_handler_works():
    async with orders("m", "m", prefetch=2) as (_, receiver):
        dedupe = Deduplicator(lease=1)
        one, two = await receiver.receive(2)
        async with dedupe.once(one):
            await asyncio.sleep(30)
            assert await dedupe._store.claim(dedupe._key(two), "another", 1) is Claim.HELD


CONSUMERS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(("ends", "fails", "dies")), st.floats(0.0, 40.0)),
    min_size=1,
    max_size=25,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CONSUMERS)
def test_no_message_is_handled_twice_to_its_end_nor_by_two_at_once(visits):
    """Each visit is a consumer with a copy of one of four messages: its handler ends, fails, or dies on the way."""

    async def run():
        dedupe = Deduplicator(MemoryClaims(), lease=10)
        inside: dict[int, int] = {}
        ended: list[int] = []

        async def visit(number, fate, delay):
            await asyncio.sleep(delay)
            delivery = _Copy(str(number))
            if fate == "dies":
                await dedupe._claimed(delivery)  # and is never heard of again
                return
            with pytest.raises(ZeroDivisionError) if fate == "fails" else _nothing():
                async with dedupe.once(delivery) as first:
                    if not first:
                        assert number in ended
                        raise ZeroDivisionError if fate == "fails" else _Seen
                    inside[number] = inside.get(number, 0) + 1
                    assert inside[number] == 1
                    await asyncio.sleep(3)
                    inside[number] -= 1
                    if fate == "fails":
                        raise ZeroDivisionError
                    ended.append(number)

        await asyncio.gather(*(visit(*each) for each in visits))
        assert sorted(ended) == sorted(set(ended))
        assert {number for number, fate, _ in visits if fate == "ends"} <= set(ended)

    run_virtual(run())


class _Seen(Exception):
    """A copy was met."""


class _nothing:  # used as a function
    def __enter__(self):
        pass

    def __exit__(self, kind, error, trace):
        return kind is _Seen


class _Copy:
    """As much of a delivery as a deduplicator asks for."""

    source = Source(Entity("orders"))

    def __init__(self, message_id):
        self.message = Message(b"", message_id=message_id)
        self.settlement = None

    async def complete(self):
        self.settlement = Settlement.COMPLETED


@pytest.mark.parametrize("wrong", [{"window": 0}, {"lease": -1}, {"window": float("nan")}])
def test_times_are_above_zero(wrong):
    with pytest.raises(ValueError, match="above 0"):
        Deduplicator(**wrong)


@in_virtual_time
async def test_a_key_reveals_nothing_of_the_message():
    async with orders("customer-4711") as (_, receiver):
        (delivery,) = await receiver.receive()
        key = Deduplicator()._key(delivery)
        assert len(key) == 40
        assert key.isascii()
        assert "4711" not in key


@in_virtual_time
async def test_a_lost_claim_is_logged(caplog):
    caplog.set_level(logging.WARNING, "pairmq")

    class Losing(MemoryClaims):
        async def renew(self, *arguments):
            return False

    async with orders("m") as (_, receiver), Deduplicator(Losing(), lease=3).once((await receiver.receive())[0]):
        await asyncio.sleep(2)
    assert "another consumer may handle the message too" in caplog.text
