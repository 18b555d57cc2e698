"""How late the event loop is: what the machine takes from a test, so that it is not held against PairMQ."""

from __future__ import annotations

import asyncio


class Heartbeat:
    """How late the event loop was, and when.

    The tests share two cores with two or three servers, and a loop that gets no processor for 0.3 s ends nothing in
    time. A task that asks to be woken every 10 ms sees exactly that, and nothing else: what it lost is no delay of
    PairMQ's, and what a send loses beyond it is.
    """

    def __init__(self) -> None:
        self._beats: list[tuple[float, float]] = []
        self._task = asyncio.create_task(self._beat(), name="heartbeat")

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + 0.01
            await asyncio.sleep(0.01)
            self._beats.append((due, loop.time()))

    def lag(self, since: float, until: float) -> float:
        """How long in all the loop kept everybody waiting between two instants.

        In all, as what happens between them takes several turns of the loop, each of which may come late.
        """
        late = (min(woken, until) - max(due, since) for due, woken in self._beats if woken >= since and due <= until)
        return sum(late, start=0.0)

    async def stop(self) -> None:
        await asyncio.sleep(0.02)  # a beat that is late now is still to be seen
        self._task.cancel()
        await asyncio.wait((self._task,))
