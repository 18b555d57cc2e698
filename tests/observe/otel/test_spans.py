"""Sends, moves, pings and processing as spans that lead to each other."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from pairmq import Message, PairClosed, Receipt, Route, SendError
from pairmq.observe.otel import processing
from pairmq.plugins import TracingObserver
from pairmq.testing import Fault, Operation, in_virtual_time


def test_the_observer_is_all_that_a_pair_asks_for(telemetry):
    assert isinstance(telemetry.observer(), TracingObserver)


@in_virtual_time
async def test_a_send_is_a_producers_span(telemetry, world):
    async with world(telemetry.observer()) as w:
        receipt = await w.pair.sender("orders").send(Message(b"four"))
    (span,) = telemetry.spans("send orders")
    assert span.kind is SpanKind.PRODUCER
    assert dict(span.attributes) == {
        "messaging.system": "simulated",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.message.id": receipt.message_id,
        "messaging.message.body.size": 4,
        "server.address": "east",
        "pairmq.pair": w.pair.name,
        "pairmq.outcome": "accepted-primary",
        "pairmq.attempts": 1,
    }
    assert span.status.status_code is StatusCode.UNSET


@in_virtual_time
async def test_a_send_is_a_child_of_the_callers_span(telemetry, world):
    async with world(telemetry.observer()) as w:
        with telemetry.tracer.start_as_current_span("request") as request:
            await w.pair.sender("orders").send(Message(b"1"))
            assert trace.get_current_span() is request
    (span,) = telemetry.spans("send orders")
    assert span.parent == request.get_span_context()


@in_virtual_time
async def test_a_message_carries_the_context_of_its_send(telemetry, world):
    async with world(telemetry.observer()) as w:
        await w.pair.sender("orders").send(Message(b"1", application_properties={"own": 7}))
        (message,) = w.home()
    (span,) = telemetry.spans("send orders")
    context = span.get_span_context()
    assert message.application_properties == {
        "own": 7,
        "traceparent": f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}",
    }


@in_virtual_time
async def test_a_message_is_left_alone_where_nothing_is_to_be_carried(telemetry, world):
    async with world(telemetry.observer(propagate=False)) as w:
        await w.pair.sender("orders").send(Message(b"1"))
        assert [dict(message.application_properties) for message in w.home()] == [{}]
    assert len(telemetry.spans("send orders")) == 1


@in_virtual_time
async def test_a_message_that_carries_a_context_keeps_it_and_is_linked_to(telemetry, world):
    with telemetry.tracer.start_as_current_span("creation") as creation:
        context = creation.get_span_context()
    carried = f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
    async with world(telemetry.observer()) as w:
        await w.pair.sender("orders").send(Message(b"1", application_properties={"traceparent": carried}))
        (message,) = w.home()
    assert message.application_properties == {"traceparent": carried}
    (span,) = telemetry.spans("send orders")
    assert [link.context.span_id for link in span.links] == [context.span_id]


@in_virtual_time
async def test_a_malformed_context_is_replaced(telemetry, world):
    async with world(telemetry.observer()) as w:
        await w.pair.sender("orders").send(Message(b"1", application_properties={"traceparent": b"\xff"}))
        (message,) = w.home()
    (span,) = telemetry.spans("send orders")
    assert f"{span.get_span_context().span_id:016x}" in message.application_properties["traceparent"]


@in_virtual_time
async def test_a_diverted_message_is_moved_back_with_its_context_and_everything_else(telemetry, world):
    original = Message(b"1", message_id="m", session_id="s", time_to_live=60, application_properties={"own": 7})
    async with world(telemetry.observer(), enable_syphon=True) as w:
        w.pair.force_failover("orders")
        receipt = await w.pair.sender("orders").send(original)
        assert receipt.route is Route.BACKLOG
        await asyncio.sleep(30)
        (message,) = w.home()
    properties = dict(message.application_properties)
    assert properties.pop("traceparent")
    assert message.with_properties(properties) == original


@in_virtual_time
async def test_a_move_is_a_child_of_its_send_and_links_to_it(telemetry, world):
    async with world(telemetry.observer()) as w:
        w.pair.force_failover("orders")
        receipt = await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(30)
    (send,), (move,) = telemetry.spans("send orders"), telemetry.spans("move orders")
    assert send.attributes["pairmq.outcome"] == "accepted-backlog"
    assert send.attributes["server.address"] == "west"
    assert send.attributes["pairmq.backlog.queue"] == receipt.backlog_queue
    assert move.parent.span_id == send.get_span_context().span_id
    assert [link.context.span_id for link in move.links] == [send.get_span_context().span_id]
    assert move.attributes["messaging.message.id"] == receipt.message_id
    assert (move.end_time - move.start_time) / 1e9 == pytest.approx(move.attributes["pairmq.backlog.waited"], abs=1e-3)


@in_virtual_time
async def test_what_a_consumer_does_leads_back_to_the_send(telemetry, world):
    async with world(telemetry.observer()) as w:
        await w.pair.sender("orders").send(Message(b"1"))
        async with w.pair.receiver("orders") as receiver:
            (delivery,) = await receiver.receive()
            with processing(delivery, meter_provider=telemetry.meters, tracer_provider=telemetry.tracers) as span:
                assert trace.get_current_span() is span
                await delivery.complete()
    (send,), (process,) = telemetry.spans("send orders"), telemetry.spans("process orders")
    assert process.kind is SpanKind.CONSUMER
    assert process.parent.span_id == send.get_span_context().span_id
    assert [link.context.span_id for link in process.links] == [send.get_span_context().span_id]
    assert process.attributes["messaging.system"] == "simulated"
    assert telemetry.value("messaging.process.duration", messaging_destination_name="orders") == 1


@in_virtual_time
async def test_a_consumers_own_span_stays_the_parent_of_what_it_does(telemetry, world):
    async with world(telemetry.observer()) as w:
        await w.pair.sender("orders").send(Message(b"1"))
        async with w.pair.receiver("orders") as receiver:
            (delivery,) = await receiver.receive()
            with (
                telemetry.tracer.start_as_current_span("job") as job,
                processing(delivery, meter_provider=telemetry.meters, tracer_provider=telemetry.tracers),
            ):
                await delivery.complete()
    (process,) = telemetry.spans("process orders")
    assert process.parent == job.get_span_context()
    assert len(process.links) == 1


@in_virtual_time
async def test_a_handler_that_fails_is_reported_by_its_span_and_its_duration(telemetry, world):
    async with world(telemetry.observer()) as w:
        await w.pair.sender("orders").send(Message(b"1"))
        async with w.pair.receiver("orders") as receiver:
            (delivery,) = await receiver.receive()
            with (
                pytest.raises(ZeroDivisionError),
                processing(delivery, meter_provider=telemetry.meters, tracer_provider=telemetry.tracers),
            ):
                raise ZeroDivisionError
    (process,) = telemetry.spans("process orders")
    assert process.status.status_code is StatusCode.ERROR
    assert telemetry.value("messaging.process.duration", error_type="ZeroDivisionError") == 1


@in_virtual_time
async def test_failed_attempts_are_events_of_the_send(telemetry, world):
    async with world(telemetry.observer()) as w:
        w.east.fail(Fault.DOWN)
        await w.pair.sender("orders").send(Message(b"1"))
    (span,) = telemetry.spans("send orders")
    assert {event.name for event in span.events} == {"attempt failed"}
    assert {event.attributes["pairmq.side"] for event in span.events} == {"primary"}
    assert span.attributes["pairmq.attempts"] == len(span.events) + 1


@in_virtual_time
async def test_sends_side_by_side_keep_their_attempts_apart(telemetry, world):
    async with world(telemetry.observer()) as w:
        w.east.fail(Fault.DOWN, Operation.SEND)
        sender = w.pair.sender("orders")
        await asyncio.gather(*(sender.send(Message(b"1")) for _ in range(5)))
    for span in telemetry.spans("send orders"):
        assert {event.attributes["messaging.message.id"] for event in span.events} == {
            span.attributes["messaging.message.id"]
        }


@in_virtual_time
async def test_a_refused_send_is_an_error(telemetry, world):
    async with world(telemetry.observer()) as w:
        with pytest.raises(SendError):
            await w.pair.sender("unknown").send(Message(b"1"))
    (span,) = telemetry.spans("send unknown")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "EntityNotFound"


@in_virtual_time
async def test_a_send_of_a_closed_pair_has_no_span(telemetry, world):
    async with world(telemetry.observer()) as w:
        sender = w.pair.sender("orders")
    with pytest.raises(PairClosed):
        await sender.send(Message(b"1"))
    assert telemetry.spans("send orders") == []


@in_virtual_time
async def test_a_cancelled_send_ends_its_span_and_gives_the_context_back(telemetry, world):
    async with world(telemetry.observer()) as w:
        w.east.fail(Fault.HANG)
        with telemetry.tracer.start_as_current_span("request") as request:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await w.pair.sender("orders").send(Message(b"1"))
            assert trace.get_current_span() is request
        w.east.heal()
    (span,) = telemetry.spans("send orders")
    assert span.attributes["error.type"] == "CancelledError"


@in_virtual_time
async def test_a_batch_is_one_span_that_all_its_messages_carry(telemetry, world):
    async with world(telemetry.observer()) as w:
        results = await w.pair.sender("orders").send_batch([Message(b"1"), Message(b"2")])
        messages = w.home()
    assert all(isinstance(result, Receipt) for result in results)
    (span,) = telemetry.spans("send orders")
    assert span.attributes["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in span.attributes
    assert {message.application_properties["traceparent"][36:52] for message in messages} == {
        f"{span.get_span_context().span_id:016x}"
    }


@in_virtual_time
async def test_a_ping_is_a_root_of_its_own(telemetry, world):
    async with world(telemetry.observer()) as w:
        w.east.fail(Fault.DOWN)
        with telemetry.tracer.start_as_current_span("request"):
            await w.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(1)
        w.east.heal()
        await asyncio.sleep(30)
    pings = telemetry.spans("ping orders")
    assert {span.status.status_code for span in pings} == {StatusCode.ERROR, StatusCode.UNSET}
    assert {span.parent for span in pings} == {None}


@in_virtual_time
async def test_a_dead_letter_of_the_syphon_leads_back_to_the_send(telemetry, world):
    async with world(telemetry.observer(), allowed_entities=("prices",)) as w:
        await w.divert_elsewhere(telemetry.observer())
        await asyncio.sleep(5)
    (send,) = telemetry.spans("send orders")
    (span,) = [span for span in telemetry.exporter.get_finished_spans() if span.name.startswith("dead_letter")]
    assert span.attributes["pairmq.reason"] == "destination-not-allowed"
    assert [link.context.span_id for link in span.links] == [send.get_span_context().span_id]


@in_virtual_time
async def test_no_span_holds_a_body(telemetry, world):
    secret = b"attack at dawn"
    async with world(telemetry.observer()) as w:
        w.pair.force_failover("orders")
        await w.pair.sender("orders").send(Message(secret, application_properties={"key": "attack at dusk"}))
        await asyncio.sleep(30)
    told = "".join(span.to_json() for span in telemetry.exporter.get_finished_spans())
    assert "move orders" in told
    assert "attack" not in told


class Failing:
    """A tracing observer that always fails."""

    def on_event(self, event):
        pass

    def on_message_event(self, event, message):
        raise RuntimeError("on_message_event")

    def begin_send(self, pair, entity, messages):
        raise RuntimeError("begin_send")

    async def close(self):
        pass


@in_virtual_time
async def test_an_observer_that_fails_disturbs_no_send_and_is_reported_once(telemetry, world, caplog):
    async with world(Failing(), telemetry.observer()) as w:
        w.pair.force_failover("orders")
        for _ in range(3):
            assert (await w.pair.sender("orders").send(Message(b"1"))).route is Route.BACKLOG
        await asyncio.sleep(30)
        assert len(w.home()) == 3
    assert len(telemetry.spans("send orders")) == 3
    assert len([record for record in caplog.records if "an observer failed" in record.getMessage()]) == 2


@in_virtual_time
async def test_what_is_no_message_is_refused_as_ever(telemetry, world, caplog):
    async with world(telemetry.observer()) as w:
        with pytest.raises(TypeError, match="make a Message of it"):
            await w.pair.sender("orders").send("text")
    assert "an observer failed" not in caplog.text


def test_a_context_needs_no_name_that_the_envelope_uses():
    from pairmq.core import ALIASES

    assert not {"traceparent", "tracestate", "baggage"} & ALIASES
