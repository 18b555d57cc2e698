"""``pairmq status``: what can be seen of a pair from outside; changes nothing and makes nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text
from typer import Option

from pairmq.cli._backlog import (
    Depths,
    OutboxLook,
    agreement_as_json,
    agreement_lines,
    count_queues,
    depths_as_json,
    depths_table,
    outbox_text,
    see_outbox,
)
from pairmq.cli._common import (
    BACKLOG,
    Json,
    Kind,
    PairArguments,
    backlog_queues,
    entity_of,
    examples,
    outbox_of,
    timed,
    transports_of,
    with_pair,
    within,
)
from pairmq.cli._output import FAIL, OK, WARN, cells, put_json, stdout_console, table
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import Duration, grouped, plural, printable, short_duration
from pairmq.model import Entity, EntityKind, FailureReason, Source, TransportError

if TYPE_CHECKING:
    from pairmq.runner import Agreement
    from pairmq.transport import QueueCounts, Transport

_AGREED = 60.0  # s for which what is known of other processes is shown again

EPILOG = examples(
    "pairmq status --config pair.toml",
    "pairmq status --entity orders --entity prices --watch",
    "pairmq status --json",
)


@with_pair(BACKLOG)
def status(
    pair: PairArguments,
    entity: Annotated[
        list[str] | None, Option("--entity", "-e", metavar="NAME", help="Probe and count it; repeatable.")
    ] = None,
    kind: Kind = EntityKind.QUEUE,
    watch: Annotated[bool, Option("--watch", "-w", help="Refresh until Ctrl-C.")] = False,
    interval: Annotated[float, Duration("--interval", "Between two refreshes with --watch.")] = "2s",  # type: ignore[assignment]  # the parser reads defaults too
    json: Json = False,
) -> int:
    """Show whether both brokers respond, the backlog queues' counts, and whether entities accept messages.

    Exit status: 0 when all brokers and requested entities respond, 1 when not, or when messages wait in a backlog queue
    that this pair's syphon does not drain, or when that is unknown.
    """
    entities = tuple(entity_of(name, kind) for name in entity or ())
    settings = pair.settings()
    primary, secondary = transports_of(settings)
    queues = backlog_queues(primary, settings.options)
    limit = settings.options.attempt_timeout

    from pairmq.runner import find_agreement

    agreed: tuple[float, Agreement] | None = None
    outbox: OutboxLook | None = None

    async def once() -> Look:
        # With --watch, what other processes use is not asked for every two seconds.
        nonlocal agreed, outbox
        now = time.monotonic()
        if agreed is None or now - agreed[0] >= _AGREED or agreed[1].unread is not None:
            agreed = now, await find_agreement(primary.endpoint, secondary, settings.options, limit)
        seen = await look(primary, secondary, queues, entities, limit, agreed[1])
        outbox = await see_outbox(secondary, outbox_of(primary, secondary), limit, outbox)
        return replace(seen, outbox=outbox)

    async def run(stop: Stop) -> int:
        async with primary, secondary:
            if watch:
                return await _watch(once, stop, max(0.1, interval), json=json)
            seen = await once()
        if json:
            put_json(_as_json(seen), indent=2)
        else:
            stdout_console().print(_picture(seen))
        return 0 if seen.ok else 1

    return run_async(run, graceful=watch)


async def _watch(once: Callable[[], Awaitable[Look]], stop: Stop, interval: float, *, json: bool) -> int:
    console = stdout_console()
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not json else None
    try:
        if live is not None:
            live.start()
        while not stop.asked:
            seen = await stop.or_result(once())
            if seen is None:
                break
            if json:
                put_json({"at": round(time.time(), 3), **_as_json(seen)})
            elif live is not None:
                live.update(_watched(seen), refresh=True)
            else:
                console.print(_watched(seen))
            await stop.wait(interval)
    finally:
        if live is not None:
            live.stop()
    return stop.exit_status


def _watched(seen: Look) -> RenderableType:
    return Group(Text(f"at {datetime.now().astimezone():%H:%M:%S}", "bold"), _picture(seen))


def _picture(seen: Look) -> RenderableType:
    """The queues come last: a terminal that is too low for all of it cuts them off."""
    brokers = table("broker", "url", "answer")
    for name, broker in (("primary", seen.primary), ("secondary", seen.secondary)):
        answer = broker.answer if broker.error is None else f"none: {broker.error}"
        brokers.add_row(*cells((name, broker.url)), *cells((answer,), OK if broker.error is None else FAIL))
    parts: list[RenderableType] = [brokers, Text("")]
    if seen.entities:
        entities = table("entity", "takes messages", ("active", "right"), ("locked", "right"), ("dead-letter", "right"))
        for one in seen.entities:
            verdict = f"yes, {short_duration(one.seconds)}" if one.error is None else f"no: {one.error}"
            counts = (
                ("", "", "") if one.counts is None else (one.counts.active, one.counts.locked, one.counts.dead_letter)
            )
            numbers = [grouped(count) if isinstance(count, int) else "" for count in counts]
            entities.add_row(
                *cells((one.entity,)), *cells((verdict,), OK if one.error is None else FAIL), *cells(numbers)
            )
        parts += [entities, Text("")]
    error = seen.backlog.error
    if error is not None and seen.secondary.error is None:
        parts.append(Text(printable(error), FAIL))
    if seen.outbox is not None:
        parts.append(outbox_text(seen.outbox))
    if seen.secondary.error is None:
        remarks = (*agreement_lines(seen.agreement), *_missing(seen))
        parts += [Text(printable(text), WARN) for text in remarks]
    return Group(*parts, depths_table(seen.backlog))


def _missing(seen: Look) -> list[str]:
    missing = sum(depth.missing for depth in seen.backlog.queues)
    if not missing:
        return []
    return [
        f"{plural(missing, 'backlog queue')} to be created: a program that opens the pair creates them; one that has "
        "it open creates them again within 10 minutes, if the secondary was emptied or replaced"
    ]


def _as_json(seen: Look) -> dict[str, object]:
    return {
        "ok": seen.ok,
        "primary": seen.primary.as_json(),
        "secondary": seen.secondary.as_json(),
        "entities": [one.as_json() for one in seen.entities],
        "backlog": depths_as_json(seen.backlog),
        "outbox": None if seen.outbox is None else seen.outbox.as_json(),
        "agreement": agreement_as_json(seen.agreement),
    }


@dataclass(frozen=True, slots=True)
class BrokerLook:
    """Whether a broker answered, and how long it took."""

    url: str
    seconds: float
    error: str | None
    node: str | None = None  # of a cluster, which answered
    reason: FailureReason | None = None  # of the error

    @property
    def answer(self) -> str:
        return f"in {short_duration(self.seconds)}{f', node {self.node}' if self.node else ''}"

    def as_json(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "node": self.node,
            "reachable": self.error is None,
            "seconds": round(self.seconds, 6),
            "error": self.error,
        }


@dataclass(frozen=True, slots=True)
class EntityLook:
    """Whether an entity takes messages, and what it holds; no counts for a topic, and when it could not be counted."""

    entity: Entity
    seconds: float
    error: str | None
    counts: QueueCounts | None

    def as_json(self) -> dict[str, Any]:
        from pairmq.transport import QueueCounts

        return {
            "entity": str(self.entity),
            "accepts": self.error is None,
            "seconds": round(self.seconds, 6),
            "error": self.error,
            **(dict.fromkeys(QueueCounts.__slots__) if self.counts is None else asdict(self.counts)),
        }


@dataclass(frozen=True, slots=True)
class Look:
    primary: BrokerLook
    secondary: BrokerLook
    entities: tuple[EntityLook, ...]
    backlog: Depths
    agreement: Agreement
    outbox: OutboxLook | None = None

    @property
    def ok(self) -> bool:
        """Whether everything was asked and answered well, and no messages wait where they are not moved."""
        agreement = self.agreement
        if agreement.conflict is not None or agreement.unread is not None or agreement.record.problems:
            return False
        if any(stray.certain for stray in agreement.strays):
            return False
        parts = [self.primary.error, self.secondary.error, self.backlog.error, *(one.error for one in self.entities)]
        parts += [] if self.outbox is None else [self.outbox.error]
        return all(error is None for error in parts)


async def look(
    primary: Transport,
    secondary: Transport,
    queues: Sequence[Entity],
    entities: Sequence[Entity],
    time_limit: float,
    agreement: Agreement,
) -> Look:
    """Check both brokers, all backlog queues and some entities concurrently; failures are part of the result."""
    queues = (*queues, *agreement.found)
    brokers = asyncio.gather(see_broker(primary, time_limit), see_broker(secondary, time_limit))
    seen = asyncio.gather(*(_see_entity(primary, entity, time_limit) for entity in entities))
    backlog = asyncio.ensure_future(count_queues(secondary, queues, time_limit))
    first, second = await brokers
    return Look(first, second, tuple(await seen), await backlog, agreement)


async def see_broker(transport: Transport, time_limit: float) -> BrokerLook:
    seconds, error = await timed(time_limit, transport.admin.check())
    if error is None:
        return BrokerLook(transport.endpoint.url, seconds, None, transport.node)
    return BrokerLook(transport.endpoint.url, seconds, str(error), transport.node, error.reason)


async def _see_entity(primary: Transport, entity: Entity, time_limit: float) -> EntityLook:
    seconds, error = await timed(time_limit, primary.admin.probe(entity))
    counts = None
    if entity.kind is EntityKind.QUEUE:
        try:
            counts = await within(time_limit, primary.admin.counts(Source(entity)))
        except TransportError as failure:
            error = error or failure
    return EntityLook(entity, seconds, None if error is None else str(error), counts)
