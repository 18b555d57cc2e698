"""The look at a message's size that every healthy send pays for (SPEC 3.8)."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairmq import Entity, Message
from pairmq.model.events import Warned
from pairmq.plugins import registry
from pairmq.runner import Clock, Emitter
from pairmq.runner._sizes import MessageLimits, _at_most
from pairmq.testing import SimulatedBroker
from pairmq.transport import Capabilities

ORDERS = Entity("orders")
FREE_TEXTS = ("content_type", "content_encoding", "correlation_id", "subject", "to", "reply_to")  # of any length


@pytest.fixture
def looked():
    """Looks at messages where the secondary takes 100 000 bytes; gives what was measured and what was warned of."""
    west = SimulatedBroker("west", capabilities=Capabilities(max_message_bytes=100_000)).transport()
    measured: list[Message] = []
    measure = registry.transport("redis://127.0.0.1:1/0").measure  # the simulated one passes over the fields
    west.measure = lambda message: measured.append(message) or measure(message)
    warnings: list[Warned] = []
    emit = Emitter("east>west", Clock())
    emit.add(warnings.append)
    sizes = MessageLimits(SimulatedBroker("east").transport(), west, Clock(), emit)

    def look(message: Message) -> tuple[int, int]:
        sizes.look(ORDERS, message)
        return len(measured), len(warnings)

    return look


def test_a_small_message_with_short_texts_is_not_measured(looked):
    trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "tracestate": "vendor=1", "customer": "x" * 50}
    assert looked(Message(b"x" * 1024, application_properties=trace)) == (0, 0)


def test_properties_that_hold_most_of_the_room_are_warned_of(looked):
    assert looked(Message(b"", application_properties={"a": "x" * 85_000})) == (1, 1)


def test_properties_that_are_no_text_are_measured(looked):
    assert looked(Message(b"", application_properties={"a": b"x" * 85_000})) == (1, 1)


@pytest.mark.parametrize("field", FREE_TEXTS)
def test_a_text_that_holds_most_of_the_room_is_warned_of(looked, field):
    assert looked(Message(b"", **{field: "x" * 300_000})) == (1, 1)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20),
        st.text(st.characters(exclude_categories=("Cs",)), max_size=200),
        max_size=8,
    ),
    st.dictionaries(st.sampled_from(FREE_TEXTS), st.text(st.characters(exclude_categories=("Cs",)), max_size=200)),
)
@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "amqp://127.0.0.1:1/", "memory://sizes"])
def test_no_codec_needs_more_than_the_quick_look_takes_for_granted(url, properties, texts):
    message = Message(b"x", message_id="m", application_properties=properties, **texts)
    bare = Message(b"x", message_id="m")
    transport = registry.transport(url)
    assert transport.measure(message) - transport.measure(bare) <= _at_most(message)
