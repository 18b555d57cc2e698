"""Every fault at every point, as a client sees it."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from servicebus_local import amqp
from servicebus_local.amqp import performatives as p
from servicebus_local.faults import FaultAction, FaultPlan, FaultPoint, FaultRule
from servicebus_local.testing import ServerError, ServerProcess

pytestmark = pytest.mark.real_server

Dial = Callable[..., Any]
MakeQueue = Callable[..., str]

BUSY = {"condition": "com.microsoft:server-busy", "description": "try later"}
QUIET = 0.15
"""Seconds without an answer that count as none."""
LATE = 0.3
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def healthy(server: ServerProcess) -> Iterator[None]:
    yield
    server.heal()


class Worker:
    """A raw peer with a link in each direction to a queue of its own, and one to its management node on request."""

    def __init__(self, peer: Any, queue: str) -> None:
        self.peer = peer
        self.queue = queue
        peer.login()
        self.sends = peer.attach(queue, sends=True)
        self.receives = peer.attach(queue, sends=False)
        self._seen = 0

    def put(self) -> Any:
        return self.peer.send(self.sends)

    def take(self) -> int:
        """Receive a message; gives the delivery's number."""
        self.peer.credit(self.receives, 1, seen=self._seen)
        self._seen += 1
        found: int = self.peer.expect(p.TransferFrame).delivery_id
        return found

    def complete(self) -> Any:
        self.peer.settle(self.take(), amqp.Accepted())
        return self.peer.outcome()


@pytest.fixture
def worker(server: ServerProcess, dial: Dial, make_queue: MakeQueue) -> Worker:
    return Worker(dial(server), make_queue())


@pytest.fixture
def count(server: ServerProcess, admin: Any) -> Callable[[str], int]:
    """Counts what is in a queue."""
    return lambda queue: admin.get_queue_runtime_properties(queue).active_message_count


def error_of(detached: p.Detach | p.Close | Any) -> tuple[str, str, Any]:
    return detached.error.condition, detached.error.description, detached.error.info


# --------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("info", [True, False])
def test_an_error_refuses_what_is_asked_with_or_without_an_info_map(
    server: ServerProcess, worker: Worker, info: bool
) -> None:
    expected = (*BUSY.values(), {} if info else None)
    worker.put()
    for at in ("send", "settle", "attach"):
        server.fault({"at": at, "action": "error", "info": info, "times": 1, **BUSY})
    rejected = worker.put()
    assert error_of(rejected) == expected
    assert error_of(worker.complete()) == expected
    worker.peer.attach(worker.queue, sends=True)
    # A link that is refused has neither source nor target.
    assert worker.peer.attached.target is None
    assert error_of(worker.peer.expect(p.Detach)) == expected
    # And all of it works again.
    assert isinstance(worker.put(), amqp.Accepted)
    assert isinstance(worker.complete(), amqp.Accepted)


@pytest.mark.parametrize(("status", "expected"), [(0, 503), (504, 504)])
def test_an_error_of_management_has_a_status(server: ServerProcess, worker: Worker, status: int, expected: int) -> None:
    node = worker.peer.node(f"{worker.queue}/$management")
    server.fault({"at": "management", "action": "error", "status": status, "operation": "peek-*", **BUSY})
    request = {"from-sequence-number": 0, "message-count": 1}
    arguments, value = node.ask(request, operation="com.microsoft:peek-message")
    assert arguments == {"statusCode": expected, "statusDescription": "try later", "errorCondition": BUSY["condition"]}
    assert value is None
    other, _ = node.ask({"message-count": 1}, operation="com.microsoft:renew-lock")
    assert other["errorCondition"] == "com.microsoft:argument-error"


@pytest.mark.parametrize("status", [401, 404, 500])
def test_tokens_are_refused_with_a_status(server: ServerProcess, dial: Dial, status: int) -> None:
    server.fault({"at": "cbs", "action": "error", "status": status, "description": "no", "times": 1})
    peer = dial(server)
    assert peer.login() == {"status-code": status, "status-description": "no"}
    assert peer.login()["status-code"] == 202


@pytest.mark.parametrize("at", ["send", "settle", "attach", "management"])
def test_detach_ends_the_link(server: ServerProcess, worker: Worker, at: str) -> None:
    worker.put()
    node = worker.peer.node(f"{worker.queue}/$management")
    delivery = worker.take()
    server.fault({"at": at, "action": "detach", "times": 1, **BUSY})
    if at == "send":
        worker.peer.transfer(worker.sends, amqp.encode_message(body=b"x"))
    elif at == "settle":
        worker.peer.settle(delivery, amqp.Accepted())
    elif at == "attach":
        worker.peer.attach(worker.queue, sends=True, waits=False)
        # It was granted first.
        assert worker.peer.expect(p.Attach).target.address == worker.queue
    else:
        node.say({}, operation="com.microsoft:peek-message")
    detached = worker.peer.expect(p.Detach)
    assert detached.closed
    assert error_of(detached) == (*BUSY.values(), {})


