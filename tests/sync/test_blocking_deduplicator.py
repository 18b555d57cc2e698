"""Each message handled once, by threads, as the last block of Python in receive-once.md has it."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pairmq import LockLost, Message
from pairmq.model import FailureKind, Source, TransportError
from pairmq.model.events import Settlement
from pairmq.sync import Deduplicator
from pairmq_redis import RedisClaims


def received(pair, count):
    with pair.receiver("orders") as receiver:
        yield from receiver.receive(count, wait=10)


def test_a_message_is_handled_and_its_copy_is_completed_unseen(pair):
    pair.sender("orders").send_batch([Message(b"", message_id="m"), Message(b"", message_id="m")])
    dedupe, firsts = Deduplicator(), []
    for delivery in received(pair, 2):
        with dedupe.once(delivery) as first:
            firsts.append(first)
        assert delivery.settlement is Settlement.COMPLETED
    assert firsts == [True, False]
    assert pair.primary.admin.counts(Source(pair.sender("orders").entity)).pending == 0


def test_a_handler_that_fails_raises_and_leaves_the_message(pair):
    pair.sender("orders").send(Message(b"", message_id="m"))
    dedupe = Deduplicator()
    (delivery,) = received(pair, 1)
    with pytest.raises(ZeroDivisionError), dedupe.once(delivery):
        raise ZeroDivisionError
    assert delivery.settlement is None
    with dedupe.once(delivery) as first:
        assert first


def test_a_message_that_was_not_dead_lettered_is_handled_again(pair, monkeypatch):
    pair.sender("orders").send(Message(b"", message_id="m"))
    dedupe = Deduplicator()
    (delivery,) = received(pair, 1)

    async def refused(*arguments):
        raise TransportError("no", FailureKind.UNAVAILABLE)

    with dedupe.once(delivery), monkeypatch.context() as patch:
        patch.setattr(delivery.own()._receiver, "dead_letter", refused)
        with pytest.raises(TransportError):
            delivery.dead_letter("bad")
    assert delivery.settlement is Settlement.DEAD_LETTERED
    assert not delivery.settled
    with dedupe.once(delivery) as first:
        assert first


def test_threads_share_one_store_and_handle_each_message_once(pair, servers):
    pair.sender("orders").send_batch([Message(b"", message_id=f"m{n // 3}") for n in range(30)])
    # Beside brokers at memory://, in Redis in this process.
    dedupe = Deduplicator(RedisClaims(servers[0].url.replace("memory://", "fakeredis://")))
    handled, lock = [], threading.Lock()

    def handle(delivery):
        with dedupe.once(delivery) as first:
            if first:
                with lock:
                    handled.append(delivery.message.message_id)

    with pair.receiver("orders") as receiver, ThreadPoolExecutor(6) as threads:
        deliveries = receiver.receive(30, wait=10)
        list(threads.map(handle, deliveries))
    assert sorted(handled) == sorted({f"m{n // 3}" for n in range(30)})
    dedupe.close()


def test_a_forked_child_does_not_handle_what_its_parent_received(pair):
    pair.sender("orders").send(Message(b"", message_id="m"))
    (delivery,) = received(pair, 1)
    child = os.fork()
    if child == 0:
        try:
            with Deduplicator().once(delivery):
                os._exit(1)
        except LockLost:
            os._exit(0)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
