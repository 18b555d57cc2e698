"""What a process remembers stays bounded, and what is in use stays."""

from __future__ import annotations

import threading

from pairmq import Entity
from pairmq_kombu._bounded import Postponed, Recent, Senders


class Sender:
    def __init__(self, entity: Entity) -> None:
        self.entity = entity
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_what_was_not_used_for_the_longest_time_is_forgotten() -> None:
    recent: Recent[str, int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    assert recent.get("a") == 1
    recent.put("c", 3)
    assert [recent.get(key) for key in "abc"] == [1, None, 3]


def test_a_declaration_waits_once_however_often_it_is_put_off() -> None:
    postponed = Postponed(1)
    assert postponed.add("queue_declare", {"queue": "a", "durable": True})
    assert postponed.add("queue_declare", {"durable": True, "queue": "a"})
    assert len(postponed) == 1


def test_no_declaration_that_waits_is_forgotten_for_another() -> None:
    postponed = Postponed(1)
    postponed.add("queue_declare", {"queue": "a"})
    assert not postponed.add("queue_declare", {"queue": "b"})
    ((key, (_, arguments)),) = postponed.all()
    assert arguments == {"queue": "a"}
    postponed.made(key)
    assert postponed.add("queue_declare", {"queue": "b"})


def test_idle_senders_over_the_limit_are_closed_the_oldest_first() -> None:
    made: list[Sender] = []

    def make(entity: Entity) -> Sender:
        made.append(Sender(entity))
        return made[-1]

    senders = Senders(make, most=2)
    for path in ("a", "b", "a", "c", "a"):
        with senders.using(Entity(path)):
            pass
    assert [(sender.entity.path, sender.closed) for sender in made] == [("a", False), ("b", True), ("c", False)]


def test_a_sender_in_use_is_never_closed() -> None:
    senders = Senders(Sender, most=1)
    with senders.using(Entity("slow")) as slow:
        for path in "abc":
            with senders.using(Entity(path)) as other:
                assert not other.closed
        assert not slow.closed
        assert len(senders) <= 2
    assert len(senders) == 1


def test_threads_that_meet_share_one_sender() -> None:
    both = threading.Barrier(2)
    made: list[Sender] = []
    used: list[Sender] = []

    def make(entity: Entity) -> Sender:
        sender = Sender(entity)
        made.append(sender)
        both.wait(60)
        return sender

    senders = Senders(make)

    def use() -> None:
        with senders.using(Entity("orders")) as sender:
            used.append(sender)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(made) == 2
    assert used[0] is used[1]
    assert [sender.closed for sender in made] in ([True, False], [False, True])
    assert not used[0].closed


def test_a_child_begins_with_locks_that_are_free_and_senders_that_are_idle() -> None:
    senders = Senders(Sender, most=0)
    recent: Recent[str, int] = Recent(1)
    busy = senders.using(Entity("orders"))
    sender = busy.__enter__()
    senders._lock.acquire()
    recent._lock.acquire()
    senders.after_fork()
    recent.after_fork()
    recent.put("a", 1)
    with senders.using(Entity("others")):
        pass
    assert sender.closed