# --------------------------------------------------------------------------- what ends connections


@pytest.mark.parametrize("at", ["send", "settle", "attach", "management", "connection"])
@pytest.mark.parametrize("action", ["drop", "close", "silence"])
def test_connections_are_dropped_closed_or_left_without_an_answer(
    server: ServerProcess, worker: Worker, at: str, action: str
) -> None:
    peer = worker.peer
    worker.put()
    delivery = worker.take()
    node = peer.node(f"{worker.queue}/$management")
    server.fault({"at": at, "action": action, "times": 1, **BUSY})
    if at == "send":
        peer.transfer(worker.sends, amqp.encode_message(body=b"x"))
    elif at == "settle":
        peer.settle(delivery, amqp.Accepted())
    elif at == "attach":
        peer.attach(worker.queue, sends=True, waits=False)
    elif at == "management":
        node.say({}, operation="com.microsoft:peek-message")
    else:
        peer.frame(p.Flow(None, 1, 1, 1, echo=True))
    if action == "drop":
        with pytest.raises(ConnectionResetError):
            peer.expect(p.Close)
    elif action == "close":
        assert error_of(peer.expect(p.Close)) == (*BUSY.values(), {})
        peer.frame(p.Close())
        assert peer.hung_up()
    else:
        if at == "management":
            # The request itself arrives.
            peer.expect(p.DispositionFrame)
        assert peer.silent(QUIET)
        if at == "connection":
            peer.transfer(worker.sends, amqp.encode_message(body=b"x"))
            assert peer.silent(QUIET)
        else:
            # The rest of the connection goes on.
            assert isinstance(worker.put(), amqp.Accepted)


def test_a_new_connection_may_be_dropped_or_hear_nothing(server: ServerProcess, dial: Dial) -> None:
    server.fault({"at": "connection", "action": "drop", "times": 1})
    server.fault({"at": "connection", "action": "silence", "times": 1})
    peer = dial(server, opened=False)
    peer.say(b"AMQP\x00\x01\x00\x00")
    assert peer.hung_up()
    peer = dial(server, opened=False)
    peer.say(b"AMQP\x00\x01\x00\x00")
    assert peer.silent(QUIET)
    dial(server)


@pytest.mark.parametrize("action", ["drop", "close", "silence"])
def test_tokens_may_end_a_connection_or_get_no_answer(server: ServerProcess, dial: Dial, action: str) -> None:
    server.fault({"at": "cbs", "action": action, "times": 1, **BUSY})
    peer = dial(server)
    node = peer.node("$cbs")
    node.say("token", operation="put-token", name="x")
    if action == "close":
        assert peer.expect(p.Close).error.condition == BUSY["condition"]
    elif action == "drop":
        assert peer.hung_up()
    else:
        peer.expect(p.DispositionFrame)
        assert peer.silent(QUIET)


# --------------------------------------------------------------------------- delays


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at", ["attach", "management", "cbs"])
def test_a_delay_is_late_and_right(server: ServerProcess, worker: Worker, at: str, applied: bool) -> None:
    peer = worker.peer
    node = peer.node(f"{worker.queue}/$management")
    worker.put()
    server.fault({"at": at, "action": "delay", "seconds": LATE, "apply": applied, "times": 1})
    start = time.monotonic()
    if at == "attach":
        peer.attach(worker.queue, sends=True)
        assert peer.attached.target is not None
    elif at == "management":
        request = {"from-sequence-number": 0, "message-count": 1}
        assert node.ask(request, operation="com.microsoft:peek-message")[0]["statusCode"] == 200
    else:
        assert peer.login()["status-code"] == 202
    assert time.monotonic() - start > LATE - 0.02


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at", ["send", "settle"])
def test_a_delay_of_a_message_is_late_and_what_was_asked_is_done_before_or_after_it(
    server: ServerProcess, worker: Worker, count: Callable[[str], int], at: str, applied: bool
) -> None:
    peer = worker.peer
    for seconds in (LATE, 10 * LATE, 100 * LATE):
        worker.put()
        delivery = worker.take()
        held = count(worker.queue)
        server.fault({"at": at, "action": "delay", "seconds": seconds, "apply": applied, "times": 1})
        start = time.monotonic()
        if at == "send":
            peer.transfer(worker.sends, amqp.encode_message(body=b"x"))
        else:
            peer.settle(delivery, amqp.Accepted())
        quiet, meanwhile = peer.silent(QUIET), count(worker.queue)
        looked_in_time = time.monotonic() - start < seconds
        assert isinstance(peer.outcome(), amqp.Accepted)
        assert time.monotonic() - start > seconds - 0.02
        change = 1 if at == "send" else -1
        assert count(worker.queue) == held + change
        if looked_in_time:
            # Who was held up for longer than the answer has seen nothing, and looks again.
            assert quiet
            assert meanwhile == (held + change if applied else held)
            return
    pytest.fail("no look was in time")


