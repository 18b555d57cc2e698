"""The transport: settings and connections, and the objects that use them; and its senders.

A message is one ``XADD``, confirmed by the id that Redis returns. ``XADD … NOMKSTREAM`` returns nil when there is no
stream, so that an immediate message costs exactly what it costs a bare client. All senders of a transport share one
connection, on which concurrent sends are pipelined. A batch is a pipeline in chunks; while a chunk's replies are
awaited, the next ones are packed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from redis.asyncio import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from pairmq.model import Entity, EntityKind, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import (
    Admin,
    Capabilities,
    Receiver,
    Scope,
    Sender,
    Transport,
    behind_failed,
    bracketed,
    dial,
    in_chunks,
    is_nothing_sent,
    send_chunks,
    start_task,
)
from pairmq_redis import _codec, _errors, _scripts
from pairmq_redis._admin import RedisAdmin
from pairmq_redis._capabilities import CAPABILITIES, MAX_MESSAGE_BYTES
from pairmq_redis._cluster import Cluster, ClusterLine
from pairmq_redis._context import Context
from pairmq_redis._errors import NotSent
from pairmq_redis._keys import EntityKeys
from pairmq_redis._link import Line
from pairmq_redis._nodes import Sentinels
from pairmq_redis._receiver import RedisReceiver
from pairmq_redis._url import RedisUrl, parse_redis_url
from pairmq_redis._wire import Command, RedisWire, Reply, Wire

_CLOSE_TIMEOUT = 1.8


CHUNK_MESSAGES = 250
CHUNK_BYTES = 1 << 20
_IN_A_TURN = 4  # chunks: those of one operation of a pair, so that no other operation's come between
_BYTES_IN_FLIGHT = 8 << 20  # of one call: with less a distant server is idle most of the time


class StreamsTransport(Transport):
    """The transport over any connection that speaks Redis."""

    def __init__(
        self,
        url: RedisUrl,
        make_wire: Callable[[], Wire],
        capabilities: Capabilities,
        make_line: Callable[[], Line] | None = None,
    ) -> None:
        super().__init__(url.endpoint)
        self._context = Context(url, self.scope, make_wire, make_line)
        self._capabilities = capabilities
        self._admin = RedisAdmin(self._context)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> Sender:
        return RedisSender(self._context, entity)

    def receiver(self, source: Source) -> Receiver:
        return RedisReceiver(self._context, source)

    def measure(self, message: Message) -> int:
        return _codec.size(message)

    async def _close(self) -> None:
        closing = [asyncio.ensure_future(receiver.close()) for receiver in list(self._context.receivers)]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_TIMEOUT)
        await self._context.end_link(self._context.sending)
        await self._context.end_link(self._context.control)


class RedisTransport(StreamsTransport):
    """A transport to a Redis or Valkey server, 6.2 or newer, to the master that sentinels name, or to a cluster."""

    def __init__(self, url: str) -> None:
        parsed = parse_redis_url(url)
        timeout = parsed.connect_timeout
        # Once: of thousands of connections to a cluster's nodes each would read the files, and block the loop with it.
        tls = None if parsed.tls is None else parsed.tls.context(for_url=parsed.endpoint.url)
        make = _connection_factory(parsed, tls)
        self._sentinels: Sentinels | None = None
        self._cluster: Cluster | None = None
        find = make_line = None
        if parsed.sentinels:
            self._sentinels = Sentinels(parsed.host, parsed.sentinels, _sentinel_factory(parsed, tls), self._switched)
            find = self._sentinels.master
        if parsed.cluster:
            at = partial(_at, parsed, tls)
            cluster = self._cluster = Cluster(parsed.cluster, lambda node: at(node)(), timeout, self._demoted)
            make_line = lambda: ClusterLine(cluster, lambda node: RedisWire(at(node), timeout))  # noqa: E731
        super().__init__(parsed, lambda: RedisWire(make, timeout, find), CAPABILITIES, make_line)

    @property
    def node(self) -> str | None:
        """The master that the sentinels named last."""
        if self._sentinels is None or self._sentinels.found is None:
            return None
        host, port = self._sentinels.found
        return f"{bracketed(host)}:{port}"

    def _switched(self, master: tuple[str, int]) -> None:
        self._context.leave(lambda wire: isinstance(wire, RedisWire) and wire.address != master)

    def _demoted(self, owners: frozenset[tuple[str, int]]) -> None:
        self._context.leave(lambda wire: isinstance(wire, RedisWire) and wire.address not in owners)

    async def _close(self) -> None:
        await super()._close()
        for each in (self._sentinels, self._cluster):
            if each is not None:
                await each.close()


class _Connection(Connection):
    """A connection that, over TLS, trusts exactly the authorities of the context.

    redis-py's own one trusts the system's authorities as well as those that it is given, and reads them again for each
    connection.
    """

    def __init__(self, tls: ssl.SSLContext | None, **settings: Any) -> None:
        self._tls = tls
        self._dialled: socket.socket | None = None
        super().__init__(**settings)

    async def _connect(self) -> None:
        self._dialled = await dial(self.host, int(self.port))
        await super()._connect()  # type: ignore[no-untyped-call]  # redis-py's

    def _connection_arguments(self) -> Mapping[str, Any]:
        if self._dialled is None:
            return {**super()._connection_arguments(), "ssl": self._tls}
        return {"sock": self._dialled, "ssl": self._tls, "server_hostname": self._tls and self.host}


def _sentinel_factory(url: RedisUrl, tls: ssl.SSLContext | None) -> Callable[[tuple[str, int]], Connection]:
    if not url.sentinel_login:
        url = replace(url, username=None, password=None)

    return lambda address: _at(url, tls, address)()


def _at(url: RedisUrl, tls: ssl.SSLContext | None, address: tuple[str, int]) -> Callable[[], Connection]:
    return _connection_factory(replace(url, host=address[0], port=address[1], db=0), tls)


def _connection_factory(url: RedisUrl, tls: ssl.SSLContext | None) -> Callable[[], Connection]:
    """Prepare the factory of redis-py's connections, with everything it would do by itself switched off."""
    settings: dict[str, Any] = {
        "host": url.host,
        "port": url.port,
        "db": url.db,
        "username": url.username,
        "password": url.password,
        "protocol": 2,  # plain lists as replies, on every server, in every version of redis-py
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": None,  # time limits are set above
        "socket_connect_timeout": url.connect_timeout,
        "health_check_interval": 0,
    }
    # redis-py 7.1 and later read their own version from files, for each connection, in several milliseconds.
    with contextlib.suppress(ImportError):
        from redis.driver_info import DriverInfo

        settings["driver_info"] = DriverInfo()
    return lambda: _Connection(tls, **settings)


