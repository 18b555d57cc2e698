"""What only the primary can do ends in time when that is unreachable; the clock of the pauses is a test's own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kombu
import kombu.pools
import pytest
from celery import Celery
from kombu.exceptions import OperationalError

from pairmq_kombu.transport import close_pairs

STOCK = 6.0
"""Seconds after which Kombu's own transport gives up a command in an outage."""


class Unresponsive:
    """A link, and its channels, of a primary that answers nothing."""

    connected = True

    def __init__(self, asked: list[str], name: str) -> None:
        self.name = name
        self._asked = asked
        self.connection = self

    def close(self) -> None:
        self._asked.append(self.name)
        raise TimeoutError

    def collect(self) -> None:
        self.connected = False


@pytest.mark.usefixtures("pairs_closed")
def test_a_primary_that_does_not_answer_a_close_is_asked_nothing_more() -> None:
    asked: list[str] = []
    options = {"pairmq": {"secondary": "memory://west"}}
    connection: Any = kombu.Connection("pairmq://127.0.0.1:1//", transport_options=options).connection
    channel = connection.channel()
    connection._link = Unresponsive(asked, "link")
    channel._real, channel._confirming = Unresponsive(asked, "channel"), Unresponsive(asked, "channel for publishing")
    channel.close()
    connection.close()
    assert asked == ["channel"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The plugin's clock, which only its pauses move."""
    clock = SimpleNamespace(now=100.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr("pairmq_kombu._process.time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    return clock


@pytest.fixture
def application(clock: SimpleNamespace) -> Iterator[Celery]:
    """One whose primary refuses connections; its secondary takes messages."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and never listens
        application = Celery("unreachable", set_as_current=False)
        application.conf.update(
            broker_write_url=f"pairmq://127.0.0.1:{unused.getsockname()[1]}//",
            broker_transport_options={
                "pairmq": {"secondary": "memory://west", "failover_interval": 0, "backlog_queue_count": 1}
            },
            task_ignore_result=True,
        )
        yield application
        kombu.pools.reset()
        close_pairs()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("revoke", ("some-id",)),
        ("rate_limit", ("some.task", "1/m")),
        ("broadcast", ("shutdown",)),
        ("ping", ()),
    ],
)
def test_remote_control_raises_operational_error_in_time_when_the_primary_is_unreachable(
    application: Celery, clock: SimpleNamespace, command: str, arguments: tuple[Any, ...]
) -> None:
    for _ in range(2):
        begun = clock.now
        with pytest.raises(OperationalError, match="unreachable"):
            getattr(application.control, command)(*arguments)
        assert clock.now - begun <= STOCK


def test_a_command_is_tried_again_for_the_time_limit_of_a_connection(
    application: Celery, clock: SimpleNamespace
) -> None:
    begun = clock.now
    with pytest.raises(OperationalError):
        application.control.revoke("some-id")
    assert clock.now - begun >= application.conf.broker_connection_timeout


def test_an_outage_is_a_new_one_when_nothing_was_tried_for_long(application: Celery, clock: SimpleNamespace) -> None:
    for _ in range(2):
        begun = clock.now
        with pytest.raises(OperationalError):
            application.control.revoke("some-id")
        assert clock.now - begun >= application.conf.broker_connection_timeout
        clock.now += 3600


def test_events_of_sent_tasks_hold_up_only_the_first_send_of_an_outage(
    application: Celery, clock: SimpleNamespace
) -> None:
    application.conf.task_send_sent_event = True
    application.send_task("some.task")
    begun = clock.now
    for _ in range(5):
        application.send_task("some.task")
    assert clock.now == begun
