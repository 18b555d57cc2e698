"""Queues: order, locks, settlement, dead letters, schedules, expiry."""

from __future__ import annotations

import time

import pytest

from servicebus_local.broker import Broker, BrokerError, EntityStatus, Incoming, MessageState, QueueDescription


def text(body: str, **more) -> Incoming:
    return Incoming(body.encode(), len(body) + 10, **more)


def bodies(messages) -> list[str]:
    return [message.content.decode() for message in messages]


def refused(condition: str):
    return pytest.raises(BrokerError, match=condition)


@pytest.fixture
def queue(broker):
    broker.create_queue("orders", QueueDescription(lock_duration=30.0, max_delivery_count=3))
    return broker.resolve_receive("orders")


def test_messages_are_taken_in_the_order_of_their_numbers(broker, queue):
    assert broker.send("orders", [text("a"), text("b"), text("c")]) == [1, 2, 3]
    assert bodies(queue.take(2)) == ["a", "b"]
    assert bodies(queue.take(2)) == ["c"]
    assert queue.take(2) == []


def test_the_path_is_found_whatever_its_case_and_kept_as_written(broker, queue):
    assert broker.resolve_receive("ORDERS") is queue
    assert broker.get_queue("Orders").path == "orders"


def test_a_completed_message_is_gone(broker, queue, clock):
    broker.send("orders", [text("a")])
    queue.complete(queue.take(1)[0].lock_token)
    clock.now += 1000
    assert queue.take(1) == []
    assert broker.get_queue("orders").counts.total == 0
    assert broker.get_queue("orders").size_in_bytes == 0


def test_an_abandoned_message_comes_back_first_and_counts(broker, queue):
    broker.send("orders", [text("a"), text("b")])
    first = queue.take(1)[0]
    queue.abandon(first.lock_token, {"tried": 1})
    again = queue.take(1)[0]
    assert (again.content, again.delivery_count, again.added_properties) == (b"a", 1, {"tried": 1})


def test_a_released_message_comes_back_and_does_not_count(broker, queue):
    broker.send("orders", [text("a")])
    for _ in range(5):
        message = queue.take(1)[0]
        assert message.delivery_count == 0
        queue.release(message.lock_token)


def test_a_lock_that_ran_out_settles_nothing(broker, queue, clock):
    broker.send("orders", [text("a")])
    token = queue.take(1)[0].lock_token
    clock.now += 30
    for settle in (queue.complete, queue.abandon, queue.defer, queue.dead_letter, queue.renew, queue.release):
        with refused("message-lock-lost"):
            settle(token)
    assert queue.take(1)[0].delivery_count == 1


def test_a_renewed_lock_holds_longer(broker, queue, clock):
    broker.send("orders", [text("a")])
    token = queue.take(1)[0].lock_token
    clock.now += 20
    assert queue.renew(token) == clock.now + 30
    clock.now += 29
    assert queue.take(1) == []
    queue.complete(token)


def test_after_too_many_deliveries_a_message_is_dead(broker, queue, clock):
    broker.send("orders", [text("a")])
    for settle in (queue.abandon, lambda _: None, queue.abandon):
        settle(queue.take(1)[0].lock_token)
        clock.now += 30
        broker.advance()
    assert queue.take(1) == []
    dead = broker.resolve_receive("orders/$deadletterqueue").take(1)[0]
    assert (dead.dead_letter_reason, dead.dead_letter_source) == ("MaxDeliveryCountExceeded", "orders")
    assert dead.enqueued_sequence_number == 1


def test_dead_letters_neither_expire_nor_run_out_of_deliveries(broker, queue, clock):
    broker.send("orders", [text("a", time_to_live=60)])
    queue.dead_letter(queue.take(1)[0].lock_token, "bad", "it is bad", {"why": "so"})
    dead = broker.resolve_receive("orders/$DeadLetterQueue")
    for _ in range(20):
        message = dead.take(1)[0]
        dead.abandon(message.lock_token)
        clock.now += 1000
    assert (message.dead_letter_reason, message.dead_letter_description) == ("bad", "it is bad")
    assert message.added_properties == {"why": "so"}
    with refused("not-allowed"):
        dead.dead_letter(dead.take(1)[0].lock_token)


@pytest.mark.parametrize("kept", [True, False])
def test_what_expires_is_dead_lettered_only_if_asked_for(broker, clock, kept):
    broker.create_queue("q", QueueDescription(dead_lettering_on_message_expiration=kept))
    broker.send("q", [text("a", time_to_live=5)])
    clock.now += 5
    broker.advance()
    counts = broker.get_queue("q").counts
    assert (counts.active, counts.dead_letter) == (0, int(kept))
    if kept:
        assert broker.resolve_receive("q/$DeadLetterQueue").take(1)[0].dead_letter_reason == "TTLExpiredException"


