"""Real Redis servers for tests, on free ports of this machine, with their data in temporary directories."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import redis
from redis.crc import key_slot

from pairmq.testing.conformance import Server, ServerHarness
from pairmq.testing.proxy import TcpProxy
from pairmq.testing.servers import ServerError, ServerProcess, free_port, start_together

_ANSWER_WITHIN = 30.0
"""Seconds: a server that writes to a busy disk may not respond for some."""


_AGREE_WITHIN = 120.0  # s


class RedisServer(ServerProcess):
    """A redis-server process that keeps its data over `kill` and `restart`.

    Args:
        appendfsync: when a write reaches the disk: ``always`` (before it is confirmed), ``everysec`` or ``no``.
        password: the default user's; none when left out.
        port: TCP port; a free one when left out.
        directory: where it keeps data and log; a temporary one, removed at the end, when left out.
        options: more of its command line, such as ``("--maxmemory", "1mb")``.
        rewritten: the beginning of a configuration file that the server and sentinels rewrite, so that a restart knows
            whom it followed; no file when left out.

    Raises:
        FileNotFoundError: redis-server is not installed; the text says how to install it.
    """

    def __init__(
        self,
        *,
        appendfsync: str = "always",
        password: str | None = None,
        port: int | None = None,
        directory: Path | None = None,
        options: tuple[str, ...] = (),
        rewritten: Sequence[str] | None = None,
    ) -> None:
        program = _redis_server()
        self.port = port or free_port()
        self.password = password
        login = f":{quote(password, safe='')}@" if password else ""
        self.url = f"redis://{login}127.0.0.1:{self.port}/0"
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", appendfsync, "--daemonize", "no"]
        if password:
            command += ["--requirepass", password]
        super().__init__(
            [*command, *options], ready=self._answers, directory=directory, start_timeout=60.0, name="redis-server"
        )
        if rewritten is not None:
            file = self.directory / "redis.conf"
            file.write_text("".join(f"{line}\n" for line in rewritten))
            self._command = [program, str(file), *command[1:], *options]

    def command(self, *arguments: str) -> str:
        """Send one command as a bare client and return the raw reply's first line; for what a test does to a
        server.

        Args:
            arguments: the command and its arguments, in ASCII.
        """
        return _first_line(self.port, self.password, *arguments)

    @property
    def role(self) -> str:
        """``master`` or ``slave``, in Redis' words."""
        return self.info("role")

    def info(self, name: str) -> str:
        """Read one field of what it says about its replication.

        Args:
            name: such as ``connected_slaves``; empty where it does not say so.
        """
        text = _whole_reply(self.port, self.password, "INFO", "replication")
        return next((line.partition(":")[2] for line in text.splitlines() if line.startswith(f"{name}:")), "")

    def flush(self) -> None:
        self.command("FLUSHALL")

    def _answers(self) -> bool:
        return self.command("PING") == "+PONG"


class RedisSentinel(ServerProcess):
    """A redis-sentinel process that watches one master.

    Args:
        service: the master's name.
        master: the master's port.
        quorum: sentinels that must find it down before one of them promotes a replica.
        down_after: seconds after which a server that does not respond counts as down.
        password: the servers'.
        port: TCP port; a free one when left out.
        lines: more lines of its configuration.

    Raises:
        FileNotFoundError: redis-server is not installed.
    """

    def __init__(
        self,
        service: str,
        master: int,
        quorum: int,
        down_after: float,
        password: str | None,
        *,
        port: int | None = None,
        lines: Sequence[str] = (),
    ) -> None:
        program = _redis_server()
        self.port = port or free_port()
        super().__init__([program], ready=self._answers, start_timeout=60.0, name="redis-sentinel")
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {service} 127.0.0.1 {master} {quorum}",
            f"sentinel down-after-milliseconds {service} {round(down_after * 1000)}",
            f"sentinel failover-timeout {service} 10000",
            *([f"sentinel auth-pass {service} {password}"] if password else []),
            *lines,
        ]
        file = self.directory / "sentinel.conf"
        file.write_text("\n".join(lines) + "\n")
        self._command = [program, str(file), "--sentinel"]

    def command(self, *arguments: str) -> str:
        """Send one command and return the raw reply's first line.

        Args:
            arguments: the command and its arguments, in ASCII.
        """
        return _first_line(self.port, None, *arguments)

    def _answers(self) -> bool:
        return self.command("PING") == "+PONG"


