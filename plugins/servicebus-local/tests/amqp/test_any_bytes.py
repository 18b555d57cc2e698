"""Whatever a peer sends, and however it is cut: the connection goes on, waits or ends, and nothing breaks."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from amqp_frames import attach, frame, transfer
from servicebus_local import amqp
from servicebus_local.amqp import frames
from servicebus_local.amqp.performatives import (
    RECEIVER,
    SENDER,
    Begin,
    Close,
    Detach,
    DispositionFrame,
    End,
    Flow,
    Open,
    SaslInit,
    TransferFrame,
)

CONVERSATION = b"".join(
    [
        frames.SASL_HEADER,
        frame(SaslInit("PLAIN", b"x"), kind=frames.SASL_FRAME),
        frames.AMQP_HEADER,
        *(frame(body) for body in (Open("c"), Begin(None, 0, 10, 10), attach(0, SENDER), attach(1, RECEIVER))),
        frame(Flow(0, 10, 0, 10, handle=1, delivery_count=0, link_credit=5)),
        frame(transfer(0, more=True), payload=b"a" * 50),
        frame(TransferFrame(0), payload=b"b" * 50),
        frame(transfer(1), payload=b"c"),
        frame(DispositionFrame(RECEIVER, 0, 3, True, amqp.Accepted())),
        frame(Detach(1, True, amqp.AmqpError("a", "b", {"c": 1}))),
        frame(End()),
        frame(Close()),
    ]
)


def converse(chunks: list[bytes]) -> tuple[list[str], bytes]:
    """Feed the chunks to a server that accepts everything; gives what happened, and what was written."""
    engine = amqp.Connection(container_id="server")
    happened = []
    for chunk in chunks:
        for event in engine.receive_data(chunk, 0.0):
            happened.append(type(event).__name__ + (str(event.payload) if isinstance(event, amqp.Transfer) else ""))
            if isinstance(event, amqp.ConnectionEnded):
                assert engine.closed
            elif isinstance(event, amqp.LinkAttached) and event.link.state == "attaching":
                event.link.accept()
                if event.link.peer_role is SENDER:
                    event.link.grant(10)
            elif isinstance(event, amqp.Transfer):
                event.delivery.settle(amqp.Accepted())
            elif isinstance(event, amqp.LinkFlow) and event.link.state == "open" and event.link.credit:
                event.link.send(b"x" * 100, tag=b"t")
    assert happened.count("ConnectionEnded") <= 1
    return happened, engine.data_to_send()


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place for place in places if place < len(data)), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


# The server above grants credit between chunks, so the sender's transfers have to come after it saw the attach.
_ATTACHED = CONVERSATION.index(frame(transfer(0, more=True), payload=b"a" * 50))


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=30))
def test_the_events_do_not_depend_on_how_the_stream_is_cut(places: list[int]) -> None:
    happened, _ = converse(cut(CONVERSATION, [*places, _ATTACHED]))
    assert happened == converse(cut(CONVERSATION, [_ATTACHED]))[0]
    assert happened[-1] == "ConnectionEnded"
    assert sum(name.startswith("Transfer") for name in happened) == 2


def test_single_bytes_give_the_same_conversation() -> None:
    single = [bytes([byte]) for byte in CONVERSATION]
    assert converse(single)[0] == converse(cut(CONVERSATION, [_ATTACHED]))[0]


@given(st.binary(max_size=200), st.integers(0, len(CONVERSATION)), st.integers(0, 50))
def test_any_bytes_end_the_connection_or_wait_for_more(data: bytes, position: int, dropped: int) -> None:
    converse([data])
    converse([CONVERSATION[:position], data, CONVERSATION[position + dropped :]])


@given(st.data())
def test_changed_bytes_end_the_connection_or_wait_for_more(data: st.DataObject) -> None:
    changed = bytearray(CONVERSATION)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    converse(cut(bytes(changed), [_ATTACHED]))


bodies = st.one_of(
    st.builds(attach, st.integers(0, 3), st.booleans()),
    st.builds(Flow, st.integers(0, 3) | st.none(), st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)),
    st.builds(
        Flow,
        st.integers(0, 3),
        st.integers(0, 5),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(0, 5),
        st.integers(0, 2**32 - 1),
        st.none(),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(transfer, st.integers(0, 5), handle=st.integers(0, 3), more=st.booleans(), aborted=st.booleans()),
    st.builds(DispositionFrame, st.booleans(), st.integers(0, 5), st.integers(0, 2**32 - 1) | st.none(), st.booleans()),
    st.builds(Detach, st.integers(0, 3), st.booleans()),
    st.just(End()),
    st.just(Begin(None, 0, 3, 3)),
)


@given(st.lists(bodies, max_size=25))
def test_valid_frames_in_any_order_break_nothing(sequence: list[Any]) -> None:
    start = frames.AMQP_HEADER + frame(Open("c")) + frame(Begin(None, 0, 3, 3))
    converse([start, *map(frame, sequence)])


@given(st.sampled_from(range(0x10, 0x19)), st.lists(st.sampled_from([None, 0, 5, "a", b"b", True, [], {}, -1])))
def test_performatives_with_fields_of_any_type_break_nothing(code: int, items: list[Any]) -> None:
    body = amqp.encode_value(amqp.Described(amqp.ULong(code), items))
    converse([CONVERSATION[:_ATTACHED], frames.write_frame(body), frame(transfer(0))])