class RedisSender(Sender):
    scope: Scope

    def __init__(self, context: Context, entity: Entity) -> None:
        self._context = context
        self._keys = EntityKeys(entity)
        self._topic = entity.kind is EntityKind.TOPIC
        self._doing = f"send to {entity}"
        self.scope = Scope(context.scope, self._doing)
        self._prefix = (b"XADD", self._keys.stream, b"NOMKSTREAM", b"*")
        self._wait = context.wait_command()

    async def send(self, message: Message) -> None:
        self.scope.check()
        command, size = self._command(message)
        if size > MAX_MESSAGE_BYTES:
            raise self._too_large(size)
        commands = (command,) if self._wait is None else (command, self._wait)
        call = self._context.sending.call(commands, self.scope)
        del command, commands  # they belong to the call, which drops them when they are written
        try:
            replies = await call
        except NotSent as error:
            unsent = _errors.failure(error, self._doing)
            raise unsent from unsent.__cause__
        failed = self._outcome(replies[0])
        if failed is None and replies[0] is None:
            failed = await self._why_missing()
        if failed is None and self._wait is not None:
            failed = self._context.replicated(replies[1], self._doing)
        if failed is not None:
            raise failed

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        if self.scope.closed:
            return [_errors.closed(self._doing) for _ in messages]
        outcomes: list[TransportError | None] = []
        under_way: deque[asyncio.Task[list[TransportError | None]]] = deque()
        sizes: deque[int] = deque()
        try:
            for chunk in self._chunks(messages):
                sizes.append(sum(size for _, size in chunk))
                while under_way and sum(sizes) > _BYTES_IN_FLIGHT:
                    outcomes += await under_way[0]
                    under_way.popleft()
                    sizes.popleft()
                under_way.append(start_task(self._send_chunk(chunk)))
                if len(under_way) % _IN_A_TURN == 0:
                    await asyncio.sleep(0)  # they write; one connection keeps the chunks in order
            while under_way:
                outcomes += await under_way[0]
                under_way.popleft()
        except asyncio.CancelledError as cancellation:
            # Nothing of this chunk may have been sent, but the chunks before it were, or the one behind it is written
            # while this one is in flight: a mark would apply to all.
            if outcomes or not await _were_unsent(list(under_way)[1:]):
                raise asyncio.CancelledError(*cancellation.args) from None
            raise
        finally:
            for task in under_way:
                task.cancel()
        return outcomes

    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        if any(message.scheduled_enqueue_at is not None for message in messages):
            return await super().send_in_order(messages)
        if self.scope.closed:
            return [_errors.closed(self._doing) for _ in messages]
        chunks = list(self._chunks(messages))
        if any(size > MAX_MESSAGE_BYTES for chunk in chunks for _, size in chunk):
            return await super().send_in_order(messages)
        return await send_chunks(chunks, self._send_chunk_in_order, in_order=True)

    async def make_ready(self) -> None:
        await self._context.run(self._context.sending, self.scope, [(b"PING",)], self._doing)

    def _command(self, message: Message) -> tuple[Command, int]:
        """Make the command that sends a message; also returns the message's size."""
        fields = _codec.encode(message)
        size = sum(map(len, fields))
        if message.scheduled_enqueue_at is None:
            return (*self._prefix, *fields), size
        keys = self._keys
        due = str(_codec.due_at_ms(message)).encode()
        kind = keys.entity.kind.value.encode()
        # The script itself, not its name: scheduled messages are few, and a name may be unknown in
        # mid-pipeline.
        script = _scripts.SCHEDULE.text
        return (b"EVAL", script, b"4", keys.stream, keys.due, keys.waiting, keys.meta, due, kind, *fields), size

    def _chunks(self, messages: Sequence[Message]) -> Iterator[list[tuple[Command, int]]]:
        """Split a batch so that a chunk is big enough to fill the pipeline and small enough to be answered soon."""
        return in_chunks(map(self._command, messages), lambda entry: entry[1], CHUNK_MESSAGES, CHUNK_BYTES)

    async def _send_chunk(self, chunk: Sequence[tuple[Command, int]]) -> list[TransportError | None]:
        fitting = [command for command, size in chunk if size <= MAX_MESSAGE_BYTES]
        commands = fitting if self._wait is None else [*fitting, self._wait]
        try:
            replies = await self._context.sending.call(commands, self.scope) if fitting else []
        except NotSent as error:
            return [_errors.failure(error, self._doing) for _ in chunk]
        except TransportError as error:  # closed in the meantime
            return [_errors.closed(self._doing, maybe_applied=error.maybe_applied) for _ in chunk]
        if self._wait is None and len(fitting) == len(chunk) and set(map(type, replies)) == {bytes}:
            return [None] * len(chunk)  # as nearly all are
        waited = replies.pop() if self._wait is not None and replies else None
        answers = iter(replies)
        outcomes: list[TransportError | None] = []
        missing: list[int] = []
        for position, (_, size) in enumerate(chunk):
            if size > MAX_MESSAGE_BYTES:
                outcomes.append(self._too_large(size))
                continue
            reply = next(answers)
            failed = self._outcome(reply)
            if failed is None and reply is None:
                missing.append(position)
            elif failed is None and self._wait is not None:
                failed = self._context.replicated(waited, self._doing)
            outcomes.append(failed)
        if missing:
            failed = await self._why_missing()
            for position in missing:
                outcomes[position] = failed
        return outcomes

    async def _send_chunk_in_order(self, chunk: Sequence[tuple[Command, int]]) -> list[TransportError | None]:
        entries = [command[len(self._prefix) :] for command, _ in chunk]
        counted = [part for entry in entries for part in (b"%d" % len(entry), *entry)]
        script = (b"EVAL", _scripts.SEND_IN_ORDER.text, b"1", self._keys.stream, *counted)
        commands = [script] if self._wait is None else [script, self._wait]
        failed: TransportError | None
        try:
            replies = await self._context.sending.call(commands, self.scope)
        except NotSent as error:
            failed = _errors.failure(error, self._doing)
            return [failed, *(behind_failed(failed) for _ in chunk[1:])]
        except TransportError as error:  # closed in the meantime
            return [_errors.closed(self._doing, maybe_applied=error.maybe_applied) for _ in chunk]
        failed = self._outcome(replies[0]) if isinstance(replies[0], BaseException) else None
        if failed is not None:
            return [_errors.failure(replies[0], self._doing) for _ in chunk]
        stored = int(replies[0])
        if stored and self._wait is not None:
            failed = self._context.replicated(replies[1], self._doing)
        outcomes: list[TransportError | None] = [failed] * stored
        if stored < len(chunk):
            missing = await self._why_missing()
            if missing is not None or stored:
                first = missing or TransportError(
                    f"{self._doing}: the broker stored {stored} of {len(chunk)} messages and no more",
                    FailureKind.UNAVAILABLE,
                )
                outcomes += [first, *(behind_failed(first) for _ in chunk[stored + 1 :])]
            else:  # a topic without subscriptions keeps none
                outcomes += [None] * len(chunk)
        return outcomes

    def _outcome(self, reply: Reply) -> TransportError | None:
        if isinstance(reply, BaseException):
            return _errors.failure(reply, self._doing)
        if reply is None or type(reply) is bytes:
            return None
        if type(reply) is int:  # of the script that schedules, which may have found no entity
            return None if reply else _errors.not_found(self._doing)
        return TransportError(
            f"{self._doing}: what listens there does not answer as Redis does: check host and port",
            FailureKind.UNAVAILABLE,
            maybe_applied=True,
        )

    async def _why_missing(self) -> TransportError | None:
        """Find what nil means: a topic without subscriptions discards what it is sent, anything else does not exist."""
        if not self._topic:
            return _errors.not_found(self._doing)
        command = (b"HGET", self._keys.meta, b"kind")
        try:
            replies = await self._context.run(self._context.sending, self.scope, [command], self._doing)
        except TransportError as error:
            return error
        return None if replies[0] == b"topic" else _errors.not_found(self._doing)

    def _too_large(self, size: int) -> TransportError:
        return TransportError(
            f"{self._doing}: the message has {size} bytes, Redis takes at most {MAX_MESSAGE_BYTES}",
            FailureKind.REFUSED,
            FailureReason.TOO_LARGE,
        )


async def _were_unsent(chunks: Iterable[asyncio.Task[list[TransportError | None]]]) -> bool:
    """Cancel chunks, and return whether all of them had written nothing."""
    for chunk in chunks:
        chunk.cancel()
        try:
            await chunk
        except asyncio.CancelledError as cancellation:
            if is_nothing_sent(cancellation):
                continue
        return False
    return True
