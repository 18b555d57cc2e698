"""A real server that hangs, dies, runs full, or turns its back on the user."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing import TcpProxy
from pairmq.testing.servers import free_port
from pairmq.transport import QueueProperties, Transport
from pairmq_redis.testing import RedisServer
from redis_queue import HELD, WAIT, dead_letters, end_locks, hasten

pytestmark = pytest.mark.real_server
Make = Callable[..., Message]
QUEUE = Entity("orders")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(appendfsync="always") as server:
        yield server


@pytest.fixture
async def transport(server: RedisServer) -> AsyncIterator[Transport]:
    async with registry.transport(f"{server.url}?poll_interval=0.2&connect_timeout=30") as transport:
        await transport.admin.create(QUEUE, QueueProperties(lock_duration=HELD))
        yield transport


async def error_of(call: object) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await call  # type: ignore[misc]
    return caught.value


def calls_of_scripts(server: RedisServer) -> int:
    return calls_of(server, "eval(?:sha)?")


def calls_of(server: RedisServer, commands: str) -> int:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
        connection.sendall(b"INFO commandstats\r\nQUIT\r\n")
        with connection.makefile("r") as reply:
            text = reply.read()
    return sum(map(int, re.findall(rf"cmdstat_{commands}:calls=(\d+)", text)))


async def test_under_sigstop_every_cancelled_call_returns_and_later_ones_work(
    server: RedisServer, transport: Transport, message: Make
) -> None:
    sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
    await sender.send_batch([message("a"), message("b")])
    [delivery] = await receiver.receive(1, WAIT)
    fresh = registry.transport(server.url)
    server.pause()
    try:
        big = message(b"x" * 8_000_000)  # more than the socket's buffers hold
        calls = {
            "send": sender.send(message("c")),
            "send big": sender.send(big),
            "batch": sender.send_batch([message("d") for _ in range(1000)]),
            "receive": receiver.receive(1, 10),
            "complete": receiver.complete(delivery),
            "probe": transport.admin.probe(QUEUE),
            "first call": fresh.admin.check(),
        }
        for name, call in calls.items():
            task = asyncio.ensure_future(call)
            await asyncio.sleep(0.05)
            task.cancel()
            # It does not wait for the server: a few turns of the loop are enough.
            for _ in range(10):
                await asyncio.sleep(0)
            assert task.cancelled(), name
        async with asyncio.timeout(30):
            await fresh.close()
    finally:
        server.resume()
    await sender.send(message("after"))
    await transport.admin.probe(QUEUE)
    got = []
    while deliveries := await receiver.receive(100, 1):
        got += [d.message.body[:5] for d in deliveries]
        assert not any(await receiver.complete_batch(deliveries))
    assert b"after" in got
    assert b"b" in got


async def test_close_has_a_limit_of_its_own_under_sigstop(
    server: RedisServer, transport: Transport, message: Make
) -> None:
    sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
    await sender.send(message("a"))
    await receiver.receive(1, WAIT)
    server.pause()
    try:
        sending = asyncio.create_task(sender.send(message("b")))
        receiving = asyncio.create_task(receiver.receive(1, 60))
        await asyncio.sleep(0.05)
        async with asyncio.timeout(30):
            await transport.close()
        for task in (sending, receiving):
            assert (await error_of(task)).reason is FailureReason.CLOSED
    finally:
        server.resume()


async def test_a_server_that_stays_silent_fails_a_long_poll(server: RedisServer, transport: Transport) -> None:
    receiver = transport.receiver(Source(QUEUE))
    waiting = asyncio.create_task(receiver.receive(1, 900))
    await asyncio.sleep(0.05)
    server.pause()
    try:
        async with asyncio.timeout(300):
            error = await error_of(waiting)
        assert (error.kind, error.reason) == (FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)
    finally:
        server.resume()


async def test_kill_9_keeps_every_confirmed_message(server: RedisServer, transport: Transport, message: Make) -> None:
    sender = transport.sender(QUEUE)
    confirmed: list[str] = []
    failures: list[TransportError] = []

    async def keep_sending(worker: int) -> None:
        for n in range(10_000):
            try:
                await sender.send(message(f"{worker}-{n}"))
            except TransportError as error:
                failures.append(error)
                return
            confirmed.append(f"{worker}-{n}")

    workers = [asyncio.create_task(keep_sending(worker)) for worker in range(8)]
    while len(confirmed) <= 100:
        await asyncio.sleep(0.01)
    server.kill()
    await asyncio.wait_for(asyncio.gather(*workers), 30)
    assert {error.kind for error in failures} == {FailureKind.UNAVAILABLE}
    error = await error_of(sender.send(message()))
    assert (error.kind, error.reason, error.maybe_applied) == (FailureKind.UNAVAILABLE, FailureReason.CONNECTION, False)
    server.start()
    receiver, got = transport.receiver(Source(QUEUE)), []
    while deliveries := await receiver.receive(1000, 0):
        got += [d.message.body.decode() for d in deliveries]
        assert not any(await receiver.complete_batch(deliveries))
    assert set(confirmed) <= set(got)
    assert len(got) == len(set(got))


async def test_nothing_is_written_to_a_connection_that_is_found_lost(
    server: RedisServer, transport: Transport, message: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Until a turn of the loop reports it asyncio drops what is written, with a log line for each write."""
    sender = transport.sender(QUEUE)
    await sender.send(message())
    server.kill()
    outcomes = await asyncio.gather(*(sender.send(message()) for _ in range(100)), return_exceptions=True)
    failures = [outcome for outcome in outcomes if isinstance(outcome, TransportError)]
    assert len(failures) == 100
    assert sum(failure.maybe_applied for failure in failures) < 10
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_batch_cut_off_in_the_middle_reports_which_messages_are_sure(
    server: RedisServer, transport: Transport, message: Make
) -> None:
    sender = transport.sender(QUEUE)
    await sender.send(message())
    batch = [message(f"{n}".encode() + b" " * 2000) for n in range(20_000)]
    sending = asyncio.create_task(sender.send_batch(batch))
    while (await transport.admin.counts(Source(QUEUE))).active < 1000:
        assert not sending.done()
    # First it only stops, until all that it had answered is read and what comes next is on its way.
    server.pause()
    for _ in range(100):
        await asyncio.sleep(0.001)
    server.kill()
    outcomes = await sending
    assert len(outcomes) == len(batch)
    sure = [n for n, outcome in enumerate(outcomes) if outcome is None]
    assert 0 < len(sure) < len(batch)
    assert sure == list(range(len(sure)))
    failed = [outcome for outcome in outcomes if outcome is not None]
    assert {outcome.kind for outcome in failed} == {FailureKind.UNAVAILABLE}
    assert failed[0].maybe_applied  # it was on its way
    assert not failed[-1].maybe_applied  # it never left
    server.start()
    receiver, got = transport.receiver(Source(QUEUE)), set[int]()
    while deliveries := await receiver.receive(1000, 0):
        got |= {int(d.message.body or b"-1") for d in deliveries}
        await receiver.complete_batch(deliveries)
    assert set(sure) <= got
    assert all(n in got or outcome is not None for n, outcome in enumerate(outcomes))
    assert not any(n in got for n, outcome in enumerate(outcomes) if outcome is not None and not outcome.maybe_applied)


