"""Asking several servers the same question, when one answer is enough and some of them are down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from redis.asyncio import Connection
from redis.exceptions import ConnectionError

from pairmq.transport import bracketed, start_task

T = TypeVar("T")

Address = tuple[str, int]

_STAGGER = 0.25  # s that a server may take to answer before the next one is asked beside it


async def first_answer(
    order: list[Address], ask: Callable[[Address], Coroutine[Any, Any, T]], explain: Callable[[str], str]
) -> T:
    """Ask one after the other until one answers; who is silent is not waited for.

    Args:
        order: whom to ask; those that fail or are silent are put last.
        ask: asks one.
        explain: makes the error's text of what each one answered.

    Returns:
        The first answer.

    Raises:
        ConnectionError: redis-py's; no server has an answer.
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
    """What a server wrote as text."""
    return reply.decode(errors="replace") if isinstance(reply, bytes) else str(reply)
