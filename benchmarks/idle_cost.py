"""What an idle pair with 1,000 entities costs this process in processor time, with a syphon and without.

And what the syphon asks of the secondary meanwhile: each of ten backlog queues is received from once a long poll
(SPEC 7.9), which here is two seconds; with the 15 minutes of the default, that is 40 receives an hour. Exit status 1
when the pair with a syphon takes 1 % of a core or more, or receives more often than that.

Run it with: make bench-one NAME=idle_cost
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import sys

from _measuring import Contender, arguments, interleaved, report

from pairmq import Entity, EntityState, Message, Pair, PairOptions
from pairmq.model.events import Event, OperationsCounted, Side
from pairmq_redis.testing import RedisServer

MOST = 10_000  # µs of the processor a second: 1 % of a core
WITH, WITHOUT, RECEIVES = "with a syphon", "without a syphon", "receives, of all queues in a long poll"


def processor_time() -> float:
    """Seconds of user and system time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Idle:
    """Pairs that have sent to so many entities and now do nothing.

    Args:
        urls: of two empty servers.
        entities: how many.
        seconds: how long one is watched.
    """

    def __init__(self, urls: tuple[str, str], entities: int, seconds: float) -> None:
        self._urls = urls
        self._names = [f"orders-{number}" for number in range(entities)]
        self._seconds = seconds

    def cost(self, options: PairOptions) -> Contender:
        """Microseconds of the processor a second."""

        async def run() -> float:
            async with Pair.connect(*self._urls, options=options) as pair:
                await self._settle(pair)
                before = processor_time()
                await asyncio.sleep(self._seconds)
                return (processor_time() - before) / self._seconds * 1e6

        return run

    async def receives(self, wait: float = 2.0) -> float:
        """Receives of the secondary during one long poll."""
        counted: list[int] = []

        def watch(event: Event) -> None:
            if isinstance(event, OperationsCounted) and event.side is Side.SECONDARY:
                counted.append(event.receives)

        # Without looks at an operator's decisions, whose reports receive too.
        options = PairOptions(enable_syphon=True, syphon_receive_wait=wait, control_interval=0)
        async with Pair.connect(*self._urls, options=options) as pair:
            await self._settle(pair)
            pair.subscribe(watch)
            report_now = pair._opened._operations.report  # else once a minute
            report_now()
            counted.clear()
            polls = self._seconds // wait
            await asyncio.sleep(polls * wait)
            report_now()
            return sum(counted) / polls

    async def _settle(self, pair: Pair) -> None:
        senders = [pair.sender(name) for name in self._names]
        for name in self._names:
            await pair.primary.admin.create(Entity(name))
        await asyncio.gather(*(sender.send(Message(b"one")) for sender in senders))
        while any(state is not EntityState.HEALTHY for state in pair.states().values()):
            await asyncio.sleep(0.1)


async def measure(entities: int, seconds: float, rounds: int) -> dict[str, list[float]]:
    """Each figure, once a round."""
    with RedisServer(appendfsync="no") as east, RedisServer(appendfsync="no") as west:
        idle = Idle((east.url, west.url), entities, seconds)
        contenders = {
            WITH: idle.cost(PairOptions(enable_syphon=True)),
            WITHOUT: idle.cost(PairOptions()),
            RECEIVES: idle.receives,
        }
        return await interleaved(contenders, rounds, warm_up=False)


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--entities", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.entities, options.seconds, options.rounds))
    receives = figures.pop(RECEIVES)
    report(figures, [], "µs of the processor a second", as_json=options.json)
    queues = PairOptions().backlog_queue_count
    print(f"{RECEIVES}: {statistics.median(receives):.1f} of {queues}", file=sys.stderr)
    good = statistics.median(figures[WITH]) < MOST and statistics.median(receives) <= queues
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
