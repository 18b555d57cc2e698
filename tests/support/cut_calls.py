"""Calls that are given up: they must let go by themselves, which takes turns of the loop and no time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_TURNS = 100
"""Of the loop, in which a call that waits for nobody has ended. No measure of time: a busy machine takes none away."""


async def turns_until_done(task: asyncio.Task[object]) -> bool:
    """Let the loop turn a few times; tells whether a task has ended by then."""
    for _ in range(_TURNS):
        if task.done():
            return True
        await asyncio.sleep(0)
    return task.done()


async def given_up(call: Coroutine[Any, Any, object], after: float = 0.3) -> None:
    """Cancel a call that gets no answer, after some seconds, and see that it gives control back at once."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(after)
    assert not task.done(), task
    task.cancel()
    assert await turns_until_done(task), "it went on after it was cancelled"
    assert task.cancelled(), task


async def cancel_at_each_await(task: asyncio.Task[Any]) -> None:
    """Let a task begin, and cancel it until it has ended, as anyio's scopes do, and with them Starlette and FastAPI."""
    await asyncio.sleep(0)
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)