class _Group:
    """Servers that belong together, as one."""

    _processes: Sequence[ServerProcess]

    @property
    def running(self) -> bool:
        return all(each.running for each in self._processes)

    def start(self) -> None:
        """Start what does not run, let go on what is paused, and wait until all agree."""
        raise NotImplementedError

    def kill(self) -> None:
        for each in self._processes:
            each.kill()

    def pause(self) -> None:
        for each in self._processes:
            each.pause()

    def resume(self) -> None:
        self.start()

    def restart(self) -> None:
        """See `start`: they have their data."""
        self.start()

    def close(self) -> None:
        """End all; idempotent."""
        for each in self._processes:
            each.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RedisSentinels(_Group):
    """A master with two replicas and three sentinels, all real processes.

    Args:
        down_after: seconds after which a server that does not respond counts as down; Sentinel's default is 30.
        password: the servers'; the sentinels have none.
        divisible: whether `isolate` can be used; each is behind a proxy of this process then, and has an address of
            its own, as only Linux gives them without being asked.

    Attributes:
        service: the master's name.
        servers: the three; the first one begins as the master.
        sentinels: the three.

    Raises:
        FileNotFoundError: redis-server is not installed.
    """

    service = "orders-master"

    def __init__(self, *, down_after: float = 1.0, password: str | None = None, divisible: bool = False) -> None:
        ports = [free_port() for _ in range(6)]
        self._proxies = [TcpProxy("127.0.0.1", port) for port in ports] if divisible else []
        # Where the others and clients connect to.
        self._seen = [proxy.port for proxy in self._proxies] or ports
        login = _masterauth(password)
        follows = (f"replicaof 127.0.0.1 {self._seen[0]}",)
        self.servers = [
            RedisServer(
                password=password,
                port=ports[number],
                options=(*login, *" ".join(self._own(number, "--replica-announce-", "--bind-source-addr")).split()),
                rewritten=follows if number else (),
            )
            for number in range(3)
        ]
        self.sentinels = [
            RedisSentinel(
                self.service,
                self._seen[0],
                2,
                down_after,
                password,
                port=ports[number],
                lines=self._own(number, "sentinel announce-", "bind-source-addr"),
            )
            for number in range(3, 6)
        ]
        self._processes = [*self.sentinels, *self.servers]

    @property
    def url(self) -> str:
        """The address for a client, with all sentinels."""
        login = f":{quote(self.servers[0].password, safe='')}@" if self.servers[0].password else ""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._seen[3:])
        return f"redis+sentinel://{login}{hosts}/{self.service}"

    @property
    def master(self) -> RedisServer:
        """The server that says it is the master.

        Raises:
            ServerError: no server is, or two are.
        """
        found = [each for each in self.servers if each.running and not each._paused and each.role == "master"]
        if len(found) != 1:
            raise ServerError(f"{len(found)} servers are masters")
        return found[0]

    def isolate(self, *members: RedisServer | RedisSentinel, with_clients: bool = True) -> None:
        """Let nothing pass between some processes and the others, until `start`.

        Args:
            members: servers and sentinels.
            with_clients: clients reach only these, and not only the others.

        Raises:
            ValueError: this was made without ``divisible``.
        """
        if not self._proxies:
            raise ValueError("these servers were made without divisible")
        inside = [each in members for each in (*self.servers, *self.sentinels)]
        for number, proxy in enumerate(self._proxies):
            far = {_source(other) for other, its in enumerate(inside) if its != inside[number]}
            proxy.silence(clients=far if inside[number] == with_clients else {*far, "127.0.0.1"})

    def start(self) -> None:
        """Start what does not run, and wait until the replicas follow one master, and the sentinels know each other.

        Raises:
            ServerError: one did not start, or they do not agree.
        """
        for proxy in self._proxies:
            proxy.start()
            proxy.restore()
        for each in (*self.servers, *self.sentinels):
            if each.running and each._paused:
                each.resume()
        start_together(*self.servers)
        _await("the replicas follow", lambda: _is_followed(self.master, 2))
        start_together(*self.sentinels)
        _await("the sentinels agree", lambda: all(self._is_complete(each) for each in self.sentinels))

    def demote(self) -> None:
        """Have the sentinels promote a replica, as an operator does; returns when it is the master.

        Raises:
            ServerError: they don't.
        """
        before = self.master
        self.sentinels[0].command("SENTINEL", "FAILOVER", self.service)
        _await("another server is the master", lambda: self.master is not before)

    def close(self) -> None:
        """End all; idempotent."""
        super().close()
        for proxy in self._proxies:
            proxy.close()

    def _own(self, number: int, announced: str, source: str) -> list[str]:
        """Options of a process about its proxy and its own address: none where nothing is divisible."""
        if not self._proxies:
            return []
        port = self._seen[number]
        return [f"{announced}ip 127.0.0.1", f"{announced}port {port}", f"{source} {_source(number)}"]

    def _is_complete(self, sentinel: RedisSentinel) -> bool:
        # A master's name is followed by its state, its replicas and the sentinels that know it.
        summary = _whole_reply(sentinel.port, None, "INFO", "sentinel")
        return "status=ok" in summary and "slaves=2,sentinels=3" in summary


