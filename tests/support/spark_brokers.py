"""Two brokers under a Spark session in tests: a settings file for the pair, and what a test asks the brokers itself.

And the data source as Spark has it, for tests that call it in Spark's place.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql.datasource import DataSource

from pairmq.model import Entity, Message, Source
from pairmq.pipeline.datasource import register
from pairmq.plugins import registry
from pairmq.transport import QueueCounts, QueueProperties


def registered(*, speculation: bool = False) -> type[DataSource]:
    """What is registered in a session, with ``spark.speculation`` or without."""
    found: list[type[DataSource]] = []
    session: Any = SimpleNamespace(
        conf=SimpleNamespace(get=lambda *_: str(speculation).lower()),
        dataSource=SimpleNamespace(register=found.append),
        createDataFrame=lambda *_: None,
    )
    register(session)
    return found[0]


SOURCE = registered()
SCHEMA: Any = SOURCE({}).schema()
"""The columns of messages."""

QUICK = {"failover_interval": 0.3, "attempt_timeout": 20.0, "backlog_queue_count": 2, "close_grace": 1.0}
"""Options of a pair in a test."""


class Brokers:
    """A pair's brokers, asked without Spark and without a pair."""

    def __init__(self, primary: str, secondary: str, folder: Path, options: Mapping[str, float] = QUICK) -> None:
        self.primary = primary
        self.secondary = secondary
        lines = [f"primary = {primary!r}", f"secondary = {secondary!r}"]
        lines += [f"{name} = {value}" for name, value in options.items()]
        self.config = folder / "pair.toml"
        self.config.write_text("\n".join(["[pair]", *lines, ""]), "utf-8")

    def make(self, path: str = "orders", *, lock: float = 30.0) -> None:
        """Make a queue on the primary."""

        async def make() -> None:
            async with registry.transport(self.primary) as transport:
                await transport.admin.create(Entity(path), QueueProperties(lock_duration=lock))

        asyncio.run(make())

    def send(self, messages: Iterable[Message], path: str = "orders") -> None:
        """Put messages on the primary."""

        async def send() -> None:
            async with registry.transport(self.primary) as transport:
                outcomes = await transport.sender(Entity(path)).send_batch(list(messages))
                assert outcomes.count(None) == len(outcomes)

        asyncio.run(send())

    def counts(self, path: str = "orders", *, side: str = "primary") -> QueueCounts:
        """Count what a queue holds."""

        async def count() -> QueueCounts:
            async with registry.transport(getattr(self, side)) as transport:
                return await transport.admin.counts(Source(Entity(path)))

        return asyncio.run(count())

    def backlog(self) -> tuple[str, ...]:
        """Names of the backlog queues."""
        name = registry.transport(self.primary).endpoint.name
        return tuple(f"{name}/x-servicebus-transfer/{index}" for index in range(int(QUICK["backlog_queue_count"])))

    def take(self, path: str = "orders", *, side: str = "primary") -> Counter[str]:
        """Receive and complete all that is there; how often each id was."""

        async def take() -> Counter[str]:
            seen: Counter[str] = Counter()
            async with registry.transport(getattr(self, side)) as transport:
                source, empty = Source(Entity(path)), 0
                receiver = transport.receiver(source)
                while empty < 2:
                    deliveries = await receiver.receive(1000, 0.5)
                    seen.update(delivery.message.message_id or "" for delivery in deliveries)
                    await receiver.complete_batch(deliveries)
                    # That nothing has come in time says little of a server that was slow.
                    empty = 0 if deliveries or (await transport.admin.counts(source)).pending else empty + 1
                await receiver.close()
            return seen

        return asyncio.run(take())


def numbered(count: int, prefix: str = "m") -> list[Message]:
    """Messages with ids that begin so."""
    return [Message(f"body {number}".encode(), message_id=f"{prefix}{number}") for number in range(count)]


def ids(count: int, prefix: str = "m") -> set[str]:
    """Their ids."""
    return {f"{prefix}{number}" for number in range(count)}


def processes(of: int, *words: str) -> dict[int, int]:
    """Find what runs below a process, itself left out.

    Args:
        of: its id.
        words: arguments, or a program's path, that a command must have.

    Returns:
        The id of each one's parent.
    """
    parents: dict[int, int] = {}
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, parent = (entry / "stat").read_text("utf-8").rpartition(")")[2].split()[:2]
            command = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has just ended
        parents[int(entry.name)] = int(parent)
        if state != "Z" and all(any(part.endswith(word) for part in command) for word in words):
            found[int(entry.name)] = int(parent)

    def below(pid: int) -> bool:
        while (pid := parents.get(pid, 0)) not in (0, of):
            pass
        return pid == of

    return {pid: parent for pid, parent in found.items() if below(pid)}