def test_a_locked_message_outlives_its_time_until_it_is_released(broker, queue, clock):
    broker.send("orders", [text("a", time_to_live=5), text("b", time_to_live=5)])
    first, second = queue.take(2)
    clock.now += 10
    queue.complete(first.lock_token)
    queue.abandon(second.lock_token)
    assert queue.take(2) == []
    assert broker.get_queue("orders").counts.total == 0


def test_the_shorter_time_to_live_counts(broker, clock):
    broker.create_queue("q", QueueDescription(default_message_time_to_live=10))
    broker.send("q", [text("a", time_to_live=5), text("b", time_to_live=50), text("c")])
    assert [each.expires_at - clock.now for each in broker.resolve_receive("q").take(3)] == [5, 10, 10]


def test_a_deferred_message_is_received_by_its_number_only(broker, queue, clock):
    broker.send("orders", [text("a")])
    queue.defer(queue.take(1)[0].lock_token, {"later": True})
    clock.now += 100
    assert queue.take(1) == []
    with refused("message-not-found"):
        queue.receive_deferred([1, 2])
    message = queue.receive_deferred([1])[0]
    assert (message.state, message.added_properties) == (MessageState.DEFERRED, {"later": True})
    with refused("message-not-found"):
        queue.receive_deferred([1])
    queue.abandon(message.lock_token)
    assert queue.take(1) == []
    assert queue.receive_deferred([1], delete=True)[0].delivery_count == 1
    assert broker.get_queue("orders").counts.total == 0


def test_an_expired_deferred_message_goes_when_it_is_asked_for(broker, clock):
    broker.create_queue("q", QueueDescription(dead_lettering_on_message_expiration=True))
    source = broker.resolve_receive("q")
    broker.send("q", [text("a", time_to_live=5)])
    source.defer(source.take(1)[0].lock_token)
    clock.now += 60
    broker.advance()
    assert broker.get_queue("q").counts.deferred == 1
    assert source.receive_deferred([1]) == []
    assert broker.get_queue("q").counts.dead_letter == 1


def test_a_scheduled_message_comes_in_its_time_under_a_new_number(broker, queue, clock):
    (number,) = broker.schedule("orders", [text("late", scheduled_at=clock.now + 60)])
    broker.send("orders", [text("now")])
    assert broker.next_deadline() == clock.now + 60
    assert [each.state for each in queue.peek(0, 9)] == [MessageState.SCHEDULED, MessageState.ACTIVE]
    assert bodies(queue.take(5, delete=True)) == ["now"]
    clock.now += 60
    (late,) = queue.take(5)
    assert (late.content, late.enqueued_at, late.state) == (b"late", clock.now, MessageState.ACTIVE)
    assert late.sequence_number > number


def test_what_is_cancelled_never_comes_and_all_numbers_must_be_right(broker, queue, clock):
    first, second = broker.schedule("orders", [text(each, scheduled_at=clock.now + 60) for each in "ab"])
    with refused("message-not-found"):
        broker.cancel("orders", [first, 99])
    broker.cancel("orders", [first])
    clock.now += 60
    assert bodies(queue.take(5)) == ["b"]
    with refused("message-not-found"):
        broker.cancel("orders", [second])


def test_receive_and_delete_takes_a_message_for_good(broker, queue, clock):
    broker.send("orders", [text("a")])
    assert queue.take(1, delete=True)[0].lock_token is None
    clock.now += 100
    assert queue.take(1) == []


def test_a_batch_is_taken_in_whole_or_not_at_all(broker, queue):
    with refused("message-size-exceeded"):
        broker.send("orders", [text("a"), Incoming(b"", 262145)])
    assert broker.get_queue("orders").counts.total == 0
    assert broker.send("orders", [text("b")]) == [1]


def test_a_full_queue_takes_nothing_until_there_is_room(broker):
    broker.create_queue("q", QueueDescription(max_size_in_megabytes=1))
    broker.send("q", [Incoming(b"", 262144)] * 4)
    with refused("resource-limit-exceeded"):
        broker.send("q", [text("a")])
    broker.resolve_receive("q").take(1, delete=True)
    broker.send("q", [text("a")])


def test_a_ping_is_accepted_and_dropped(broker, queue):
    assert broker.send("orders", [text("p", content_type="application/vnd.ms-servicebus-ping")]) == [0]
    assert queue.take(1) == []


def test_an_id_is_taken_once_within_the_window(broker, clock):
    broker.create_queue(
        "q", QueueDescription(requires_duplicate_detection=True, duplicate_detection_history_time_window=20)
    )
    source = broker.resolve_receive("q")
    broker.send("q", [text("a", message_id="1"), text("b", message_id="1"), text("c"), text("d", message_id=1)])
    assert bodies(source.take(9, delete=True)) == ["a", "c", "d"]
    clock.now += 19.9
    broker.send("q", [text("e", message_id="1")])
    assert source.take(9) == []
    clock.now += 0.2
    broker.send("q", [text("f", message_id="1")])
    assert bodies(source.take(9)) == ["f"]


