"""`pairmq.sync` keeps what the asynchronous pair promises, from threads."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, thread

import pytest

from pairmq import ConfigurationError, Entity, EntityState, Message, PairClosed, Receipt, Route, SendUnknown
from pairmq.model import Source
from pairmq.model.events import MessageDelivered, SendCompleted, Side, StateChanged
from pairmq.sync import Pair, _loop
from pairmq.sync._loop import _Call
from pairmq.sync._loop import run as on_the_loop

ORDERS = Entity("orders")


class Enough(Exception):
    """What a signal's handler raises here, as Celery's soft time limit does."""


def interrupted_in(seconds, action):
    """Call something, with `Enough` raised in the middle of it."""

    def handle(number, frame):
        raise Enough

    def watched():
        signal.setitimer(signal.ITIMER_REAL, seconds)
        action()

    previous = signal.signal(signal.SIGALRM, handle)
    try:
        with pytest.raises(Enough):
            watched()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_a_message_goes_to_the_primary_and_is_received_once(pair):
    with pair.sender("orders") as sender, pair.receiver("orders") as receiver:
        assert sender.send(Message(b"42")).route is Route.PRIMARY
        (delivery,) = receiver.receive(wait=10)
        assert delivery.body == b"42"
        delivery.complete()
    assert pair.primary.admin.counts(Source(ORDERS)).pending == 0


def test_sends_are_diverted_while_the_primary_is_unavailable_and_moved_back(servers, pair):
    sender = pair.sender("orders")
    sender.send(Message(b"before"))
    servers[0].kill()
    receipt = sender.send(Message(b"during"), timeout=20)
    assert receipt.route is Route.BACKLOG
    assert pair.state("orders") is not EntityState.HEALTHY
    assert pair.states()[ORDERS] is pair.state("orders")
    held = [pair.secondary.admin.counts(Source(queue)).pending for queue in pair.backlog_queues]
    assert sum(held) == 1


def test_a_receiver_of_a_queue_with_continuity_goes_on_while_the_primary_is_unavailable(servers):
    east, west = servers
    with Pair.connect(
        east.url, west.url, failover_interval=0, attempt_timeout=20, ping_primary_interval=0.2, continuity=("orders",)
    ) as pair:
        pair.primary.admin.create(ORDERS)
        sender = pair.sender("orders")
        with pair.receiver("orders") as receiver:
            sender.send(Message(b"1"))
            (delivery,) = receiver.receive(wait=10)
            assert (delivery.body, delivery.origin) == (b"1", Side.PRIMARY)
            delivery.complete()
            east.kill()
            sender.send(Message(b"2"))
            delivery = next(receiver)
            assert (delivery.body, delivery.origin) == (b"2", Side.SECONDARY)
            delivery.complete()
            assert delivery.settled


def test_many_threads_share_a_sender(pair):
    sender = pair.sender("orders")
    with ThreadPoolExecutor(20) as threads:
        receipts = list(threads.map(lambda number: sender.send(Message(str(number).encode())), range(400)))
    assert all(receipt.route is Route.PRIMARY for receipt in receipts)
    assert pair.primary.admin.counts(Source(ORDERS)).pending == 400


def test_many_threads_share_a_receiver(pair):
    pair.sender("orders").send_batch(Message(str(number).encode()) for number in range(100))
    receiver = pair.receiver("orders", prefetch=5)
    seen = []

    def work(_):
        ends_at = time.monotonic() + 60
        while len(seen) < 100 and time.monotonic() < ends_at:
            for delivery in receiver.receive(5, wait=0.5):
                delivery.complete()
                seen.append(delivery.body)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert receiver.receive(5, wait=0.5) == []
    assert sorted(seen, key=int) == [str(number).encode() for number in range(100)]


def test_a_send_that_a_signal_interrupts_is_over_when_the_caller_goes_on(servers, pair):
    pair.hold("orders")
    sender = pair.sender("orders")
    servers[1].pause()
    try:
        interrupted_in(0.3, lambda: sender.send(Message(b"held up"), timeout=30))
        assert pair.in_flight == 0
    finally:
        servers[1].resume()
    pair.mark_healthy("orders")
    assert sender.send(Message(b"after"), timeout=20).route is Route.PRIMARY


def test_what_a_signal_raises_as_a_call_ends_is_raised_as_it_is():
    """An event's wait turned it into "release unlocked lock": Ctrl-C was no KeyboardInterrupt then."""

    def interrupt(frame, *_):
        if frame.f_code.co_name in ("_acquire_restore", "result"):  # when a wait in Python code ends, or else after it
            sys.settrace(None)
            raise KeyboardInterrupt

    async def operation():
        await asyncio.sleep(0.01)

    sys.settrace(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            on_the_loop(operation())
    finally:
        sys.settrace(None)


def test_a_process_without_a_thread_to_spare_fails_one_call(monkeypatch):
    """And neither a coroutine nor a loop is left behind, of which a warning would tell."""

    def fail(_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_loop, "_loop", None)
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="can't start"):
            on_the_loop(asyncio.sleep(0, 7))
    gc.collect()
    assert on_the_loop(asyncio.sleep(0, 7)) == 7


