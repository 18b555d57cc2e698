"""``fakeredis://name``: the same transport over fakeredis, in this process.

There is one broker per name and process; what it holds lives as long as the process, or until a control asks it to
forget. Faults act below the transport, where a real server's would: on the connection and on single
commands, so that the transport sees what a client of a real server sees.

What differs from fakeredis' own connections, and why: a blocking read is done here, because theirs goes on
after its client has gone and would take a message that no consumer gets, and because theirs belongs to one event loop;
here it waits by the loop's own timers, so that a loop with virtual time works too. The server's clock
(locks, time-to-live, schedules) is the wall clock all the same.

A transport belongs to one event loop, a broker to none: loops one after another, or in several threads, may
share it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from redis import exceptions as driver

from pairmq.model import ConfigurationError
from pairmq_redis import _scripts
from pairmq_redis._capabilities import FAKEREDIS_CAPABILITIES
from pairmq_redis._errors import is_answer
from pairmq_redis._transport import StreamsTransport
from pairmq_redis._url import parse_fakeredis_url
from pairmq_redis._wire import Command, Reply

_OPEN_TIMEOUT = 5.0
_BLOCK_AT = 6
"""Where BLOCK is in what a receiver waits with; elsewhere the word is a name or a body."""

# What stores something on a client's behalf: these are refused, or lose their confirmation. Reading, completing and
# abandoning go on, as they do on a server that is out of memory. So do dead-lettering and due schedules, which such a
# server holds up until there is room.
_STORING_SCRIPTS = frozenset(
    name
    for script in (_scripts.CREATE, _scripts.PROBE, _scripts.SCHEDULE, _scripts.SUBSCRIBE)
    for name in (script.sha, script.text)
)
# What may put a message into a stream that a receiver waits for.
_FEEDING_SCRIPTS = frozenset(name for s in (_scripts.SCHEDULE, _scripts.TAKE) for name in (s.sha, s.text))

_REFUSALS = {
    "unavailable": driver.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
    "busy": driver.ResponseError("BUSY Redis is busy running a script."),
    "refused": driver.NoPermissionError("this user has no permissions to run the command"),
}


@dataclass(frozen=True, slots=True)
class _Fault:
    stopped: bool = False
    hanging: bool = False
    delay: float = 0.0
    refusal: Exception | None = None
    lose_confirms: bool = False
    applied: bool = True


_SOUND = _Fault()
_brokers: dict[str, FakeRedisBroker] = {}
_brokers_lock = threading.Lock()


class FakeRedisBroker:
    """One broker in this process, and the control over it (`pairmq.plugins.BrokerControl`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fault = _SOUND
        self._lock = threading.RLock()
        self._wires: set[FakeRedisWire] = set()
        self._late: list[Command] = []
        self._connection: Any = None  # fakeredis, when first needed

    async def stop(self) -> None:
        """Drop every connection and refuse new ones; what is stored stays."""
        self._change(_Fault(stopped=True), drop=True)

    async def hang(self) -> None:
        """Take connections and commands and answer nothing; commands already taken are done at `restore`,
        even for clients that have left, as a real server does that wakes up with full socket buffers."""
        self._change(_Fault(hanging=True))

    async def slow(self, delay: float) -> None:
        """Answer each call ``delay`` seconds late."""
        if not delay >= 0:
            raise ValueError(f"delay is {delay!r} s: 0 or more")
        self._change(_Fault(delay=delay))

    async def refuse(self, *, kind: str = "unavailable") -> None:
        """Answer sends, probes and creations with out of memory, busy or no permission; receivers go on."""
        if kind not in _REFUSALS:
            raise ValueError(f"kind is {kind!r}: one of {', '.join(_REFUSALS)}")
        self._change(_Fault(refusal=_REFUSALS[kind]))

    async def lose_confirms(self, *, applied: bool = True) -> None:
        """Drop the connection instead of confirming a send, a probe or a creation, done or not."""
        self._change(_Fault(lose_confirms=True, applied=applied))

    async def restore(self) -> None:
        with self._lock:
            late, self._late = self._late, []
            for command in late:
                self.execute(command)
        self._change(_SOUND)

    async def forget(self) -> None:
        """End every fault, drop every connection, and lose all data."""
        with self._lock:
            self._connection = None
            self._change(_SOUND, drop=True)

    def _change(self, fault: _Fault, *, drop: bool = False) -> None:
        with self._lock:
            self.fault = fault
            if drop:
                self._late.clear()
            for wire in list(self._wires):
                if drop:
                    wire.break_off()
                else:
                    wire.wake()

    def execute(self, command: Command) -> Reply:
        """Do one command, and wake those that wait for what it may have stored."""
        with self._lock:
            if self._connection is None:
                self._connection = _fake_connection()
            try:
                self._connection.send_command(*command, check_health=False)
                reply = self._connection.read_response()
            except driver.RedisError as error:
                if not is_answer(error):
                    raise
                reply = error
            if command[0] == b"XADD" or (command[0].startswith(b"EVAL") and command[1] in _FEEDING_SCRIPTS):
                for wire in self._wires:
                    if wire.waits_for is not None and wire.waits_for in command:
                        wire.wake()
        return reply

    def attach(self, wire: FakeRedisWire) -> None:
        with self._lock:
            self._wires.add(wire)

    def detach(self, wire: FakeRedisWire, undone: Sequence[Command]) -> None:
        """Forget a connection whose client left, with the commands that it had sent and that were not done yet."""
        with self._lock:
            if wire not in self._wires:
                return
            self._wires.discard(wire)
            doable = [command for command in undone if not _is_blocking(command)]
            if self.fault.hanging:
                self._late += doable
            elif self.fault.delay:
                for command in doable:
                    self.execute(command)


class FakeRedisWire:
    def __init__(self, broker: FakeRedisBroker) -> None:
        self._broker = broker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._inbox: deque[list[Command]] = deque()
        self._replies: deque[Reply] = deque()
        self._lost = False
        self.waits_for: bytes | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._broker.attach(self)
        try:
            async with asyncio.timeout(_OPEN_TIMEOUT):
                if self._broker.fault.delay:
                    await asyncio.sleep(self._broker.fault.delay)
                while self._broker.fault.hanging:
                    await self._sleep()
            self._check()
        except BaseException:
            self.abort()
            raise

    def write(self, commands: Sequence[Command]) -> None:
        self._check()
        self._inbox.append(list(commands))
        self._woken.set()

    async def deliver(self, take: Callable[[Reply], None]) -> NoReturn:
        while True:
            while self._replies:
                take(self._replies.popleft())
            self._check()
            if not self._inbox or self._broker.fault.hanging:
                await self._sleep()
                continue
            delay = self._broker.fault.delay
            if delay:
                await asyncio.sleep(delay)
                if self._lost or self._broker.fault.hanging:
                    continue
            await self._serve()

    def abort(self) -> None:
        undone = [command for batch in self._inbox for command in batch]
        self._inbox.clear()
        self._lost = True
        self._broker.detach(self, undone)

    def break_off(self) -> None:
        self._lost = True
        self._inbox.clear()
        self.wake()

    def wake(self) -> None:
        loop = self._loop
        if loop is None:
            return
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            self._woken.set()
        elif not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed in this very moment
                loop.call_soon_threadsafe(self._woken.set)

    async def _serve(self) -> None:
        batch = self._inbox[0]
        fault = self._broker.fault
        while batch:
            command = batch[0]
            if _is_blocking(command):
                reply = await self._wait_for_entries(command)
            elif fault.refusal is not None and _stores(command):
                reply = fault.refusal
            elif fault.lose_confirms and _stores(command):
                if fault.applied:
                    for lost in batch:
                        self._broker.execute(lost)
                self.break_off()
                raise driver.ConnectionError("Connection closed by server.")
            else:
                reply = self._broker.execute(command)
            batch.pop(0)
            self._replies.append(reply)
        self._inbox.popleft()

    async def _wait_for_entries(self, command: Command) -> Reply:
        """XREADGROUP with BLOCK: read without it, and again whenever the stream may have got something."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + int(command[_BLOCK_AT + 1]) / 1000
        plain = (*command[:_BLOCK_AT], *command[_BLOCK_AT + 2 :])
        over = False
        try:
            self.waits_for = command[-2]
            while True:
                self._check()
                self._woken.clear()
                if not self._broker.fault.hanging:
                    reply = self._broker.execute(plain)
                    if reply:  # entries, or an error
                        return reply
                    if over or loop.time() >= deadline:
                        return None
                try:
                    async with asyncio.timeout_at(None if self._broker.fault.hanging else deadline):
                        await self._woken.wait()
                except TimeoutError:
                    over = True  # a timer may end a rounding error before its time
        finally:
            self.waits_for = None

    async def _sleep(self) -> None:
        self._woken.clear()
        await self._woken.wait()

    def _check(self) -> None:
        if self._broker.fault.stopped:
            raise driver.ConnectionError(f"Error 111 connecting to fakeredis://{self._broker.name}.")
        if self._lost:
            raise driver.ConnectionError("Connection closed by server.")


class FakeRedisTransport(StreamsTransport):
    def __init__(self, url: str) -> None:
        parsed = parse_fakeredis_url(url)
        _fakeredis()
        super().__init__(parsed, lambda: FakeRedisWire(_broker(parsed.host)), FAKEREDIS_CAPABILITIES)


def fakeredis_control(url: str) -> FakeRedisBroker:
    """Give the control of the broker that a URL names; it is made at first use."""
    return _broker(parse_fakeredis_url(url).host)


def _broker(name: str) -> FakeRedisBroker:
    with _brokers_lock:
        if name not in _brokers:
            _brokers[name] = FakeRedisBroker(name)
        return _brokers[name]


def _fake_connection() -> Any:
    fakeredis = _fakeredis()
    server = fakeredis.FakeServer(version=(7,))
    return fakeredis.FakeRedis(server=server, version=(7,), protocol=2).connection_pool.make_connection()


def _fakeredis() -> Any:
    """Import fakeredis, which most installations don't need."""
    try:
        import fakeredis
        import lupa  # noqa: F401  # its Lua; without it scripts are unknown commands
    except ImportError as error:
        text = "fakeredis:// needs fakeredis with Lua: pip install 'pairmq-redis[fakeredis]'"
        raise ConfigurationError(text) from error
    return fakeredis


def _stores(command: Command) -> bool:
    return command[0] == b"XADD" or (command[0].startswith(b"EVAL") and command[1] in _STORING_SCRIPTS)


def _is_blocking(command: Command) -> bool:
    return command[0] == b"XREADGROUP" and len(command) > _BLOCK_AT and command[_BLOCK_AT] == b"BLOCK"