async def test_a_refused_connection_is_certain(message: Make) -> None:
    async with registry.transport(f"redis://127.0.0.1:{free_port()}") as transport:
        for call in (transport.sender(QUEUE).send(message()), transport.admin.check()):
            error = await error_of(call)
            assert (error.kind, error.reason) == (FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
            assert not error.maybe_applied
        outcomes = await asyncio.gather(
            *(transport.sender(QUEUE).send(message()) for _ in range(100)), return_exceptions=True
        )
        assert all(isinstance(outcome, TransportError) for outcome in outcomes)


async def test_a_listener_that_never_answers_times_out(message: Make) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}?connect_timeout=0.2"
        async with registry.transport(url) as transport:
            calls = [transport.sender(QUEUE).send(message()) for _ in range(20)]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            listener.setblocking(False)
            listener.accept()[0].close()
            with pytest.raises(BlockingIOError):  # all wait for one attempt
                listener.accept()
            for outcome in outcomes:
                assert isinstance(outcome, TransportError)
                assert (outcome.kind, outcome.reason) == (FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)
                assert not outcome.maybe_applied


async def test_out_of_memory_is_unavailable_for_sends_and_probes_alike(
    server: RedisServer, transport: Transport, message: Make
) -> None:
    sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
    await sender.send(message("before"))
    server.command("CONFIG", "SET", "maxmemory", "1")
    for call in (sender.send(message()), transport.admin.probe(QUEUE)):
        error = await error_of(call)
        assert (error.kind, error.reason, error.maybe_applied) == (FailureKind.UNAVAILABLE, FailureReason.QUOTA, False)
    [delivery] = await receiver.receive(1, WAIT)  # the way to get room again stays open
    await receiver.complete(delivery)
    server.command("CONFIG", "SET", "maxmemory", "0")
    await transport.admin.probe(QUEUE)
    await sender.send(message())


