"""`Pair.check`: whether a send would be accepted now, in virtual time."""

from __future__ import annotations

import asyncio
import gc

import pytest

from pairmq import ConfigurationError, Entity, EntityState, Message, PairClosed, Route
from pairmq.testing import Fault, SimulatedAdmin, in_virtual_time

HEALTHY, FAILED_OVER = EntityState.HEALTHY, EntityState.FAILED_OVER


@in_virtual_time
async def test_an_entity_that_its_primary_takes_is_ready(world):
    async with world() as w:
        readiness = await w.pair.check("orders")
        assert readiness.ready
        assert readiness.as_json() == {
            "ready": True,
            "pair": "east>west",
            "entities": [
                {
                    "entity": "orders",
                    "kind": "queue",
                    "ready": True,
                    "state": "healthy",
                    "route": "primary",
                    "reasons": [],
                }
            ],
            "reasons": [],
        }


@in_virtual_time
async def test_a_failed_over_entity_is_ready_while_the_backlog_takes_messages(world):
    async with world() as w:
        w.east.fail(Fault.DOWN)
        await w.pair.sender("orders").send(Message(b"1"))
        [found] = (await w.pair.check("orders")).entities
        assert (found.state, found.route, found.ready) == (FAILED_OVER, Route.BACKLOG, True)


@in_virtual_time
async def test_a_primary_that_fails_unnoticed_is_covered_by_the_backlog(world):
    async with world() as w:
        w.east.fail(Fault.DOWN)
        [found] = (await w.pair.check("orders")).entities
        assert (found.state, found.route) == (HEALTHY, Route.BACKLOG)
        assert found.reasons[0].startswith("primary: ")


@in_virtual_time
async def test_it_is_not_ready_when_neither_side_takes_messages_and_says_why(world):
    async with world() as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        readiness = await w.pair.check("orders")
        assert not readiness.ready
        assert [reason.split(":")[0] for reason in readiness.entities[0].reasons] == ["primary", "backlog"]


@in_virtual_time
async def test_it_is_ready_when_a_queue_that_is_out_of_use_takes_messages_as_a_send_would_try_it(world):
    async with world(backlog_retry_interval=3600) as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        await w.pair.sender("orders").send_batch([Message(b"1")])
        assert not (await w.pair.check("orders")).ready
        w.west.heal()
        assert (await w.pair.check("orders")).ready


@in_virtual_time
async def test_it_is_not_ready_when_every_backlog_queue_is_out_of_use_and_sends_do_not_wait(world):
    async with world(backlog_retry_interval=3600, failover_interval=0, while_failing="raise") as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        await w.pair.sender("orders").send_batch([Message(b"1")])
        w.west.heal()
        assert not (await w.pair.check("orders")).ready


@in_virtual_time
async def test_a_secondary_that_is_unavailable_does_not_matter_while_the_primary_is_well(world):
    async with world() as w:
        w.west.fail(Fault.DOWN)
        assert (await w.pair.check("orders")).ready


@in_virtual_time
async def test_a_missing_queue_is_not_ready_as_its_messages_are_never_diverted(world):
    async with world() as w:
        [found] = (await w.pair.check("missing")).entities
        assert (found.ready, len(found.reasons)) == (False, 1)


@in_virtual_time
async def test_brokers_that_hang_are_given_the_time_limit_once(world):
    async with world() as w:
        w.east.fail(Fault.HANG)
        w.west.fail(Fault.HANG)
        started = asyncio.get_running_loop().time()
        readiness = await w.pair.check("orders", "prices", timeout=3)
        assert asyncio.get_running_loop().time() - started == pytest.approx(3, abs=0.1)
        assert readiness.entities[0].reasons == ("primary: no answer within 3 s", "backlog: no answer within 3 s")


@in_virtual_time
async def test_a_check_changes_no_state(world):
    async with world() as w:
        w.east.fail(Fault.DOWN)
        w.west.fail(Fault.DOWN)
        before = len(w.events)
        await w.pair.check(Entity("orders"))
        assert w.pair.states() == {}
        assert len(w.events) == before


@in_virtual_time
async def test_all_entities_in_use_are_asked_about_when_none_is_named(world):
    async with world() as w:
        for path in ("orders", "prices"):
            await w.pair.sender(path).send(Message(b"1"))
        found = (await w.pair.check()).entities
        assert [one.entity.path for one in found] == ["orders", "prices"]


@in_virtual_time
async def test_what_is_no_path_and_a_closed_pair_are_errors(world):
    async with world() as w:
        with pytest.raises(ConfigurationError):
            await w.pair.check("")
        await w.pair.close()
        with pytest.raises(PairClosed):
            await w.pair.check("orders")


@pytest.mark.parametrize("failure", [KeyError("a defect"), asyncio.CancelledError()], ids=["error", "cancelled"])
@in_virtual_time
async def test_a_driver_that_fails_in_its_own_way_is_a_reason_and_raises_nothing(world, monkeypatch, failure):
    """Who asks has not been cancelled, and wants to hear of the other side too."""

    async def bad(self, entity):
        raise failure

    async with world() as w:
        monkeypatch.setattr(SimulatedAdmin, "probe", bad)
        [found] = (await w.pair.check("orders")).entities
        assert not found.ready
        assert [type(failure).__name__ in reason for reason in found.reasons] == [True, True]


@in_virtual_time
async def test_a_pair_without_entities_is_ready_when_a_broker_answers_and_not_otherwise(world):
    async with world() as w:
        assert (await w.pair.check()).ready
        w.east.fail(Fault.DOWN)
        assert (await w.pair.check()).ready
        w.west.fail(Fault.DOWN)
        readiness = await w.pair.check()
        assert not readiness.ready
        assert [reason.split(":")[0] for reason in readiness.as_json()["reasons"]] == ["primary", "backlog"]


@pytest.mark.parametrize("asked", [(), ("orders",)])
@in_virtual_time
async def test_a_check_that_is_cancelled_at_once_leaves_no_question_unasked(world, asked, recwarn):
    async with world() as w:
        check = asyncio.create_task(w.pair.check(*asked))
        await asyncio.sleep(0)
        check.cancel()
        await asyncio.wait((check,))
        gc.collect()
    assert check.cancelled()
    assert [str(warning.message) for warning in recwarn] == []