def test_a_status_closes_one_way_or_both(broker, queue):
    broker.send("orders", [text("a"), text("b")])
    token = queue.take(1)[0].lock_token
    description = broker.get_queue("orders").description
    called = []
    queue.on_ready(lambda: called.append(1))
    for status, sends, receives in (("SendDisabled", 0, 1), ("ReceiveDisabled", 1, 0), ("Disabled", 0, 0)):
        changed = QueueDescription(
            lock_duration=description.lock_duration, max_delivery_count=3, status=EntityStatus(status)
        )
        broker.update_queue("orders", changed)
        if not sends:
            with refused("entity-disabled"):
                broker.send("orders", [text("c")])
        if not receives:
            with refused("entity-disabled"):
                queue.take(1)
    queue.complete(token)
    called.clear()
    broker.update_queue("orders", description)
    assert called == [1]
    assert bodies(queue.take(5)) == ["b"]


def test_a_waiter_is_called_for_everything_but_take(broker, queue, clock):
    called = []
    cancel = queue.on_ready(lambda: called.append(clock.now))
    broker.send("orders", [text("a")])
    assert len(called) == 1
    token = queue.take(1)[0].lock_token
    assert len(called) == 1
    queue.abandon(token)
    assert len(called) == 2
    queue.take(1)
    clock.now += 30
    assert bodies(queue.take(1)) == ["a"]  # The lock ran out, and take() gave the message at once.
    assert len(called) == 2
    broker.advance()
    assert len(called) == 3
    cancel()
    broker.send("orders", [text("b")])
    assert len(called) == 3


def test_a_waiter_may_take_and_send_from_inside(broker, queue):
    got = []

    def pump() -> None:
        for message in queue.take(10):
            got.append(message.content)
            queue.complete(message.lock_token)
            if len(got) < 3:
                broker.send("orders", [text("next")])

    queue.on_ready(pump)
    broker.send("orders", [text("a")])
    assert got == [b"a", b"next", b"next"]


def test_peek_pages_by_number_and_shows_no_expired_ones(broker, queue, clock):
    broker.send("orders", [text(each) for each in "abc"] + [text("d", time_to_live=1)])
    queue.take(1)
    queue.complete(queue.take(1)[0].lock_token)
    clock.now += 1
    assert [each.sequence_number for each in queue.peek(0, 10)] == [1, 3]
    assert [each.sequence_number for each in queue.peek(2, 1)] == [3]
    assert queue.peek(4, 10) == []


def test_a_deleted_queue_wakes_waiters_and_refuses_the_rest(broker, queue):
    called = []
    queue.on_ready(lambda: called.append(1))
    broker.delete_queue("ORDERS")
    assert called == [1]
    with refused("not-found"):
        queue.take(1)
    with refused("not-found"):
        broker.send("orders", [text("a")])
    broker.create_queue("orders")
    assert broker.resolve_receive("orders") is not queue


def test_an_idle_entity_is_deleted_unless_a_client_waits(broker, clock):
    broker.create_queue("q", QueueDescription(auto_delete_on_idle=300))
    start = clock.now
    clock.now = start + 200
    broker.send("q", [text("a")])
    clock.now = start + 400
    broker.advance()
    cancel = broker.resolve_receive("q").on_ready(lambda: None)
    clock.now = start + 600
    broker.advance()
    cancel()
    clock.now = broker.next_deadline()
    broker.advance()
    with refused("not-found"):
        broker.get_queue("q")
    assert broker.next_deadline() is None


def test_operations_are_counted_as_they_are_billed(broker, queue):
    broker.send("orders", [Incoming(b"", 40000)] * 4)
    taken = queue.take(4)
    queue.take(1)
    queue.count_empty_receive()
    queue.complete(taken[0].lock_token)
    counted = broker.operations
    assert (counted["send"], counted["receive"], counted["empty-receive"], counted["settle"]) == (3, 4, 1, 1)


def test_a_message_of_a_large_batch_costs_no_more_than_one_of_a_small_batch(broker):
    broker.create_queue("q")
    source = broker.resolve_receive("q")
    costs: dict[int, list[float]] = {10: [9.0, 9.0], 1000: [9.0, 9.0]}
    for _ in range(20):
        for size, best in costs.items():
            batch = [Incoming(bytes(1024), 1100, message_id=str(each)) for each in range(size)]
            # Processor time, which has nothing to do with what else the machine is busy with.
            started = time.process_time()
            broker.send("q", batch)
            sent = time.process_time()
            for message in source.take(size):
                source.complete(message.lock_token)
            done = time.process_time()
            best[:] = min(best[0], (sent - started) / size), min(best[1], (done - sent) / size)
    for small, large in zip(*costs.values(), strict=True):
        assert large < 2 * small


def test_what_is_finished_leaves_nothing_behind(clock):
    broker = Broker(clock)
    broker.create_queue("q")
    source = broker.resolve_receive("q")
    for _ in range(3000):
        broker.send("q", [text("a", time_to_live=1e6)])
        source.complete(source.take(1)[0].lock_token)
    assert len(source.shelf.expiring) < 200
    assert len(source._lock_timers) < 200
    assert len(source.shelf._order) < 200