async def test_a_replica_without_its_master_refuses_writes(
    server: RedisServer, transport: Transport, message: Make
) -> None:
    sender = transport.sender(QUEUE)
    await sender.send(message())
    server.command("REPLICAOF", "127.0.0.1", str(free_port()))
    for call in (sender.send(message()), transport.admin.probe(QUEUE)):
        error = await error_of(call)
        assert (error.kind, error.maybe_applied) == (FailureKind.UNAVAILABLE, False)
    server.command("REPLICAOF", "NO", "ONE")
    await sender.send(message())


async def test_a_failover_behind_one_address_is_followed(server: RedisServer, message: Make) -> None:
    """The old master lives on as a replica, and keeps its connections."""
    server.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    with (
        RedisServer(options=("--replicaof", "127.0.0.1", str(server.port))) as other,
        TcpProxy("127.0.0.1", server.port) as address,
    ):
        async with registry.transport(f"redis://127.0.0.1:{address.port}/0?connect_timeout=30") as transport:
            await transport.admin.create(QUEUE)
            sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
            await sender.send(message("before"))
            [delivery] = await receiver.receive(1, WAIT)
            deadline = time.monotonic() + 60
            while not other.command("EXISTS", "pairmq:{orders}:meta").endswith("1"):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            other.command("REPLICAOF", "NO", "ONE")
            server.command("REPLICAOF", "127.0.0.1", str(other.port))
            address.redirect("127.0.0.1", other.port)
            await asyncio.sleep(1)  # a connection that was made a moment ago is kept
            error = await error_of(sender.send(message("refused")))
            assert (error.kind, error.maybe_applied) == (FailureKind.UNAVAILABLE, False)
            await sender.send(message("after"))
            await transport.admin.probe(QUEUE)
            await receiver.complete(delivery)
            assert [found.message.body for found in await receiver.receive(9, WAIT)] == [b"after"]


