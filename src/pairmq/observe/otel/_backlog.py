"""The numbers of messages in the backlog and in the outbox, as metrics that are polled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from opentelemetry.metrics import MeterProvider, Observation

from pairmq.model import Entity, Source, TransportError
from pairmq.observe.otel import _names as names
from pairmq.observe.otel._metrics import instruments
from pairmq.transport import Transport, start_task

_log = logging.getLogger("pairmq")


class BackloggedPair(Protocol):
    """The required interface of a pair."""

    @property
    def name(self) -> str:
        """``primary>secondary``."""

    @property
    def secondary(self) -> Transport:
        """The backlog's broker."""

    @property
    def backlog_queues(self) -> Sequence[Entity]:
        """The queues of the backlog."""

    @property
    def outbox_queue(self) -> Entity | None:
        """The queue of the outbox; None without one."""


@asynccontextmanager
async def watch_backlog(
    pair: BackloggedPair, *, every: float = 60.0, limit: float = 10.0, meter_provider: MeterProvider | None = None
) -> AsyncIterator[None]:
    """Count the messages in a pair's backlog queues periodically, as ``pairmq.backlog.messages``.

    And those in its outbox, if it has one, as ``pairmq.outbox.messages``.

    Only the broker knows them, so this is not part of the observer: each round makes one request per queue, which some
    brokers charge for. One process per pair is enough, preferably the one with the syphon.

    Args:
        pair: an open `pairmq.Pair`.
        every: seconds between two rounds; above 0.
        limit: seconds for the count of one queue.
        meter_provider: for the counts. Default: the global one.

    Raises:
        ValueError: ``every`` or ``limit`` is not above 0.

    A queue that can't be counted has no value meanwhile: a stale one would look like an idle backlog.
    """
    if not every > 0 or not limit > 0:
        raise ValueError(f"every is {every} and limit {limit}: both must be above 0 seconds")
    counts: dict[Entity, Mapping[str, int]] = {}

    def values(*, outbox: bool) -> Iterator[Observation]:
        for queue, of in tuple(counts.items()):
            if (queue == pair.outbox_queue) is outbox:
                for state, count in of.items():
                    labels = {names.PAIR: pair.name, names.QUEUE: queue.path, names.MESSAGE_STATE: state}
                    yield Observation(count, labels)

    ask = instruments(meter_provider).ask
    stop_reporting = (
        ask(names.BACKLOG_MESSAGES, lambda: values(outbox=False)),
        ask(names.OUTBOX_MESSAGES, lambda: values(outbox=True)),
    )
    task = start_task(_count_forever(pair, counts, every, limit), name="count backlog")
    try:
        yield
    finally:
        for stop in stop_reporting:
            stop()
        task.cancel()
        await asyncio.wait((task,))


async def _count_forever(
    pair: BackloggedPair, counts: dict[Entity, Mapping[str, int]], every: float, limit: float
) -> None:
    told = False
    while True:
        outbox = () if pair.outbox_queue is None else (pair.outbox_queue,)
        for queue in (*pair.backlog_queues, *outbox):
            try:
                counts[queue] = await _counted(pair.secondary, queue, limit)
            except (Exception, asyncio.CancelledError) as error:
                counts.pop(queue, None)
                if isinstance(error, TransportError | TimeoutError):
                    _log.debug("backlog queue %s could not be counted: %s", queue, error)
                elif not told and not _is_over():
                    # A driver's own, a cancellation of its own task among them.
                    _log.exception("backlog queue %s could not be counted; further failures are not reported", queue)
                    told = True
            if _is_over():  # also if a driver made another exception of it, or went on
                return
        await asyncio.sleep(every)


def _is_over() -> bool:
    """Whether the task that watches the backlog has cancelled the counting."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _counted(secondary: Transport, queue: Entity, limit: float) -> Mapping[str, int]:
    async with asyncio.timeout(limit):
        found = await secondary.admin.counts(Source(queue))
    return {
        "active": found.active,
        "locked": found.locked,
        "scheduled": found.scheduled,
        "dead_letter": found.dead_letter,
    }
