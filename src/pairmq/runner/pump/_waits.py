"""Waiting for one of several events, and for tasks to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence


async def first(waits: Sequence[Awaitable[object]], seconds: float | None = None) -> None:
    """Return at the first of several events, or after ``seconds``."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def pause(seconds: float, *events: asyncio.Event) -> None:
    """Wait, but not beyond the first of some events."""
    await first([event.wait() for event in events], seconds)


async def end(tasks: Sequence[asyncio.Task[None]], grace: float) -> None:
    """Let tasks end within ``grace`` seconds, then cancel them and wait a moment; at once when cancelled."""
    if not tasks:
        return
    try:
        _, running = await asyncio.wait(tasks, timeout=grace)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=1)
