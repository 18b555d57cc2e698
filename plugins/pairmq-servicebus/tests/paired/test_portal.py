"""The way of the client without asyncio to the background loop; what the loop itself keeps, `tests/sync` shows."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest

from pairmq_servicebus.paired._client import Portal

PATIENCE = 100.0  # s


class Ending:
    """Counts how often it was run."""

    def __init__(self) -> None:
        self.runs = 0
        self.over = threading.Event()

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        self.runs += 1
        self.over.set()


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


def test_any_thread_gets_its_result() -> None:
    portal = Portal(Ending())
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(portal.run(answer))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [42] * 20
    portal.close()


def test_closing_runs_the_ending_and_refuses_later_calls() -> None:
    ending = Ending()
    portal = Portal(ending)
    assert portal.run(answer) == 42
    portal.close()
    assert ending.runs == 1
    with pytest.raises(RuntimeError, match="closed"):
        portal.run(answer)
    portal.close()


def test_one_that_was_never_used_has_nothing_to_end() -> None:
    ending = Ending()
    portal = Portal(ending)
    portal.close()
    assert portal.closed
    assert ending.runs == 0


def test_a_callback_that_waits_for_the_portal_is_refused_and_one_that_asks_is_answered() -> None:
    portal = Portal(Ending())

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
    assert portal.call(lambda: 8) == 8
    portal.close()


def test_dropping_it_ends_it() -> None:
    class Owner:
        def __init__(self, ending: Ending) -> None:
            self.portal = Portal(ending)
            weakref.finalize(self, self.portal.abandon).atexit = False

    ending = Ending()
    owner = Owner(ending)
    owner.portal.run(answer)
    del owner
    gc.collect()
    assert ending.over.wait(PATIENCE)


def test_a_fork_gets_an_error_and_closes_nothing() -> None:
    # In a process of its own: forking one with threads makes a warning, and pytest's would be forked with it.
    code = """
    import os
    from pairmq_servicebus.paired._client import Portal

    async def ending(): print("ended", os.getpid(), flush=True)
    async def answer(): return 42

    portal = Portal(ending)
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
    print(os.getpid(), flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300, check=True
    )
    # And what is still open at the exit of the process is closed.
    pid, ended = done.stdout.splitlines()
    assert ended == f"ended {pid}"
