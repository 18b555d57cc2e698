"""Making and closing connections, whatever the driver and the nodes do meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pamqp.frame
import pytest
from aio_pika.tools import OneShotCallback
from aiormq.abc import AbstractConnection
from pamqp import commands

from cut_calls import turns_until_done
from pairmq.model import Entity, FailureKind, FailureReason
from pairmq.plugins import registry
from pairmq.testing.servers import free_port
from pairmq.transport import Scope
from pairmq_rabbitmq import _context, _driver
from pairmq_rabbitmq._driver import Underlay, close_channel
from pairmq_rabbitmq._errors import Unsent, failure
from pairmq_rabbitmq._link import _SPARE_CHANNELS, Link, Nodes
from pairmq_rabbitmq._publish import Answer, Nacked, Parcel, publish_method
from pairmq_rabbitmq._publisher import Publisher
from pairmq_rabbitmq._url import parse_rabbitmq_url

UNAVAILABLE, QUOTA = FailureKind.UNAVAILABLE, FailureReason.QUOTA


class Silent:
    """A driver whose close handshake is never answered."""

    async def close(self, exc: Any) -> None:
        await asyncio.get_running_loop().create_future()


async def test_a_close_handshake_that_is_cut_off_ends_at_once() -> None:
    async def closed(*_: object) -> None:
        """Never called: the driver does not end."""

    underlay = Underlay(cast("AbstractConnection", Silent()), OneShotCallback(closed))
    closing = asyncio.create_task(underlay.close(None))
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait((closing,), timeout=10)
    assert closing.cancelled()


class Broker:
    """Answers the methods that open and close connections and channels, except those in ``silent``."""

    def __init__(self) -> None:
        self.address = ""
        self.silent: set[str] = set()
        self.tasks: set[asyncio.Task[None] | None] = set()
        self.writers: list[asyncio.StreamWriter] = []
        self.frames: list[str] = []
        self.answers: dict[str, commands.Frame] = {
            "Connection.StartOk": commands.Connection.Tune(2047, 131_072, 60),
            "Connection.Open": commands.Connection.OpenOk(),
            "Connection.Close": commands.Connection.CloseOk(),
            "Channel.Open": commands.Channel.OpenOk(),
            "Confirm.Select": commands.Confirm.SelectOk(),
        }

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{self.address}/"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readexactly(len(b"AMQP\0\0\x09\x01"))
            self.tasks.add(asyncio.current_task())
            hello = commands.Connection.Start(
                mechanisms="PLAIN", server_properties={"capabilities": {"publisher_confirms": True}}
            )
            writer.write(pamqp.frame.marshal(hello, 0))
            while True:
                start = await reader.readexactly(7)
                rest = await reader.readexactly(int.from_bytes(start[3:]) + 1)
                _, channel, frame = pamqp.frame.unmarshal(start + rest)
                self.frames.append(frame.name)
                if frame.name in self.answers and frame.name not in self.silent:
                    writer.write(pamqp.frame.marshal(self.answers[frame.name], channel))

    def write(self, channel: int, frame: commands.Frame) -> None:
        self.writers[-1].write(pamqp.frame.marshal(frame, channel))

    async def saw(self, name: str) -> None:
        while name not in self.frames:
            await asyncio.sleep(0.001)

    def reset(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


@pytest.fixture
async def brokers() -> AsyncIterator[list[Broker]]:
    brokers = [Broker() for _ in range(3)]
    servers = []
    for broker in brokers:
        servers.append(await asyncio.start_server(broker.serve, "127.0.0.1", 0))
        broker.address = f"127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"
    yield brokers
    for server in servers:
        server.close()
    for broker in brokers:
        broker.reset()


@pytest.fixture
def broker(brokers: list[Broker]) -> Broker:
    return brokers[0]


@pytest.mark.parametrize("end", ["answers", "is silent", "resets", "connects anew", "is connecting"])
async def test_closing_a_link_leaves_no_task_when_the_broker(broker: Broker, end: str) -> None:
    """A task left behind would be reported when it is collected, during another test."""
    link = Link(parse_rabbitmq_url(broker.url), None, "test")
    before = asyncio.all_tasks()
    session = await link.session()
    for _ in range(3):
        await session.open_channel(confirms=False)
    if end == "is silent":
        broker.silent.add("Connection.Close")
    elif end == "resets":
        broker.reset()
    elif end == "connects anew":
        session.end(TimeoutError("the broker did not answer in time"))
        await link.session()
    elif end == "is connecting":
        broker.silent.add("Connection.Open")
        link.retire(session, silent=False)
        connecting = asyncio.create_task(link.session())
        before.add(connecting)
        while len(broker.writers) < 2:
            await asyncio.sleep(0.01)
        connecting.add_done_callback(asyncio.Task.exception)
    await link.close(0.1)
    assert asyncio.all_tasks() - before - broker.tasks == set()


@pytest.mark.parametrize("beyond", [0, 1, 30])
async def test_channels_opened_at_once_stay_within_the_brokers_limit(broker: Broker, beyond: int) -> None:
    """At one more the broker ends the connection, with everything that is locked or under way on it."""
    broker.answers["Connection.StartOk"] = commands.Connection.Tune(30, 131_072, 60)
    link = Link(parse_rabbitmq_url(broker.url), None, "test")
    session = await link.session()
    room = 30 - _SPARE_CHANNELS - len(session._driver.channels)
    calls = [session.open_channel(confirms=False) for _ in range(room + beyond)]
    opened = await asyncio.gather(*calls, return_exceptions=True)
    await link.close(1)
    refused = [failure(error, "open") for error in opened if isinstance(error, BaseException)]
    assert [(error.kind, error.reason) for error in refused] == [(FailureKind.TRANSIENT, QUOTA)] * beyond
    assert broker.frames.count("Channel.Open") == room


@pytest.mark.parametrize("beyond", [0, 1])
async def test_channels_that_are_being_closed_make_room_for_others(broker: Broker, beyond: int) -> None:
    """Of a burst to other entities than before, those were refused that came before the broker had closed any."""
    broker.answers["Connection.StartOk"] = commands.Connection.Tune(30, 131_072, 60)
    broker.answers["Channel.Close"] = commands.Channel.CloseOk()
    link = Link(parse_rabbitmq_url(broker.url), None, "test")
    session = await link.session()
    room = 30 - _SPARE_CHANNELS - len(session._driver.channels)
    first = await asyncio.gather(*(session.open_channel(confirms=False) for _ in range(room)))
    for channel in first[:5]:
        session.give_back(channel)
    calls = [session.open_channel(confirms=False) for _ in range(5 + beyond)]
    opened = await asyncio.gather(*calls, return_exceptions=True)
    await link.close(1)
    assert sum(isinstance(error, BaseException) for error in opened) == beyond


@pytest.mark.parametrize("beyond", [0, 1, 30])
async def test_of_channels_for_questions_asked_at_once_not_all_are_kept(
    broker: Broker, beyond: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all that the broker allows kept for questions, a probe would find none for its own, ever again."""
    monkeypatch.setattr(_context, "_MOST_IDLE", 10)
    broker.answers["Queue.Declare"] = commands.Queue.DeclareOk("orders", 0, 0)
    broker.answers["Channel.Close"] = commands.Channel.CloseOk()
    async with registry.transport(broker.url) as transport:
        for asked in (10 + beyond, 10):
            questions = [transport.admin.exists(Entity("orders")) for _ in range(asked)]
            assert all(await asyncio.gather(*questions))
            async with asyncio.timeout(60):
                while broker.frames.count("Channel.Close") < beyond:
                    await asyncio.sleep(0.001)
    assert broker.frames.count("Channel.Open") == 10 + beyond
    assert broker.frames.count("Channel.Close") == beyond


