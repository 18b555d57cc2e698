"""What a simulated process lives among: the loop, the brokers, the network, and what is written down."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from random import Random

from pairmq.core import PairOptions
from pairmq.testing.simulator._broker import Broker
from pairmq.testing.simulator._history import History, Life
from pairmq.testing.simulator._loop import SimulationLoop
from pairmq.testing.simulator._network import Network
from pairmq.testing.simulator._scenario import PRIMARY, SECONDARY, ProcessPlan, Scenario
from pairmq.testing.simulator._shipped import number_of
from pairmq.testing.simulator._transport import SimulatedLink
from pairmq.transport import Capabilities

SENDING: ContextVar[bool] = ContextVar("pairmq simulation sending", default=False)
CONSUMING: ContextVar[bool] = ContextVar("pairmq simulation consuming", default=False)


class Surroundings:
    """What the processes of a simulation share."""

    def __init__(self, scenario: Scenario, trace: Callable[[str], None] | None = None) -> None:
        self.scenario = scenario
        self.loop = SimulationLoop()
        self.history: History = _LiveHistory(scenario, self.loop, trace)
        setup = scenario.setup
        self.brokers = {name: Broker(name, self.loop, self.history, number_of) for name in (PRIMARY, SECONDARY)}
        latencies = dict(zip((PRIMARY, SECONDARY), setup.latency, strict=True))
        self.network = Network(
            self.loop, self.history, latencies, Random(f"{scenario.seed} network"), jitter=setup.jitter
        )
        self._options = {plan.name: setup.options_of(plan) for plan in setup.processes}
        self.common_options = setup.pair_options(syphon=True)
        """What the options of all pairs have in common."""

    def options(self, plan: ProcessPlan) -> PairOptions:
        """The options of a process's pair."""
        return self._options[plan.name]

    def link(self, name: str, life: Life) -> SimulatedLink:
        """A new connection of a process to a broker."""
        setup = self.scenario.setup
        primary = name == PRIMARY
        capabilities = Capabilities(
            max_message_bytes=setup.most_bytes[0 if primary else 1],
            topics=True,
            scheduling="scheduling" not in setup.primary_lacks if primary else setup.scheduling,
            counts_scheduled=primary or setup.counts_scheduled,
            time_to_live=not primary or "time_to_live" not in setup.primary_lacks,
            dead_letter=True,
            lock_renewal=True,
            probes=True,
            peek=True,
            ordered_consumer=True,
            ordered_batches=primary and self.scenario.seed // 2 % 2 == 1,  # in both modes, which take turns
            durable=True,
        )
        connection = self.network.open(self.brokers[name], life)
        lock = 30.0 if primary else setup.lock_duration
        return SimulatedLink(connection, self.history, capabilities, lock, SENDING.get, CONSUMING.get, number_of)

    def crashed(self, life: Life | None, text: str) -> None:
        """Note what must not happen at all."""
        if life is not None and life.ended_at is not None:
            return
        who = "world" if life is None else life.name
        self.history.crashes.append((self.loop.time(), f"{who}: {text}"))
        self.history.say(who, f"CRASH {text}")


class _LiveHistory(History):
    """A history that knows the time."""

    def __init__(self, scenario: Scenario, loop: SimulationLoop, trace: Callable[[str], None] | None) -> None:
        super().__init__(scenario, trace)
        self._loop = loop

    def say(self, who: str, what: str) -> None:
        if self.trace is not None:
            self.now = self._loop.time()
            super().say(who, what)
