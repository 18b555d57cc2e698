"""A syphon as a process of its own that writes down which messages it may have moved back twice.

It is ``pairmq syphon`` with one observer more: whatever brings a message home must say so here, or a second copy that
it makes looks unexplained.

usage: syphon_program.py PRIMARY SECONDARY QUEUES DOUBTS [--until-empty]
"""

from __future__ import annotations

import sys
from pathlib import Path

from pairmq import Pair, PairOptions
from pairmq.cli._common import transport_of
from pairmq.cli._signals import run_async
from pairmq.cli._syphon import SyphonJob
from pairmq.model.events import Event, MessageMoved


def main(primary: str, secondary: str, queues: str, doubts: str, *flags: str) -> int:
    options = PairOptions(
        backlog_queue_count=int(queues),
        ping_primary_interval=0.5,
        attempt_timeout=2.0,
        syphon_receive_wait=2.0,
        enable_syphon=True,
    )
    with Path(doubts).open("a", buffering=1) as log:

        def on_event(event: Event) -> None:
            if isinstance(event, MessageMoved) and (event.maybe_duplicate or event.redelivered or not event.completed):
                log.write(f"{event.message_id}\n")

        pair = Pair.connect(primary, secondary, options=options)
        pair.subscribe(on_event)
        job = SyphonJob(
            pair,
            lambda: transport_of(secondary),
            until_empty="--until-empty" in flags,
            interval=10.0,
            json=False,
        )
        return run_async(job.run, graceful=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
