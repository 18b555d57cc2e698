"""A thread with an event loop of its own, in which a pair lives for a program without asyncio."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pairmq.transport import OwnThreads

T = TypeVar("T")

_LAST_TURN = 0.01  # s

_portals: weakref.WeakSet[Portal] = weakref.WeakSet()


class Portal:
    """Runs coroutines for any thread of the process that made it, in one background thread.

    The thread starts at the first use and is a daemon: a program that forgets to close ends all the same, and what is
    still open is closed at its exit. The ``ending`` is run before the loop stops; it must be bounded in time and never
    raise.
    """

    def __init__(self, name: str, ending: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._ending = ending
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def elsewhere(self) -> bool:
        """Whether this process is a fork of the one that made it, where there is nothing to close."""
        return os.getpid() != self._process

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine there, and wait for its result.

        An exception of the waiting thread, Ctrl-C above all, cancels the coroutine and is raised at once. Raises
        `RuntimeError` when called from the portal's own thread or from a forked process, when the portal is closed, or
        when the system gives no thread; the next call tries again.
        """
        self._check_process()
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of the paired client called it back: it would wait for itself forever")
        future: concurrent.futures.Future[T] | None = None
        try:
            with self._lock:
                if self._closed:
                    raise RuntimeError("the paired client is closed: make a new one")
                loop = self._running_loop()
                future = asyncio.run_coroutine_threadsafe(work(), loop)
            _wait_for(future)
            return future.result()
        except concurrent.futures.CancelledError:
            raise RuntimeError("the paired client was closed meanwhile") from None
        except BaseException:
            # Ctrl-C may come before the waiting has begun, while the coroutine runs already.
            if future is not None:
                future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a quick function there, and wait for its result; in the portal's own thread it is called directly."""
        if threading.current_thread() is self._thread:
            return function()

        async def work() -> T:
            return function()

        return self.run(work)

    def close(self) -> None:
        """Run the ending, stop the loop and wait for the thread. Idempotent; does nothing in a forked process."""
        if self.elsewhere:
            return  # the thread exists in the parent only
        if threading.current_thread() is self._thread:
            raise RuntimeError("a callback of the paired client closed it: it would wait for itself forever")
        with self._lock:
            self.abandon()
        if self._thread is not None:
            self._thread.join()

    def abandon(self) -> None:
        """Begin to close, without waiting: for the garbage collector, which may run in any thread."""
        if self.elsewhere or self._closed:
            return
        # Without the lock: the collector may run in a thread that holds it. `run` looks again under the lock, and the
        # loop ends only after what was given to it.
        self._closed = True
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)

    def _check_process(self) -> None:
        if self.elsewhere:
            raise RuntimeError(
                "this paired client was made before a fork: its connections and its thread belong to the parent "
                "process. Make the client in the process that uses it"
            )

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            loop.set_default_executor(OwnThreads())
            try:
                thread = threading.Thread(target=self._serve, args=(loop,), name=self._name, daemon=True)
                thread.start()
                # Not before: work given to a loop that does not run is waited for forever.
                self._loop, self._thread = loop, thread
            except BaseException:
                loop.close()
                raise
            _portals.add(self)
        return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:  # held by the starting thread, which by now may have been interrupted
            if self._loop is not loop:
                return
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            # One that took the lock first has given its work to the loop by now; it is cancelled with the rest.
            with self._lock:
                pass
            loop.run_until_complete(self._end())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    async def _end(self) -> None:
        await asyncio.sleep(0)
        await self._ending()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        loop = asyncio.get_running_loop()
        await loop.shutdown_asyncgens()
        # It takes a thread to wait for threads, which some versions of Python refuse at the exit of the process.
        with contextlib.suppress(RuntimeError):
            await loop.shutdown_default_executor()
        # Connections that were shut just now let go of their sockets in the next turn of the loop.
        await asyncio.sleep(_LAST_TURN)


def _wait_for(future: concurrent.futures.Future[T]) -> None:
    """Wait by a lock: a future waits in Python code, which an exception of a signal handler can break."""
    busy = threading.Lock()
    busy.acquire()
    future.add_done_callback(lambda _: busy.release())
    with busy:
        pass


@atexit.register
def _close_all() -> None:
    for portal in list(_portals):
        portal.close()
