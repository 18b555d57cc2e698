"""Two real Redis servers, one of them killed: the journal agrees with what everybody was told, to the last message."""

from __future__ import annotations

import asyncio

import pytest

from journal_events import rows
from pairmq import (
    Entity,
    LockLost,
    Message,
    Pair,
    PairOptions,
    Receipt,
    Route,
    SendError,
    SendUnknown,
    TransportError,
)
from pairmq.observe.journal import Journal, JournalOptions, journal_deliveries, statistics
from pairmq_redis.testing import RedisServer

OPTIONS = PairOptions(
    failover_interval=0.3,
    ping_primary_interval=0.2,
    attempt_timeout=2.0,
    send_timeout=30.0,
    backlog_queue_count=2,
    enable_syphon=True,
)


@pytest.mark.real_server
async def test_the_journal_of_an_outage_agrees_with_the_ledger(tmp_path):
    journal = Journal(tmp_path, JournalOptions(flush_interval=0.05, max_age=0.5, sample_healthy=1.0))
    told: dict[str, Receipt | SendError] = {}
    seen: set[str] = set()
    completed: dict[str, int] = {}
    stop = asyncio.Event()
    with RedisServer() as east, RedisServer() as west:
        # The consumer is another pair, as it would be another process; it has no journal of its own.
        async with (
            Pair.connect(east.url, west.url, options=OPTIONS, journal=journal) as pair,
            Pair.connect(east.url, west.url, backlog_queue_count=2, attempt_timeout=2.0) as reader,
        ):
            await pair.primary.admin.create(Entity("orders"))
            sender = pair.sender("orders")

            async def produce() -> None:
                number = 0
                while not stop.is_set():
                    message_id = f"m{number}"
                    try:
                        told[message_id] = await sender.send(Message(b"x", message_id=message_id))
                    except SendError as error:
                        told[message_id] = error
                    number += 1
                    await asyncio.sleep(0.002)

            async def consume() -> None:
                async with journal_deliveries(reader.receiver("orders", prefetch=20), journal) as receiver:
                    async for delivery in receiver:
                        name = delivery.message.message_id or ""
                        seen.add(name)
                        try:
                            await delivery.complete()
                        except (LockLost, TransportError):
                            continue  # it may come again, or not: the confirmation may be what was lost
                        completed[name] = completed.get(name, 0) + 1

            producing, consuming = asyncio.create_task(produce()), asyncio.create_task(consume())
            await _until(lambda: len(told) > 100)
            east.kill()
            await _until(lambda: sum(_is_diverted(result) for result in told.values()) > 30)
            east.start()
            await _until(lambda: _is_home(list(told.values())[-1]))
            count = len(told)
            await _until(lambda: len(told) > count + 50)
            stop.set()
            await producing
            accepted = {name for name, result in told.items() if isinstance(result, Receipt)}
            await _until(lambda: accepted <= seen, "not everything was moved back")
            consuming.cancel()
            await asyncio.wait((consuming,))
    assert await asyncio.to_thread(journal.close, 60)

    sends = rows(tmp_path, "SendCompleted")
    assert [row["sequence"] for row in sorted(sends, key=lambda row: row["sequence"])] == list(range(len(told)))
    by_id = {row["message_id"]: row for row in sends}
    assert {name: _ending(result) for name, result in told.items()} == {
        name: (row["outcome"], row.get("backlog_queue"), row["attempts"] if "error" not in row else None)
        for name, row in by_id.items()
    }
    settled: dict[str, int] = {}
    for row in rows(tmp_path, "MessageDelivered"):
        if "error" not in row:
            settled[row["message_id"]] = settled.get(row["message_id"], 0) + 1
    assert settled == completed
    diverted = {name for name, result in told.items() if _is_diverted(result)}
    assert diverted <= {row["message_id"] for row in rows(tmp_path, "MessageMoved")}
    states = [(row["previous"], row["current"]) for row in rows(tmp_path, "StateChanged")]
    assert ("failing", "failed-over") in states
    assert ("failed-over", "draining") in states
    found = statistics(tmp_path)
    (span,) = found.processes
    assert (span.missing, span.dropped, span.ended, found.repeated) == (0, 0, True, 0)


def _is_diverted(result: Receipt | SendError) -> bool:
    return isinstance(result, Receipt) and result.route is Route.BACKLOG


def _is_home(result: Receipt | SendError) -> bool:
    return isinstance(result, Receipt) and result.route is Route.PRIMARY


def _ending(result: Receipt | SendError) -> tuple[str, str | None, int | None]:
    if isinstance(result, Receipt):
        return f"accepted-{result.route}", result.backlog_queue, result.attempts
    return "unknown" if isinstance(result, SendUnknown) else "refused", None, None


async def _until(condition, text: str = "it did not happen in time", seconds: float = 40.0) -> None:
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + seconds
    while not condition():
        assert loop.time() < ends_at, text
        await asyncio.sleep(0.01)
