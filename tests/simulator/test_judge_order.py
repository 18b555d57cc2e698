"""What the judge says of pairs that keep order, on histories made by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from history_by_hand import OTHER, QUEUE, Book, instant
from pairmq.model import Entity
from pairmq.testing.history import Result, Sent, WriteResult
from pairmq.testing.simulator import Verdict

LOST = WriteResult(False, True, "unavailable", "connection")


@pytest.fixture
def book() -> Book:
    return Book(ordering="session")


def texts(book: Book) -> list[str]:
    found = book.order_violations()
    assert all(violation.verdict is Verdict.ORDER for violation in found)
    return [violation.text for violation in found]


def accepted(book: Book, number: int, **fields: Any) -> Sent:
    sent = book.send(number, **fields)
    book.write(sent)
    book.end(sent, Result.PRIMARY)
    return sent


def diverted(book: Book, number: int, to: Entity = QUEUE, **fields: Any) -> Sent:
    sent = book.send(number, **fields)
    book.write(sent, to=to)
    book.end(sent, Result.BACKLOG, queue=to)
    return sent


def moved(book: Book, sent: Sent) -> None:
    book.write(sent, by="s/1")


def test_a_session_in_order_is_not_complained_of(book):
    first = diverted(book, 1, session_id="s")
    second = diverted(book, 2, session_id="s")
    moved(book, first)
    moved(book, second)
    accepted(book, 3, session_id="s")
    assert texts(book) == []


def test_a_message_that_overtakes_its_session_is_found(book):
    first = diverted(book, 1, session_id="s")
    accepted(book, 2, session_id="s")
    moved(book, first)
    assert texts(book) == ["2 of s got its receipt after 1 and stands before it in orders"]


def test_only_first_copies_count(book):
    first = diverted(book, 1, session_id="s")
    moved(book, first)
    accepted(book, 2, session_id="s")
    moved(book, first)
    assert texts(book) == []


@pytest.mark.parametrize("other", ["t", None])
def test_different_sessions_have_no_order(book, other):
    first = diverted(book, 1, session_id="s")
    accepted(book, 2, session_id=other)
    moved(book, first)
    assert texts(book) == []


def test_a_sender_without_sessions_has_an_order(book):
    first = diverted(book, 1)
    accepted(book, 2)
    moved(book, first)
    assert texts(book) == ["2 of a/1 a1 got its receipt after 1 and stands before it in orders"]


def test_what_has_no_receipt_has_no_place(book):
    first = book.send(1, session_id="s")
    book.write(first, LOST, to=QUEUE, stored=True)
    book.end(first, Result.UNKNOWN)
    accepted(book, 2, session_id="s")
    moved(book, first)
    assert texts(book) == []


def test_a_scheduled_message_has_no_place(book):
    first = diverted(book, 1, session_id="s", scheduled_enqueue_at=instant(book.at) + timedelta(hours=1))
    accepted(book, 2, session_id="s")
    moved(book, first)
    assert texts(book) == []


@pytest.mark.parametrize("how", ["dead-lettered", "deleted"])
def test_what_was_not_moved_back_has_no_place(book, how):
    first = book.send(1, session_id="s")
    book.write(first, LOST, stored=False)
    copy = book.write(first, to=QUEUE)
    book.end(first, Result.BACKLOG, queue=QUEUE)
    book.gone(copy, how)
    accepted(book, 2, session_id="s")
    book.write(first, LOST, stored=True)
    assert texts(book) == []


def test_a_session_in_two_backlog_queues_is_found(book):
    diverted(book, 1, session_id="s")
    diverted(book, 2, to=OTHER, session_id="s")
    assert texts(book) == [f"s was diverted to {QUEUE.path}, and then to {OTHER.path}"]


def test_different_sessions_may_have_different_queues(book):
    diverted(book, 1, session_id="s")
    diverted(book, 2, to=OTHER, session_id="t")
    assert texts(book) == []
