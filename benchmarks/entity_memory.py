"""What a pair keeps of an entity, in bytes, with 100 000 entities: the machine alone, all of it, and with a sender.

All of it is the machine, what runs it, and its place in the pair. Exit status 1 when that is more than 1 KiB.

Run it with: make bench-one NAME=entity_memory
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import tracemalloc
from collections.abc import Awaitable, Callable

from _measuring import Contender, arguments, interleaved, report
from _nowhere import Nowhere

from pairmq import Entity, Pair, PairOptions
from pairmq.core.machine import EntityMachine

MOST = 1024  # bytes
MACHINE, ENTITY, SENDER = "the machine", "an entity of a pair", "an entity and its sender"


def traced(entities: int, make: Callable[[int], Awaitable[object]]) -> Contender:
    """Bytes for each of what ``make`` gives and keeps."""

    async def run() -> float:
        gc.collect()
        tracemalloc.start()
        try:
            kept = await make(entities)
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        if isinstance(kept, Pair):
            await kept.close()
        return held / entities

    return run


async def machines(entities: int) -> object:
    """Nothing but machines."""
    options = PairOptions()
    return [EntityMachine(options, 0.0) for _ in range(entities)]


async def in_a_pair(entities: int) -> object:
    """A pair that knows so many entities."""
    pair = await Pair.connect(Nowhere("nowhere-east"), Nowhere("nowhere-west"))
    for number in range(entities):
        pair._opened.runner(Entity(f"orders-{number}"))
    return pair


async def with_senders(entities: int) -> object:
    """The same with a sender object each, kept."""
    pair = await Pair.connect(Nowhere("nowhere-east"), Nowhere("nowhere-west"))
    pair.kept = [pair.sender(f"orders-{number}") for number in range(entities)]  # type: ignore[attr-defined]
    return pair


def main() -> int:
    """Measure and print; exit status 1 when an entity needs more than `MOST`."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--entities", type=int, default=100_000)
    options = parser.parse_args()
    kinds = {MACHINE: machines, ENTITY: in_a_pair, SENDER: with_senders}
    turns = {name: traced(options.entities, make) for name, make in kinds.items()}
    figures = asyncio.run(interleaved(turns, options.rounds))
    report(figures, [], "bytes an entity", as_json=options.json)
    return 0 if statistics.median(figures[ENTITY]) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
