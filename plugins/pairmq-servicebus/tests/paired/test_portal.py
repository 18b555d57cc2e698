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

from pairmq_servicebus.paired import _portal
from pairmq_servicebus.paired._portal import Portal

PATIENCE = 100.0  # s


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


async def others() -> int:
    """How many tasks there are besides."""
    return len(asyncio.all_tasks()) - 1


def waits_for_a_result(thread: int) -> bool:
    """Whether a thread waits for a result."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code is _portal._wait_for.__code__:
            return True
        frame = frame.f_back
    return False


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
    assert waiting.wait(PATIENCE)
    portal.close()
    portal.close()
    thread.join(PATIENCE)
    assert ended == ["the paired client was closed meanwhile"]
    assert ending.runs == 1
    assert portal._thread is not None
    assert not portal._thread.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        portal.run(answer)


def test_one_that_was_never_used_has_no_thread() -> None:
    portal = Portal("a portal of nobody", Ending())
    portal.close()
    assert portal._thread is None
    # Others come and go as they like.
    assert "a portal of nobody" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize("started", [False, True])
def test_a_thread_that_could_not_be_started_fails_its_call_alone(
    monkeypatch: pytest.MonkeyPatch, started: bool
) -> None:
    portal = Portal("portal", Ending())
    start = threading.Thread.start
    tried: list[threading.Thread] = []

    def fail(thread: threading.Thread) -> None:
        """Have no thread to give, or be interrupted right after giving one."""
        tried.append(thread)
        if started:
            start(thread)
            raise KeyboardInterrupt
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises((RuntimeError, KeyboardInterrupt)):
            portal.run(answer)
    if started:
        tried[0].join(PATIENCE)
        assert not tried[0].is_alive()
    # In another thread, as it may wait forever.
    results: list[int] = []
    calling = threading.Thread(target=lambda: results.append(portal.run(answer)), daemon=True)
    calling.start()
    calling.join(PATIENCE)
    assert results == [42]
    portal.close()


def test_one_that_never_got_a_thread_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    portal = Portal("portal", Ending())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            portal.run(answer)
    portal.close()
    assert portal.closed


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
    here = threading.get_ident()

    def interrupt() -> None:
        # Not before the main thread waits: as long as it is on its way there, it has nothing to cancel yet.
        deadline = time.monotonic() + PATIENCE
        while not waits_for_a_result(here) and time.monotonic() < deadline:
            time.sleep(0.01)
        # CPython misses a signal between its last look at them and the system call that waits: a person presses again.
        while not cancelled.is_set() and waits_for_a_result(here) and time.monotonic() < deadline:
            os.kill(os.getpid(), signal.SIGINT)
            cancelled.wait(10)

    async def wait() -> None:
        try:
            threading.Thread(target=interrupt).start()
            await never()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(KeyboardInterrupt):
        portal.run(wait)
    assert cancelled.wait(PATIENCE)
    assert portal.run(answer) == 42
    portal.close()


def test_ctrl_c_before_the_waiting_has_begun_cancels_it_too() -> None:
    portal = Portal("portal", Ending())
    assert portal.run(answer) == 42

    class Interrupted:
        """The portal's lock, with Ctrl-C at the moment in which it is released."""

        def __init__(self, lock: threading.Lock) -> None:
            self.lock = lock

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()
            raise KeyboardInterrupt

    lock = portal._lock
    portal._lock = Interrupted(lock)  # type: ignore[assignment]
    try:
        with pytest.raises(KeyboardInterrupt):
            portal.run(never)
    finally:
        portal._lock = lock
    deadline = time.monotonic() + PATIENCE
    while portal.run(others) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert portal.run(others) == 0
    portal.close()


def test_a_fork_gets_an_error_and_closes_nothing() -> None:
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


@pytest.mark.real_server  # a program
def test_what_is_open_at_the_exit_is_closed() -> None:
    code = """
    import sys
    from pairmq_servicebus.paired._portal import Portal

    async def ending(): print("ended", flush=True)
    async def answer(): return 42

    portal = Portal("portal", ending)
    portal.run(answer)
    """
    done = _run(code)
    assert done.stdout == "ended\n"
    assert done.returncode == 0


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
    thread.join(PATIENCE)
    assert not thread.is_alive()


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, check=False
    )
