"""A syphon as a process of its own that writes down which messages it may have brought home twice.

usage: syphon_program.py PRIMARY SECONDARY QUEUES DOUBTS
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from pairmq import Pair, PairOptions
from pairmq.model.events import Event, MessageMoved


async def main(primary: str, secondary: str, queues: str, doubts: str) -> None:
    options = PairOptions(
        backlog_queue_count=int(queues),
        ping_primary_interval=0.5,
        attempt_timeout=2.0,
        syphon_receive_wait=2.0,
        enable_syphon=True,
    )
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    with Path(doubts).open("a", buffering=1) as log:

        def on_event(event: Event) -> None:
            if isinstance(event, MessageMoved) and (event.maybe_duplicate or event.redelivered or not event.completed):
                log.write(f"{event.message_id}\n")

        pair = Pair.connect(primary, secondary, options=options)
        pair.subscribe(on_event)
        async with pair:
            await stopped.wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(*sys.argv[1:]))
