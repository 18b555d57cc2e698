"""What a dashboard tells of a pair in virtual time: states, backlog, drain, brokers."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from datetime import datetime

import pytest

from pairmq import Entity, EntityState, Message, Pair, PairOptions, SendError
from pairmq.dashboard import Brokers, Dashboard, _app, _looks
from pairmq.dashboard._looks import Answer, Sample
from pairmq.dashboard._view import Query, View
from pairmq.model.events import Side
from pairmq.testing import Fault, in_virtual_time, memory_broker
from shown_dashboard import client_of, shown


@in_virtual_time
async def test_a_pair_that_has_done_nothing_shows_both_brokers_and_an_empty_backlog():
    async with shown() as page:
        told = await page.status()
    assert told["pair"] == "primary>secondary"
    assert [told["brokers"][side]["answer"]["ok"] for side in ("primary", "secondary")] == [True, True]
    assert (told["backlog"]["pending"], told["backlog"]["in_use"], told["backlog"]["queues"]) == (0, 2, 2)
    assert told["entities"]["total"] == 0


@in_virtual_time
async def test_an_outage_is_seen_from_its_begin_to_its_end():
    async with shown() as page:
        sender = page.it.pair.sender("orders")
        await sender.send(Message(b"0"))
        await asyncio.sleep(10)
        page.it.primary.fail(Fault.DOWN)
        await sender.send(Message(b"1"))
        told = await page.status()
        [row] = told["entities"]["rows"]
        assert (row["path"], row["state"], row["cause"]) == ("orders", "failed-over", "failover interval over")
        await asyncio.sleep(10)
        await page.status()  # begins a new look, which has not ended when it answers
        await asyncio.sleep(1)
        told = await page.status()
        assert told["backlog"]["pending"] == 1
        assert told["brokers"]["primary"]["answer"]["ok"] is False
        assert told["entities"]["rows"][0]["ping"]["ok"] is False
        page.it.primary.heal()
        await asyncio.sleep(30)
        await page.status()
        await asyncio.sleep(1)
        told = await page.status()
        assert told["drain"]["moved"] == 1
        assert told["backlog"]["pending"] == 0
        states = [state for _, state in told["entities"]["rows"][0]["changes"]]
        assert states == ["draining", "healthy", "failing", "failed-over", "draining", "healthy"]


@in_virtual_time
async def test_a_message_in_the_backlog_has_the_age_of_its_divert():
    async with shown(changes={"enable_syphon": False, "failover_interval": 0}) as page:
        page.it.primary.fail(Fault.DOWN)
        await page.it.pair.sender("orders").send(Message(b"1"))
        [message] = page.it.backlog()
        for _ in range(4):
            await page.status()
            await asyncio.sleep(5)
        told = await page.status()
    [row] = [row for row in told["backlog"]["rows"] if row["active"]]
    assert row["oldest"] == told["backlog"]["oldest"]
    diverted_at = message.application_properties["x-pairmq-diverted-at"]
    assert isinstance(diverted_at, str)
    assert abs(row["oldest"] - datetime.fromisoformat(diverted_at).timestamp()) < 1


@in_virtual_time
async def test_a_queue_out_of_use_says_since_when_and_why():
    async with shown(changes={"failover_interval": 0, "enable_syphon": False}) as page:
        page.it.primary.fail(Fault.DOWN)
        page.it.secondary.fail(Fault.DOWN, entities=["primary/x-servicebus-transfer/0"])
        for number in range(8):  # each sender picks a queue by chance
            await page.it.pair.sender("orders").send(Message(str(number).encode()))
        await page.status()
        told = await page.status()
    assert (told["backlog"]["in_use"], told["backlog"]["queues"]) == (1, 2)
    out = [row["out"] for row in told["backlog"]["rows"] if row["out"]]
    assert len(out) == 1
    assert out[0]["error"]


@in_virtual_time
async def test_a_broker_that_hangs_is_no_answer_and_holds_nothing_up():
    async with shown() as page:
        page.it.primary.fail(Fault.HANG)
        await page.status()
        await asyncio.sleep(5)
        told = await page.status()
    assert told["brokers"]["primary"]["answer"]["error"] == "no answer within 1 s"
    assert told["brokers"]["secondary"]["answer"]["ok"] is True
    assert told["backlog"]["pending"] == 0


@in_virtual_time
async def test_a_fault_of_a_transport_is_reported_once_and_ends_nothing(caplog):
    async with shown(changes={"enable_syphon": False}) as page:
        page.it.secondary.fail(Fault.BUG)
        for _ in range(4):
            told = await page.status()
            await asyncio.sleep(6)
    assert told["brokers"]["primary"]["answer"]["ok"] is True
    assert told["brokers"]["secondary"]["answer"]["error"]
    assert told["backlog"]["pending"] is None
    assert [record.message for record in caplog.records if "dashboard" in record.message] == [
        "the dashboard could not query a broker; further failures are not reported"
    ]


@in_virtual_time
async def test_nothing_is_asked_of_the_brokers_while_no_page_is_open():
    async with shown(changes={"control_interval": 0}) as page:
        await page.status()
        await asyncio.sleep(10)
        before = page.it.secondary.operations.total(), page.it.primary.operations.total()
        await asyncio.sleep(30)
        # The syphon's own long polls go on, every minute in these tests.
        assert (page.it.secondary.operations.total(), page.it.primary.operations.total()) == before


@in_virtual_time
async def test_however_many_look_the_brokers_are_asked_once_in_a_while():
    async with shown(changes={"enable_syphon": False, "control_interval": 0}) as page:
        before = page.it.secondary.operations.total(), page.it.primary.operations.total()
        for _ in range(50):
            await page.status()
            await asyncio.sleep(0.02)
        after = page.it.secondary.operations.total(), page.it.primary.operations.total()
    # One look at each, one count of each of the two queues, and a look at what other processes use.
    assert (after[0] - before[0], after[1] - before[1]) == (5, 1)


@in_virtual_time
async def test_to_be_watched_costs_a_send_no_event():
    async with shown() as page:
        page.it.pair._emit.remove(page.it.events.append)
        assert not page.it.pair._emit.active


@in_virtual_time
async def test_those_in_trouble_stand_first():
    names = [f"queue-{number:02}" for number in range(30)]
    async with shown(*names) as page:
        for name in names:
            page.it.pair.sender(name)
        page.it.pair.hold("queue-17")
        told = await page.status(limit="5")
    assert [row["path"] for row in told["entities"]["rows"]] == [
        "queue-17",
        "queue-00",
        "queue-01",
        "queue-02",
        "queue-03",
    ]
    assert told["entities"]["rows"][0]["held"] is True
    assert (told["entities"]["total"], told["entities"]["found"], told["entities"]["held"]) == (30, 30, 1)
    assert told["entities"]["by_state"]["failed-over"] == 1


@in_virtual_time
async def test_entities_are_found_by_a_part_of_their_name_and_by_state():
    async with shown("Orders/EU", "orders/us", "prices") as page:
        for name in ("Orders/EU", "orders/us", "prices"):
            page.it.pair.sender(name)
        page.it.pair.force_failover("orders/us")
        by_name = await page.status(search="ORDERS/")
        by_state = await page.status(state="failed-over")
    assert {row["path"] for row in by_name["entities"]["rows"]} == {"Orders/EU", "orders/us"}
    assert [row["path"] for row in by_state["entities"]["rows"]] == ["orders/us"]


@in_virtual_time
async def test_one_answer_never_holds_more_than_a_thousand_entities():
    async with shown() as page:
        for number in range(1100):
            page.it.pair.sender(f"queue-{number}")
        told = await page.status(limit="99999")
    assert (len(told["entities"]["rows"]), told["entities"]["found"]) == (1000, 1100)


@in_virtual_time
async def test_a_destination_that_only_the_syphon_knows_is_shown_while_it_takes_nothing():
    async with shown(changes={"failover_interval": 0}) as page:
        page.it.primary.fail(Fault.DOWN)
        await page.it.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(2)
        told = await page.status()
    [row] = told["entities"]["rows"]
    assert row["shut"]
    assert told["entities"]["shut"] == 1


@in_virtual_time
async def test_what_consumers_can_read_is_shown_beside_what_becomes_of_sends():
    async with shown(changes={"continuity": ("orders",)}) as page, page.it.pair.receiver("orders") as receiver:
        sender = page.it.pair.sender("orders")
        await sender.send(Message(b"0"))
        await (await receiver.receive(wait=10))[0].complete()
        assert (await page.status())["entities"]["rows"][0]["consumers"] is None
        page.it.primary.fail(Fault.DOWN)
        await sender.send(Message(b"1"))
        await (await receiver.receive(wait=10))[0].complete()
        [row] = (await page.status())["entities"]["rows"]
        assert (row["state"], list(row["consumers"]["lost"])) == ("failed-over", ["primary"])
        assert row["consumers"]["available"] == 1


@in_virtual_time
async def test_a_dashboard_that_is_made_late_still_knows_the_states():
    async with shown() as page:
        page.it.pair.force_failover("orders")
        async with Dashboard(page.it.pair, open_to_read=True) as late:
            [row] = late.status()["entities"]["rows"]
    assert (row["state"], row["since"], row["changes"]) == (EntityState.FAILED_OVER.value, None, [])


@in_virtual_time
async def test_a_pair_that_has_ended_is_shown_as_that_and_asked_nothing():
    async with shown() as page:
        await page.it.pair.close()
        told = await page.status()
        assert told["ended"]["fault"] is None
        assert told["brokers"]["primary"]["answer"] is None


@in_virtual_time
async def test_a_closed_dashboard_takes_no_events():
    async with shown() as page:
        await page.dashboard.close()
        page.it.pair.hold("orders")
        assert page.dashboard.status()["events"] == []


@in_virtual_time
async def test_two_brokers_without_a_pair_are_only_looked_at():
    async with shown(changes={"enable_syphon": False, "failover_interval": 0}) as page:
        page.it.primary.fail(Fault.DOWN)
        await page.it.pair.sender("orders").send(Message(b"1"))
        page.it.primary.heal()
        primary, secondary = page.it.primary.transport(), page.it.secondary.transport()
        brokers = Brokers(primary, secondary, page.it.pair.options)
        watched = Entity("orders"), Entity("nowhere")
        dashboard = Dashboard(brokers, open_to_read=True, entities=watched)
        async with primary, secondary, dashboard, client_of(dashboard) as client:
            told = (await client.get("/api/status")).json()
    assert (told["sends"], told["syphon"], told["backlog"]["pending"]) == (False, False, 1)
    rows = {row["path"]: row for row in told["entities"]["rows"]}
    assert rows["orders"]["probe"]["ok"] is True
    assert rows["nowhere"]["probe"]["ok"] is False
    assert rows["orders"]["state"] is None
    assert told["entities"]["refusing"] == 1


@in_virtual_time
async def test_two_brokers_without_a_pair_show_the_lanes_that_the_options_name():
    async with shown() as page:
        primary, secondary = page.it.primary.transport(), page.it.secondary.transport()
        options = PairOptions(backlog_queue_count=1, continuity=("orders", "pri*"))
        shared, lane = Brokers(primary, secondary, options).queues()
    assert shared.path == "primary/x-servicebus-transfer/0"
    assert lane.path.endswith("orders")


@pytest.mark.parametrize("query", [{"state": "well"}, {"limit": "-1"}, {"limit": "many"}, {"limit": "²"}])
@in_virtual_time
async def test_a_question_that_makes_no_sense_is_refused(query):
    async with shown() as page:
        assert (await page.client.get("/api/status", params=query)).status_code == 400


@in_virtual_time
async def test_what_takes_long_to_report_is_reported_again_instead_of_made_again(monkeypatch):
    async with shown(short=0.005) as page:
        made = []
        tell = View.status

        def slow(view: View, query: Query) -> dict[str, object]:
            made.append(query)
            ends_at = time.monotonic() + 0.02
            while time.monotonic() < ends_at:
                pass
            return tell(view, query)

        monkeypatch.setattr(View, "status", slow)
        monkeypatch.setattr(_app, "_SHARE", 10_000)  # minutes, which are virtual, and no machine is as slow as that
        first, second = await page.status(), await page.status()
        assert len(made) == 1
        assert first["entities"] == second["entities"]
        await page.status(search="x")
        assert len(made) == 2


@in_virtual_time
async def test_the_backlog_takes_nothing_when_the_secondary_does_not_answer():
    async with shown() as page:
        assert (await page.status())["backlog"]["takes"] is True
        page.it.secondary.fail(Fault.DOWN)
        await asyncio.sleep(10)
        await page.status()
        await asyncio.sleep(1)
        told = await page.status()
    assert told["backlog"]["takes"] is False


@in_virtual_time
async def test_the_backlog_takes_nothing_when_no_queue_is_in_use():
    async with shown(changes={"failover_interval": 0, "enable_syphon": False, "send_timeout": 5.0}) as page:
        page.it.primary.fail(Fault.DOWN)
        page.it.secondary.fail(Fault.DOWN, entities=[queue.path for queue in page.it.pair.backlog_queues])
        with pytest.raises(SendError):
            await page.it.pair.sender("orders").send(Message(b"1"))
        told = await page.status()
    assert told["backlog"]["in_use"] == 0
    assert told["backlog"]["takes"] is False


@in_virtual_time
async def test_no_drain_is_estimated_while_the_primary_does_not_answer():
    async with shown() as page:
        await page.status()
        drain, now = page.dashboard._looks.drain, time.time()
        drain.samples.clear()
        drain.counted(Sample(now - 5, 50, 0))
        drain.counted(Sample(now, 10, 40))
        assert page.dashboard.status()["drain"]["seconds_left"] is not None
        page.dashboard._looks.brokers[Side.PRIMARY] = Answer(now, 5.0, "no answer within 5 s")
        told = page.dashboard.status()["drain"]
    assert (told["per_second"], told["seconds_left"]) == (0.0, None)


@in_virtual_time
async def test_what_another_process_leaves_elsewhere_is_shown():
    async with shown(changes={"enable_syphon": False}) as page:
        options = PairOptions(backlog_queue_count=4, backlog_name_template="theirs-{index}")
        other = Pair(page.it.primary.transport(), page.it.secondary.transport(), options)
        async with other:
            other.hold("orders")
            await other.sender("orders").send(Message(b"1"))
        for _ in range(2):
            await page.status()
            await asyncio.sleep(31)
        told = await page.status()
    [stranded] = told["agreement"]["stranded"]
    assert "holds 1 message" in stranded
    assert "backlog_name_template" in told["agreement"]["differences"][0]


@in_virtual_time
async def test_queues_of_another_process_are_counted():
    async with shown(changes={"enable_syphon": False, "backlog_queue_count": 1}) as page:
        other = Pair(page.it.primary.transport(), page.it.secondary.transport(), PairOptions(backlog_queue_count=9))
        async with other:
            other.hold("orders")
            for number in range(20):
                await other.sender("orders").send(Message(str(number).encode()))
        for _ in range(3):
            await page.status()
            await asyncio.sleep(31)
        told = await page.status()
    assert told["backlog"]["pending"] == 20


async def test_the_outbox_of_a_database_has_a_depth_an_age_and_a_pace_of_its_own(tmp_path, monkeypatch):
    for interval in ("_AGES", "_COUNTS"):
        monkeypatch.setattr(_looks, interval, 0.05)
    url = f"sqlite://{tmp_path}/shop.db"
    async with memory_broker() as east, Pair.connect(east.url, url, backlog_queue_count=1) as pair:
        await pair.primary.admin.create(Entity("orders"))
        with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
            await pair.outbox("orders").send_batch([Message(b"1"), Message(b"2")], connection=connection)
        async with Dashboard(pair, open_to_read=True) as dashboard, client_of(dashboard) as client:
            told = (await client.get("/api/status")).json()
            for _ in range(600):
                if told["outbox"]["oldest"] is not None:
                    break
                await asyncio.sleep(0.1)
                told = (await client.get("/api/status")).json()
        outbox = told["outbox"]
        assert (outbox["name"], outbox["pending"]) == (f"{pair.primary.endpoint.name}/x-pairmq-outbox", 2)
    assert abs(outbox["oldest"] - time.time()) < 600
    assert (outbox["moved"], outbox["per_second"], outbox["dead_letter"]) == (0, 0, 0)
    assert (told["backlog"]["pending"], told["backlog"]["oldest"], told["drain"]["moved"]) == (0, None, 0)