async def test_too_few_replicas_leave_the_outcome_open(server: RedisServer, message: Make) -> None:
    server.command("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    with RedisServer(options=("--replicaof", "127.0.0.1", str(server.port))) as replica:
        # The replica that works has all the time that a busy machine may take; the one that does not, little.
        url = f"{server.url}?wait_replicas=1&wait_timeout"
        async with registry.transport(f"{url}=30000") as transport:
            deadline = time.monotonic() + 50
            while not replica.command("GET", "written").startswith("$1"):
                server.command("SET", "written", "1")
                assert time.monotonic() < deadline
            await transport.admin.create(QUEUE)
            sender = transport.sender(QUEUE)
            await sender.send(message("both"))
            await transport.admin.probe(QUEUE)
            assert await sender.send_batch([message(), message()]) == [None, None]
            receiver = transport.receiver(Source(QUEUE))
            first, second, _ = await receiver.receive(3, WAIT)
            await receiver.complete(first)
            await receiver.dead_letter(second, "why", "because")
            await receiver.close()
        async with registry.transport(f"{url}=300") as transport:
            sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
            (delivery,) = await receiver.receive(1, WAIT)
            replica.pause()
            # A replica that is promoted would deliver it again.
            error = await error_of(receiver.complete(delivery))
            assert (error.kind, error.maybe_applied) == (FailureKind.UNAVAILABLE, True)
            error = await error_of(sender.send(message("one")))
            assert (error.kind, error.reason, error.maybe_applied) == (
                FailureKind.UNAVAILABLE,
                FailureReason.TIMEOUT,
                True,
            )
            assert [o and o.maybe_applied for o in await sender.send_batch([message(), message()])] == [True, True]
            assert (await error_of(transport.admin.probe(QUEUE))).kind is FailureKind.UNAVAILABLE
            replica.resume()


async def test_passwords_open_the_door_and_stand_nowhere(message: Make) -> None:
    secret = "hunter2/with:odd@letters"
    with RedisServer(password=secret) as server:
        async with registry.transport(server.url) as transport:
            await transport.admin.create(QUEUE)
            await transport.sender(QUEUE).send(message())
            assert secret not in repr(transport)
            assert "hunter2" not in transport.endpoint.url
        for login in ("", "alice:wrong-secret@", ":wrong-secret@"):
            async with registry.transport(f"redis://{login}127.0.0.1:{server.port}/0") as transport:
                for call in (transport.admin.check(), transport.sender(QUEUE).send(message())):
                    error = await error_of(call)
                    assert (error.kind, error.reason) == (FailureKind.REFUSED, FailureReason.UNAUTHORIZED)
                    assert not error.maybe_applied
                    shown = f"{error!r} {error.__cause__!r} {error.__context__!r}"
                    assert "wrong-secret" not in shown
                    assert "alice" not in shown


async def test_a_client_without_a_login_gets_an_error_however_much_it_writes(message: Make) -> None:
    """Redis looks at the size of what a stranger writes before it looks at the command."""
    with RedisServer(password="changed by an operator") as server:
        async with registry.transport(f"redis://127.0.0.1:{server.port}/0") as transport:
            sender = transport.sender(QUEUE)
            wordy = message(session_id="s", correlation_id="c", subject="x", reply_to="r", to="t")
            for each in (wordy, message("." * 20_000)):
                error = await error_of(sender.send(each))
                assert (error.kind, error.reason) == (FailureKind.REFUSED, FailureReason.UNAUTHORIZED), error
                assert not error.maybe_applied


async def test_a_user_without_the_right_is_refused_by_send_and_probe(server: RedisServer, message: Make) -> None:
    server.command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-xadd")
    async with registry.transport(server.url) as admin:
        await admin.admin.create(QUEUE)
    async with registry.transport(f"redis://reader:pw@127.0.0.1:{server.port}") as transport:
        for call in (transport.sender(QUEUE).send(message()), transport.admin.probe(QUEUE)):
            error = await error_of(call)
            assert (error.kind, error.reason) == (FailureKind.REFUSED, FailureReason.UNAUTHORIZED)
            assert "reader" not in f"{error!r} {error.__cause__!r}"


@pytest.fixture
def lacking(server: RedisServer) -> Callable[[str], str]:
    """Makes a user who may do everything but some commands, such as ``-xdel``, and gives the URL."""

    def make(commands: str) -> str:
        server.command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all", *commands.split())
        return f"redis://limited:pw@127.0.0.1:{server.port}?poll_interval=0.2&connect_timeout=30"

    return make


@pytest.mark.parametrize("missing", ["-xdel", "-xack"])
async def test_a_user_who_may_add_and_not_remove_leaves_no_copies(
    transport: Transport, message: Make, lacking: Callable[[str], str], missing: str
) -> None:
    """A script that is refused in its middle has done the first half."""
    admin, sender = transport.admin, transport.sender(QUEUE)
    await sender.send(message("poison"))
    async with registry.transport(lacking(missing)) as limited:
        if missing == "-xdel":
            assert (await error_of(limited.admin.probe(QUEUE))).reason is FailureReason.UNAUTHORIZED
        receiver = limited.receiver(Source(QUEUE))
        [delivery] = await receiver.receive(1, WAIT)
        for _ in range(3):
            failed = await error_of(receiver.dead_letter(delivery, "poison", "it is"))
            assert failed.reason is FailureReason.UNAUTHORIZED
    counts = await admin.counts(Source(QUEUE))
    assert (counts.pending, counts.dead_letter) == (1, 0)


async def test_what_could_not_be_completed_for_lack_of_a_right_is_delivered_again(
    transport: Transport, message: Make, lacking: Callable[[str], str]
) -> None:
    """It was acknowledged and stayed: the queue was never empty again."""
    await transport.sender(QUEUE).send(message("a"))
    async with registry.transport(lacking("-xdel")) as limited:
        receiver = limited.receiver(Source(QUEUE))
        [delivery] = await receiver.receive(1, WAIT)
        assert (await error_of(receiver.complete(delivery))).reason is FailureReason.UNAUTHORIZED
    receiver = transport.receiver(Source(QUEUE))
    [delivery] = await receiver.receive(1, WAIT)
    await receiver.complete(delivery)
    assert (await transport.admin.counts(Source(QUEUE))).pending == 0


async def test_a_scheduled_message_is_not_doubled_by_a_user_who_may_not_remove_it(
    transport: Transport, message: Make, lacking: Callable[[str], str]
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await transport.sender(QUEUE).send(message("a", scheduled_enqueue_at=later))
    await hasten(transport, QUEUE, 7200)
    async with registry.transport(lacking("-xdel")) as limited:
        for _ in range(3):
            failed = await error_of(limited.receiver(Source(QUEUE)).receive(1, 0))
            assert failed.reason is FailureReason.UNAUTHORIZED
    receiver = transport.receiver(Source(QUEUE))
    assert [delivery.message.body for delivery in await receiver.receive(10, WAIT)] == [b"a"]
    assert await receiver.receive(10, 0) == []


async def test_scripts_that_the_server_forgot_are_sent_again(
    server: RedisServer, transport: Transport, message: Make
) -> None:
    await transport.sender(QUEUE).send(message("a"))
    receiver = transport.receiver(Source(QUEUE))
    server.command("SCRIPT", "FLUSH")
    [delivery] = await receiver.receive(1, WAIT)
    server.command("SCRIPT", "FLUSH")
    await receiver.complete(delivery)


async def test_every_client_dropped_is_noticed_at_once(
    server: RedisServer, transport: Transport, message: Make
) -> None:
    sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
    await sender.send(message())
    assert len(await receiver.receive(5, WAIT)) == 1
    waiting = asyncio.create_task(receiver.receive(1, 60))
    await asyncio.sleep(0.05)
    server.command("CLIENT", "KILL", "TYPE", "normal")
    assert (await error_of(waiting)).reason is FailureReason.CONNECTION
    await asyncio.sleep(0.05)
    await sender.send(message("the next call connects anew"))
    assert len(await receiver.receive(1, WAIT)) == 1


async def test_ten_waiting_receivers_cost_next_to_nothing(server: RedisServer) -> None:
    async with registry.transport(server.url) as transport:
        await transport.admin.create(QUEUE)
        waiting = [asyncio.create_task(transport.receiver(Source(QUEUE)).receive(1, 60)) for _ in range(10)]
        await asyncio.sleep(0.5)
        asked = "(?:evalsha|xreadgroup|time|ping)"
        began, before = time.monotonic(), calls_of(server, asked)
        await asyncio.sleep(2)
        calls, took = calls_of(server, asked) - before, time.monotonic() - began
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        # Each looks when its poll interval of a second is over: a script, which reads, and a read with the time.
        assert calls <= 10 * 6 * (took + 2), (calls, took)


async def test_out_of_memory_holds_up_due_schedules_and_nothing_else(
    server: RedisServer, transport: Transport, message: Make
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    await transport.sender(QUEUE).send(message("late", scheduled_enqueue_at=later))
    await transport.sender(QUEUE).send(message("now"))
    await hasten(transport, QUEUE, 7200)
    server.command("CONFIG", "SET", "maxmemory", "1")
    receiver = transport.receiver(Source(QUEUE))
    [delivery] = await receiver.receive(5, WAIT)
    assert delivery.message.body == b"now"
    await receiver.complete(delivery)
    before = calls_of_scripts(server)
    assert await receiver.receive(5, 0.5) == []
    assert calls_of_scripts(server) - before < 10
    server.command("CONFIG", "SET", "maxmemory", "0")
    [delivery] = await receiver.receive(5, WAIT)
    assert delivery.message.body == b"late"


async def test_out_of_memory_a_malformed_entry_holds_up_no_other(
    server: RedisServer, transport: Transport, message: Make
) -> None:
    sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
    await sender.send(message("a"))
    server.command("XADD", "pairmq:{orders}:queue", "*", "foreign", "x")
    await sender.send(message("b"))
    server.command("CONFIG", "SET", "maxmemory", "1")
    deliveries = await receiver.receive(5, WAIT)
    assert [d.message.body for d in deliveries] == [b"a", b"b"]
    assert not any(await receiver.complete_batch(deliveries))
    server.command("CONFIG", "SET", "maxmemory", "0")
    await end_locks(transport, QUEUE, receiver)
    assert await receiver.receive(5, 0.3) == []
    await dead_letters(transport, QUEUE, 1)
    [dead] = await transport.admin.peek(Source(QUEUE, dead_letter=True), 5)
    assert dead.dead_letter_reason == "malformed"


async def test_many_expired_messages_hold_up_no_other_client(transport: Transport, message: Make) -> None:
    sender, receiver = transport.sender(QUEUE), transport.receiver(Source(QUEUE))
    assert not any(await sender.send_batch([message(time_to_live=0.001) for _ in range(20_000)]))
    await sender.send(message("live"))
    receiving, answered = asyncio.create_task(receiver.receive(1, 0)), 0
    while not receiving.done():
        await transport.admin.check()
        answered += 1
    assert [d.message.body for d in receiving.result()] == [b"live"]
    # The server puts them away a thousand at a time, and hears others in between.
    assert answered >= 10


async def test_a_user_who_is_refused_at_the_connect_is_named_nowhere(server: RedisServer, message: Make) -> None:
    server.command("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-select")
    async with registry.transport(f"redis://reader:pw@127.0.0.1:{server.port}/1") as transport:
        receiver = transport.receiver(Source(QUEUE))
        for call in (transport.sender(QUEUE).send(message()), transport.admin.check(), receiver.receive(1, 0)):
            error = await error_of(call)
            assert (error.kind, error.reason) == (FailureKind.REFUSED, FailureReason.UNAUTHORIZED)
            assert "reader" not in f"{error!r} {error.__cause__!r}"
            assert error.__suppress_context__


async def test_replicas_are_waited_for_on_the_connection_that_wrote(server: RedisServer) -> None:
    async with registry.transport(f"{server.url}?wait_replicas=1&wait_timeout=50") as transport:
        control = transport._context.control  # type: ignore[attr-defined]
        written: list[list[bytes]] = []
        call = control.call

        def recording(commands: list[list[bytes]], scope: object) -> object:
            written.append([command[0] for command in commands])
            return call(commands, scope)

        control.call = recording
        topic = Entity("news", EntityKind.TOPIC)
        admin = transport.admin
        for doing in (admin.create(topic), admin.create_subscription(topic, "s"), admin.probe(topic)):
            assert (await error_of(doing)).reason is FailureReason.TIMEOUT
        assert {tuple(names) for names in written} == {(b"EVALSHA", b"WAIT"), (b"EVAL", b"WAIT")}
        missing = await error_of(admin.probe(Entity("nobody")))
        assert missing.reason is FailureReason.NOT_FOUND
