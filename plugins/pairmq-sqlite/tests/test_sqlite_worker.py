"""The worker: waiting for somebody else's lock, being cut off there, group commits, and closing."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import threading

import pytest

from pairmq.model import FailureKind, FailureReason, Source, TransportError
from pairmq.transport import Job, is_nothing_sent
from pairmq_sqlite.testing import FileLock

PATIENCE = 100.0
LONG = 300


@pytest.fixture
def locked(path):
    """Locks the file until the test, or its end, gives it back."""
    locks = []

    def lock():
        locks.append(FileLock(path))
        return locks[-1]

    yield lock
    for each in locks:
        each.release()


async def failure(call) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await call
    return caught.value


async def test_a_lock_that_is_released_in_time_is_waited_out(connect, queue, message, locked):
    transport = connect(busy_timeout=LONG)
    lock = locked()
    sending = asyncio.ensure_future(transport.sender(queue).send(message()))
    await asyncio.sleep(0.2)
    assert not sending.done()
    lock.release()
    async with asyncio.timeout(PATIENCE):
        await sending


async def test_who_has_waited_for_too_long_finds_it_unavailable_and_nothing_was_done(connect, queue, message, locked):
    transport = connect(busy_timeout=0.1)
    lock = locked()
    async with asyncio.timeout(PATIENCE):
        error = await failure(transport.sender(queue).send(message("never")))
    assert (error.kind, error.reason, error.maybe_applied) == (FailureKind.UNAVAILABLE, FailureReason.TIMEOUT, False)
    lock.release()
    assert await transport.admin.peek(Source(queue), 10) == []


async def test_a_send_that_is_cut_off_while_it_waits_has_sent_nothing(connect, queue, message, locked):
    transport = connect(busy_timeout=LONG)
    lock = locked()
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.2):
            await transport.sender(queue).send(message("never"))
    assert is_nothing_sent(caught.value)
    lock.release()
    assert await transport.admin.peek(Source(queue), 10) == []


async def test_a_batch_of_which_a_part_was_stored_does_not_say_that_nothing_was_sent(
    connect, queue, message, locked, monkeypatch
):
    transport = connect(busy_timeout=LONG)
    sender = transport.sender(queue)
    store, chunks = sender._store, []

    async def store_and_lock(rows):
        await store(rows)
        chunks.append(rows)
        locked()
        limit.reschedule(asyncio.get_running_loop().time() + 0.3)

    monkeypatch.setattr(sender, "_store", store_and_lock)
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(LONG) as limit:
            await sender.send_batch([message() for _ in range(3000)])
    assert len(chunks) == 1
    assert not is_nothing_sent(caught.value)


async def test_what_waits_together_is_committed_together(transport, queue, message, locked, monkeypatch):
    commits = []
    lock = locked()
    sender = transport.sender(queue)
    sends = [asyncio.ensure_future(sender.send(message(str(number)))) for number in range(50)]
    await asyncio.sleep(0.05)
    worker = transport._context.worker
    commit = worker._database.commit
    monkeypatch.setattr(worker._database, "commit", lambda: (commits.append(1), commit()))
    lock.release()
    await asyncio.gather(*sends)
    assert len(commits) == 1
    found = await transport.admin.peek(Source(queue), 100)
    assert [delivery.message.body for delivery in found] == [b"%d" % number for number in range(50)]


async def test_a_job_that_can_not_be_done_takes_no_other_of_its_group_with_it(transport, queue, message, locked):
    missing = type(queue)("missing")
    lock = locked()
    sends = [transport.sender(where).send(message(where.path)) for where in (queue, missing, queue)]
    ends = asyncio.gather(*sends, return_exceptions=True)
    await asyncio.sleep(0.05)
    lock.release()
    first, second, third = await ends
    assert (first, second.reason, third) == (None, FailureReason.NOT_FOUND, None)
    assert len(await transport.admin.peek(Source(queue), 100)) == 2


async def test_a_message_that_the_disk_has_no_room_for_takes_no_other_with_it(transport, queue, message, locked):
    def fill(store):
        pages = store._execute("PRAGMA page_count").fetchone()[0]
        store._execute(f"PRAGMA max_page_count = {pages + 20}")

    await transport._context.calls().run(fill, "limit the file")
    sender, lock = transport.sender(queue), locked()
    bodies = (b"small", bytes(1_000_000), b"small too")
    ends = asyncio.gather(*(sender.send(message(body)) for body in bodies), return_exceptions=True)
    await asyncio.sleep(0.05)
    lock.release()
    first, second, third = await ends
    assert (first, second.reason, second.maybe_applied, third) == (None, FailureReason.QUOTA, False, None)
    found = await transport.admin.peek(Source(queue), 100)
    assert [delivery.message.body for delivery in found] == [b"small", b"small too"]


async def test_a_commit_that_fails_in_doubt_is_reported_to_every_caller_in_it(
    transport, queue, message, locked, monkeypatch
):
    def fail():
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    monkeypatch.setattr(transport._context.worker._database, "commit", fail)
    sender = transport.sender(queue)
    lock = locked()  # so that all three are there when the first one begins
    ends = asyncio.gather(*(sender.send(message()) for _ in range(3)), return_exceptions=True)
    await asyncio.sleep(0.05)
    lock.release()
    errors = await ends
    assert [(error.kind, error.maybe_applied) for error in errors] == [(FailureKind.UNAVAILABLE, True)] * 3
    await sender.send(message("over a new connection"))


async def test_a_close_ends_what_waits_and_leaves_no_thread(connect, queue, message, locked):
    transport = connect(busy_timeout=LONG)
    locked()
    sends = [asyncio.ensure_future(transport.sender(queue).send(message())) for _ in range(3)]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(PATIENCE):
        await transport.close()
    errors = await asyncio.gather(*sends, return_exceptions=True)
    assert [(error.reason, error.maybe_applied) for error in errors] == [(FailureReason.CLOSED, False)] * 3
    async with asyncio.timeout(PATIENCE):
        while transport._context.worker._thread.is_alive():
            await asyncio.sleep(0.02)


async def test_a_job_that_is_no_longer_waited_for_is_not_done(connect, queue, message, locked):
    transport = connect(busy_timeout=LONG)
    lock = locked()
    sender = transport.sender(queue)
    sends = [asyncio.ensure_future(sender.send(message(str(number)))) for number in range(10)]
    await asyncio.sleep(0.05)
    for send in sends[::2]:
        send.cancel()
    # They learn of it in the loop's next turn: released before that, the lock would let the worker do all ten.
    await asyncio.wait(sends[::2], timeout=PATIENCE)
    lock.release()
    await asyncio.gather(*sends, return_exceptions=True)
    found = await transport.admin.peek(Source(queue), 100)
    assert [delivery.message.body for delivery in found] == [b"1", b"3", b"5", b"7", b"9"]


async def test_a_defect_in_a_job_fails_it_and_nothing_else(transport, queue, message):
    error = await failure(transport._context.calls().run(lambda store: 1 // 0, "divide"))
    assert isinstance(error.__cause__, ZeroDivisionError)
    await transport.sender(queue).send(message())


async def test_a_system_without_threads_fails_what_is_asked_then_and_nothing_later(
    connect, queue, message, monkeypatch
):
    def fail(thread):
        raise RuntimeError("can't start new thread")

    transport = connect()
    sender = transport.sender(queue)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        for _ in range(2):
            error = await failure(sender.send(message("never")))
            assert (error.kind, error.maybe_applied) == (FailureKind.UNAVAILABLE, False)
            assert "can't start new thread" in str(error)
    async with asyncio.timeout(PATIENCE):
        await sender.send(message("then"))
    found = await transport.admin.peek(Source(queue), 100)
    assert [delivery.message.body for delivery in found] == [b"then"]


async def test_a_transport_that_never_got_a_thread_closes(connect, queue, message, monkeypatch):
    def fail(thread):
        raise RuntimeError("can't start new thread")

    transport = connect()
    monkeypatch.setattr(threading.Thread, "start", fail)
    await failure(transport.receiver(Source(queue)).receive(1, 0))
    async with asyncio.timeout(PATIENCE):
        await transport.close()


async def test_jobs_of_a_group_that_failed_are_not_kept(connect, queue, message):
    transport = connect()
    sender, worker = transport.sender(queue), transport._context.worker

    def fails(_):
        raise sqlite3.OperationalError("of one job")

    for _ in range(3):
        failing = worker.submit(fails)
        others = [asyncio.ensure_future(sender.send(message(b"%d" % n))) for n in range(20)]
        with pytest.raises(Exception, match="of one job"):
            await failing.outcome()
        await asyncio.gather(*others)
    del failing, others

    def kept() -> int:
        gc.collect()
        return sum(isinstance(each, Job) for each in gc.get_objects())

    async with asyncio.timeout(PATIENCE):  # the worker's thread may still be leaving the last one
        while kept():
            await asyncio.sleep(0.01)
