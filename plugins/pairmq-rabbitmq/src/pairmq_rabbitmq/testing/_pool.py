"""Servers of a whole test run, made as new for each test."""

from __future__ import annotations

import contextlib
import logging
from types import TracebackType
from typing import Self

from pairmq.testing.servers import ServerError, start_together
from pairmq_rabbitmq.testing._server import RabbitServer

_log = logging.getLogger(__name__)


class RabbitPool:
    """Servers that are kept from test to test, since booting one takes seconds."""

    def __init__(self) -> None:
        self._servers: list[RabbitServer] = []

    def take(self, count: int) -> list[RabbitServer]:
        """Give servers that run and hold nothing; those that a test killed or broke are started again.

        The same servers each time, so two callers must not use them at once. They end with the thread that called
        this (see `pairmq.testing.servers`), so call it in the main thread.

        Args:
            count: how many.

        Raises:
            FileNotFoundError: there is no rabbitmq-server.
            ServerError: one does not start.
        """
        while len(self._servers) < count:
            self._servers.append(RabbitServer())
        taken = self._servers[:count]
        with contextlib.suppress(ServerError):
            start_together(*taken)
        for position, server in enumerate(taken):
            try:
                server.reset()
            except ServerError as error:
                # Nothing of a broken server is worth keeping, its data may be what is broken.
                _log.warning("a server is replaced, since it could not be reset: %s\n%s", error, server.log_tail())
                server.close()
                server = self._servers[position] = taken[position] = RabbitServer()
                server.start()
        return taken

    def close(self) -> None:
        """End all servers and remove their directories; idempotent."""
        while self._servers:
            self._servers.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


pool = RabbitPool()
"""The servers of this process, for all test folders of one run; whoever uses it closes it at the end of the run."""
