"""The background thread of the client without asyncio."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest

from pairmq_servicebus.paired._portal import Portal


class Ending:
    """Counts how often it was run."""

    def __init__(self) -> None:
        self.runs = 0

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        self.runs += 1


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def never() -> None:
    await asyncio.Event().wait()


def test_any_thread_gets_its_result() -> None:
    portal = Portal("portal", Ending())
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(portal.run(answer))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [42] * 20
    portal.close()


def test_an_error_is_raised_where_the_caller_waits() -> None:
    async def fail() -> None:
        raise KeyError("gone")

    portal = Portal("portal", Ending())
    with pytest.raises(KeyError, match="gone"):
        portal.run(fail)
    portal.close()


def test_closing_ends_the_thread_once_and_gives_waiting_callers_back() -> None:
    ending = Ending()
    portal = Portal("portal", ending)
    waiting = threading.Event()
    ended: list[str] = []

    async def wait() -> None:
        waiting.set()
        await never()

    def caller() -> None:
        try:
            portal.run(wait)
        except RuntimeError as error:
            ended.append(str(error))

    thread = threading.Thread(target=caller)
    thread.start()
    assert waiting.wait(5)
    portal.close()
    portal.close()
    thread.join(5)
    assert ended == ["the paired client was closed meanwhile"]
    assert ending.runs == 1
    assert portal._thread is not None
    assert not portal._thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        portal.run(answer)


def test_one_that_was_never_used_has_no_thread() -> None:
    before = threading.active_count()
    portal = Portal("portal", Ending())
    portal.close()
    assert threading.active_count() == before


def test_a_callback_that_waits_for_the_portal_is_refused_and_one_that_asks_is_answered() -> None:
    portal = Portal("portal", Ending())

    async def from_inside() -> tuple[int, str, str]:
        said = []
        for attempt in (lambda: portal.run(answer), portal.close):
            with pytest.raises(RuntimeError) as caught:
                attempt()
            said.append(str(caught.value))
        return portal.call(lambda: 7), said[0], said[1]

    number, running, closing = portal.run(from_inside)
    assert number == 7
    assert "wait for itself" in running
    assert "wait for itself" in closing
    portal.close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_cancels_what_the_main_thread_waits_for() -> None:
    portal = Portal("portal", Ending())
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            await never()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(KeyboardInterrupt):
        portal.run(wait)
    assert cancelled.wait(5)
    assert portal.run(answer) == 42
    portal.close()


def test_a_fork_is_told_so_and_closes_nothing() -> None:
    # In a process of its own: forking one with threads makes a warning, and pytest's would be forked with it.
    code = """
    import asyncio, os, sys
    from pairmq_servicebus.paired._portal import Portal

    async def ending(): pass
    async def answer(): return 42

    portal = Portal("portal", ending)
    assert portal.run(answer) == 42
    child = os.fork()
    if child == 0:
        portal.close()
        try:
            portal.run(answer)
        except RuntimeError as error:
            os._exit(3 if "before a fork" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert portal.run(answer) == 42
    portal.close()
    """
    assert _run(code).returncode == 0


def test_what_is_open_at_the_exit_is_closed() -> None:
    code = """
    import sys
    from pairmq_servicebus.paired._portal import Portal

    async def ending(): print("ended", flush=True)
    async def answer(): return 42

    portal = Portal("portal", ending)
    portal.run(answer)
    """
    started = time.monotonic()
    done = _run(code)
    assert done.stdout == "ended\n"
    assert done.returncode == 0
    assert time.monotonic() - started < 20


def test_dropping_it_ends_the_thread() -> None:
    class Owner:
        def __init__(self) -> None:
            self.portal = Portal("portal", Ending())
            weakref.finalize(self, self.portal.abandon).atexit = False

    owner = Owner()
    owner.portal.run(answer)
    thread = owner.portal._thread
    assert thread is not None
    del owner
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=30, check=False
    )
