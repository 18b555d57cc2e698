"""A connection: every conversation as bytes in, events and bytes out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import servicebus_local
from amqp_frames import attach, frame, transfer
from servicebus_local import amqp
from servicebus_local.amqp import frames
from servicebus_local.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    DispositionFrame,
    End,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    TransferFrame,
)

WINDOW = 2**31 - 1


class Client:
    """The other side, as far as the tests need one."""

    def __init__(self, **options: Any) -> None:
        self.engine = amqp.Connection(container_id="server", **options)
        self.now = 0.0

    def send(self, *parts: Any) -> list[Any]:
        data = b"".join(part if isinstance(part, bytes) else frame(part) for part in parts)
        return self.engine.receive_data(data, self.now)

    def read(self) -> list[Any]:
        """What the engine has written: headers as bytes, frames as their bodies, or with payload as a pair."""
        data = self.engine.data_to_send()
        found: list[Any] = []
        offset = 0
        while offset < len(data):
            if data[offset : offset + 4] == b"AMQP":
                found.append(data[offset : offset + 8])
                offset += 8
                continue
            end = offset + frames.frame_size(data, offset)
            got = frames.read_frame(data, offset, end, data[offset + 5])
            found.append((got.body, got.payload) if got.payload else got.body)
            offset = end
        return found

    def open(self, **fields: Any) -> Client:
        self.send(frames.AMQP_HEADER, Open("client", **fields), Begin(None, 0, WINDOW, WINDOW))
        self.read()
        return self

    def link(self, role: bool, handle: int = 0, **options: Any) -> amqp.Link:
        (event,) = self.send(attach(handle, role))
        event.link.accept(**options)
        self.read()
        return event.link

    def sending(self, credit: int = 100, **options: Any) -> amqp.Link:
        link = self.link(SENDER, **options)
        link.grant(credit)
        self.read()
        return link

    def receiving(self, credit: int = 100, handle: int = 0) -> amqp.Link:
        link = self.link(RECEIVER, handle)
        self.send(Flow(1, WINDOW, 0, WINDOW, handle=handle, delivery_count=0, link_credit=credit))
        return link


def kinds(found: list[Any]) -> list[type]:
    return [type(item) for item in found]


# ------------------------------------------------------------------ beginnings


def test_sasl_comes_before_the_connection() -> None:
    client = Client(sasl_mechanisms=["PLAIN"])
    client.send(frames.SASL_HEADER)
    assert client.read() == [frames.SASL_HEADER, SaslMechanisms([amqp.Symbol("PLAIN")])]
    events = client.send(frame(SaslInit("PLAIN", b"\0me\0secret"), kind=frames.SASL_FRAME))
    assert events == [amqp.SaslDone("PLAIN", b"\0me\0secret")]
    assert client.read() == [SaslOutcome(0)]
    assert client.engine.sasl_mechanism == "PLAIN"
    events = client.send(frames.AMQP_HEADER, Open("client", "host", properties={"a": 1}))
    assert events == [amqp.Opened("host", "client")]
    header, opened = client.read()
    assert header == frames.AMQP_HEADER
    assert (opened.container_id, opened.idle_timeout) == ("server", 240_000)
    assert client.engine.remote is not None
    assert client.engine.remote.properties == {"a": 1}


def test_a_mechanism_that_is_not_offered_is_refused() -> None:
    client = Client(sasl_mechanisms=["PLAIN"])
    (event,) = client.send(frames.SASL_HEADER, frame(SaslInit("SCRAM"), kind=frames.SASL_FRAME))
    assert event.error.condition == "amqp:unauthorized-access"
    assert client.read()[-1] == SaslOutcome(1)
    assert client.engine.closed


@pytest.mark.parametrize("header", [b"GET / HT", b"AMQP\x02\x01\x00\x00", b"AMQP\x00\x00\x09\x01"])
def test_another_protocol_is_answered_with_ours(header: bytes) -> None:
    client = Client()
    (event,) = client.send(header)
    assert isinstance(event, amqp.ConnectionEnded)
    assert client.read() == [frames.SASL_HEADER]
    assert client.engine.closed
    assert client.send(b"more") == []


def test_a_close_is_answered() -> None:
    client = Client().open()
    error = amqp.AmqpError("amqp:connection:forced", "bye")
    assert client.send(Close(error)) == [amqp.ConnectionEnded(error, True)]
    assert client.read() == [Close()]
    assert client.engine.closed


def test_our_close_waits_for_the_peers() -> None:
    client = Client().open()
    client.engine.close(amqp.AmqpError("amqp:connection:forced"))
    assert client.read() == [Close(amqp.AmqpError("amqp:connection:forced"))]
    assert not client.engine.closed
    assert client.send(attach(0, SENDER)) == []
    assert client.send(Close()) == [amqp.ConnectionEnded(None, True)]


def test_a_peer_that_never_answers_our_close_is_left() -> None:
    client = Client().open()
    client.engine.close()
    deadline = client.engine.next_timer
    assert deadline is not None
    assert client.engine.handle_timer(deadline - 0.1) == []
    assert client.engine.handle_timer(deadline) == [amqp.ConnectionEnded(None, False)]


def test_the_end_of_the_stream_ends_everything_once() -> None:
    client = Client().open()
    link = client.sending()
    assert client.engine.receive_eof() == [amqp.ConnectionEnded(None, False)]
    assert client.engine.receive_eof() == []
    assert link.state == "detached"


@pytest.mark.parametrize(
    ("parts", "condition"),
    [
        ([Begin(None, 0, 1, 1)], "amqp:not-allowed"),
        ([Open("c", max_frame_size=100)], "amqp:invalid-field"),
        ([Open("c"), Open("c")], "amqp:not-allowed"),
        ([Open("c"), frame(Begin(None, 0, 1, 1), channel=5000)], "amqp:not-allowed"),
        ([Open("c"), Begin(None, 0, 1, 1), Begin(None, 0, 1, 1)], "amqp:not-allowed"),
        ([Open("c"), Begin(0, 0, 1, 1)], "amqp:not-allowed"),
        ([Open("c"), frame(End(), channel=3)], "amqp:not-allowed"),
        ([Open("c"), b"\x7f\xff\xff\xff\x02\x00\x00\x00"], "amqp:connection:framing-error"),
        ([Open("c"), b"\x00\x00\x00\x07\x02\x00\x00\x00"], "amqp:connection:framing-error"),
        ([Open("c"), b"\x00\x00\x00\x08\x01\x00\x00\x00"], "amqp:connection:framing-error"),
        ([Open("c"), b"\x00\x00\x00\x08\x02\x01\x00\x00"], "amqp:connection:framing-error"),
        ([Open("c"), b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x99\x45"], "amqp:decode-error"),
        ([Open("c"), b"\x00\x00\x00\x0a\x02\x00\x00\x00\x00\x53"], "amqp:decode-error"),
        ([Open("c"), b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x11\x45"], "amqp:decode-error"),
    ],
)
def test_a_peer_that_breaks_the_rules_is_reported_and_closed(parts: list[Any], condition: str) -> None:
    client = Client()
    events = client.send(frames.AMQP_HEADER, *parts)
    assert isinstance(events[-1], amqp.ConnectionEnded)
    assert events[-1].error is not None
    assert (events[-1].error.condition, events[-1].clean) == (condition, False)
    written = client.read()
    # A close never comes without an open before it.
    assert kinds(written)[1:2] == [Open]
    assert written[-1] == Close(events[-1].error)
    assert client.engine.closed


# ------------------------------------------------------------------------ time


def test_silence_is_broken_by_empty_frames_in_time() -> None:
    client = Client().open(idle_timeout=30_000)
    assert client.engine.next_timer == 15.0
    client.engine.handle_timer(14.0)
    assert client.read() == []
    client.engine.handle_timer(15.0)
    assert client.read() == [None]
    assert client.engine.next_timer == 30.0


def test_a_silent_peer_is_closed() -> None:
    client = Client(idle_timeout=10.0).open()
    assert client.engine.next_timer == 20.0
    client.now = 5.0
    client.send(frames.EMPTY_FRAME)
    assert client.engine.handle_timer(24.9) == []
    (event,) = client.engine.handle_timer(25.0)
    assert event.error.condition == "amqp:resource-limit-exceeded"
    assert client.engine.closed
    assert client.engine.next_timer is None


def test_a_peer_that_never_says_anything_is_left() -> None:
    client = Client(idle_timeout=10.0)
    assert client.engine.handle_timer(100.0) == []
    assert client.engine.next_timer == 120.0
    (event,) = client.engine.handle_timer(120.0)
    assert isinstance(event, amqp.ConnectionEnded)


# -------------------------------------------------------------- sessions, links


def test_a_session_is_answered_and_ended() -> None:
    client = Client()
    events = client.send(frames.AMQP_HEADER, Open("c"), frame(Begin(None, 7, 5, 5), channel=3))
    session = events[-1].session
    begin = client.read()[-1]
    assert (begin.remote_channel, begin.handle_max) == (3, 1023)
    assert begin.incoming_window >= 2048
    assert session.channel == 3
    assert client.send(frame(End(), channel=3)) == [amqp.SessionEnded(session, None)]
    assert client.read() == [End()]


def test_a_fault_ends_the_session_and_its_channel_can_be_used_again() -> None:
    client = Client().open()
    link = client.sending()
    (event,) = client.send(transfer(0, handle=9), transfer(1))
    assert event.error.condition == "amqp:session:unattached-handle"
    assert link.state == "detached"
    assert client.read() == [End(event.error)]
    assert client.send(End()) == []
    assert kinds(client.send(Begin(None, 0, 1, 1))) == [amqp.SessionBegun]


def test_an_accepted_link_echoes_what_was_asked_for() -> None:
    client = Client().open()
    (event,) = client.send(attach(5, RECEIVER, "name"))
    link = event.link
    assert (link.peer_role, link.name, link.state) == (RECEIVER, "name", "attaching")
    link.accept(properties={"a": 1}, max_message_size=1000)
    (answer,) = client.read()
    assert (answer.name, answer.role, answer.source, answer.target) == ("name", SENDER, link.source, link.target)
    assert (answer.initial_delivery_count, answer.max_message_size, answer.properties) == (0, 1000, {"a": 1})
    assert link.state == "open"
    with pytest.raises(ValueError, match="already"):
        link.accept()
    with pytest.raises(ValueError, match="already"):
        link.reject(amqp.AmqpError("amqp:not-found"))


def test_a_refused_link_is_attached_empty_and_detached() -> None:
    client = Client().open()
    (event,) = client.send(attach(0, SENDER))
    event.link.reject(amqp.AmqpError("amqp:not-found", "no"))
    answer, detach = client.read()
    assert (answer.source, answer.target) == (None, None)
    assert detach == Detach(answer.handle, True, amqp.AmqpError("amqp:not-found", "no"))
    # Whether the client answers that or not, its handle is free.
    assert kinds(client.send(attach(0, SENDER))) == [amqp.LinkAttached]
    assert client.send(Detach(0, True))[0].closed


def test_a_detach_is_answered_even_before_the_link_was_accepted() -> None:
    client = Client().open()
    attached, detached = client.send(attach(0, SENDER), Detach(0, True))
    assert detached == amqp.LinkDetached(attached.link, None, True)
    assert kinds(client.read()) == [Attach, Detach]
    attached.link.accept()
    attached.link.reject(amqp.AmqpError("amqp:not-found"))
    attached.link.grant(5)
    assert client.read() == []


def test_a_detach_of_ours_gives_no_event() -> None:
    client = Client().open()
    link = client.sending()
    link.detach(amqp.AmqpError("amqp:link:detach-forced"))
    assert client.read() == [Detach(link.handle, True, amqp.AmqpError("amqp:link:detach-forced"))]
    assert client.send(transfer(0), Flow(0, 1, 0, 1, handle=0, link_credit=1), Detach(0, True)) == []
    assert client.read() == []


def test_a_handle_in_use_ends_the_session() -> None:
    client = Client().open()
    client.sending()
    (event,) = client.send(attach(0, SENDER, "other"))
    assert event.error.condition == "amqp:session:handle-in-use"


def test_a_link_attached_twice_is_taken_over() -> None:
    client = Client().open()
    link = client.sending()
    stolen, attached = client.send(attach(1, SENDER, link.name))
    assert (stolen.link, stolen.error.condition) == (link, "amqp:link:stolen")
    assert attached.link.name == link.name


def test_a_session_has_so_many_links_and_no_more() -> None:
    client = Client().open()
    events = client.send(*(attach(handle, SENDER) for handle in range(1024)))
    assert len(events) == 1024
    assert client.send(attach(1024, SENDER))[0].error.condition == "amqp:not-allowed"


# ------------------------------------------------------------------- receiving


def test_frames_of_one_message_are_joined() -> None:
    client = Client().open()
    link = client.sending()
    (event,) = client.send(
        frame(transfer(0, more=True), payload=b"ab"),
        frame(TransferFrame(0, more=True), payload=b""),
        frame(TransferFrame(0), payload=b"c"),
    )
    assert (event.link, event.payload, event.delivery.tag) == (link, b"abc", b"\0\0\0\0")
    assert (link.credit, event.delivery.settled) == (99, False)


def test_an_aborted_message_is_forgotten() -> None:
    client = Client().open()
    client.sending()
    events = client.send(
        frame(transfer(0, more=True), payload=b"ab"),
        TransferFrame(0, aborted=True),
        frame(transfer(1), payload=b"c"),
    )
    assert [event.payload for event in events] == [b"c"]


def test_a_message_beyond_the_credit_detaches_the_link() -> None:
    client = Client().open()
    link = client.sending(credit=1)
    _, event = client.send(transfer(0), transfer(1), transfer(2))
    assert event.error.condition == "amqp:link:transfer-limit-exceeded"
    assert (event.link, link.state) == (link, "detached")
    assert client.read() == [Detach(link.handle, True, event.error)]


def test_a_message_above_the_announced_size_detaches_the_link() -> None:
    client = Client().open()
    client.sending(max_message_size=10)
    (event,) = client.send(frame(transfer(0, more=True), payload=b"x" * 6), frame(TransferFrame(0), payload=b"x" * 5))
    assert event.error.condition == "amqp:link:message-size-exceeded"


def test_the_window_is_opened_again_before_it_closes() -> None:
    client = Client().open()
    client.sending(credit=10_000)
    for number in range(0, 6000, 100):
        client.send(*(transfer(number + step, settled=True) for step in range(100)))
    flows = [item for item in client.read() if isinstance(item, Flow)]
    assert [flow.next_incoming_id for flow in flows] == [2500, 5000]


@pytest.mark.parametrize("wrong", [TransferFrame(0, None, b"t"), TransferFrame(0, 1), TransferFrame(0, 1, b"t" * 33)])
def test_a_delivery_needs_its_number_and_tag(wrong: TransferFrame) -> None:
    client = Client().open()
    client.sending()
    assert client.send(wrong)[0].error.condition == "amqp:invalid-field"


def test_equal_outcomes_in_a_row_go_out_as_a_range() -> None:
    client = Client().open()
    client.sending()
    deliveries = [event.delivery for event in client.send(*(transfer(number) for number in range(7)))]
    for delivery in deliveries[:4]:
        delivery.settle(amqp.Accepted())
    deliveries[4].settle(amqp.Released())
    deliveries[6].settle(amqp.Released())
    deliveries[6].settle(amqp.Accepted())
    assert client.read() == [
        DispositionFrame(RECEIVER, 0, 3, True, amqp.Accepted()),
        DispositionFrame(RECEIVER, 4, 4, True, amqp.Released()),
        DispositionFrame(RECEIVER, 6, 6, True, amqp.Released()),
    ]
    assert client.engine.data_to_send() == b""


def test_a_disposition_goes_out_before_the_detach_behind_it() -> None:
    client = Client().open()
    link = client.sending()
    (event,) = client.send(transfer(0))
    event.delivery.settle(amqp.Rejected(amqp.AmqpError("amqp:internal-error")))
    link.detach()
    assert kinds(client.read()) == [DispositionFrame, Detach]


def test_settling_on_a_lost_link_writes_nothing() -> None:
    client = Client().open()
    client.sending()
    event, _ = client.send(transfer(0), Detach(0, True))
    client.read()
    event.delivery.settle(amqp.Accepted())
    assert event.delivery.settled
    assert client.read() == []


def test_a_sender_returns_credit() -> None:
    client = Client().open()
    link = client.sending(credit=10)
    client.send(Flow(1, 1, 0, 1, handle=0, delivery_count=4, link_credit=6))
    assert link.credit == 6
    link.grant(10)
    (flow,) = client.read()
    assert (flow.delivery_count, flow.link_credit) == (4, 10)


# --------------------------------------------------------------------- sending


def test_a_message_is_cut_to_the_peers_frames() -> None:
    client = Client().open(max_frame_size=512)
    link = client.receiving()
    delivery = link.send(b"x" * 1200, tag=b"t" * 32, message_format=0x80013700)
    data = client.engine.data_to_send()
    sizes = []
    while data:
        sizes.append(frames.frame_size(data, 0))
        data = data[sizes[-1] :]
    assert sizes[:2] == [512, 512]
    link.send(b"x" * 1200, tag=b"t")
    (first, one), (second, two), (third, three) = client.read()
    assert one + two + three == b"x" * 1200
    assert (first.delivery_id, first.delivery_tag, first.more, first.settled) == (1, b"t", True, False)
    assert (second.delivery_id, second.more, third.more) == (None, True, False)
    assert delivery.delivery_id == 0


def test_sending_needs_credit() -> None:
    client = Client().open()
    link = client.receiving(credit=1)
    link.send(b"x", tag=b"1")
    with pytest.raises(ValueError, match="credit"):
        link.send(b"x", tag=b"2")
    client.send(Flow(2, WINDOW, 0, WINDOW, handle=0, delivery_count=0, link_credit=1))
    assert link.credit == 0
    client.send(Flow(2, WINDOW, 0, WINDOW, handle=0, delivery_count=1, link_credit=1))
    assert link.credit == 1
    with pytest.raises(ValueError, match="32"):
        link.send(b"x", tag=b"t" * 33)


def test_the_peers_window_holds_frames_back() -> None:
    client = Client()
    client.send(frames.AMQP_HEADER, Open("c", max_frame_size=512), Begin(None, 0, 2, 2))
    link = client.link(RECEIVER)
    client.send(Flow(1, 2, 0, 2, handle=0, delivery_count=0, link_credit=10))
    big, small = link.send(b"x" * 1300, tag=b"1"), link.send(b"y", tag=b"2")
    assert len(client.read()) == 2
    assert (big.delivery_id, small.delivery_id) == (0, -1)
    client.send(Flow(3, 2, 0, 2))
    assert len(client.read()) == 2
    assert small.delivery_id == 1
    assert link.session.channel == 0


def test_a_lost_link_takes_its_waiting_messages_along() -> None:
    client = Client()
    client.send(frames.AMQP_HEADER, Open("c"), Begin(None, 0, 0, 0))
    one, other = client.receiving(handle=0), client.receiving(handle=1)
    client.send(Flow(1, 0, 0, 0))
    one.send(b"x", tag=b"1")
    kept = other.send(b"y", tag=b"2")
    client.read()
    client.send(Detach(0, True), Flow(1, 5, 0, 0))
    assert [item[1] for item in client.read() if isinstance(item, tuple)] == [b"y"]
    assert kept.delivery_id == 0


def test_a_drain_is_answered_with_the_credit_used_up() -> None:
    client = Client().open()
    link = client.receiving(credit=5)
    (event,) = client.send(Flow(1, WINDOW, 0, WINDOW, handle=0, delivery_count=0, link_credit=5, drain=True))
    assert (event.link, link.drain) == (link, True)
    link.send(b"x", tag=b"1")
    link.drained()
    flow = client.read()[-1]
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (5, 0, True)
    assert link.credit == 0


def test_credit_may_come_before_the_link_is_accepted() -> None:
    client = Client().open()
    flow = Flow(None, WINDOW, 0, WINDOW, handle=0, link_credit=3)
    attached, changed = client.send(attach(0, RECEIVER), flow)
    assert changed == amqp.LinkFlow(attached.link, attached.link.credit)
    attached.link.accept()
    attached.link.send(b"x", tag=b"1")


def test_ranges_of_dispositions_are_taken_apart() -> None:
    client = Client().open()
    link = client.receiving()
    deliveries = [link.send(b"x", tag=bytes([number])) for number in range(5)]
    link.send(b"x", tag=b"settled", settled=True)
    client.read()
    events = client.send(DispositionFrame(RECEIVER, 1, 3, True, amqp.Accepted()))
    assert [event.delivery for event in events] == deliveries[1:4]
    events = client.send(DispositionFrame(RECEIVER, 0, 2**31 - 1, False, amqp.Modified(True)))
    assert [event.delivery for event in events] == [deliveries[0], deliveries[4]]
    assert events[0].outcome == amqp.Modified(True)
    deliveries[0].settle(events[0].outcome)
    assert client.read() == [DispositionFrame(SENDER, 0, 0, True, amqp.Modified(True))]
    assert client.send(DispositionFrame(RECEIVER, 0, 3, True, amqp.Accepted())) == []


def test_a_state_of_a_transaction_stays_as_it_is() -> None:
    client = Client().open()
    link = client.receiving()
    link.send(b"x", tag=b"1")
    state = amqp.Described(amqp.ULong(0x34), [b"txn", amqp.Described(amqp.ULong(0x24), [])])
    (event,) = client.send(DispositionFrame(RECEIVER, 0, None, False, state))
    assert event.outcome == state


def test_the_target_may_be_a_coordinator() -> None:
    client = Client().open()
    wanted = Attach("txn", 0, SENDER, source=amqp.Source(), target=amqp.Coordinator([amqp.Symbol("a")]))
    (event,) = client.send(wanted)
    assert event.link.target == amqp.Coordinator([amqp.Symbol("a")])


def test_the_engine_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys, servicebus_local.amqp\n"
        "parts = {name.partition('.')[0] for name in sys.modules} - {'servicebus_local', '__main__', '__mp_main__'}\n"
        "ours = [name for name in sys.modules if name.startswith('servicebus_local.')]\n"
        "others = parts - sys.stdlib_module_names\n"
        "print(sorted(others), [name for name in ours if not name.startswith('servicebus_local.amqp')])"
    )
    # Without site packages, and what they import at the start.
    environment = {"PYTHONPATH": str(Path(servicebus_local.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout == "[] []\n"
