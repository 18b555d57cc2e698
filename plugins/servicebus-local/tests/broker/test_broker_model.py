"""A queue against a simple model of it: every operation in any order, with the clock moved by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from patient_examples import examples
from servicebus_local.broker import Broker, BrokerError, Incoming, QueueDescription, SessionLock, Stored

LOCK = 30.0
DELIVERIES = 3
SESSIONS = ("x", "y")


@dataclass
class Known:
    """What the model knows of one message."""

    body: bytes
    session: str | None
    place: str = "ready"  # ready, locked, deferred, scheduled, dead, done
    failed: int = 0
    due: float = 0.0
    expires: float = float("inf")
    deferred: bool = False
    token: object = None
    until: float = 0.0
    number: int = 0


class QueueMachine(RuleBasedStateMachine):
    """Messages are told apart by their bodies; `order` is the order of their numbers."""

    @initialize(sessions=st.booleans())
    def start(self, sessions: bool) -> None:
        self.now = 1_000.0
        self.sessions = sessions
        self.broker = Broker(lambda: self.now)
        self.broker.create_queue(
            "q",
            QueueDescription(
                lock_duration=LOCK,
                max_delivery_count=DELIVERIES,
                requires_session=sessions,
                dead_lettering_on_message_expiration=True,
            ),
        )
        self.source = self.broker.resolve_receive("q")
        self.known: dict[bytes, Known] = {}
        self.locks: dict[str, SessionLock] = {}
        self.ready_told = False
        self.source.on_ready(lambda: setattr(self, "ready_told", True))

    # ------------------------------------------------------------------ the model

    def fail(self, each: Known, counted: bool) -> None:
        each.token = None
        if counted:
            each.failed += 1
            if each.failed >= DELIVERIES:
                each.place = "dead"
                return
        each.place = "deferred" if each.deferred else "ready"
        if each.place == "ready" and each.expires <= self.now:
            each.place = "dead"

    def pass_time(self) -> None:
        for each in self.known.values():
            if each.place == "locked" and each.until <= self.now:
                self.fail(each, counted=True)
        for session, lock in list(self.locks.items()):
            if lock.locked_until <= self.now:
                del self.locks[session]
        for each in self.known.values():
            if each.place == "scheduled" and each.due <= self.now:
                each.place = "ready"
            if each.place == "ready" and each.expires <= self.now:
                each.place = "dead"

    def ready(self, session: str | None) -> list[Known]:
        chosen = [each for each in self.known.values() if each.place == "ready" and each.session == session]
        # A scheduled message gets its number late; the model learns it from what it sees.
        numbers = {m.content: m.sequence_number for m in self.source.peek(0, 10_000)}
        return sorted(chosen, key=lambda each: numbers[each.body])

    def locked(self) -> list[Known]:
        return [each for each in self.known.values() if each.place == "locked"]

    # ------------------------------------------------------------------ the rules

    @rule(
        count=st.integers(1, 4),
        session=st.sampled_from(SESSIONS),
        wait=st.sampled_from([None, 10.0, 40.0]),
        live=st.sampled_from([None, 5.0, 50.0]),
    )
    def send(self, count: int, session: str, wait: float | None, live: float | None) -> None:
        batch = []
        for _ in range(count):
            body = str(len(self.known)).encode()
            due = self.now if wait is None else self.now + wait
            each = Known(body, session if self.sessions else None, due=due)
            each.place = "ready" if wait is None else "scheduled"
            each.expires = float("inf") if live is None else due + live
            self.known[body] = each
            batch.append(
                Incoming(
                    body, 10, session_id=each.session, time_to_live=live, scheduled_at=None if wait is None else due
                )
            )
        self.ready_told = False
        numbers = self.broker.send("q", batch)
        assert numbers == sorted(numbers)
        assert self.ready_told or wait is not None

    @rule(seconds=st.sampled_from([0.5, 6.0, 20.0, LOCK, 45.0]), by_timer=st.booleans())
    def wait(self, seconds: float, by_timer: bool) -> None:
        target = self.now + seconds
        while by_timer:
            deadline = self.broker.next_deadline()
            if deadline is None or deadline > target:
                break
            self.now = max(self.now, deadline)
            self.pass_time()
            self.broker.advance()
        self.now = target
        if not by_timer:
            # All at once: the order in which the model and the broker see instants that passed must not matter.
            self.broker.advance()
        self.pass_time()

    @precondition(lambda self: not self.sessions or self.locks)
    @rule(count=st.integers(1, 5), delete=st.booleans(), data=st.data())
    def take(self, count: int, delete: bool, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.locks))) if self.sessions else None
        expected = self.ready(session)[:count]
        taken = self.source.take(count, delete=delete, session=self.locks[session] if session else None)
        assert [m.content for m in taken] == [each.body for each in expected]
        self.note(taken, delete)

    def note(self, taken: list[Stored], delete: bool) -> None:
        numbers = [m.sequence_number for m in taken]
        assert numbers == sorted(numbers)
        for message in taken:
            each = self.known[message.content]
            assert message.delivery_count == each.failed
            assert each.place in ("ready", "deferred")
            each.place = "done" if delete else "locked"
            if not delete:
                each.token, each.until = message.lock_token, message.locked_until
                assert message.locked_until > self.now

    @precondition(lambda self: self.locked())
    @rule(data=st.data(), how=st.sampled_from(["complete", "abandon", "release", "defer", "dead_letter", "renew"]))
    def settle(self, data: st.DataObject, how: str) -> None:
        each = data.draw(st.sampled_from(self.locked()))
        if how == "renew":
            if not self.sessions:
                each.until = self.source.renew(each.token)
            return
        token = each.token
        getattr(self.source, how)(token)
        if how in ("abandon", "release"):
            self.fail(each, counted=how == "abandon")
        else:
            each.place = {"complete": "done", "defer": "deferred", "dead_letter": "dead"}[how]
            each.deferred = each.deferred or how == "defer"
        each.token = None
        with pytest.raises(BrokerError, match="message-lock-lost"):
            self.source.complete(token)

    @rule(data=st.data())
    def receive_deferred(self, data: st.DataObject) -> None:
        waiting = [
            each
            for each in self.known.values()
            if each.place == "deferred" and (each.session is None or each.session in self.locks)
        ]
        if not waiting:
            return
        each = data.draw(st.sampled_from(waiting))
        numbers = {m.content: m.sequence_number for m in self.source.peek(0, 10_000)}
        if each.body not in numbers:
            return  # It has expired, and nobody can know its number from here.
        taken = self.source.receive_deferred([numbers[each.body]], self.locks.get(each.session or ""))
        assert [m.content for m in taken] == [each.body]
        self.note(taken, delete=False)

    @precondition(lambda self: self.sessions)
    @rule(session=st.sampled_from([None, *SESSIONS]))
    def accept(self, session: str | None) -> None:
        if session in self.locks:
            with pytest.raises(BrokerError, match="session-cannot-be-locked"):
                self.source.accept_session(session)
            return
        lock = self.source.accept_session(session)
        free = {each.session for each in self.known.values() if each.place == "ready"} - set(self.locks)
        if session is None:
            assert (lock is None) == (not free)
        if lock is not None:
            assert lock.session_id in (free if session is None else {session})
            self.locks[lock.session_id] = lock

    @precondition(lambda self: self.locks)
    @rule(data=st.data(), renew=st.booleans())
    def end_session(self, data: st.DataObject, renew: bool) -> None:
        session = data.draw(st.sampled_from(sorted(self.locks)))
        held = [each for each in self.locked() if each.session == session]
        if renew:
            until = self.source.renew_session(self.locks[session])
            for each in held:
                each.until = until
            return
        self.source.release_session(self.locks.pop(session))
        for each in held:
            self.fail(each, counted=False)

    # ------------------------------------------------------------------ what always holds

    @invariant()
    def nothing_is_lost_and_nothing_is_there_twice(self) -> None:
        if not hasattr(self, "broker"):
            return
        counts = self.broker.get_queue("q").counts
        # A deferred message that is locked is still a deferred one.
        places = ["deferred" if each.token and each.deferred else each.place for each in self.known.values()]
        assert counts.active == places.count("ready") + places.count("locked")
        assert counts.deferred == places.count("deferred")
        assert counts.scheduled == places.count("scheduled")
        assert counts.dead_letter == places.count("dead")
        dead = self.broker.resolve_receive("q/$DeadLetterQueue").peek(0, 10_000)
        assert sorted(m.content for m in dead) == sorted(
            each.body for each in self.known.values() if each.place == "dead"
        )
        assert self.broker.get_queue("q").size_in_bytes == 10 * counts.total


QueueMachine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=50, deadline=None)
test_a_queue_does_what_the_model_does = QueueMachine.TestCase