def test_an_attach_that_the_client_gave_up_is_not_answered_late(server: ServerProcess, worker: Worker) -> None:
    server.fault({"at": "attach", "action": "delay", "seconds": LATE})
    handle = worker.peer.attach(worker.queue, sends=True, waits=False)
    worker.peer.frame(p.Detach(handle=handle, closed=True))
    worker.peer.expect(p.Detach)
    assert worker.peer.silent(LATE + QUIET)


# --------------------------------------------------------------------------- done all the same


@pytest.mark.parametrize("action", ["error", "silence", "detach", "drop"])
def test_what_is_refused_may_be_done_all_the_same(
    server: ServerProcess, worker: Worker, count: Callable[[str], int], action: str
) -> None:
    server.fault({"at": "send", "action": action, "apply": True, "times": 1})
    worker.peer.transfer(worker.sends, amqp.encode_message(body=b"x"))
    if action == "error":
        assert worker.peer.outcome().error is not None
    elif action == "detach":
        worker.peer.expect(p.Detach)
    elif action == "drop":
        assert worker.peer.hung_up()
    deadline = time.monotonic() + PATIENCE
    while count(worker.queue) != 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert count(worker.queue) == 1


def test_a_settlement_or_request_may_be_done_all_the_same(
    server: ServerProcess, worker: Worker, count: Callable[[str], int]
) -> None:
    worker.put()
    server.fault({"at": "settle", "action": "error", "apply": True, "condition": "com.microsoft:timeout"})
    assert worker.complete().error.condition == "com.microsoft:timeout"
    assert count(worker.queue) == 0
    server.fault({"at": "management", "operation": "schedule-message", "action": "error", "apply": True})
    node = worker.peer.node(f"{worker.queue}/$management")
    at = amqp.Timestamp(int(time.time() + 3600) * 1000)
    message = amqp.encode_message(message_annotations={"x-opt-scheduled-enqueue-time": at}, body=b"later")
    arguments, _ = node.ask({"messages": [{"message": message}]}, operation="com.microsoft:schedule-message")
    assert arguments["statusCode"] == 500
    _, found = node.ask({"from-sequence-number": 0, "message-count": 9}, operation="com.microsoft:peek-message")
    assert len(found["messages"]) == 1


# --------------------------------------------------------------------------- which and how often


def test_faults_strike_so_often_and_not_at_first(server: ServerProcess, worker: Worker) -> None:
    server.fault({"at": "send", "action": "error", "skip": 1, "times": 2, "description": "first"})
    server.fault({"at": "send", "action": "error", "times": 1, "description": "second"})
    found = [worker.put() for _ in range(5)]
    said = [None if isinstance(each, amqp.Accepted) else each.error.description for each in found]
    # The first that fits strikes; one that still passes lets the next have a look.
    assert said == ["second", "first", "first", None, None]


def test_faults_strike_only_the_entities_and_operations_they_name(
    server: ServerProcess, worker: Worker, make_queue: MakeQueue
) -> None:
    other = make_queue()
    server.fault({"at": "attach", "action": "error", "entity": other.upper()})
    server.fault({"at": "attach", "action": "error", "entity": "*queue-*/$management", "description": "node"})
    worker.peer.attach(worker.queue, sends=True)
    assert worker.peer.attached.target is not None
    for address, text in ((other, "a fault that was asked for"), (f"{worker.queue}/$management", "node")):
        worker.peer.attach(address, sends=True)
        assert worker.peer.expect(p.Detach).error.description == text


def test_rules_strike_by_patterns() -> None:
    plan = FaultPlan()
    plan.set_json([{"at": "management", "action": "drop", "entity": "a*", "operation": "renew-*"}])
    assert plan.strike(FaultPoint.MANAGEMENT, "Abc", "renew-lock") is plan.rules[0]
    assert plan.strike(FaultPoint.MANAGEMENT, "abc", "peek-message") is None
    assert plan.strike(FaultPoint.MANAGEMENT, "bc", "renew-lock") is None
    assert plan.strike(FaultPoint.SEND, "abc") is None
    plan.clear()
    assert plan.strike(FaultPoint.MANAGEMENT, "abc", "renew-lock") is None


