"""Servers that are asked where others are: one answer is enough, and some of them are down. The sentinels of a master.

The master is asked for before each connection: the one that was a master may be a replica by now, or down. A sentinel
that does not answer soon is not waited for, and one that knows no such master is passed over.

A master that was replaced goes on confirming writes until the sentinels make it a replica, which takes them some ten
seconds, or for as long as it is cut off from them. All these writes are lost. So each sentinel is listened to, and when
one says that another server is the master, the connections to the old one end at once. Sentinels learn of a failover
one after the other, within seconds, and one that is behind names the old master, which may have been restarted and take
writes by then. Its *config epoch* shows (Redis documentation: High availability with Redis Sentinel, "Configuration
epochs"): a master of an earlier one than is known is passed over, unless all answers are from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from redis.asyncio import Connection
from redis.exceptions import ConnectionError, RedisError, ResponseError

from pairmq.transport import bracketed, start_task

T = TypeVar("T")

Address = tuple[str, int]

_STAGGER = 0.25  # s that a server may take to answer before the next one is asked beside it


async def first_answer(
    order: list[Address], ask: Callable[[Address], Coroutine[Any, Any, T]], explain: Callable[[str], str]
) -> T:
    """Ask one after the other until one answers; those that fail or are silent are put last, and not waited for.

    Raises redis-py's ConnectionError if none has an answer, with the text that ``explain`` makes of what they said.
    """
    left, asking, failed = list(order), dict[asyncio.Task[T], Address](), list[str]()
    try:
        while left or asking:
            if left:
                address = left.pop(0)
                asking[start_task(ask(address))] = address
            done, _ = await asyncio.wait(
                asking, timeout=_STAGGER if left else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                address, error = asking.pop(task), task.exception()
                if error is None:
                    return task.result()
                failed.append(f"{bracketed(address[0])}:{address[1]}: {str(error) or type(error).__name__}")
                _put_last(order, address)
    finally:
        for task, address in asking.items():
            if not task.cancel() and not task.cancelled():
                task.exception()  # seen: another one has answered
            _put_last(order, address)
    raise ConnectionError(explain("; ".join(failed)))


def _put_last(order: list[Address], address: Address) -> None:
    order.remove(address)
    order.append(address)


@contextlib.asynccontextmanager
async def connected(connection: Connection) -> AsyncIterator[Connection]:
    """Connect for a block; the end does not wait for a server that hangs."""
    try:
        await connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
        yield connection
    finally:
        if connection._writer is not None:
            connection._writer.transport.abort()  # a close in order would wait for one that hangs
            connection._close()  # type: ignore[no-untyped-call]  # redis-py's


def as_text(reply: object) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)


_SWITCH = "+switch-master"
_LISTEN_AGAIN = 1.0  # s until a sentinel that could not be listened to is tried again
_LISTEN_FOR = 30.0  # s on one connection


class Sentinels:
    """The sentinels of a master; ``switched`` is called with the address of another one than was found last."""

    def __init__(
        self,
        service: str,
        addresses: Sequence[Address],
        make: Callable[[Address], Connection],
        switched: Callable[[Address], None],
    ) -> None:
        self.found: Address | None = None
        """Where the master was when it was last asked for."""
        self._epoch = 0  # of its configuration
        self._service = service
        # Not all processes ask the same one first.
        self._order = random.SystemRandom().sample(addresses, len(addresses))
        self._make = make
        self._switched = switched
        self._listeners: list[asyncio.Task[None]] = []

    async def master(self) -> Address:
        """Find the master's host and port. Raises redis-py's ConnectionError."""
        if not self._listeners:
            self._listeners = [start_task(self._keep_listening(address)) for address in self._order]
        self._epoch, self.found = await self._find()
        return self.found

    async def _find(self) -> tuple[int, Address]:
        earlier: list[tuple[int, Address]] = []

        async def ask(address: Address) -> tuple[int, Address]:
            answer = await self._ask(address)
            if answer[0] < self._epoch:
                earlier.append(answer)
                raise ResponseError("it knows an earlier master only")
            return answer

        try:
            return await first_answer(
                self._order, ask, lambda answers: f"no sentinel names the master {self._service!r} ({answers})"
            )
        except ConnectionError:
            if not earlier:
                raise
            return max(earlier)  # they were set up anew

    async def close(self) -> None:
        for listener in self._listeners:
            listener.cancel()
        await asyncio.gather(*self._listeners, return_exceptions=True)

    async def _keep_listening(self, address: Address) -> None:
        while True:
            # A connection that went silent looks like one with no news: each is made anew now and then.
            with contextlib.suppress(RedisError, OSError, ValueError):
                async with asyncio.timeout(_LISTEN_FOR):
                    await self._listen(address)
            await asyncio.sleep(_LISTEN_AGAIN)

    async def _listen(self, address: Address) -> None:
        async with connected(self._make(address)) as connection:
            await connection.send_command("SUBSCRIBE", _SWITCH)
            await connection.read_response()
            while True:
                self._heard(*await self._ask(address))  # at first too: it may have happened before
                name = ""
                while name != self._service:
                    message = await connection.read_response()
                    if isinstance(message, list) and len(message) == 3:
                        name = as_text(message[2]).partition(" ")[0]

    def _heard(self, epoch: int, master: Address) -> None:
        if epoch >= self._epoch and self.found not in (None, master):
            self._epoch, self.found = epoch, master
            self._switched(master)

    async def _ask(self, address: Address) -> tuple[int, Address]:
        """The config epoch, 0 where it is not reported, and the master's address."""
        async with connected(self._make(address)) as connection:
            # The epoch first: what is asked later is not older.
            for what in ("MASTER", "GET-MASTER-ADDR-BY-NAME"):
                await connection.send_command("SENTINEL", what, self._service)
            fields: Any = []
            with contextlib.suppress(ResponseError):  # some may not ask for it
                fields = await connection.read_response()
            reply = await connection.read_response()
        if not isinstance(reply, list) or len(reply) != 2:
            raise ResponseError("it does not know this master")
        names = [as_text(each) for each in fields] if isinstance(fields, list) else []
        epoch = dict(zip(names[::2], names[1::2], strict=False)).get("config-epoch", "0")
        return int(epoch), (as_text(reply[0]), int(reply[1]))
