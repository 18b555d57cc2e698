"""What a send of a pair costs while 100 000 are in flight, to one entity or to many: senders times entities.

So many senders, spread over the entities, send one message each; the broker, a fake one, confirms them when all are
in flight. Reported is this process's time on the processor for each. What is more for many entities is what a pair
spends on managing them. Exit status 1 when the cost to the most entities is more than 20 % above that to one.

Run it with: make bench-one NAME=entities_cost
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import time

from _measuring import Contender, arguments, interleaved, report
from _nowhere import Nowhere

from pairmq import Message, Pair, PairOptions

BODY = b"x" * 1024
MOST = 1.2


async def cost(senders: int, entities: int) -> float:
    """Nanoseconds of the processor for each of so many sends to so many entities."""
    primary, secondary = Nowhere("nowhere-east"), Nowhere("nowhere-west")
    # No time limit may end a send while a slow machine still begins others.
    options = PairOptions(max_pending_sends=senders, send_timeout=3600, attempt_timeout=600)
    async with Pair.connect(primary, secondary, options=options) as pair:
        these = [pair.sender(f"orders-{number % entities}") for number in range(senders)]
        messages = [Message(BODY, message_id=f"m{number}") for number in range(senders)]
        await asyncio.gather(*(these[number].send(messages[number]) for number in range(entities)))
        primary.open.clear()
        gc.collect()
        gc.disable()  # what it costs depends on when it runs: of all that is alive, it looks at each
        try:
            began = time.process_time()
            sends = [
                asyncio.ensure_future(sender.send(message)) for sender, message in zip(these, messages, strict=True)
            ]
            while primary.waiting < senders:
                await asyncio.sleep(0)
            if pair.in_flight != senders:
                raise RuntimeError(f"{pair.in_flight} sends are in flight")
            primary.open.set()
            await asyncio.gather(*sends)
            return (time.process_time() - began) / senders * 1e9
        finally:
            gc.enable()


def turn(senders: int, entities: int) -> Contender:
    """A contender of so many entities."""
    return lambda: cost(senders, entities)


def name(entities: int) -> str:
    """What it is called in the table."""
    return f"{entities:,} entities" if entities > 1 else "1 entity"


def main() -> int:
    """Measure and print; exit status 1 when the cost is not flat."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--senders", type=int, default=100_000)
    options = parser.parse_args()
    sizes = [size for size in (1, 100, 10_000, 100_000) if size <= options.senders]
    turns = {name(size): turn(options.senders, size) for size in sizes}
    figures = asyncio.run(interleaved(turns, options.rounds))
    report(figures, [(name(size), name(1)) for size in sizes[1:]], "ns of the processor a send", as_json=options.json)
    costs = [statistics.median(figures[name(size)]) for size in sizes]
    return 0 if max(costs) <= MOST * costs[0] else 1


if __name__ == "__main__":
    sys.exit(main())
