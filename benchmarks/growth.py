"""How the cost of a message grows with its size, and with the numbers of senders, entities and backlog queues.

On Redis servers, as they take the least of the time themselves. Four curves, each through some settings that take
turns: microseconds for each message accepted by the primary, sent in batches of at most 100 or 1 MiB; and of the last,
for each that a failed-over entity's backlog takes and the syphon moves back. Beside each stands how many times the
first setting's it is.

Run it with: make bench-one NAME=growth, or with its picture: make bench ARGS="--only growth"
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence

from _measuring import Contender, Figures, arguments, interleaved, ratio, spread

from pairmq import Entity, Message, Pair, PairOptions, PairSender
from pairmq.model.events import Event, MessageMoved
from pairmq_redis.testing import RedisServer

SIZES = (100, 1024, 10 * 1024, 100 * 1024, 1024 * 1024)
SENDERS = ENTITIES = (1, 10, 100, 1000)
QUEUES = (1, 4, 16, 64)
IN_A_BATCH, BYTES_IN_A_BATCH = 100, 1024 * 1024
BYTES_A_TURN = 32 * 1024 * 1024
SENDERS_DIVERTED = 128  # each keeps to one backlog queue, chosen by chance


class Growth:
    """Pairs of two servers, made anew for each turn.

    Args:
        primary: takes the messages.
        secondary: has the backlog.
        messages: of 1 KiB in a turn.
    """

    def __init__(self, primary: RedisServer, secondary: RedisServer, messages: int) -> None:
        self._primary = primary
        self._secondary = secondary
        self._messages = messages

    def by_size(self, size: int) -> Contender:
        """Microseconds a message of so many bytes."""
        return lambda: self._sent(size=size)

    def by_senders(self, senders: int) -> Contender:
        """The same of 1 KiB by so many sender objects, all at work at once."""
        return lambda: self._sent(senders=senders)

    def by_entities(self, entities: int) -> Contender:
        """The same to so many queues, a sender for each."""
        return lambda: self._sent(senders=entities, entities=entities)

    def by_queues(self, queues: int) -> Contender:
        """Microseconds a message into so many backlog queues and back to the primary."""
        return lambda: self._diverted_and_moved_back(queues)

    async def _sent(self, *, size: int = 1024, senders: int = 1, entities: int = 1) -> float:
        self._clear()
        messages = max(senders, min(self._messages, BYTES_A_TURN // size))
        at_once = max(1, min(IN_A_BATCH, BYTES_IN_A_BATCH // size, messages // senders))
        async with self._pair(PairOptions(backlog_queue_count=1)) as pair:
            for number in range(entities):
                await pair.primary.admin.create(Entity(f"orders-{number}"))
            these = [pair.sender(f"orders-{number % entities}") for number in range(senders)]
            await asyncio.gather(*(sender.send(Message(b"")) for sender in these))
            began = time.perf_counter()
            sends = (self._share(sender, messages // senders, at_once, b"x" * size) for sender in these)
            await asyncio.gather(*sends)
            return (time.perf_counter() - began) / (messages // senders * senders) * 1e6

    async def _diverted_and_moved_back(self, queues: int) -> float:
        self._clear()
        options = PairOptions(backlog_queue_count=queues, enable_syphon=True, syphon_receive_wait=1)
        async with self._pair(options) as pair:
            await pair.primary.admin.create(Entity("orders"))
            these = [pair.sender("orders") for _ in range(SENDERS_DIVERTED)]
            share = self._messages // len(these)
            arrived = asyncio.Event()
            left = share * len(these)

            def count(event: Event) -> None:
                nonlocal left
                if isinstance(event, MessageMoved):
                    left -= 1
                    if left == 0:
                        arrived.set()

            pair.subscribe(count)
            await these[0].send(Message(b""))
            pair.hold("orders")
            began = time.perf_counter()
            await asyncio.gather(*(self._share(each, share, IN_A_BATCH, b"x" * 1024) for each in these))
            await arrived.wait()
            return (time.perf_counter() - began) / (share * len(these)) * 1e6

    @staticmethod
    async def _share(sender: PairSender, messages: int, at_once: int, body: bytes) -> None:
        for first in range(0, messages, at_once):
            results = await sender.send_batch([Message(body) for _ in range(min(at_once, messages - first))])
            for result in results:
                if isinstance(result, Exception):
                    raise result

    def _pair(self, options: PairOptions) -> Pair:
        return Pair.connect(self._primary.url, self._secondary.url, options=options)

    def _clear(self) -> None:
        self._primary.flush()
        self._secondary.flush()


def curves(growth: Growth) -> dict[str, tuple[Sequence[int], Callable[[int], Contender]]]:
    """What is measured of which settings, by the name of what grows."""
    return {
        "bytes": (SIZES, growth.by_size),
        "senders": (SENDERS, growth.by_senders),
        "entities": (ENTITIES, growth.by_entities),
        "backlog queues": (QUEUES, growth.by_queues),
    }


def print_figures(what: str, settings: Sequence[int], figures: Figures) -> None:
    """Print one curve."""
    for setting in settings:
        of, times = spread(figures[str(setting)]), ratio(figures[str(setting)], figures[str(settings[0])])
        shown = f"{of['median']:>9,.1f} µs (from {of['min']:,.1f} to {of['max']:,.1f})"
        growth = f"{times['median']:.2f} times (from {times['min']:.2f} to {times['max']:.2f})"
        print(f"{setting:>9,} {what:15} {shown}, {growth}")


async def measure(messages: int, rounds: int) -> dict[str, Figures]:
    """All curves on two servers."""
    with RedisServer(appendfsync="everysec") as primary, RedisServer(appendfsync="everysec") as secondary:
        growth = Growth(primary, secondary, messages)
        return {
            what: await interleaved({str(setting): of(setting) for setting in settings}, rounds)
            for what, (settings, of) in curves(growth).items()
        }


def main() -> int:
    """Measure, print and draw."""
    parser = arguments(__doc__, rounds=5)
    parser.add_argument("--messages", type=int, default=10_000, help="of 1 KiB in a turn")
    options = parser.parse_args()
    found = asyncio.run(measure(options.messages, options.rounds))
    if options.json:
        curves = {what: {each: spread(values) for each, values in of.items()} for what, of in found.items()}
        print(json.dumps({"unit": "µs a message", "curves": curves}))
    else:
        for what, figures in found.items():
            print_figures(what, [int(setting) for setting in figures], figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
