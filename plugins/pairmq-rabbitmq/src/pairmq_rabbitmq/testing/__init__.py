"""Real RabbitMQ servers for tests: on free ports of this machine, separate from everything else that runs here.

Each server has its own port mapper (epmd), Erlang cookie, node name and directories, so that any number of them run
side by side and none meets a RabbitMQ that the system runs. A boot takes seconds: tests share servers through a
`RabbitPool`, and most of them can stop a server with `RabbitServer.go_down` instead of a kill.
"""

from __future__ import annotations

from pairmq.testing.conformance import Interruption, Server, ServerHarness
from pairmq.testing.servers import start_together
from pairmq_rabbitmq.testing._server import KEEP_RUNNING, RabbitCluster, RabbitPool, RabbitServer, pool

__all__ = ["RabbitCluster", "RabbitHarness", "RabbitPool", "RabbitServer", "pool", "start_together"]


class RabbitHarness(ServerHarness):
    """RabbitMQ for the conformance suite: the pool's first server.

    It is stopped by `RabbitServer.go_down`, which takes a tenth of a second where a kill and a boot take ten, and
    killed where the suite asks for a crash.

    Attributes:
        lock_duration: an option of the URL here, so that it is every queue's.
        time_limit: enough for a boot among others.
    """

    lock_duration = 3.0
    time_limit = 120.0

    def __init__(self) -> None:
        super().__init__()
        self._gone = False

    def start(self) -> Server:
        return pool.take(1)[0]

    def clear(self, server: Server) -> str:
        """Reset it; one that can't be reset is replaced by the pool."""
        self._server = rabbit = pool.take(1)[0]
        return f"{rabbit.url}?connect_timeout=30"

    def with_short_locks(self, url: str) -> str:
        return f"{url}&lock_duration={self.lock_duration:g}"

    async def interrupt(self, how: Interruption) -> None:
        """Stop the broker but keep its virtual machine running, or pause all of it."""
        if how is Interruption.FREEZE:
            await self.by_hand(self._rabbit().settle)  # it may be killed in this state
            await super().interrupt(how)
        elif self._paused:
            await super().interrupt(how)
        else:
            await self.by_hand(self._rabbit().go_down)
            self._gone = True

    async def crash(self) -> None:
        """Kill it, once the registers of its queues are on the disk: RabbitMQ writes them some seconds late."""
        await self.by_hand(self._rabbit().settle)
        await super().interrupt(Interruption.STOP)

    async def refuse_writes(self) -> bool:
        """Raise the memory alarm: what publishers write is not read any more."""
        await self.by_hand(self._rabbit().block)
        return True

    async def restore(self) -> None:
        await super().restore()
        if self._gone:
            await self.by_hand(self._rabbit().come_up)
            self._gone = False
        await self.by_hand(self._rabbit().unblock)
        await self.by_hand(lambda: self._rabbit().erl(KEEP_RUNNING))

    def close(self) -> None:
        """End the pool, since it has no other user at the end of the run."""
        self._server = None
        super().close()
        pool.close()

    def _rabbit(self) -> RabbitServer:
        server = self._made()
        if not isinstance(server, RabbitServer):
            raise TypeError("the harness holds a server of another kind")
        return server