def test_every_point_and_action_can_be_written_down() -> None:
    for at in FaultPoint:
        for action in FaultAction:
            if at is FaultPoint.CONNECTION and action in (FaultAction.ERROR, FaultAction.DETACH, FaultAction.DELAY):
                continue
            assert FaultRule.from_json({"at": str(at), "action": str(action)}) == FaultRule(at, action)


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"action": "error"}, "at is None: one of connection, cbs, attach"),
        ({"at": "send"}, "action is None: one of error"),
        ({"at": "everywhere", "action": "error"}, "at is 'everywhere'"),
        ({"at": "send", "action": "explode"}, "action is 'explode'"),
        ({"at": "send", "action": "error", "colour": 1}, "no field 'colour': it has action, apply"),
        ({"at": "send", "action": "error", "times": "2"}, "times is '2': it must be int or null"),
        ({"at": "send", "action": "error", "times": -1}, "times is -1: it must be from 0"),
        ({"at": "send", "action": "error", "times": True}, "times is True"),
        ({"at": "send", "action": "error", "info": 1}, "info is 1: it must be bool"),
        ({"at": "send", "action": "delay", "seconds": -1}, "seconds is -1"),
        ({"at": "send", "action": "delay", "seconds": float("nan")}, "seconds is nan"),
        ({"at": "send", "action": "error", "entity": None}, "entity is None: it must be str"),
        ({"at": "connection", "action": "error"}, "at connection it is one of silence, drop, close"),
    ],
)
def test_bad_rules_are_refused_with_a_sentence(server: ServerProcess, rule: dict[str, Any], text: str) -> None:
    with pytest.raises(ServerError) as caught:
        server.fault(rule)
    assert text in str(caught.value)
    plan = FaultPlan()
    with pytest.raises(ValueError, match=r"fault|is"):
        plan.set_json([{"at": "send", "action": "drop"}, rule])
    # All of them, or none.
    assert plan.rules == []


@pytest.mark.parametrize("rules", [{"at": "send", "action": "drop"}, "drop", None, [1]])
def test_what_is_no_list_of_rules_is_refused(rules: Any) -> None:
    with pytest.raises(ValueError, match="object"):
        FaultPlan().set_json(rules)


# --------------------------------------------------------------------------- as azure-servicebus sees it


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string, retry_total=0) as client:
        yield client


# The client forgets to close the socket of a connection that the server has closed.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
def test_the_stock_sender_fails_as_it_does_with_the_service(
    server: ServerProcess, client: ServiceBusClient, make_queue: MakeQueue
) -> None:
    """Of an error without its info field, at a send, the client says nothing: it waits forever."""
    cases: list[tuple[dict[str, Any], type[ServiceBusError]]] = [
        ({"at": "send", "action": "error", **BUSY}, ServiceBusServerBusyError),
        ({"at": "attach", "action": "error", **BUSY}, ServiceBusServerBusyError),
        ({"at": "send", "action": "drop"}, ServiceBusConnectionError),
        ({"at": "attach", "action": "close", "condition": "amqp:connection:forced"}, ServiceBusConnectionError),
    ]
    queues = [make_queue() for _ in cases]
    for queue, (rule, _) in zip(queues, cases, strict=True):
        server.fault({**rule, "entity": queue})

    def send(queue: str) -> object:
        try:
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(ServiceBusMessage("x"))
        except ServiceBusError as error:
            return type(error)
        return None

    with ThreadPoolExecutor() as threads:
        assert list(threads.map(send, queues)) == [error for _, error in cases]
    server.fault({"at": "cbs", "action": "error", "status": 401})
    assert send(queues[0]) is ServiceBusAuthenticationError
    # Now, while it is ignored.
    gc.collect()


def test_the_stock_receiver_fails_as_it_does_with_the_service(
    server: ServerProcess, client: ServiceBusClient, make_queue: MakeQueue
) -> None:
    queue = make_queue()
    with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        first, second = (receiver.receive_messages(1, max_wait_time=PATIENCE)[0] for _ in range(2))
        server.fault({"at": "settle", "action": "error", "condition": "com.microsoft:message-lock-lost"})
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(first)
        server.fault({"at": "management", "action": "error", "operation": "renew-lock", **BUSY})
        with pytest.raises(ServiceBusServerBusyError):
            receiver.renew_message_lock(second)
