"""Runs the demo: a producer, a consumer, an outage, and the account of it all."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from rich.live import Live

from pairmq.cli._backlog import count_queues
from pairmq.cli._common import failed_at, journal_package, transport_of, within
from pairmq.cli._demo_servers import OwnServer
from pairmq.cli._demo_tally import Plan, Tally, Texts
from pairmq.cli._demo_view import DemoView, EntityScene, PlainView, Scene, verdict_table
from pairmq.cli._output import note, put_json, stderr_console, stdout_console
from pairmq.cli._signals import Stop
from pairmq.cli._values import CommandFailed, short_duration
from pairmq.core import RECORD_QUEUE, PairOptions
from pairmq.core.switch import switch_queues
from pairmq.model import (
    Delivery,
    Entity,
    EntityState,
    LockLost,
    Message,
    PairMQError,
    SendError,
    SendRefused,
    Source,
    TransportError,
)
from pairmq.model.events import Side
from pairmq.pair import Pair, PairDelivery, PairReceiver, PairSender
from pairmq.plugins import BrokerControl
from pairmq.runner import Clock
from pairmq.transport import Receiver, Transport, start_task

if TYPE_CHECKING:
    from pairmq.observe.journal import Journal

_FRAME = 0.1  # s between two drawings
_COUNTING = 0.2  # s between two looks at the backlog
_SENDERS = 4  # per entity: each diverts to a backlog queue of its own choice
_IN_FLIGHT = 5000
_SETTLED = 0.6  # s that must pass without news before the account is closed
# s from making the queues to the kill of a real server. RabbitMQ 3.10 confirms a new quorum queue before its name is on
# disk: killed within that second or so, it restarts with a queue that has lost its messages and does not respond.
_QUEUES_KEPT = 3.0
_LOOKING = 10.0  # s, at the end, for messages that are in neither place
_LOOKING_FOR_COPIES = 1.0
_STILL_DRAINING = 5.0  # the same, while the syphon has not yet found its queues empty
_UNNOTICED = 10.0  # s that an outage is drawn out, at most, while nothing has failed over


@dataclass(eq=False)
class DemoRun:
    """One run. ``products`` names primary and secondary if they are real servers of this run."""

    primary: str
    secondary: str
    options: PairOptions
    entities: tuple[Entity, ...]
    plan: Plan
    texts: Texts
    _: KW_ONLY
    run_id: str
    seed: int | None
    control: BrokerControl | OwnServer | None
    products: dict[str, str] | None = None
    json: bool
    journal: Journal | None = None

    def __post_init__(self) -> None:
        self._secondary = transport_of(self.secondary)
        # Chance spreads load here, it guards nothing.
        clock = Clock(rng=None if self.seed is None else random.Random(self.seed))  # noqa: S311
        self._pair = Pair.connect(self.primary, self.secondary, options=self.options, clock=clock, journal=self.journal)
        self._tally = Tally(self.run_id, self.plan.messages)
        self._scene = Scene(
            primary=self._pair.primary.endpoint.url,
            secondary=self._pair.secondary.endpoint.url,
            entities=_scenes(self.entities),
            tally=self._tally,
            total=self.plan.messages,
            queues=self.options.backlog_queue_count + len(self.options.continuity),
            continuity=bool(self.options.continuity),
            pace=self.plan.messages / self.plan.sending,
            staged=self.control is not None,
        )
        self._console = stderr_console() if self.json else stdout_console()
        self._lively = self._console.is_terminal and not self._console.is_dumb_terminal
        reader, name = transport_of(self.primary), self._pair.name
        self._consumer = Consumer(reader, self.entities, self._tally, self._scene, self.journal, name)
        self._plain = PlainView(self._scene, self._console)
        self._made: list[Entity] = []
        self._sends: set[asyncio.Task[None]] = set()
        self._started = 0.0

    async def run(self, stop: Stop) -> int:
        with _without_lost_writes():
            return await self._run(stop)

    async def _run(self, stop: Stop) -> int:
        stop.on_request(self._scene.stopping)
        try:
            await self._prepare(self._pair.primary)
            if self.products is not None:
                await stop.wait(max(0.0, _QUEUES_KEPT - self.plan.outage_at))
            self._pair.subscribe(self._scene.on_event)
            async with self._pair:
                self._started = asyncio.get_running_loop().time()
                if self.control is None:
                    note(f"{self._pair.primary.endpoint} can't be stopped by the demo: stop and start it yourself")
                self._consumer.start()
                async with self._consumer.of_both(self._pair):
                    await self._with_picture(self._course(stop))
            # The pair is closed: nothing is in the syphon's hand any more, a message is in the one place or the other.
            gone = self.control is None and self._scene.primary_down
            async with self._secondary:
                primary_read, waiting = await self._find_the_rest(patient=not gone)
                await self._consumer.stop()
                await self._clean_up()
        finally:
            await self._pair.close()
            await self._consumer.transport.close()
        verdict = self._tally.verdict(waiting, primary_read=primary_read)
        status = stop.exit_status if stop.asked else 0 if verdict.ok else 1
        from_lanes = self._tally.from_lanes if self._scene.continuity else None
        if self.json:
            extra = {
                "outage_staged": self.control is not None,
                "elapsed": round(self._scene.now, 3),
                "stopped": stop.asked,
                **({} if self.products is None else {"servers": self.products}),
                **({} if from_lanes is None else {"delivered_by_secondary": from_lanes}),
            }
            put_json({**verdict.as_json(), **extra})
        else:
            self._console.print(verdict_table(verdict, stopped=stop.asked, from_lanes=from_lanes))
        return status

    # The course of events.

    async def _course(self, stop: Stop) -> None:
        scene = self._scene
        helpers = [asyncio.create_task(self._count())]
        try:
            scene.phase = "sending"
            outage = asyncio.create_task(self._outage(stop))
            helpers.append(outage)
            await self._produce(stop)
            if not stop.asked:
                scene.phase = "draining"
                await outage
            await self._end_sends(stop)
            if not stop.asked:
                await self._settle(stop)
            elif self.control is not None:
                await self._bring_back(stopping=True)
            scene.phase = "stopped" if stop.asked else "done"
        finally:
            await cancel(helpers)
        for helper in helpers:
            if not helper.cancelled() and helper.exception() is not None:
                raise CommandFailed(str(helper.exception())) from helper.exception()

    async def _produce(self, stop: Stop) -> None:
        loop = asyncio.get_running_loop()
        senders = [[self._pair.sender(entity.path) for _ in range(_SENDERS)] for entity in self.entities]
        many = len(self.entities)
        for index, body in enumerate(self.texts):
            if index >= self.plan.messages:
                return
            wait = self._started + self.plan.due_at(index) - loop.time()
            if wait > 0 and await stop.wait(wait):
                return
            while len(self._sends) >= _IN_FLIGHT and not stop.asked:
                await asyncio.wait(self._sends, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            if stop.asked:
                return
            sender = senders[index % many][index // many % _SENDERS]
            start_task(self._send(sender, index, body), keep=self._sends)
            if wait <= 0 and index % 50 == 49:
                await asyncio.sleep(0)  # behind the plan: let the others work too

    async def _send(self, sender: PairSender, index: int, body: bytes) -> None:
        entity = self._scene.entities[sender.entity]
        entity.in_flight += 1
        self._tally.started(index)
        message_id = self._tally.message_id(index)
        try:
            self._tally.ended_as(index, await sender.send(Message(body, message_id=message_id)))
        except SendError as error:
            self._tally.ended_as(index, error)
            self._scene.add(str(error), "red")
        except PairMQError as error:
            self._tally.ended_as(index, SendRefused(str(error)))
        finally:
            entity.in_flight -= 1

    async def _outage(self, stop: Stop) -> None:
        if self.control is None:
            return
        loop = asyncio.get_running_loop()
        if await stop.wait(max(0.0, self._started + self.plan.outage_at - loop.time())):
            return
        how = "stopped" if self.products is None else "killed: kill -9"
        self._scene.primary_is(down=True, text=f"the primary is {how}")  # sends fail before `stop` has ended
        await self.control.stop()
        if await stop.wait(max(0.0, self._started + self.plan.outage_ends_at - loop.time())):
            return
        # A process that gets no processor for seconds may find that time over with the outage unnoticed.
        deadline = loop.time() + _UNNOTICED
        while not self._scene.failed_over and loop.time() < deadline:
            if await stop.wait(_FRAME):
                return
        await self._bring_back()

    async def _bring_back(self, *, stopping: bool = False) -> None:
        """End the outage; after a signal too, since what the primary holds is to be counted."""
        if self.control is None:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self.products is not None and self._scene.primary_down:
            self._scene.add("the primary is started again", "bold")
        await self.control.restore()
        text = "the primary is back"
        if self.products is not None and self._scene.primary_down:
            text += f" after {short_duration(loop.time() - began)}, with its data"
        self._scene.primary_is(down=False, text=f"stopped early: {text}" if stopping else text)

    async def _end_sends(self, stop: Stop) -> None:
        """Wait for what is in flight; after a signal no longer than the pair's grace."""
        if self._sends and not stop.asked:
            await stop.or_result(asyncio.wait(set(self._sends)))
        if self._sends:
            await asyncio.wait(set(self._sends), timeout=self._pair.options.close_grace)
        for task in tuple(self._sends):
            task.cancel()

    async def _settle(self, stop: Stop) -> None:
        """Wait until the backlog is empty and everything accepted was delivered, or nothing moves any more."""
        loop = asyncio.get_running_loop()
        seen: tuple[int, ...] = ()
        since = loop.time()
        while not await stop.wait(0.1):
            depths = self._scene.depths
            now_seen = (self._tally.delivered, self._scene.moved, self._scene.pending)
            if now_seen != seen:
                seen, since = now_seen, loop.time()
            quiet = loop.time() - since
            empty = depths is not None and depths.known_empty
            waiting = self.control is None and self._scene.primary_down
            self._scene.phase = "waiting, Ctrl-C ends" if waiting else "draining"
            healthy = all(entity.state is EntityState.HEALTHY for entity in self._scene.entities.values())
            if empty and not self._tally.undelivered and quiet > (_SETTLED if healthy else _STILL_DRAINING):
                return
            if empty and quiet > 5 and await self._consumer.has_all():
                return  # something is lost, and waiting does not bring it back
            if self.control is not None and quiet > 30:
                return

    # The backlog.

    async def _count(self) -> None:
        while True:
            queues = self._pair.backlog_queues
            self._scene.saw_depths(await count_queues(self._pair.secondary, queues, 1.0))
            await asyncio.sleep(_COUNTING)

    # Before and after.

    async def _prepare(self, primary: Transport) -> None:
        """Make the queues; one that others use is left alone."""
        admin = primary.admin
        try:
            await within(5.0, self._pair.secondary.admin.check())
        except TransportError as error:
            raise failed_at(self._pair.secondary, error) from error
        try:
            for entity in self.entities:
                if await within(5.0, admin.create(entity)):
                    self._made.append(entity)
                elif (await within(5.0, admin.counts(Source(entity)))).pending:
                    raise CommandFailed(
                        f"{entity} on {primary.endpoint} holds messages: name another one with --entity"
                    )
        except TransportError as error:
            raise failed_at(primary, error) from error

    async def _find_the_rest(self, *, patient: bool) -> tuple[bool, frozenset[int]]:
        """Look for a while: messages locked by a connection that just ended may be in neither place for a moment."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            seen = await self._consumer.has_all()
            waiting = await self._still_waiting()
            missing = self._tally.missing(waiting)
            # With nothing missing, what may still come is further copies.
            enough = loop.time() - began > (_LOOKING if missing else _LOOKING_FOR_COPIES)
            if (seen and not missing) or enough or (seen is None and not patient):
                return seen is True, waiting
            await asyncio.sleep(0.2)

    async def _still_waiting(self) -> frozenset[int]:
        """Which messages are in the backlog still; none at an ordinary end."""
        found: set[int] = set()
        if not self._tally.undelivered:
            return frozenset()
        for queue in self._pair.backlog_queues:
            with contextlib.suppress(TransportError):
                for delivery in await within(5.0, self._secondary.admin.peek(Source(queue), 1_000_000)):
                    index = self._tally.index(delivery.message.message_id)
                    if index is not None:
                        found.add(index)
        return frozenset(found)

    async def _clean_up(self) -> None:
        """Delete what this run made, unless messages are left in it."""
        if self.control is not None or self._tally.undelivered:
            return
        with contextlib.suppress(TransportError):
            for entity in self._made:
                await within(5.0, self._consumer.transport.admin.delete(entity))
            name = self._pair.primary.endpoint.name
            record = (Entity(f"{name}/{RECORD_QUEUE}"), *(switch_queues(name) or ()))
            for queue in (*self._pair.backlog_queues, *record):
                await within(5.0, self._secondary.admin.delete(queue))

    # The picture.

    async def _with_picture(self, course: Coroutine[Any, Any, None]) -> None:
        drawing = asyncio.create_task(self._draw())
        try:
            await course
        finally:
            drawing.cancel()
            await asyncio.wait((drawing,))
            self._tick()
            if not self._lively:
                self._plain.update()

    async def _draw(self) -> None:
        if not self._lively:
            while True:
                self._tick()
                self._plain.update()
                await asyncio.sleep(_FRAME)
        with Live(DemoView(self._scene), console=self._console, auto_refresh=False, screen=False) as live:
            try:
                while True:
                    self._tick()
                    live.refresh()
                    await asyncio.sleep(_FRAME)
            finally:
                self._tick()
                self._scene.finished = True
                live.refresh()

    def _tick(self) -> None:
        self._scene.tick(asyncio.get_running_loop().time() - self._started)


@contextlib.contextmanager
def _without_lost_writes() -> Iterator[None]:
    """Keep asyncio from logging every write to a server that was killed: the line would be in the picture."""
    logger = logging.getLogger("asyncio")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _scenes(entities: tuple[Entity, ...]) -> dict[Entity, EntityScene]:
    """One scene per entity, named by the last part of its path if that is unique."""
    short = [entity.path.rpartition("/")[2] for entity in entities]
    names = short if len(set(short)) == len(short) else [entity.path for entity in entities]
    return {entity: EntityScene(name) for entity, name in zip(entities, names, strict=True)}


_PREFETCH = 200
_POLL = 2.0  # s of one long poll
_LIMIT = 5.0  # s of one operation


@dataclass(eq=False)
class Consumer:
    """Reads all entities at the same time, through every outage, over a transport of its own."""

    transport: Transport
    entities: Sequence[Entity]
    tally: Tally
    scene: Scene
    journal: Journal | None = None
    pair: str = ""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    # Counted, and still in the broker.
    _uncompleted: set[tuple[Entity, bool, str]] = field(default_factory=set, init=False)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._consume(entity)) for entity in self.entities]

    async def has_all(self) -> bool | None:
        """Whether nothing is left in the primary; None if it does not answer."""
        admin = self.transport.admin
        try:
            counts = [await within(_POLL, admin.counts(Source(entity))) for entity in self.entities]
        except TransportError:
            return None
        return not any(one.pending for one in counts)

    async def stop(self) -> None:
        await cancel(self._tasks)

    @contextlib.asynccontextmanager
    async def of_both(self, pair: Pair) -> AsyncIterator[None]:
        """Read what has continuity through the pair as well, while the block lasts: from both brokers."""
        options = pair.options
        through = [
            asyncio.create_task(self._consume_through(pair.receiver(entity.path), entity))
            for entity in self.entities
            if options.continues(entity.path)
        ]
        try:
            yield
        finally:
            await cancel(through)

    async def _consume_through(self, receiver: PairReceiver, entity: Entity) -> None:
        async with receiver:
            while True:
                try:
                    deliveries = await receiver.receive(_PREFETCH, _POLL)
                except TransportError:
                    await asyncio.sleep(0.2)
                    continue
                for delivery in deliveries:
                    with contextlib.suppress(TransportError, LockLost):
                        await self._take_one(entity, delivery)

    async def _take_one(self, entity: Entity, delivery: PairDelivery) -> None:
        index = self.tally.index(delivery.message.message_id)
        if index is None:
            await delivery.abandon()
            return
        lane = delivery.origin is Side.SECONDARY
        self._saw(entity, delivery.delivery, index, lane=lane)
        await delivery.complete()
        self._uncompleted.discard(_copy(entity, delivery.delivery, lane=lane))

    async def _consume(self, entity: Entity) -> None:
        receiver = self.transport.receiver(Source(entity))
        if self.journal is not None:
            journalled = journal_package().journal_deliveries
            receiver = journalled(receiver, self.journal, source=Source(entity), pair=self.pair)
        while True:
            try:
                deliveries = await within(_POLL + _LIMIT, receiver.receive(_PREFETCH, _POLL))
                await self._take(receiver, entity, deliveries)
            except TransportError:
                await asyncio.sleep(0.2)

    async def _take(self, receiver: Receiver, entity: Entity, deliveries: Sequence[Delivery]) -> None:
        ours = []
        for delivery in deliveries:
            index = self.tally.index(delivery.message.message_id)
            if index is None:
                await receiver.abandon(delivery)  # not one of the demo's
                continue
            ours.append(delivery)
            self._saw(entity, delivery, index)
        if not ours:
            return
        results = await within(_LIMIT, receiver.complete_batch(ours))
        for delivery, result in zip(ours, results, strict=True):
            if result is None:
                self._uncompleted.discard(_copy(entity, delivery))

    def _saw(self, entity: Entity, delivery: Delivery, index: int, *, lane: bool = False) -> None:
        """Count a copy of a message, unless it is one that was counted and could not be completed."""
        copy = _copy(entity, delivery, lane=lane)
        # Without a sequence number only the broker's count distinguishes the same copy from another one.
        numbered, again = bool(delivery.sequence_number), delivery.delivery_count > 1
        if copy in self._uncompleted and (numbered or again):  # completing it had failed
            return
        # Until completing it is confirmed, it may be delivered again.
        self._uncompleted.add(copy)
        # A killed broker may forget even a completion that it confirmed, and then says that it delivers again.
        self.tally.arrived(index, again=again and not numbered, lane=lane)
        self.scene.entities[entity].delivered += 1


def _copy(entity: Entity, delivery: Delivery, *, lane: bool = False) -> tuple[Entity, bool, str]:
    """What names one copy of a message; not all brokers number theirs."""
    return entity, lane, delivery.sequence_number or f"id {delivery.message.message_id}"


async def cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
