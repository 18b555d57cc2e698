"""The journal of a real pair through an outage: what the callers were told is what the tables say."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pairmq import Message, Pair, PairOptions
from pairmq.model import Entity, EntityState
from pairmq.observe.journal import Journal
from pairmq.pipeline import run
from pairmq.testing import memory_broker

OPTIONS = PairOptions(
    backlog_queue_count=2,
    failover_interval=0.2,
    ping_primary_interval=0.2,
    enable_syphon=True,
    syphon_receive_wait=1.0,
)


async def through_an_outage(journal) -> dict[str, str]:
    """Send before, in and after an outage, and consume everything; gives where each message went."""
    went = {}
    async with (
        memory_broker() as primary,
        memory_broker() as secondary,
        Pair.connect(primary.url, secondary.url, options=OPTIONS, journal=journal) as pair,
    ):
        await pair.primary.admin.create(Entity("orders"))
        sender = pair.sender("orders")
        for number in range(60):
            if number == 20:
                await primary.stop()
            if number == 40:
                await primary.restore()
                while pair.state("orders") is not EntityState.HEALTHY:
                    await asyncio.sleep(0.02)
            receipt = await sender.send(Message(b"x", message_id=f"m{number}"))
            went[receipt.message_id] = receipt.route.value
        async with pair.receiver("orders") as receiver:
            left = set(went)
            while left:
                for delivery in await receiver.receive(100, 5.0):
                    await delivery.complete()
                    left.discard(delivery.message.message_id)
    return went


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    journal = Journal(folder / "journal")
    went = asyncio.run(through_an_outage(journal))
    assert journal.close(30)
    return folder, went


def test_the_tables_of_a_real_pair_agree_with_what_its_callers_got(spark, told):
    folder, went = told
    report = run(folder / "journal", folder / "tables", spark=spark, patience=1.0)
    assert (report.bad, report.missing, report.faults) == ((), 0, {})
    assert report.verdicts == {"delivered": 60}
    rows = spark.read.parquet(str(folder / "tables" / "reconciliation")).collect()
    diverted = {row.message_id for row in rows if row.evidence is not None and row.evidence.accepted_backlog}
    found = {row.message_id: "backlog" if row.message_id in diverted else "primary" for row in rows}
    assert found == went
    assert Counter(found.values()) == {"primary": 40, "backlog": 20}
    (episode,) = spark.read.parquet(str(folder / "tables" / "episodes")).collect()
    assert (episode.diverted, episode.open_because) == (20, None)
