"""Channels for reading on their way from the broker, and on their way back."""

from __future__ import annotations

import asyncio
import contextlib

from aiormq.channel import Channel

from pairmq.transport import start_task
from pairmq_rabbitmq._channel import close_channel
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._receiving._settling import Calls
from pairmq_rabbitmq._session import Session

_closings: set[asyncio.Task[None]] = set()  # they end with their sessions


class Opening:
    """A channel on its way.

    Args:
        session: the connection that it will be on.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._calls = Calls(session)
        self.task = start_task(self._open())
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen, whoever waits

    @property
    def silent(self) -> bool:
        """Whether nothing has come from the broker since it was asked, some time ago."""
        return self._calls.silent()

    def forsake(self) -> None:
        """Nobody will use it: give it back when it is there."""
        self.task.add_done_callback(self._give_back)

    async def _open(self) -> Channel:
        try:
            return await self._calls(self.session.open_channel(confirms=False))
        except Unsent:
            raise
        except Exception as error:  # the connection ended first, and says why
            raise Unsent(error) from error

    def _give_back(self, task: asyncio.Task[Channel]) -> None:
        if not task.cancelled() and task.exception() is None:
            give_back(self.session, task.result())


def give_back(session: Session, raw: Channel) -> None:
    """Close a channel some time, whoever waits."""

    async def close() -> None:
        with contextlib.suppress(Exception):  # gone already
            await session.run(close_channel(raw))

    if session.usable and not raw.is_closed:
        task = start_task(close())
        _closings.add(task)
        task.add_done_callback(_closings.discard)