class RedisCluster(_Group):
    """A cluster of three masters, all real processes, Redis 7.0 or newer.

    Args:
        replicas: of each master.
        node_timeout: seconds after which a node that does not respond counts as down; Redis' default is 15.
        password: of all nodes.

    Attributes:
        servers: all nodes; the first three begin as the masters.

    Raises:
        FileNotFoundError: redis-server is not installed.
    """

    def __init__(self, *, replicas: int = 0, node_timeout: float = 1.0, password: str | None = None) -> None:
        self._replicas = replicas
        self._made = False
        self.servers = [
            RedisServer(
                password=password,
                appendfsync="no",
                options=(
                    *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
                    *("--cluster-port", str(free_port()), "--cluster-node-timeout", str(round(node_timeout * 1000))),
                    *_masterauth(password),
                ),
            )
            for _ in range(3 * (1 + replicas))
        ]
        self._processes = self.servers

    @property
    def url(self) -> str:
        """The address for a client, with all nodes."""
        login = f":{quote(self.servers[0].password, safe='')}@" if self.servers[0].password else ""
        return f"redis+cluster://{login}{','.join(f'127.0.0.1:{server.port}' for server in self.servers)}"

    def owner(self, path: str) -> RedisServer:
        """Find the node that has a queue or topic.

        Args:
            path: the queue's or topic's.

        Raises:
            ServerError: no node that runs has it.
        """
        slot = key_slot(path.encode())
        for asked in self.servers:
            if not asked.running or asked._paused:
                continue
            for first, last, (_, port, *_), *_ in _ask(asked, "CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return next(server for server in self.servers if server.port == port)
        raise ServerError(f"no node has slot {slot}")

    def start(self) -> None:
        """Start what does not run, and wait until all nodes agree.

        Raises:
            ServerError: one did not start, or they do not agree.
        """
        for server in self.servers:
            if server.running and server._paused:
                server.resume()
        start_together(*self.servers)
        if not self._made:
            self._make()
        _await("the nodes agree", self._is_complete)

    def move(self, path: str, to: RedisServer, *, pause: float = 0.0) -> None:
        """Move the slot of a queue or topic to another master, as an operator does.

        Args:
            path: the queue's or topic's.
            to: the other master.
            pause: seconds before each key, and before the slot is the other's.
        """
        slot = key_slot(path.encode())
        before = self.owner(path)
        target, source = _ask(to, "CLUSTER", "MYID"), _ask(before, "CLUSTER", "MYID")
        _ask(to, "CLUSTER", "SETSLOT", slot, "IMPORTING", source)
        _ask(before, "CLUSTER", "SETSLOT", slot, "MIGRATING", target)
        login = ("AUTH", to.password) if to.password else ()
        while keys := _ask(before, "CLUSTER", "GETKEYSINSLOT", slot, 1):
            time.sleep(pause)
            _ask(before, "MIGRATE", "127.0.0.1", to.port, "", 0, 60_000, *login, "KEYS", *keys)
        time.sleep(pause)
        # The new owner first: otherwise there is a moment in which no node owns the slot.
        others = (each for each in self.servers if each.role == "master" and each not in (to, before))
        for server in (to, before, *others):
            _ask(server, "CLUSTER", "SETSLOT", slot, "NODE", target)

    def flush(self) -> None:
        for server in self.servers:
            server.flush()

    def demote(self, path: str) -> None:
        """Have a replica of a queue's node promoted, as an operator does; returns when it is the master."""
        before = self.owner(path)
        for server in self.servers:
            if server.role == "slave" and server.info("master_port") == str(before.port):
                server.command("CLUSTER", "FAILOVER")
                break
        _await("a replica is promoted", lambda: self.owner(path) is not before)

    def _make(self) -> None:
        masters, replicas = self.servers[:3], self.servers[3:]
        for number, server in enumerate(masters):
            first, last = 16384 * number // 3, 16384 * (number + 1) // 3 - 1
            server.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
            server.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for server in self.servers[1:]:
            bus = server._command[server._command.index("--cluster-port") + 1]
            masters[0].command("CLUSTER", "MEET", "127.0.0.1", str(server.port), bus)
        for number, server in enumerate(replicas):
            follow = ("CLUSTER", "REPLICATE", _ask(masters[number % 3], "CLUSTER", "MYID").decode())
            _await("a master is known", partial(_follows, server, follow))
        self._made = True

    def _is_complete(self) -> bool:
        wanted = f"cluster_known_nodes:{len(self.servers)}\r"
        for server in self.servers:
            state = _whole_reply(server.port, server.password, "CLUSTER", "INFO")
            if "cluster_state:ok" not in state or wanted not in state:
                return False
        masters = [server for server in self.servers if server.role == "master"]
        return len(masters) == 3 and all(_is_followed(each, self._replicas) for each in masters)


def _ask(server: RedisServer, *command: str | int | bytes) -> Any:
    """For replies of more than one line."""
    with redis.Redis(port=server.port, password=server.password, socket_timeout=_ANSWER_WITHIN) as client:
        return client.execute_command(*command)


def _follows(server: RedisServer, command: tuple[str, ...]) -> bool:
    return server.command(*command) == "+OK"


def _is_followed(master: RedisServer, replicas: int) -> bool:
    """Whether so many replicas have caught up, and no more are known."""
    states = [master.info(f"slave{number}") for number in range(replicas)]
    return master.info("connected_slaves") == str(replicas) and all("state=online" in state for state in states)


def _await(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _AGREE_WITHIN
    while True:
        with contextlib.suppress(ServerError, OSError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise ServerError(f"it did not come about that {what}")
        time.sleep(0.05)


def _source(number: int) -> str:
    """The address from which one of several processes connects to the others."""
    return f"127.0.0.{11 + number}"


def _masterauth(password: str | None) -> tuple[str, ...]:
    return ("--masterauth", password) if password else ()


def _redis_server() -> str:
    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server is not on PATH: apt-get install redis-server")
    return program


def _first_line(port: int, password: str | None, *arguments: str) -> str:
    return _whole_reply(port, password, *arguments).partition("\r\n")[0]


def _whole_reply(port: int, password: str | None, *arguments: str) -> str:
    """What a bare client gets: a first line, and the text that follows where that says its length."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_WITHIN) as connection,
        connection.makefile("rwb") as stream,
    ):

        def call(*words: str) -> str:
            parts = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
            stream.write(f"*{len(words)}\r\n{parts}".encode())
            stream.flush()
            line = stream.readline()
            text = stream.read(int(line[1:]) + 2) if line.startswith(b"$") and line[1:2] != b"-" else b""
            return (line + text).decode(errors="replace")

        if password:
            call("AUTH", password)
        return call(*arguments)


class RedisHarness(ServerHarness):
    """Redis for the conformance suite, with a password: one server for the whole run, which syncs every write.

    Args:
        cluster: a cluster of three masters instead.
    """

    time_limit = 100.0

    def __init__(self, *, cluster: bool = False) -> None:
        super().__init__()
        self._cluster = cluster

    def start(self) -> Server:
        password = secrets.token_hex(8) + "/ä"
        self._redis: RedisServer | RedisCluster
        self._redis = RedisCluster(password=password) if self._cluster else RedisServer(password=password)
        self._redis.start()
        return self._redis

    def clear(self, server: Server) -> str:
        self._redis.flush()
        # Abandoned messages wake other receivers after this interval.
        return f"{self._redis.url}?poll_interval=0.2&connect_timeout=30"

    async def refuse_writes(self) -> bool:
        """Make it run out of memory."""
        await self._limit_memory("1")
        return True

    async def restore(self) -> None:
        await super().restore()
        await self._limit_memory("0")

    async def _limit_memory(self, limit: str) -> None:
        servers = self._redis.servers if isinstance(self._redis, RedisCluster) else [self._redis]
        for server in servers:
            await self.by_hand(partial(server.command, "CONFIG", "SET", "maxmemory", limit))
