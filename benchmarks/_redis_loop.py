"""A loop as one would write it with redis-py to move a stream from one server to another: SOURCE TARGET FROM TO [N].

Read N entries, 500 when left out, add them at the target in one pipeline, and when all are confirmed, acknowledge and
delete them. It restores nothing, checks nothing and renews no lock; what fails, ends it.
"""

from __future__ import annotations

import asyncio
import sys

from redis.asyncio import Redis

AT_ONCE = "500"
GROUP, CONSUMER = "pairmq", "loop"


async def move(source_url: str, target_url: str, source: str, target: str, at_once: str = AT_ONCE) -> None:
    """Until nothing is left."""
    async with Redis.from_url(source_url) as west, Redis.from_url(target_url) as east:
        while found := await west.xreadgroup(GROUP, CONSUMER, {source: ">"}, count=int(at_once)):
            [(_, entries)] = found
            adding = east.pipeline(transaction=False)
            for _, fields in entries:
                adding.xadd(target, fields)
            await adding.execute()
            ids = [entry for entry, _ in entries]
            ending = west.pipeline(transaction=False)
            ending.xack(source, GROUP, *ids)
            ending.xdel(source, *ids)
            await ending.execute()


if __name__ == "__main__":
    asyncio.run(move(*sys.argv[1:]))
