"""Events as log lines."""

from __future__ import annotations

import logging

from pairmq import Entity, EntityState
from pairmq.model.events import Cause, PingCompleted, SendCompleted, SendOutcome, StateChanged, Warned
from pairmq.observe import LogObserver

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
