"""The world of a simulation: two brokers, the network, the processes, and the faults as they come."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from contextvars import copy_context
from datetime import UTC, datetime
from random import Random
from typing import Any

from pairmq.core import RECORD_QUEUE, Diversion, PairOptions, divert, lane_path
from pairmq.core.lanes import LANE_LOOK_INTERVAL
from pairmq.memory import Queue
from pairmq.model import Entity, EntityKind, EntityState, Message
from pairmq.pair import Pair
from pairmq.runner import LOOK_INTERVAL
from pairmq.testing._loop import WALL_EPOCH
from pairmq.testing.history import CANARIES, PRIMARY, SECONDARY
from pairmq.testing.judge import drained_within
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._loop import OWNER
from pairmq.testing.simulator._network import Condition
from pairmq.testing.simulator._process import Process, Surroundings
from pairmq.testing.simulator._scenario import BLIPS, CONDITIONS, Fault, Scenario, Shipment, entity_of
from pairmq.transport import QueueProperties

SUBSCRIPTIONS = ("all", "audit")

# Queues of the primary to which no syphon may deliver (SPEC 5.8).
_FORBIDDEN = ("system/secret", f"{PRIMARY}/x-servicebus-transfer/0")

_LATE_WRITES = 35.0  # s after which no write of the faults is in flight
_EVERY = 5.0  # s between two looks at whether all is drained
_TASKS_A_QUEUE = 12
_GARBAGE = 20_000  # objects between two collections: the history of an hour has hundreds of thousands, and few circles
_TASKS_BESIDES = 60


class World(Surroundings):
    def __init__(self, scenario: Scenario, trace: Callable[[str], None] | None = None) -> None:
        super().__init__(scenario, trace)
        setup = scenario.setup
        shipments: dict[str, list[Shipment]] = {}
        for shipment in scenario.traffic:
            shipments.setdefault(shipment.sender, []).append(shipment)
        self.processes = {
            plan.name: Process(
                self,
                plan,
                {each: shipments.get(each.name, []) for each in setup.senders if each.process == plan.name},
            )
            for plan in setup.processes
        }
        self._conditions: dict[Condition, None] = {}
        self._deleted: dict[tuple[str, Entity], QueueProperties] = {}
        self._forged = 0
        self._lost_with_all: dict[Entity, None] = {}
        """The queues of the secondary when it was emptied last: processes that use them make them again (SPEC 13.2)."""
        self._queues_of_syphons = [
            Entity(name) for plan in setup.processes if plan.syphon for name in setup.backlog_queues(plan)
        ]

    def run(self) -> History:
        logger = logging.getLogger("pairmq")
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # thousands of warnings, all of them asked for
        self.loop.set_exception_handler(self._unhandled)
        thresholds = gc.get_threshold()
        gc.set_threshold(_GARBAGE, *thresholds[1:])
        try:
            self.loop.run(self._main())
        except Exception as error:
            self.crashed(None, f"the simulation itself: {type(error).__name__}: {error}")
        finally:
            logger.setLevel(level)
            gc.set_threshold(*thresholds)
            self.history.ended_at = self.loop.time()
            for process in self.processes.values():
                process.forget()
            self.loop.bury()
        return self.history

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = f"{context.get('message')}: {type(error).__name__}: {error}"
        self.history.crashes.append((self.loop.time(), text))

    # The course of things.

    async def _main(self) -> None:
        scenario = self.scenario
        for text in scenario.setup.entities:
            entity = entity_of(text)
            self.brokers[PRIMARY].create(entity, QueueProperties(lock_duration=30.0))
            if entity.kind is EntityKind.TOPIC:
                for name in SUBSCRIPTIONS:
                    self.brokers[PRIMARY].state.subscribe(entity, name)
        for path in _FORBIDDEN:
            self.brokers[PRIMARY].create(Entity(path), QueueProperties(lock_duration=30.0))
        for process in self.processes.values():
            process.start()
        for fault in scenario.faults:
            self.loop.call_at(fault.at, self._strike, fault)
        await self._until(scenario.seconds)
        if scenario.mode == "liveness":
            await self._heal()
            await self._converge()
        await self._close_all()
        gc.collect()  # unretrieved failures are reported when they are collected

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self.loop.time()))

    async def _close_all(self) -> None:
        for process in self.processes.values():
            process.stop()
        ends_at = self.loop.time() + 600.0
        while any(process.alive for process in self.processes.values()) and self.loop.time() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(1.0)  # their tasks may be killed, and then no event would be set

    # Faults.

    def _strike(self, fault: Fault) -> None:
        if self.history.healed_at is not None:
            return
        self.history.strokes.append((self.loop.time(), self.history.tick(), fault))
        self.history.say("fault", str(fault))
        if fault.kind in CONDITIONS:
            self._begin(fault)
            return
        chance = Random(fault.seed)
        match fault.kind:
            case "reset":
                self._drop(fault, chance)
            case "broker-kill":
                self._drop(fault, chance)
                self._begin(Fault(fault.at, "refuse", fault.duration, fault.broker, seed=fault.seed))
                self.brokers[fault.broker].release_all()
            case "lock-lost":
                queue = self.brokers[fault.broker].queues.get(Entity(fault.entity))
                if queue is not None and queue.properties.single_consumer:
                    # Where order rests on locks, to lose some of them is worse than to lose all.
                    self.brokers[fault.broker].release_some(queue, chance)
                elif queue is not None:
                    self.brokers[fault.broker].release_all(queue=queue)
            case "blip" | "stall":
                for name in (fault.broker,) if fault.broker else (PRIMARY, SECONDARY):
                    kind = BLIPS[fault.kind]
                    self._begin(Fault(fault.at, kind, fault.duration, name, fault.process, seed=fault.seed))
            case "demote":
                self.network.demote(fault)
            case "emptied":
                self._empty(fault)
            case "delete":
                self._delete(fault)
            case "kill" | "restart":
                self._end_process(fault, chance)
            case "operator":
                self._operate(fault, chance)
            case "forge":
                self._forge(fault, chance)
            case _:
                raise ValueError(f"unknown fault {fault.kind}")

    def _begin(self, fault: Fault) -> None:
        condition = Condition(fault)
        self._conditions[condition] = None
        self.network.begin(condition)
        self.loop.later(fault.duration, self._over, condition)

    def _over(self, condition: Condition) -> None:
        if self._conditions.pop(condition, self) is None:
            self.history.say("fault", f"is over: {condition.fault}")
            self.network.end(condition)
            self.brokers[condition.fault.broker].serve_all()

    def _drop(self, fault: Fault, chance: Random) -> None:
        for connection in tuple(self.network.connections):
            if connection.broker.name == fault.broker and fault.process in ("", connection.process):
                self.network.drop(connection, chance)

    def _delete(self, fault: Fault) -> None:
        broker = self.brokers[fault.broker]
        for entity in tuple(broker.queues):
            if entity.path == fault.entity:
                properties = broker.queues[entity].properties
                broker.delete(entity)
                self._lost_with_all.pop(entity, None)
                if fault.broker == PRIMARY:  # backlog queues are for the pairs to make again
                    self._deleted[fault.broker, entity] = properties
                    self.loop.later(fault.duration, self._make_again, fault.broker, entity)

    def _empty(self, fault: Fault) -> None:
        """Replace the secondary by an empty one, as soon as no backlog queue holds anything that would be lost."""
        if any(queue.stored for queue in self._backlog_queues().values()):
            if self.loop.time() < fault.ends_at and self.history.healed_at is None:
                self.loop.later(1.0, self._empty, fault)
            return
        now = self.loop.time()
        self.history.emptied.append(now)
        self.history.disturbed.append((now, now))
        self.history.say("fault", "the secondary is emptied")
        for entity in tuple(self.brokers[SECONDARY].queues):
            self.brokers[SECONDARY].delete(entity)
            self._lost_with_all[entity] = None

    def _make_again(self, name: str, entity: Entity) -> None:
        properties = self._deleted.pop((name, entity), None)
        if properties is not None and self.brokers[name].create(entity, properties):
            self.history.say("fault", f"{name} {entity} is made again")
            if entity.kind is EntityKind.TOPIC:
                for subscription in SUBSCRIPTIONS:
                    self.brokers[name].state.subscribe(entity, subscription)

    def _end_process(self, fault: Fault, chance: Random) -> None:
        process = self.processes[fault.process]
        if process.alive and fault.kind == "kill":
            process.kill(chance)
        else:
            process.stop()
        process.down_until = self.loop.time() + fault.duration
        self.loop.later(fault.duration, self._restart, process)

    def _restart(self, process: Process) -> None:
        if process.alive:
            if process.down_until > 0:  # it is still closing
                self.loop.later(1.0, self._restart, process)
        elif self.loop.time() >= process.down_until:
            process.down_until = 0.0
            process.start()

    def _operate(self, fault: Fault, chance: Random) -> None:
        process = self.processes[fault.process]
        if process.pair is None or process.life is None or process.life.opened_at is None or process.life.closing_at:
            return
        kind = "topic" if f"topic:{fault.entity}" in self.scenario.setup.entities else "queue"
        word = chance.choice(("force_failover", "mark_healthy"))
        context = copy_context()
        context.run(OWNER.set, process.life)
        pair = process.pair
        context.run(lambda: getattr(pair, word)(fault.entity, kind=kind))

    def _forge(self, fault: Fault, chance: Random) -> None:
        """Put a message into a backlog queue that no pair has put there."""
        queue = Entity(fault.entity)
        broker = self.brokers[SECONDARY]
        if queue not in broker.queues:
            return
        self._forged += 1
        plain = Message(b"forged", message_id=f"forged-{self._forged}")
        at = datetime.fromtimestamp(WALL_EPOCH + self.loop.time(), UTC)
        target = Entity(chance.choice(("nowhere", *_FORBIDDEN)))
        message = plain
        if chance.random() < 0.7:
            message = divert(plain, Diversion(target, at, "forger", self._forged))
        self.history.forged.append(broker.store(queue, message, None))

    # Liveness.

    async def _heal(self) -> None:
        self.history.healed_at = self.loop.time()
        self.history.say("world", "heals everything")
        for condition in tuple(self._conditions):
            self._over(condition)
        for name, entity in tuple(self._deleted):
            self._make_again(name, entity)
        for process in self.processes.values():
            process.down_until = min(process.down_until, self.loop.time())
            if not process.alive:
                process.down_until = 0.0
                process.start()
        await asyncio.sleep(_LATE_WRITES)
        for process in self.processes.values():
            if not process.alive:  # it was still closing when all was healed
                process.start()

    @staticmethod
    def _uses(pair: Pair, queue: Entity) -> bool:
        return queue in pair.backlog_queues or queue.path == f"{PRIMARY}/{RECORD_QUEUE}"

    def _bound(self) -> float:
        """Seconds within which all must be well again."""
        options = self.common_options
        waiting = sum(len(queue.stored) for queue in self._backlog_queues().values())
        # Where options differ, or the secondary was emptied, a process may have to look at the pair's record first.
        agrees = not any(plan.own_options for plan in self.scenario.setup.processes) and not self.history.emptied
        looks = 0.0 if agrees else 2 * LOOK_INTERVAL
        drained = drained_within(options, waiting, self.scenario.setup.lock_duration or 60.0)
        return drained + looks + self._handling(options)

    def _handling(self, options: PairOptions) -> float:
        """Seconds that consumers need more: until the syphon reads lanes, and for what waits for them."""
        consumed = [queue for each in self.history.consumed if (queue := self.brokers[PRIMARY].queues.get(each))]
        queues = (*consumed, *self._backlog_queues().values())
        waiting = sum(len(queue.stored) + len(queue.scheduled) for queue in queues)
        each = self.scenario.setup.handling + sum(self.scenario.setup.latency)
        lock = 2 * 30.0  # of the primary's queues
        lanes = 2 * options.lane_patience + LANE_LOOK_INTERVAL if options.continuity else 0.0
        return (lock + waiting * each if consumed else 0.0) + lanes

    def _backlog_queues(self) -> dict[Entity, Queue]:
        """All queues of the secondary but the one that holds the pair's record."""
        queues = self.brokers[SECONDARY].queues
        return {entity: queue for entity, queue in queues.items() if not entity.path.endswith(RECORD_QUEUE)}

    async def _converge(self) -> None:
        history = self.history
        history.bound = self._bound()
        began = self.loop.time()
        if not await self._well(began + history.bound):
            return
        history.drained_at = self.loop.time()
        number = CANARIES
        for process in self.processes.values():
            for plan in [each for each in self.scenario.setup.senders if each.process == process.plan.name]:
                self._in(process, process.canary(number, plan))
                number += 1
        await asyncio.sleep(self.common_options.send_timeout + 1.0)
        await self._well(self.loop.time() + history.bound)

    def _in(self, process: Process, coroutine: Any) -> None:
        context = copy_context()
        context.run(OWNER.set, process.life)
        self.loop.create_task(coroutine, name="canary", context=context)

    async def _well(self, ends_at: float) -> bool:
        while problems := self._problems():
            if self.loop.time() >= ends_at:
                self.history.undrained = tuple(problems)
                return False
            await asyncio.sleep(_EVERY)
        return True

    def _problems(self) -> list[str]:
        """What is not yet as it should be."""
        problems = []
        queues = self._backlog_queues()
        if not self._queues_of_syphons:  # consumers empty lanes, and nothing else
            queues = {entity: queue for entity, queue in queues.items() if lane_path(entity.path) is not None}
        queues |= {each: queue for each in self.history.consumed if (queue := self.brokers[PRIMARY].queues.get(each))}
        for entity, queue in queues.items():
            if queue.stored:
                first = ", ".join(str(message.message_id) for message in queue.messages()[:5])
                problems.append(f"{entity} holds {len(queue.stored)} messages: {first}")
        for process in self.processes.values():
            life, pair = process.life, process.pair
            if life is None or pair is None or life.opened_at is None:
                problems.append(f"process {process.plan.name} does not run")
                continue
            for entity, state in pair.states().items():
                if state is not EntityState.HEALTHY:
                    problems.append(f"{life.name} has {entity} as {state}")
            # Without a syphon, a queue that only this process uses is made again by its next send that needs it.
            wanted = pair.backlog_queues if process.plan.syphon else tuple(self._queues_of_syphons)
            wanted += tuple(each for each in self._lost_with_all if each not in wanted and self._uses(pair, each))
            missing = [each.path for each in wanted if each not in self.brokers[SECONDARY].queues]
            if missing:
                problems.append(f"{', '.join(missing)} does not exist")
            if process.out:
                problems.append(f"{life.name} does not use {', '.join(sorted(process.out))}")
            if pair.in_flight:
                problems.append(f"{life.name} has {pair.in_flight} sends in flight")
            tasks = len(self.loop.tasks_of(life))
            if tasks > _TASKS_BESIDES + _TASKS_A_QUEUE * len(pair.backlog_queues):
                problems.append(f"{life.name} has {tasks} tasks")
        return problems
