"""What the fixtures of the pytest plugin give; the fixtures themselves are in ``pairmq_pytest``, which imports late.

| fixture | gives |
|---|---|
| ``pair`` | an open `Pair` of two brokers in this process, with `QUICK_OPTIONS`; needs pytest-asyncio |
| ``pair_primary``, ``pair_secondary`` | its brokers, to be stopped, hung and restored |
| ``memory_broker`` | `MemoryBrokers`, which makes more of them |
| ``virtual_time`` | `VirtualTime`, which runs coroutines of a test in virtual time |

``@pytest.mark.pairmq(options=…, entities=…)`` sets the options of ``pair``, and what its primary has.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Self, TypeVar

from pairmq.core import PairOptions
from pairmq.model import Entity
from pairmq.pair import Pair
from pairmq.testing._loop import VirtualTimeLoop
from pairmq.testing._memory import MemoryBroker
from pairmq.testing._simulated import entity_named

__all__ = ["QUICK_OPTIONS", "MemoryBroker", "MemoryBrokers", "VirtualTime", "memory_pair"]

T = TypeVar("T")

QUICK_OPTIONS = PairOptions(
    backlog_queue_count=2,
    failover_interval=0.2,
    ping_primary_interval=0.1,
    enable_syphon=True,
    send_timeout=10.0,
    attempt_timeout=1.0,
    close_grace=1.0,
    syphon_receive_wait=1.0,
    ping_timeout=1.0,
    flap_window=0.0,
    backlog_retry_interval=0.2,
)
"""Options for tests in real time: a stopped primary is left after 0.2 s and found again within 0.1 s or so.

``flap_window`` is 0, so that a second outage in a test is over as soon as the first one.
"""

_tests = itertools.count(1)


class MemoryBrokers:
    """Makes ``memory://`` brokers for one test, and ends them after it; the fixture ``memory_broker``."""

    def __init__(self) -> None:
        self._test = next(_tests)
        self._brokers: dict[str, MemoryBroker] = {}

    def __call__(self, name: str | None = None) -> MemoryBroker:
        """Give a broker, empty and sound at first; the same one for the same name within a test.

        Args:
            name: letters, digits, ``-`` and ``_``; a new one when left out.
        """
        name = name or f"broker-{len(self._brokers) + 1}"
        if name not in self._brokers:
            self._brokers[name] = MemoryBroker(f"pytest-{self._test}-{name}")
        return self._brokers[name]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # A loop of its own: the test's may be closed by now, and brokers belong to none.
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            for broker in self._brokers.values():
                runner.run(broker.forget())


@asynccontextmanager
async def memory_pair(
    primary: MemoryBroker,
    secondary: MemoryBroker,
    options: PairOptions | Mapping[str, Any] | None = None,
    entities: Iterable[str | Entity] = ("orders",),
) -> AsyncIterator[Pair]:
    """Open a pair of two brokers in this process, and close it; what the fixture ``pair`` does.

    Args:
        primary: its primary.
        secondary: its secondary.
        options: all of them, or a mapping of single ones that take the place of those of `QUICK_OPTIONS`.
        entities: made on the primary: paths of queues, ``"topic:news"`` for a topic, or `pairmq.Entity`.

    Raises:
        ConfigurationError: an option is wrong.
        TypeError: a name in the mapping is not an option, or ``entities`` is a single string.
    """
    if isinstance(entities, str):  # its letters would become queues
        raise TypeError(f"entities={entities!r}: several are expected, such as [{entities!r}]")
    chosen = options if isinstance(options, PairOptions) else replace(QUICK_OPTIONS, **(options or {}))
    async with Pair.connect(primary.url, secondary.url, options=chosen) as pair:
        for entity in entities:
            await pair.primary.admin.create(entity_named(entity))
        yield pair


class VirtualTime:
    """Runs coroutines in virtual time, all of one test in one loop; the fixture ``virtual_time``.

    Everything that waits for timers and other tasks goes on as fast as the processor can. What waits for a real socket,
    a thread or ``time.sleep`` does not: use `pairmq.testing.simulated_pair` here. Brokers at ``memory://`` take part
    too, but their own clock is real: a lock, a time-to-live or a schedule that they keep lasts real seconds.
    """

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=VirtualTimeLoop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. Tasks that it leaves go on in the next call, and are cancelled after the test.

        Returns:
            What it returns.

        Raises:
            DeadlockError: every task waits, and no timer is set.
            RuntimeError: called from a coroutine.
        """
        if _is_running():
            coroutine.close()
            raise RuntimeError(
                "virtual_time.run is for plain tests: make this one 'def', "
                "or keep it 'async def' and decorate it with pairmq.testing.in_virtual_time"
            )
        return self._runner.run(coroutine)

    @property
    def now(self) -> float:
        """Virtual seconds since the start of the test."""
        return self._runner.get_loop().time()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._runner.close()


def _is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
