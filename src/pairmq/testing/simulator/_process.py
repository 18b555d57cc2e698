"""A simulated process: a real pair, its senders and consumers, which can be killed; and what it lives among."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import replace
from random import Random

from pairmq.core import PairOptions
from pairmq.memory import CAPABILITIES
from pairmq.model import ConfigurationError, LockLost, PairClosed, PairFaulted, Receipt, SendError, TransportError
from pairmq.model.events import Event, RotationChanged
from pairmq.observe._log import describe
from pairmq.pair import Pair, PairDelivery, PairSender, _active
from pairmq.runner import Clock
from pairmq.testing._loop import WALL_EPOCH
from pairmq.testing.history import PRIMARY, SECONDARY, Handling, Life, Note, Reading, Result, Sent, send_and_report
from pairmq.testing.simulator._broker import Broker
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._loop import OWNER, SimulationLoop
from pairmq.testing.simulator._network import Connection, Network
from pairmq.testing.simulator._scenario import ProcessPlan, Scenario, SenderPlan, Shipment, message_of, number_of
from pairmq.testing.simulator._transport import CONSUMING, SENDING, SimulatedLink


class Surroundings:
    """What the processes of a simulation share."""

    def __init__(self, scenario: Scenario, trace: Callable[[str], None] | None = None) -> None:
        self.scenario = scenario
        self.loop = SimulationLoop()
        setup = scenario.setup
        self.history = History(scenario, trace, self.loop.time, consumed=setup.consumed)
        self.brokers = {name: Broker(name, self.loop, self.history) for name in (PRIMARY, SECONDARY)}
        latencies = dict(zip((PRIMARY, SECONDARY), setup.latency, strict=True))
        chance = Random(f"{scenario.seed} network")
        self.network = Network(self.loop, self.history, latencies, chance, jitter=setup.jitter)
        self._options = {plan.name: setup.options_of(plan) for plan in setup.processes}
        self.common_options = setup.pair_options(syphon=True)  # what those of all pairs have in common

    def options(self, plan: ProcessPlan) -> PairOptions:
        return self._options[plan.name]

    def link(self, name: str, life: Life) -> SimulatedLink:
        setup = self.scenario.setup
        primary = name == PRIMARY
        capabilities = replace(
            CAPABILITIES,
            max_message_bytes=setup.most_bytes[0 if primary else 1],
            sessions=False,
            scheduling="scheduling" not in setup.primary_lacks if primary else setup.scheduling,
            counts_scheduled=primary or setup.counts_scheduled,
            time_to_live=not primary or "time_to_live" not in setup.primary_lacks,
            quiet_peek=False,
            ordered_batches=primary and self.scenario.seed // 2 % 2 == 1,  # in both modes, which take turns
            durable=True,
        )
        connection = self.network.open(self.brokers[name], life)
        return SimulatedLink(connection, capabilities, 30.0 if primary else setup.lock_duration)

    def crashed(self, life: Life | None, text: str) -> None:
        """Note what must not happen at all."""
        if life is not None and life.ended_at is not None:
            return
        who = "world" if life is None else life.name
        self.history.crashes.append((self.loop.time(), f"{who}: {text}"))
        self.history.say(who, f"CRASH {text}")


_CHANGED = 0.02  # of the handled messages: how often a consumer changes its receiver after one
_CONSUMERS_CLOSE = 4.0  # s that a consumer may take to close its receiver


class Process:
    """One process through all its lives."""

    def __init__(self, world: Surroundings, plan: ProcessPlan, shipments: dict[SenderPlan, list[Shipment]]) -> None:
        self.plan = plan
        self.life: Life | None = None
        self.pair: Pair | None = None
        self.out: set[str] = set()
        """Backlog queues that its pair does not use at present."""
        self.down_until = 0.0
        self._world = world
        self._shipments = shipments
        self._lives = itertools.count(1)
        self._connections: list[Connection] = []
        self._stopping: asyncio.Event | None = None
        self._senders: dict[SenderPlan, PairSender] = {}

    @property
    def alive(self) -> bool:
        """Whether it runs, or is closing."""
        return self.life is not None

    # Life and death; called by the world.

    def start(self) -> None:
        world = self._world
        number = next(self._lives)
        syphon = self.plan.syphon
        options = repr(world.options(self.plan))
        loop = world.loop
        tick = world.history.tick()
        self.life = life = Life(self.plan.name, number, syphon, options, self.plan.skew, loop.time(), tick)
        world.history.lives.append(life)
        world.history.say(life.name, "starts")
        self.out = set()
        self._stopping = asyncio.Event()
        context = copy_context()
        context.run(OWNER.set, life)
        loop.create_task(self._main(life), name=f"process {life.name}", context=context)

    def kill(self, chance: Random) -> None:
        """End it at once: no code of it runs again."""
        life, world = self.life, self._world
        if life is None:
            return
        world.loop.kill(life)
        for connection in self._connections:
            world.network.kill(connection, chance)
        if self.pair is not None:
            _active.release(self.pair.primary, self.pair.secondary)
        life.killed = True
        self._ended(life, "is killed")

    def forget(self) -> None:
        """The simulation is over: nothing that its code still does counts."""
        for connection in self._connections:
            connection.dead = connection.ended = True
        if self.pair is not None:
            _active.release(self.pair.primary, self.pair.secondary)
        self.life = None

    def stop(self) -> None:
        """Let it close its pair and end."""
        if self._stopping is not None:
            self._stopping.set()

    def _ended(self, life: Life, how: str) -> None:
        life.ended_at = self._world.loop.time()
        self._world.history.say(life.name, how)
        self.life = self.pair = self._stopping = None
        self._connections = []
        self._senders = {}

    # What it does.

    async def _main(self, life: Life) -> None:
        stopping = self._stopping
        assert stopping is not None
        clock = self._clock(life)
        try:
            pair = await self._opened(life, clock, stopping)
        except Exception as error:
            self._world.crashed(life, f"opening the pair: {type(error).__name__}: {error}")
            self._ended(life, "could not open")
            return
        if pair is None:
            self._ended(life, "ends before it opened")
            return
        life.opened_at = self._world.loop.time()
        self._world.history.say(life.name, "has opened its pair")
        tasks = []
        for plan, shipments in self._shipments.items():
            sender = self._senders[plan] = pair.sender(plan.target.path, kind=plan.target.kind.value)
            tasks.append(asyncio.create_task(self._send_all(life, plan, sender, shipments), name=f"sender {plan.name}"))
        for index, path in enumerate(self.plan.queues_read):
            tasks.append(asyncio.create_task(self._consume(life, pair, path, index)))
        if self.plan.consumer:
            tasks.append(asyncio.create_task(self._read(life, pair, "news", "all")))
        await stopping.wait()
        await self._close(life, pair, tasks)

    def _clock(self, life: Life) -> Clock:
        loop, skew = self._world.loop, self.plan.skew
        numbers = itertools.count(1)
        return Clock(
            lambda: WALL_EPOCH + loop.time() + skew,
            Random(f"{self._world.scenario.seed} {life.name}"),
            lambda: f"{life.name}-{next(numbers)}",
        )

    async def _opened(self, life: Life, clock: Clock, stopping: asyncio.Event) -> Pair | None:
        """An open pair, after as many attempts as needed; None if the process was to end first."""
        while not stopping.is_set():
            links = [self._world.link(name, life) for name in ("primary", "secondary")]
            self._connections = [link.connection for link in links]
            pair = Pair(links[0], links[1], self._world.options(self.plan), clock=clock)
            pair.subscribe(self._noting(life))
            self.pair = pair
            try:
                return await pair.open()
            except TransportError:
                self.pair = None  # the secondary refuses: an operator has to fix that
                await asyncio.sleep(2.0)
        return None

    def _noting(self, life: Life) -> Callable[[Event], None]:
        history, loop = self._world.history, self._world.loop

        def note(event: Event) -> None:
            if self.life is not life:
                return
            history.notes.append(Note(loop.time(), history.tick(), life.name, event))
            if isinstance(event, RotationChanged):
                (self.out.discard if event.in_use else self.out.add)(event.queue)
            if history.trace is not None:
                history.say(life.name, describe(event))

        return note

    async def _close(self, life: Life, pair: Pair, tasks: list[asyncio.Task[None]]) -> None:
        world = self._world
        life.closing_at = world.loop.time()
        world.history.say(life.name, "closes its pair")
        await pair.close()
        life.closed_at = world.loop.time()
        seconds = life.closed_at - life.closing_at
        life.locks_left = world.brokers["secondary"].locks_of(life.name)
        if tasks:
            # The caller's own tasks end by the closed pair's errors.
            await asyncio.wait(tasks, timeout=_CONSUMERS_CLOSE if self.plan.queues_read else 1.0)
        left = [task for task in world.loop.tasks_of(life) if task is not asyncio.current_task()]
        # Those that wait for their next shipment are the simulation's own.
        life.left = tuple(sorted(task.get_name() for task in left if task not in tasks))
        for task in left:
            task.cancel()
        self._ended(life, f"has closed its pair in {seconds:.3f} s")

    # Sending.

    async def _send_all(self, life: Life, plan: SenderPlan, sender: PairSender, shipments: list[Shipment]) -> None:
        SENDING.set(True)
        loop = self._world.loop
        began = loop.time()
        for shipment in shipments:
            if shipment.at < began:
                continue  # it was for an earlier life
            if shipment.at > loop.time():
                await asyncio.sleep(shipment.at - loop.time())
            over = life.closed_at is not None or loop.time() > self._world.scenario.seconds
            if over or not await self.ship(life, plan, sender, shipment):
                return

    async def ship(self, life: Life, plan: SenderPlan, sender: PairSender, shipment: Shipment) -> bool:
        """Carry out a shipment; False when the pair has ended."""
        records = [self._record(life, plan, shipment, shipment.number + index) for index in range(shipment.count)]
        if shipment.together or shipment.count == 1:
            return await self._send(life, sender, records, shipment)
        going_on = await asyncio.gather(*(self._send(life, sender, [record], shipment) for record in records))
        return all(going_on)

    async def canary(self, number: int, plan: SenderPlan) -> None:
        life, sender = self.life, self._senders.get(plan)
        if life is not None and sender is not None:
            SENDING.set(True)
            await self.ship(life, plan, sender, Shipment(self._world.loop.time(), plan.name, number))

    def _record(self, life: Life, plan: SenderPlan, shipment: Shipment, number: int) -> Sent:
        history, loop = self._world.history, self._world.loop
        options = self._world.options(self.plan)
        message = message_of(shipment, number, self.plan.name if options.ordering == "session" else None)
        timeout = shipment.timeout or options.send_timeout
        record = Sent(number, life.name, plan.name, plan.target, message, loop.time(), history.tick(), timeout)
        history.sent[number] = record
        if history.trace is not None:
            history.say(life.name, f"{plan.name} sends {number} to {plan.target}, {timeout:g} s")
        return record

    async def _send(self, life: Life, sender: PairSender, records: list[Sent], shipment: Shipment) -> bool:
        return await send_and_report(
            sender,
            [record.message for record in records],
            shipment.timeout,
            lambda results: self._reported(life, records, results),
            lambda text: self._world.crashed(life, text),
            together=shipment.together,
            cancel_after=shipment.cancel_after,
        )

    def _reported(self, life: Life, records: list[Sent], results: Sequence[Receipt | SendError | Result]) -> None:
        history = self._world.history
        if self.life is not life:
            return  # killed: it never got to know
        for record, result in zip(records, results, strict=False):
            record.ended_at, record.end_tick = self._world.loop.time(), history.tick()
            record.result = Result.of(result)
            if isinstance(result, Receipt):
                record.maybe_duplicate, record.queue = result.maybe_duplicate, result.backlog_queue
                if record.message.message_id is None:
                    record.message = replace(record.message, message_id=result.message_id)
            elif isinstance(result, SendError):
                record.error = type(result).__name__
            if history.trace is not None:
                more = ", maybe a duplicate" if record.maybe_duplicate else ""
                history.say(record.life, f"{record.number} is {record.result} {record.error}{more}")

    # Consuming.

    async def _consume(self, life: Life, pair: Pair, path: str, index: int) -> None:
        """Handle one message after the other, with one receiver for a while, then another."""
        CONSUMING.set(True)
        world = self._world
        chance, takes = Random(f"{world.scenario.seed} {life.name} reader {index}"), world.scenario.setup.handling
        reading: Reading | None = None
        while self.life is life:
            try:
                with contextlib.suppress(TransportError, LockLost):
                    async with pair.receiver(path, prefetch=5) as receiver:
                        reading = Reading(life.name, receiver.source.entity, world.loop.time())
                        world.history.readings.append(reading)
                        async for delivery in receiver:
                            if not await self._handle(life, delivery, takes * chance.random()):
                                break
                            if chance.random() < _CHANGED:
                                break
                        self._left(life, reading)
            except (PairClosed, PairFaulted, ConfigurationError):
                return
            finally:
                self._left(life, reading)
            await asyncio.sleep(1.0)

    async def _handle(self, life: Life, delivery: PairDelivery, seconds: float) -> bool:
        """Handle and complete a message; False when that was not confirmed."""
        history, loop = self._world.history, self._world.loop
        number, entity, side = number_of(delivery.message), delivery.source.entity, delivery.origin.value
        position = delivery.delivery.sequence_number
        record = Handling(number, entity, life.name, side, position, delivery.message, loop.time(), history.tick())
        history.handlings.append(record)
        if history.trace is not None:
            history.say(life.name, f"handles {delivery.message.message_id} of the {side}")
        if seconds:
            await asyncio.sleep(seconds)
        try:
            await delivery.complete()
            settled = True
        except (TransportError, LockLost):
            settled = False
        if self.life is life:
            record.settled, record.ended_at = settled, loop.time()
        return settled

    def _left(self, life: Life, reading: Reading | None) -> None:
        if reading is not None and reading.until is None and self.life is life:
            reading.until = self._world.loop.time()

    async def _read(self, life: Life, pair: Pair, path: str, subscription: str) -> None:
        CONSUMING.set(True)
        while self.life is life:
            with contextlib.suppress(TransportError, LockLost):
                try:
                    async with pair.receiver(path, subscription=subscription, prefetch=5) as receiver:
                        async for delivery in receiver:
                            await delivery.complete()
                except (PairClosed, PairFaulted, ConfigurationError):
                    return
            await asyncio.sleep(1.0)