def test_the_loop_has_threads_for_work_after_the_end_of_the_main_thread(monkeypatch):
    monkeypatch.setattr(thread, "_shutdown", True)  # as it is then
    assert on_the_loop(asyncio.to_thread(int, "7")) == 7


def test_a_hold_of_the_syphon_is_refused_when_the_process_has_none(pair):
    with pytest.raises(ConfigurationError, match="this process has no syphon"):
        pair.hold("orders", syphon=True)
    assert pair.syphon_holds == frozenset()


def test_a_receive_that_a_signal_interrupts_loses_nothing(pair):
    receiver = pair.receiver("orders")
    interrupted_in(0.3, lambda: receiver.receive(wait=30))
    pair.sender("orders").send(Message(b"later"))
    assert receiver.receive(wait=10)[0].body == b"later"


def test_what_was_received_as_the_caller_was_interrupted_is_released(pair, monkeypatch):
    pair.sender("orders").send(Message(b"once"))
    receiver = pair.receiver("orders")
    real, interrupted = _Call.wait, []

    def interrupted_at_the_end(call):
        real(call)
        if not interrupted:
            interrupted.append(True)
            raise Enough

    monkeypatch.setattr(_Call, "wait", interrupted_at_the_end)
    with pytest.raises(Enough):
        receiver.receive(wait=10)
    monkeypatch.undo()
    assert interrupted
    (delivery,) = receiver.receive(wait=10)  # long before its lock would end
    assert delivery.body == b"once"


def test_a_send_ends_at_its_deadline(servers):
    east, west = servers
    with Pair.connect(east.url, west.url) as pair:
        pair.primary.admin.create(ORDERS)
        sender = pair.sender("orders")
        sender.send(Message(b"warm"))
        east.pause()
        west.pause()
        try:
            with pytest.raises(SendUnknown):
                # Long enough for it to be on its way in time, whatever else runs here.
                sender.send(Message(b"too late"), timeout=3)
        finally:
            east.resume()
            west.resume()


def test_a_stream_gives_results_in_the_order_of_its_source(pair):
    messages = [Message(b"x", message_id=str(number)) for number in range(2500)]
    results = list(pair.sender("orders").send_stream(iter(messages), window=100))
    assert [result.message_id for result in results] == [message.message_id for message in messages]
    assert all(isinstance(result, Receipt) for result in results)


def test_a_stream_reads_its_source_in_the_callers_thread_and_within_its_window(pair):
    threads, unanswered, most = set(), 0, 0

    def source():
        nonlocal unanswered, most
        for number in range(300):
            threads.add(threading.current_thread())
            unanswered += 1
            most = max(most, unanswered)
            yield Message(str(number).encode())

    for _ in pair.sender("orders").send_stream(source(), window=7):
        unanswered -= 1
    assert threads == {threading.current_thread()}
    assert most <= 8  # one more has been read when the window is full


def test_a_slow_source_does_not_hold_up_what_was_read(pair):
    sent = threading.Event()
    pair.subscribe(lambda event: sent.set() if isinstance(event, SendCompleted) else None)

    def source():
        yield Message(b"first")
        assert sent.wait(60)  # only if the first one is sent although the second one has not come
        yield Message(b"second")

    assert len(list(pair.sender("orders").send_stream(source()))) == 2


def test_what_a_source_raises_comes_after_the_results_of_what_was_read(pair):
    def source():
        yield Message(b"1")
        yield Message(b"2")
        raise OSError("the file ends here")

    stream = pair.sender("orders").send_stream(source())
    assert [isinstance(next(stream), Receipt) for _ in range(2)] == [True, True]
    with pytest.raises(OSError, match="ends here"):
        next(stream)


def test_a_stream_that_is_left_early_leaves_nothing_in_flight(pair):
    stream = pair.sender("orders").send_stream(Message(b"x") for _ in iter(int, 1))
    next(stream)
    stream.close()
    assert pair.in_flight == 0


async def _collect_garbage() -> None:
    gc.collect()


