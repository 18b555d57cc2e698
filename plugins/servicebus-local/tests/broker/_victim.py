"""A process that works on a store until it is killed: tells what it is about to flush, and when it has.

Run with a directory and a seed.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

from servicebus_local.broker import Broker, Incoming, QueueDescription, SqliteStore


def snapshot(broker: Broker) -> str:
    """Everything that a restart has to bring back."""
    seen: dict[str, object] = {}
    for path in ("plain", "plain/$DeadLetterQueue", "ordered"):
        source = broker.resolve_receive(path)
        seen[path] = [
            [m.sequence_number, m.content.hex()[:16], m.delivery_count, int(m.state), m.added_properties, m.message_id]
            for m in source.peek(0, 100_000)
        ]
    ordered = broker.resolve_receive("ordered")
    seen["states"] = [(ordered.get_session_state(each) or b"").hex() for each in "abc"]
    return json.dumps(seen, sort_keys=True)


def create(broker: Broker) -> None:
    """The entities that `snapshot` looks at."""
    broker.create_queue("plain", QueueDescription(requires_duplicate_detection=True))
    broker.create_queue("ordered", QueueDescription(requires_session=True))
    broker.flush()


def main(directory: Path, seed: int) -> None:
    """Works until it is killed."""
    chance = random.Random(seed)
    broker = Broker(time.time, SqliteStore(directory))
    if not broker.queues():
        create(broker)
    plain, ordered = broker.resolve_receive("plain"), broker.resolve_receive("ordered")
    number = seed * 1_000_000
    while True:
        for _ in range(chance.randrange(1, 5)):
            number += 1
            batch = [
                Incoming(chance.randbytes(900), 1000, message_id=f"{number}-{each}", session_id=chance.choice("abc"))
                for each in range(chance.randrange(1, 20))
            ]
            broker.send(chance.choice(["plain", "ordered"]), batch)
            for message in plain.take(chance.randrange(15)):
                settle = chance.choice([plain.complete] * 6 + [plain.abandon, plain.defer, plain.dead_letter])
                settle(message.lock_token)
            lock = ordered.accept_session(chance.choice([None, "a", "b", "c"]))
            if lock is not None:
                for message in ordered.take(chance.randrange(15), session=lock):
                    ordered.complete(message.lock_token)
                ordered.set_session_state(lock, chance.choice([None, chance.randbytes(5)]))
                ordered.release_session(lock)
        os.write(1, f"try {snapshot(broker)}\n".encode())
        broker.flush()
        os.write(1, b"done\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
