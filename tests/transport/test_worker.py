"""The thread for a client library that blocks: what a caller is told of a job, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator

import pytest

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport import Scope, Worker, is_nothing_sent

PATIENCE = 100.0


class Gate:
    """A job that blocks until it is let through."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.open.wait(PATIENCE)
        return "through"

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, PATIENCE)


@pytest.fixture
async def worker() -> AsyncIterator[Worker]:
    worker = Worker("test")
    yield worker
    await worker.stop(PATIENCE)


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def cut_off(call: asyncio.Future[object]) -> bool:
    """Cancel a call, and return whether it reported that nothing was sent."""
    call.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await call
    return is_nothing_sent(caught.value)


async def test_work_is_done_in_one_thread_in_order(worker: Worker) -> None:
    scope, done = Scope(), []
    names = await asyncio.gather(
        *(worker.run(lambda n=n: done.append(n) or threading.current_thread().name, scope) for n in range(9))  # type: ignore[misc, func-returns-value]
    )
    assert done == list(range(9))
    assert set(names) == {"test"}


async def test_an_error_is_raised_by_the_call_and_harms_no_other(worker: Worker) -> None:
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0, Scope())
    assert await worker.run(lambda: 1, Scope()) == 1


async def test_a_call_that_is_cancelled_before_its_work_began_reports_that_nothing_was_sent(
    worker: Worker, gate: Gate
) -> None:
    done: list[int] = []
    first = asyncio.ensure_future(worker.run(gate, Scope()))
    await gate.reached()
    second = asyncio.ensure_future(worker.run(lambda: done.append(1), Scope()))
    await asyncio.sleep(0)
    assert await cut_off(second)
    gate.open.set()
    assert await first == "through"
    await worker.run(lambda: None, Scope())
    assert done == []


async def test_a_call_that_is_cancelled_lets_go_of_its_message_while_the_thread_is_blocked(
    worker: Worker, gate: Gate
) -> None:
    class Kept:
        """As a message is kept by the work that sends it."""

        def send(self) -> None:
            """Never called."""

    first = asyncio.ensure_future(worker.run(gate, Scope()))
    await gate.reached()
    message = Kept()
    kept = weakref.ref(message)
    second = asyncio.ensure_future(worker.run(message.send, Scope()))
    await asyncio.sleep(0)
    del message
    assert await cut_off(second)
    del second
    await asyncio.sleep(0)  # the loop keeps what it runs now, and the call with it
    gc.collect()
    assert kept() is None
    gate.open.set()
    assert await first == "through"


async def test_a_call_that_is_cancelled_after_its_work_began_reports_nothing(worker: Worker, gate: Gate) -> None:
    call = asyncio.ensure_future(worker.run(gate, Scope()))
    await gate.reached()
    assert not await cut_off(call)
    gate.open.set()


async def test_calls_end_when_their_scope_closes_and_report_what_may_have_been_done(worker: Worker, gate: Gate) -> None:
    scope = Scope()
    begun = asyncio.ensure_future(worker.run(gate, scope))
    await gate.reached()
    waiting = asyncio.ensure_future(worker.run(lambda: None, scope))
    await asyncio.sleep(0)
    scope.close()
    errors = await asyncio.gather(begun, waiting, return_exceptions=True)
    assert [isinstance(error, TransportError) and error.reason for error in errors] == [FailureReason.CLOSED] * 2
    assert [isinstance(error, TransportError) and error.maybe_applied for error in errors] == [True, False]
    gate.open.set()


async def test_a_stop_ends_what_waits_and_does_not_wait_for_what_is_blocked(worker: Worker, gate: Gate) -> None:
    call = asyncio.ensure_future(worker.run(gate, Scope()))
    await gate.reached()
    waiting = asyncio.ensure_future(worker.run(lambda: None, Scope()))
    await asyncio.sleep(0)
    await worker.stop(0)
    with pytest.raises(TransportError, match="closed"):
        await worker.run(lambda: None, Scope())
    gate.open.set()
    assert await call == "through"
    with pytest.raises(TransportError) as caught:
        await waiting
    assert (caught.value.reason, caught.value.maybe_applied) == (FailureReason.CLOSED, False)


async def test_a_system_without_threads_fails_what_is_asked_then_and_nothing_later(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(TransportError, match="can't start new thread") as caught:
            await worker.run(lambda: 1, Scope())
    assert (caught.value.kind, caught.value.maybe_applied) == (FailureKind.UNAVAILABLE, False)
    assert await worker.run(lambda: 1, Scope()) == 1


async def test_work_that_raises_what_ends_a_thread_ends_alone(worker: Worker) -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match="unexpected SystemExit: 3"):
        await worker.run(leave, Scope())
    assert await worker.run(lambda: 1, Scope()) == 1


async def test_stop_ends_all_calls_when_the_clean_up_fails(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    class Untidy(Worker):
        def clean_up(self) -> None:
            raise OSError("the disk is gone")

    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    worker = Untidy("test")
    running = asyncio.ensure_future(worker.run(gate, Scope()))
    await gate.reached()
    waiting = asyncio.ensure_future(worker.run(lambda: 1, Scope()))
    await asyncio.sleep(0)
    stopping = asyncio.ensure_future(worker.stop(PATIENCE))
    await asyncio.sleep(0)
    gate.open.set()
    assert await running == "through"
    with pytest.raises(TransportError, match="closed"):
        await waiting
    await stopping


async def test_second_event_loop_is_refused(worker: Worker) -> None:
    await worker.run(lambda: 1, Scope())
    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(worker.run(lambda: 2, Scope())))
