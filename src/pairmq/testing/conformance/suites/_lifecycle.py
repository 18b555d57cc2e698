"""What making, closing and ending keep, and that a plugin leaves out no suite."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from fnmatch import fnmatchcase
from urllib.parse import unquote, urlsplit

import pytest

from pairmq.model import ConfigurationError, Entity, FailureKind, FailureReason, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing.conformance._broker import NAMES, Broker, Suite, bodies, message, must_fail, receive_one, up_to
from pairmq.testing.conformance._limits import limits
from pairmq.testing.conformance.suites._timing import Stopwatch
from pairmq.transport import Transport

_CLOSE = 2.0
_CLOSED = (FailureKind.UNAVAILABLE, FailureReason.CLOSED)
_QUEUE = Entity("orders")


class Lifecycle(Suite):
    """`Transport`: laziness, close, fault, and its self-description (SPEC 9.1, 9.2, 10.2)."""

    async def test_no_suite_and_no_test_is_left_out(self, request: pytest.FixtureRequest) -> None:
        # Those of this package; a direct subclass elsewhere is its own suite.
        suites = [suite for suite in Suite.__subclasses__() if suite.__module__.startswith(f"{__package__}.")]
        patterns = request.config.getini("python_classes")
        collected = [
            value
            for name, value in vars(request.module).items()
            if isinstance(value, type) and any(name.startswith(p) or fnmatchcase(name, p) for p in patterns)
        ]
        missing = sorted(suite.__name__ for suite in suites if not any(issubclass(found, suite) for found in collected))
        assert not missing, f"{request.module.__name__} has no subclass of: {', '.join(missing)}"
        replaced = [
            f"{found.__name__}.{name}"
            for found in collected
            for suite in suites
            if issubclass(found, suite)
            for name in vars(suite)
            if name.startswith("test_") and getattr(found, name) is not getattr(suite, name)
        ]
        assert not replaced, f"tests of the suites are replaced: {', '.join(replaced)}"

    async def test_making_objects_does_no_io(self, broker: Broker) -> None:
        await broker.stop()
        transport = broker.connect()
        sender, receiver, admin = transport.sender(_QUEUE), transport.receiver(Source(_QUEUE)), transport.admin
        await asyncio.sleep(0.1)  # time enough for what may have been begun behind our back
        await broker.restore()
        await admin.create(_QUEUE)
        await sender.send(message("hello"))
        assert bodies([await receive_one(receiver)]) == ["hello"]

    async def test_what_was_never_used_closes(self, broker: Broker) -> None:
        transport = broker.connect()
        sender, receiver = transport.sender(_QUEUE), transport.receiver(Source(_QUEUE))
        await sender.close()
        await receiver.close()
        await transport.close()
        assert transport.ended

    async def test_closing_again_is_no_failure(self, broker: Broker) -> None:
        queue = await broker.queue()
        sender, receiver = broker.sender(queue), broker.receiver(queue)
        await sender.send(message("hello"))
        await receive_one(receiver)
        for closing in (sender, receiver, broker.transport):
            await closing.close()
            await closing.close()
            await asyncio.gather(closing.close(), closing.close())

    async def test_a_block_closes_its_transport(self, broker: Broker) -> None:
        async with broker.connect() as transport:
            await transport.admin.check()
        assert transport.ended
        await must_fail(transport.admin.check, *_CLOSED)

    async def test_a_closed_sender_sends_nothing_and_the_next_one_does(self, broker: Broker) -> None:
        queue, sender = await broker.connected()
        await sender.close()
        error = await must_fail(lambda: sender.send(message("after")), *_CLOSED)
        assert not error.maybe_applied
        outcomes = await sender.send_batch([message("after")])
        assert [error and error.reason for error in outcomes] == [FailureReason.CLOSED]
        await broker.put(queue, "next")

    async def test_a_closed_receiver_receives_nothing(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, "hello")
        receiver = broker.receiver(queue)
        delivery = await receive_one(receiver)
        await receiver.close()
        await must_fail(lambda: receiver.receive(1, 0.2), *_CLOSED)
        error = await _failure(lambda: receiver.complete(delivery))
        assert error.reason in (FailureReason.CLOSED, FailureReason.LOCK_LOST), f"{error!r}"

    async def test_closing_a_receiver_ends_its_long_poll(self, broker: Broker) -> None:
        queue = await broker.queue()
        receiver = broker.receiver(queue)
        polling = asyncio.ensure_future(receiver.receive(1, 300.0))
        await asyncio.sleep(0.3)
        await receiver.close()
        await must_fail(lambda: polling, *_CLOSED)

    async def test_every_call_of_a_closed_transport_says_that_it_is_closed(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, "hello")
        transport = broker.connect()
        sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
        delivery = await receive_one(receiver)
        await sender.send(message("more"))
        await transport.close()
        await _all_say_closed(transport, queue, (
            lambda: sender.send(message("lost")),
            lambda: receiver.receive(1, 0.2),
            lambda: receiver.complete(delivery),
            lambda: receiver.abandon(delivery),
        ))  # fmt: skip
        assert [error and error.reason for error in await sender.send_batch([message("lost")])] == [
            FailureReason.CLOSED
        ]

    async def test_a_long_poll_ends_with_its_transport(self, broker: Broker) -> None:
        queue = await broker.queue()
        transport = broker.connect()
        polling = asyncio.ensure_future(transport.receiver(Source(queue)).receive(1, 300.0))
        await asyncio.sleep(0.3)
        await transport.close()
        await must_fail(lambda: polling, *_CLOSED)

    async def test_closing_does_not_wait_for_a_frozen_broker(self, broker: Broker) -> None:
        queue = await broker.queue()
        await broker.put(queue, "hello")
        transport = broker.connect()
        sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
        await sender.send(message("more"))
        await receive_one(receiver)
        await broker.freeze()
        for closing in (sender, receiver, transport):
            with Stopwatch() as watch:
                await closing.close()
            assert watch.elapsed < _CLOSE + limits().slack, f"closing {closing!r} took {watch.elapsed:.2f} s"

    async def test_a_send_under_way_ends_as_closed_with_a_correct_outcome(self, broker: Broker) -> None:
        queue = await broker.queue()
        transport = broker.connect()
        sender = transport.sender(queue)
        await sender.send(message("before"))
        await broker.freeze()
        sending = asyncio.ensure_future(sender.send(message("in doubt")))
        await asyncio.sleep(0.3)
        await transport.close()
        error = await must_fail(lambda: sending, *_CLOSED)
        await broker.restore()
        await broker.put(queue, "after")
        found = await up_to(broker, queue, "after")
        assert error.maybe_applied or "in doubt" not in found, "a send that certainly did nothing has arrived"

    async def test_a_faulted_transport_keeps_its_first_cause(self, broker: Broker) -> None:
        transport = broker.connect()
        await transport.admin.check()
        cause = RuntimeError("the partner is gone")
        await transport.fault(cause)
        await transport.fault(RuntimeError("a later one"))
        await transport.close()
        assert transport.ended and transport.fault_cause is cause
        await _all_say_closed(transport, _QUEUE, (lambda: transport.sender(_QUEUE).send(message("lost")),))

    async def test_an_ordinary_close_has_no_cause(self, broker: Broker) -> None:
        transport = broker.connect()
        await transport.close()
        assert transport.fault_cause is None

    async def test_listeners_hear_of_the_end_once(self, broker: Broker) -> None:
        transport = broker.connect()
        heard: list[str] = []
        forgotten = lambda _: heard.append("forgotten")  # noqa: E731  # must be the same object twice
        transport.on_end(lambda ended: heard.append("first" if ended is transport else "another transport"))
        transport.on_end(forgotten)
        transport.remove_on_end(forgotten)
        assert heard == []
        await transport.fault(RuntimeError("the partner is gone"))
        await transport.close()
        assert heard == ["first"]
        transport.on_end(lambda _: heard.append("late"))
        assert heard == ["first", "late"]

    async def test_closing_leaves_no_task_behind(self, broker: Broker) -> None:
        queue = await broker.queue()
        before = asyncio.all_tasks()
        transport = broker.connect()
        sender, receiver = transport.sender(queue), transport.receiver(Source(queue))
        await sender.send(message("hello"))
        await receive_one(receiver)
        await transport.close()
        left = asyncio.all_tasks() - before
        if left:  # what is ending has a moment for it
            _, left = await asyncio.wait(left, timeout=limits().patience)
        assert not left, f"still running after the close: {left}"

    async def test_an_endpoint_names_a_broker(self, broker: Broker) -> None:
        endpoint, again = broker.transport.endpoint, broker.connect().endpoint
        assert endpoint.identity == again.identity and endpoint.name == again.name
        assert endpoint.identity and all(isinstance(part, str) for part in endpoint.identity)
        Entity(f"{endpoint.name}/x-servicebus-transfer/0")  # where the backlog will stand (SPEC 5.1)

    async def test_the_plugin_reports_what_its_transports_claim(self, broker: Broker) -> None:
        try:
            told = registry.transport_record(broker.url).capabilities
        except ConfigurationError:
            return  # the harness makes transports of a plugin that is not installed
        names = [name for name in NAMES if isinstance(getattr(told, name), bool)]
        actual = broker.capabilities
        assert {n: getattr(told, n) for n in names} == {n: getattr(actual, n) for n in names}

    async def test_no_password_is_shown(self, broker: Broker) -> None:
        password = unquote(urlsplit(broker.url).password or "")
        queue = await broker.queue()
        sender = broker.sender(queue)
        await sender.send(message("hello"))
        shown = [repr(broker.transport), str(broker.transport.endpoint), repr(broker.transport.endpoint)]
        shown += [repr(sender), repr(broker.receiver(queue)), repr(broker.admin)]
        await broker.stop()
        for transport in (broker.transport, broker.connect()):
            error = await _failure(transport.admin.check)
            shown += [str(error), repr(error), repr(error.__cause__), repr(error.__context__)]
        if password:
            secrets = {password, urlsplit(broker.url).password or ""}
            assert not [text for text in shown if any(secret in text for secret in secrets)]


async def _all_say_closed(
    transport: Transport, queue: Entity, calls: tuple[Callable[[], Awaitable[object]], ...]
) -> None:
    admin = transport.admin
    for call in (
        *calls,
        admin.check,
        lambda: admin.exists(queue),
        lambda: admin.create(queue),
        lambda: admin.counts(Source(queue)),
    ):
        await must_fail(call, *_CLOSED)


async def _failure(call: Callable[[], Awaitable[object]]) -> TransportError:
    with pytest.raises(TransportError) as caught:
        async with asyncio.timeout(limits().patience):
            await call()
    return caught.value
