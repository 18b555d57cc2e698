"""Events as log lines."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from pairmq import Entity, EntityState
from pairmq.model.events import (
    Cause,
    PairEnded,
    PingCompleted,
    RotationChanged,
    SendCompleted,
    SendOutcome,
    StateChanged,
    Warned,
)
from pairmq.observe import LogObserver
from pairmq.testing import in_virtual_time

CHANGED = StateChanged(
    at=1.0,
    pair="east>west",
    entity=Entity("orders"),
    previous=EntityState.HEALTHY,
    current=EntityState.FAILING,
    cause=Cause.SEND_FAILED,
    epoch=1,
    lasted=1.5,
)


def test_a_state_change_is_a_warning_in_one_line(caplog):
    LogObserver().on_event(CHANGED)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "StateChanged entity=orders previous=healthy current=failing cause='send failed' epoch=1 lasted=1.500 "
        "sent=0 diverted=0 failed=0 late=0"
    )


def test_a_pair_that_has_faulted_is_a_warning(caplog):
    """It was information, and a program that only hosts a syphon had no other sign of it."""
    LogObserver().on_event(PairEnded(at=1.0, pair="p"))
    LogObserver().on_event(PairEnded(at=1.0, pair="p", fault="the primary was closed"))
    [record] = caplog.records
    assert (record.levelno, "the primary was closed" in record.getMessage()) == (logging.WARNING, True)


def test_single_messages_are_debug_lines(caplog):
    event = SendCompleted(
        at=1.0,
        pair="p",
        entity=Entity("orders"),
        message_id="1",
        outcome=SendOutcome.PRIMARY,
        backlog_queue=None,
        attempts=1,
        elapsed=0.001,
        maybe_duplicate=False,
        size=3,
    )
    LogObserver().on_event(event)
    assert caplog.records == []
    with caplog.at_level(logging.DEBUG, "pairmq"):
        LogObserver().on_event(event)
    assert caplog.records[0].levelno == logging.DEBUG


def test_control_characters_of_foreign_text_forge_no_line(caplog):
    LogObserver().on_event(Warned(at=1.0, pair="p", subject="x", text="one\nERROR forged"))
    assert "\n" not in caplog.records[0].getMessage()


def test_pings_are_information(caplog):
    with caplog.at_level(logging.INFO, "pairmq"):
        LogObserver().on_event(PingCompleted(at=1.0, pair="p", entity=Entity("orders"), ok=True, elapsed=0.1))
    assert caplog.records[0].levelno == logging.INFO


def changed(number: int, *, at: float = 1.0, state: EntityState = EntityState.FAILED_OVER) -> StateChanged:
    return replace(CHANGED, at=at, entity=Entity(f"orders-{number}"), current=state)


@in_virtual_time
async def test_entities_that_fail_together_are_ten_lines_and_their_number(
    caplog: pytest.LogCaptureFixture,
):
    observer = LogObserver()
    for number in range(1000):
        observer.on_event(changed(number))
    for number in range(3):
        observer.on_event(changed(number, state=EntityState.FAILING))
    assert len(caplog.records) == 13
    await asyncio.sleep(2)
    assert len(caplog.records) == 14
    summary = caplog.records[-1]
    assert summary.getMessage() == "StateChanged current=failed-over 990 more times within a second, last of orders-999"
    assert (summary.levelno, summary.pairmq_event) == (logging.WARNING, "StateChanged")  # type: ignore[attr-defined]


@pytest.mark.parametrize("later", [2.5, -5.0])  # a wall clock may be set back
def test_the_next_second_has_lines_again(caplog: pytest.LogCaptureFixture, later: float):
    observer = LogObserver()
    for number in range(12):
        observer.on_event(changed(number))
    observer.on_event(changed(12, at=later))
    assert "current=failed-over 2 more times" in caplog.records[10].getMessage()
    assert "entity=orders-12" in caplog.records[11].getMessage()


async def test_what_had_no_line_is_counted_at_the_end_and_has_a_debug_line(caplog: pytest.LogCaptureFixture):
    observer = LogObserver()
    with caplog.at_level(logging.DEBUG, "pairmq"):
        for number in range(11):
            observer.on_event(changed(number))
        await observer.close()
        await observer.close()
    assert [record.levelno for record in caplog.records] == [*[logging.WARNING] * 10, logging.DEBUG, logging.WARNING]
    assert "entity=orders-10" in caplog.records[10].getMessage()


def test_each_warning_has_a_line(caplog: pytest.LogCaptureFixture):
    observer = LogObserver()
    for number in range(30):
        observer.on_event(Warned(at=1.0, pair="p", subject=f"{number}", text="of one thing each"))
    assert len(caplog.records) == 30


@in_virtual_time
async def test_a_backlog_queue_that_fails_after_each_return_is_reported_once_and_its_return_when_it_lasts(caplog):
    log = LogObserver()
    out = RotationChanged(at=0.0, pair="p", queue="b", in_use=False, left=1, error="it is full")
    back = replace(out, in_use=True, left=2, error=None)
    with caplog.at_level(logging.INFO, "pairmq"):
        for number in range(10):
            log.on_event(replace(out, at=30.0 * number + 1))
            await asyncio.sleep(29)
            log.on_event(replace(back, at=30.0 * (number + 1)))
            await asyncio.sleep(1)
        log.on_event(replace(out, at=301.0, error="it is missing"))
        log.on_event(replace(back, at=310.0))
        log.on_event(replace(out, at=311.0, error="it is missing"))
        log.on_event(replace(back, at=320.0))
        lines = [(record.levelname, "it is" in record.getMessage()) for record in caplog.records]
        left, returned = ("WARNING", True), ("INFO", False)
        assert lines == [left, returned, left, left, returned, left]
        await asyncio.sleep(61)
        assert [record.levelname for record in caplog.records[len(lines) :]] == ["INFO"]
    await log.close()
