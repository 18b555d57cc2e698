"""An event loop in a thread of its own, for code that Spark calls now and then.

Between two calls the loop goes on, or a connection's heartbeats would stop while a batch is computed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines from a thread that has no loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="pairmq loop", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the system gives no thread
            self._loop.close()
            raise

    def run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine's result; raises what it raises."""
        return asyncio.run_coroutine_threadsafe(operation, self._loop).result()

    def close(self) -> None:
        """End the loop; idempotent."""
        if self._loop.is_closed():
            return
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