async def _streams_under_way() -> int:
    return sum(task.get_name() == "pairmq send_stream" for task in asyncio.all_tasks())


def test_a_stream_that_is_collected_as_garbage_on_the_loops_own_thread_ends(pair):
    results = pair.sender("orders").send_stream((Message(b"x") for _ in range(50)), window=5)
    next(results)
    assert on_the_loop(_streams_under_way()) == 1
    ring = [results]
    ring.append(ring)
    del results, ring
    on_the_loop(_collect_garbage())
    deadline = time.monotonic() + 100
    while on_the_loop(_streams_under_way()):
        assert time.monotonic() < deadline, "it never ended"


def test_a_window_below_one_is_refused_before_anything_is_read(pair):
    with pytest.raises(ValueError, match="at least 1"):
        pair.sender("orders").send_stream(iter(()), window=0)


def test_events_are_iterated_until_the_pair_ends(pair):
    seen = []
    begun = threading.Event()

    def watch(events):
        begun.set()
        seen.extend(events)

    watcher = threading.Thread(target=watch, args=(pair.events(),))
    watcher.start()
    assert begun.wait(60)
    pair.sender("orders").send(Message(b"seen"))
    pair.hold("orders")
    pair.close()
    watcher.join(60)
    assert not watcher.is_alive()
    kinds = [type(event) for event in seen]
    assert SendCompleted in kinds
    assert StateChanged in kinds


def test_events_without_an_iterator_cost_nothing(pair):
    for _ in range(3):
        pair.events()
    with contextlib.closing(pair.events()) as events:
        pair.sender("orders").send(Message(b"1"))
        assert isinstance(next(events), SendCompleted)
    gc.collect()
    pair.sender("orders").send(Message(b"2"))
    assert not pair._inner.value._emit.active


def test_a_receivers_settlements_are_reported(pair):
    told = []
    receiver = pair.receiver("orders")
    receiver.report_to(told.append)
    pair.sender("orders").send(Message(b"1"))
    receiver.receive(wait=10)[0].complete()
    assert [type(event) for event in told] == [MessageDelivered]


def test_a_call_from_the_loops_own_thread_is_refused_instead_of_hanging(pair):
    sender = pair.sender("orders")
    refused = []

    def sink(event):
        if isinstance(event, SendCompleted) and not refused:
            try:
                sender.send(Message(b"from within"))
            except RuntimeError as error:
                refused.append(str(error))

    pair.subscribe(sink)
    sender.send(Message(b"outer"))
    assert "own thread" in refused[0]


def test_the_callers_context_goes_with_its_call(pair):
    span = contextvars.ContextVar("span", default="none")
    seen = []
    pair.subscribe(lambda event: seen.append(span.get()) if isinstance(event, SendCompleted) else None)
    span.set("checkout")
    pair.sender("orders").send(Message(b"1"))
    assert seen == ["checkout"]


def test_a_closed_pair_takes_nothing_more(pair):
    sender = pair.sender("orders")
    pair.close()
    pair.close()
    with pytest.raises(PairClosed):
        sender.send(Message(b"late"))
    with pytest.raises(PairClosed):
        pair.open()


def test_a_pair_that_is_not_open_says_how_to_open_it(servers):
    pair = Pair.connect(servers[0].url, servers[1].url)
    with pytest.raises(ConfigurationError, match="call open"):
        pair.sender("orders")


def test_wrong_settings_are_reported_at_once():
    with pytest.raises(ConfigurationError):
        Pair.connect("nonsense://x", "redis://y")


def test_closing_a_receiver_ends_the_iteration_of_another_thread(pair):
    receiver, ended = pair.receiver("orders"), []
    thread = threading.Thread(target=lambda: ended.extend([*receiver, "end"]), daemon=True)
    thread.start()
    time.sleep(0.1)
    receiver.close()
    thread.join(timeout=60)
    assert ended == ["end"]
    assert list(receiver) == []


def test_closing_ends_a_receive_of_another_thread(pair):
    receiver = pair.receiver("orders")
    ended = threading.Event()

    def read():
        with contextlib.suppress(Exception):  # how it ends is the broker's affair; that it ends is ours
            receiver.receive(wait=60)
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    time.sleep(0.2)  # most likely it waits now; if it does not, the test is only weaker
    pair.close()
    assert ended.wait(60)


def test_readiness_can_be_asked_for(servers, pair):
    assert pair.check("orders").entities[0].route is Route.PRIMARY
    servers[0].kill()
    assert pair.check("orders").entities[0].route is Route.BACKLOG
    servers[1].kill()
    assert not pair.check("orders").ready
