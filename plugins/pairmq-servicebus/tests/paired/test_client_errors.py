"""What a program that sends through a pair sees fail: the client's own errors, with PairMQ's behind them."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, exceptions

from pairmq import EntityNotFound, PairOptions, SendUnknown
from pairmq_servicebus.paired import PairedServiceBusClient, SendOutcomeUnknownError
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server

PATIENCE = 100.0  # s


def client(server: ServiceBusServer, given: dict[str, Any], **more: Any) -> PairedServiceBusClient:
    return PairedServiceBusClient.from_connection_string(server.connection_string, **{**given, **more})


def test_a_missing_queue_is_the_clients_own_error(primary: ServiceBusServer, given: dict[str, Any]) -> None:
    with client(primary, given) as paired, paired.get_queue_sender("no-such-queue") as sender:
        with pytest.raises(exceptions.MessagingEntityNotFoundError) as caught:
            sender.send_messages(ServiceBusMessage("x"))
        assert isinstance(caught.value.__cause__, EntityNotFound)
        with pytest.raises(exceptions.MessagingEntityNotFoundError, match="2 of 2 messages"):
            sender.send_messages([ServiceBusMessage("x"), ServiceBusMessage("y")])


def test_a_wrong_key_is_the_clients_own_error(primary: ServiceBusServer, queue: str, given: dict[str, Any]) -> None:
    wrong = primary.connection_string.replace(primary.key, "d3Jvbmc=")
    with PairedServiceBusClient.from_connection_string(wrong, **given) as paired:
        with pytest.raises(exceptions.ServiceBusAuthenticationError) as caught:
            paired.get_queue_sender(queue).send_messages(ServiceBusMessage("x"))
        assert isinstance(caught.value, exceptions.ServiceBusAuthorizationError)
        assert "d3Jvbmc" not in str(caught.value)


def test_a_secondary_that_refuses_the_login_is_reported_when_the_client_opens(
    primary: ServiceBusServer, secondary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    wrong = secondary.connection_string.replace(secondary.key, "d3Jvbmc=")
    paired = client(primary, given, secondary=wrong)
    with pytest.raises(exceptions.ServiceBusAuthorizationError):
        paired.__enter__()
    with pytest.raises(exceptions.ServiceBusAuthorizationError):
        paired.get_queue_sender(queue).send_messages(ServiceBusMessage("x"))
    paired.close()


def test_with_both_away_a_send_ends_in_time_and_says_what_failed(
    primary: ServiceBusServer, secondary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    # Without the call's own limit, it would go on for longer than a test may last.
    options = replace(given["options"], send_timeout=600)
    with client(primary, given, options=options) as paired, paired.get_queue_sender(queue) as sender:
        primary.kill()
        secondary.kill()
        with pytest.raises(exceptions.ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("x"), timeout=5)


def test_a_lost_answer_is_reported_as_an_unknown_outcome(
    primary: ServiceBusServer, secondary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    options = PairOptions(failover_interval=60, attempt_timeout=30, backlog_queue_count=1)
    with client(primary, given, options=options) as paired, paired.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage("first"))
        primary.pause()
        try:
            with pytest.raises(SendOutcomeUnknownError, match="may have been accepted") as caught:
                sender.send_messages(ServiceBusMessage("x"), timeout=5)
        finally:
            primary.resume()
        assert isinstance(caught.value, exceptions.OperationTimeoutError)
        assert isinstance(caught.value.__cause__, SendUnknown)


def test_a_send_that_is_in_flight_when_the_client_closes_ends_and_says_what_is_known(
    primary: ServiceBusServer, secondary: ServiceBusServer, queue: str, given: dict[str, Any]
) -> None:
    options = PairOptions(
        failover_interval=60, attempt_timeout=600, send_timeout=600, backlog_queue_count=1, close_grace=0.3
    )
    ended: list[BaseException] = []
    with client(primary, given, options=options) as paired:
        sender = paired.get_queue_sender(queue)
        sender.send_messages(ServiceBusMessage("first"))
        primary.fault({"at": "send", "action": "silence", "entity": queue, "apply": True, "times": 1})

        def send() -> None:
            try:
                sender.send_messages(ServiceBusMessage("x"))
            except Exception as error:
                ended.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        deadline = time.monotonic() + PATIENCE
        while primary.count(queue) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    thread.join(PATIENCE)
    assert [type(error) for error in ended] == [SendOutcomeUnknownError]
