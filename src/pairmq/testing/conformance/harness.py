"""What a plugin's author writes for the suites: one harness that starts and stops a broker; that of ``memory://``."""

from __future__ import annotations

import asyncio
import enum
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, Protocol, Self, TypeVar

from pairmq.plugins import registry
from pairmq.testing._memory import MemoryBroker, memory_broker
from pairmq.transport import Transport

T = TypeVar("T")


class Interruption(enum.Enum):
    """How a broker is stopped."""

    STOP = "it is gone: connections are refused, and the open ones have ended, as after kill -9"
    FREEZE = "it takes connections and answers nothing, as under SIGSTOP"


class Harness(ABC):
    """A broker for the tests: made, interrupted, restored.

    One object serves a whole test run, and one test at a time; its methods are awaited in that test's event loop, which
    is a new one for each test.

    Attributes:
        lock_duration: seconds; a short lock that the broker keeps to within a fifth. Tests wait for locks to end, and
            renew them before: shorter saves time, and fails on a machine that stands still for so long.
        time_limit: seconds in which one test must have ended, its interruptions included.
        in_process: whether the broker is a library in this process. No connection can end between its commit and the
            confirmation, so that `lose_confirms` is not asked for: a send that fails is tested to leave no doubt.
    """

    lock_duration: ClassVar[float] = 2.0
    time_limit: ClassVar[float] = 50.0
    in_process: ClassVar[bool] = False

    @abstractmethod
    async def make(self) -> str:
        """Make a broker that runs and holds nothing, or empty and restore the one that is there; its URL is returned.

        Called before every test, so a broker that boots slowly is kept and emptied.
        """

    def with_short_locks(self, url: str) -> str:
        """Change a URL so that locks of its transports last `lock_duration`, where that is not a queue's setting.

        Args:
            url: what `make` returned: locks of its transports, and those of queues made for it, outlast a test.

        Returns:
            The same address; as it is where queues keep to their own ``lock_duration``.
        """
        return url

    @abstractmethod
    async def interrupt(self, how: Interruption) -> None:
        """Stop the broker, keeping its data if it is durable, and return when it has stopped.

        A frozen broker may be stopped, and a stopped one may be stopped again in the same way.
        """

    async def crash(self) -> None:
        """End the broker in the way that keeps the least; what is durable must be there after `restore` all the same.

        It is `Interruption.STOP`, unless a broker is stopped in a gentler way there, to save time.
        """
        await self.interrupt(Interruption.STOP)

    async def refuse_writes(self) -> bool:
        """Let the broker refuse, or ignore, what would store a message, and answer what only reads, until `restore`.

        A full disk, an alarm or a limit does that. The tests that ask for it are skipped where a harness has no way.

        Returns:
            Whether it does so now; without an implementation it does not.
        """
        return False

    async def lose_confirms(self) -> bool:
        """Let the broker store what is sent, and end the connection in place of the confirmation, until `restore`.

        A test asks for it besides those that stop the broker under many sends, and is skipped if not supported.

        Returns:
            Whether it does so now; without an implementation it does not.
        """
        return False

    @abstractmethod
    async def restore(self) -> None:
        """Bring it back at the same URL and return when it takes work; without effect when nothing is wrong."""

    def close(self) -> None:  # noqa: B027  # many brokers have nothing to end
        """End the broker and remove its data; it blocks. Called once, after the last test."""

    def transport(self, url: str) -> Transport:
        """Make a transport as a user does: through the registry, which finds the plugin by its entry point.

        Args:
            url: what `make` returned.
        """
        return registry.transport(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Server(Protocol):
    """A server that can be killed and paused; `pairmq.testing.servers.ServerProcess` is one. Every method blocks."""

    @property
    def running(self) -> bool:
        """Whether the process is there, paused or not."""

    def restart(self) -> None:
        """Start it with the data that it kept, ending the one that runs, if any; return when it takes work."""

    def kill(self) -> None:
        """End it with SIGKILL."""

    def pause(self) -> None:
        """Stop it with SIGSTOP."""

    def resume(self) -> None:
        """Let a paused one go on."""

    def close(self) -> None:
        """End it and remove its data."""


class ServerHarness(Harness):
    """A harness around a server process; a subclass brings `start` and `clear`, which may block.

    All that blocks runs in one thread of its own, as a server ends with the thread that started it.
    """

    def __init__(self) -> None:
        self._hands = ThreadPoolExecutor(1, "harness")
        self._server: Server | None = None
        self._down = False
        self._paused = False

    @abstractmethod
    def start(self) -> Server:
        """Start the server for the first time."""

    @abstractmethod
    def clear(self, server: Server) -> str:
        """Empty the running server and return its URL."""

    async def make(self) -> str:
        """Start the server at the first call; then restore and empty it."""
        if self._server is None:
            self._server = await self.by_hand(self.start)
        await self.restore()
        server = self._server
        return await self.by_hand(lambda: self.clear(server))

    async def interrupt(self, how: Interruption) -> None:
        """Kill or pause it."""
        server = self._made()
        if how is Interruption.STOP:
            await self.by_hand(server.kill)
            self._down, self._paused = True, False
        else:
            await self.by_hand(server.pause)
            self._paused = True

    async def restore(self) -> None:
        """Let it go on, or start it again."""
        server = self._made()
        if self._paused:
            self._paused = False
            await self.by_hand(server.resume)
        if self._down or not server.running:
            await self.by_hand(server.restart)
            self._down = False

    def close(self) -> None:
        """End the server."""
        if self._server is not None:
            self._hands.submit(self._server.close).result()
        self._hands.shutdown()

    async def by_hand(self, what: Callable[[], T]) -> T:
        """Run something that blocks in the server's own thread."""
        return await asyncio.get_running_loop().run_in_executor(self._hands, what)

    def _made(self) -> Server:
        if self._server is None:
            raise RuntimeError("make() comes first")
        return self._server


class MemoryHarness(Harness):
    """A broker in this process: a new one for every test, so that none is ever emptied.

    Args:
        scheme: as for `pairmq.testing.MemoryBroker`.
    """

    def __init__(self, scheme: str = "memory") -> None:
        self._scheme = scheme
        self._broker: MemoryBroker | None = None

    async def make(self) -> str:
        """Make the next broker."""
        if self._broker is not None:
            await self._broker.forget()
        self._broker = memory_broker(scheme=self._scheme)
        return self._broker.url

    async def interrupt(self, how: Interruption) -> None:
        """Drop its connections, or leave everything unanswered."""
        broker = self._made()
        await (broker.stop() if how is Interruption.STOP else broker.hang())

    async def crash(self) -> None:
        """Drop its connections and its data: none of it is durable."""
        broker = self._made()
        await broker.forget()
        await broker.stop()

    async def refuse_writes(self) -> bool:
        """Let it be out of memory."""
        await self._made().refuse()
        return True

    async def lose_confirms(self) -> bool:
        """Let it drop the connection instead of confirming."""
        await self._made().lose_confirms()
        return True

    async def restore(self) -> None:
        """End the fault."""
        await self._made().restore()

    def _made(self) -> MemoryBroker:
        if self._broker is None:
            raise RuntimeError("make() comes first")
        return self._broker