async def test_a_channel_is_not_closed_across_the_answer_to_its_question(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that is the broker's own close, it would take ours for the one of the next channel with that number."""
    monkeypatch.setattr(_driver, "_TURN", 600.0)
    link = Link(parse_rabbitmq_url(broker.url), None, "test")
    channel = await (await link.session()).open_channel(confirms=False)
    question = asyncio.create_task(channel.queue_declare("gone", passive=True))
    await broker.saw("Queue.Declare")
    closing = asyncio.create_task(close_channel(channel))
    await asyncio.sleep(0.05)
    broker.write(channel.number, commands.Channel.Close(404, "NOT_FOUND", 50, 10))
    await asyncio.wait((question, closing))
    question.exception()
    await link.close(1)
    assert "Channel.Close" not in broker.frames
    assert "Channel.CloseOk" in broker.frames


async def test_a_connection_that_a_call_gave_up_stays_for_the_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairmq_rabbitmq._link._AFTERLIFE", 0.01)
    link = Link(parse_rabbitmq_url(broker.url), None, "test")
    session = await link.session()
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def call() -> str:
        return await answer

    others = asyncio.create_task(session.run(call()))
    await asyncio.sleep(0)
    link.retire(session, silent=False)
    await asyncio.sleep(0.1)
    answer.set_result("answered")
    assert await others == "answered"
    await asyncio.sleep(0.1)
    assert not session.usable
    await link.close(1)


def cluster_link(addresses: list[str], options: str = "", *, first: str = "", leaves: bool = False) -> Link:
    """A link to several nodes, of which one is tried first."""
    url = parse_rabbitmq_url(f"amqp://alice:hunter2@{','.join(addresses)}/{options}")
    url = replace(url, connect_timeout=300.0)  # on a busy machine a handshake may take long
    nodes = Nodes(url.nodes)
    if first:
        host, port = first.split(":")
        nodes.prefer((host, int(port)))
    return Link(url, None, "test", nodes, leaves=leaves)


def address(link: Link) -> str | None:
    return None if link.current is None else "{}:{}".format(*link.current.node)


def test_processes_try_the_nodes_in_orders_of_their_own() -> None:
    nodes = parse_rabbitmq_url("amqp://a,b,c").nodes
    assert len({tuple(Nodes(nodes).order) for _ in range(300)}) == 6


async def test_a_node_that_is_down_is_passed_over(brokers: list[Broker]) -> None:
    down = f"127.0.0.1:{free_port()}"
    link = cluster_link([down, brokers[0].address], first=down)
    await link.session()
    assert address(link) == brokers[0].address
    await link.close(1)


@pytest.mark.parametrize("silent", ["Connection.StartOk", "Connection.Open"])
async def test_a_node_that_hangs_is_not_waited_for(brokers: list[Broker], silent: str) -> None:
    brokers[0].silent.add(silent)
    link = cluster_link([each.address for each in brokers[:2]], "?connect_timeout=300", first=brokers[0].address)
    before = asyncio.all_tasks() - {broker_task for each in brokers for broker_task in each.tasks if broker_task}
    await link.session()
    assert address(link) == brokers[1].address
    await link.close(1)
    assert asyncio.all_tasks() - before - brokers[0].tasks - brokers[1].tasks == set()


STAGGER = "pairmq_rabbitmq._link._STAGGER"


async def test_a_node_that_hung_is_not_the_first_to_be_tried_again(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller with little time would never get to the next one."""
    monkeypatch.setattr(STAGGER, 300.0)
    brokers[0].silent.add("Connection.Open")
    link = cluster_link([each.address for each in brokers[:2]], first=brokers[0].address)
    given_up = asyncio.create_task(link.session())
    await brokers[0].saw("Connection.Open")
    given_up.cancel()
    assert await turns_until_done(given_up)
    await link.session()
    assert len(brokers[0].writers) == 1
    await link.close(1)


async def test_of_nodes_that_hung_the_one_with_the_least_time_is_tried_first(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STAGGER, 0.0)
    for each in brokers[:2]:
        each.silent.add("Connection.Open")
    link = cluster_link([each.address for each in brokers[:2]], first=brokers[0].address)
    given_up = asyncio.create_task(link.session())
    for each in brokers[:2]:
        await each.saw("Connection.Open")
    given_up.cancel()
    assert await turns_until_done(given_up)
    monkeypatch.setattr(STAGGER, 300.0)
    brokers[1].silent.clear()
    await link.session()
    assert address(link) == brokers[1].address
    await link.close(1)


async def test_no_node_lets_a_client_in_is_one_error_without_secrets() -> None:
    down = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    link = cluster_link(down)
    with pytest.raises(Unsent) as caught:
        await link.session()
    error = failure(caught.value, "send")
    assert error.kind is FailureKind.UNAVAILABLE
    assert not error.maybe_applied
    assert all(each in str(error) for each in down)
    assert "hunter2" not in str(error)
    assert "alice" not in str(error)


async def test_a_refused_login_is_tried_at_one_node_only(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(STAGGER, 300.0)
    refusal = commands.Connection.Close(403, "ACCESS_REFUSED - Login was refused", 0, 0)
    for each in brokers:
        each.answers["Connection.StartOk"] = refusal
    link = cluster_link([each.address for each in brokers], "?connect_timeout=300")
    with pytest.raises(Unsent) as caught:
        await link.session()
    assert failure(caught.value, "send").reason is FailureReason.UNAUTHORIZED
    await link.close(1)


@pytest.mark.parametrize(
    ("code", "text", "kind", "reason"),
    [
        (530, "access to vhost '/' refused for user 'alice': connection limit (5) is reached", UNAVAILABLE, QUOTA),
        (530, "Connection refused for user 'alice': user connection limit (5) is reached", UNAVAILABLE, QUOTA),
        (530, "connection refused: node connection limit (5) is reached", UNAVAILABLE, QUOTA),
        (541, "access to vhost '/' refused for user 'alice': vhost '/' is down", UNAVAILABLE, FailureReason.OTHER),
        (530, "access to vhost '/' refused for user 'alice'", FailureKind.REFUSED, FailureReason.UNAUTHORIZED),
    ],
)
async def test_why_a_login_is_refused_decides_whether_it_is_an_outage(
    broker: Broker, code: int, text: str, kind: FailureKind, reason: FailureReason
) -> None:
    """RabbitMQ 3.10's own words, rabbit_reader.erl."""
    broker.answers["Connection.Open"] = commands.Connection.Close(code, f"NOT_ALLOWED - {text}", 10, 40)
    link = Link(parse_rabbitmq_url(broker.url), None, "test")
    with pytest.raises(Unsent) as caught:
        await link.session()
    error = failure(caught.value, "send")
    assert (error.kind, error.reason) == (kind, reason)
    assert "alice" not in f"{error}{error.__cause__!r}"
    await link.close(1)


async def test_connections_of_a_process_go_to_the_node_that_let_one_in(brokers: list[Broker]) -> None:
    url = parse_rabbitmq_url(f"amqp://{','.join(each.address for each in brokers)}")
    nodes = Nodes(url.nodes)
    links = [Link(url, None, "test", nodes) for _ in range(4)]
    for link in links:
        await link.session()
    assert len({address(link) for link in links}) == 1
    for link in links:
        await link.close(1)


async def test_a_node_without_heartbeats_loses_its_connection(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairmq_rabbitmq._link._LOOK", 0.02)
    monkeypatch.setattr("pairmq_rabbitmq._link._SILENT", 0.2)
    link = cluster_link([each.address for each in brokers[:2]], "?heartbeat=1")
    session = await link.session()
    ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    session.on_end(ended.set_result)
    assert isinstance(await ended, TimeoutError)
    left = session.node
    await link.session()
    assert link.current is not None
    assert link.current.node != left
    await link.close(1)


async def test_new_calls_leave_a_quiet_node_while_a_call_waits_for_its_answer(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairmq_rabbitmq._link._LOOK", 0.01)
    link = cluster_link([each.address for each in brokers[:2]], "?heartbeat=600", leaves=True)
    session = await link.session()

    async def call() -> None:
        while link.current is session:
            await asyncio.sleep(0.01)

    await session.run(call())
    assert (await link.session()).node != session.node
    assert session.usable
    await link.close(1)


async def test_a_connection_with_locks_stays_at_a_quiet_node(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairmq_rabbitmq._link._LOOK", 0.01)
    link = cluster_link([each.address for each in brokers[:2]], "?heartbeat=600")
    session = await link.session()
    session.users += 1
    await asyncio.sleep(0.2)
    assert link.current is session
    await link.close(1)


async def test_a_channel_that_only_rejects_is_replaced(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """RabbitMQ 3.10 rejects forever on one that was opened while a quorum queue's leader was down."""
    monkeypatch.setattr("pairmq_rabbitmq._publisher._WORTHLESS", 0.0)
    link = Link(parse_rabbitmq_url(broker.url), None, "test")
    publisher, scope = Publisher(link, "send"), Scope()

    async def publish(message_id: str) -> Answer:
        properties = commands.Basic.Properties(message_id=message_id)
        [answer] = await publisher.publish([Parcel.of(publish_method("", "orders"), properties, b"")], scope)
        return answer

    # The first publish of a channel has this number.
    broker.answers["Basic.Publish"] = commands.Basic.Nack(delivery_tag=1)
    assert isinstance(await publish("a"), Nacked)
    broker.answers["Basic.Publish"] = commands.Basic.Ack(delivery_tag=1)
    assert await publish("b") is None
    await link.close(1)
