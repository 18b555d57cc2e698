"""rabbitmq-server processes for tests: one, a cluster, and a pool that is kept from test to test and reset for each."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import secrets
import shutil
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import quote

from pairmq.testing.proxy import TcpProxy
from pairmq.testing.servers import (
    OwnDirectory,
    ServerError,
    ServerProcess,
    accepts_connections,
    free_port,
    start_together,
)
from pairmq_rabbitmq.testing._node import (
    ERLANG_CALL,
    HOST,
    NODE,
    Ports,
    answer,
    binary,
    environment_of,
    find_program,
    foreign_variables,
    write_cookie,
    write_files,
)
from pairmq_rabbitmq.testing._operator import DEFAULT_VHOST, Operator

_PORT_PLEASE: Final = 122  # "Protocol between a node and EPMD" in the description of Erlang's distribution protocol
_ALIVE: Final = 120
_FOUND: Final = b"\x77\0"


class Detour(socketserver.ThreadingTCPServer):
    """A node's own epmd: it passes on what the cluster's says, but names proxies as the ports of the other nodes."""

    daemon_threads = True

    def __init__(self, epmd: int, node: str) -> None:
        super().__init__((HOST, 0), _Request)
        self.epmd = epmd
        self.node = node
        self.proxies: dict[str, TcpProxy] = {}
        """Before each of the others, by its name."""
        threading.Thread(target=self.serve_forever, name=f"epmd of {node}", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def lead_to(self, node: str, port: int) -> None:
        self.proxies[node] = TcpProxy(HOST, port)
        self.proxies[node].start()

    def close(self) -> None:
        """End it and its proxies; idempotent."""
        self.shutdown()
        self.server_close()
        for proxy in self.proxies.values():
            proxy.close()


class _Request(socketserver.StreamRequestHandler):
    server: Detour

    def handle(self) -> None:
        mapper = self.server
        size = self.rfile.read(2)
        asked = self.rfile.read(int.from_bytes(size))
        if not asked:
            return
        with contextlib.suppress(OSError), socket.create_connection((HOST, mapper.epmd)) as epmd:
            epmd.sendall(size + asked)
            if asked[0] == _ALIVE:
                self.wfile.write(epmd.recv(64))
                self.rfile.read()  # the node is known for as long as it keeps its connection
                return
            answer = b"".join(iter(lambda: epmd.recv(4096), b""))
            proxy = mapper.proxies.get(asked[1:].decode()) if asked[0] == _PORT_PLEASE else None
            if proxy is not None and answer.startswith(_FOUND):
                answer = _FOUND + proxy.port.to_bytes(2) + answer[4:]
            self.wfile.write(answer)


# Everything that tests create; what a server has from the start stays, with its initial values. The supervisor of
# quorum queues' dead-lettering ends permanently when two of its workers fail within 5 s, as they may when a queue is
# deleted during their work; without it no such queue can be created or deleted. Hence the restarts, and two attempts.
RESET: Final = """
Us = <<"pairmq-reset">>, Vh = <<"/">>,
Restart = fun() -> case whereis(rabbit_fifo_dlx_sup) of
 undefined -> supervisor:restart_child(rabbit_sup, rabbit_fifo_dlx_sup); _ -> ok end end,
Restart(),
rabbit_networking:close_all_connections("reset by a test"),
[catch rabbit_vhost:delete(V, Us) || V <- rabbit_vhost:list_names(), V =/= Vh],
Restart(),
[rabbit_vhost:delete(V, Us) || V <- rabbit_vhost:list_names(), V =/= Vh],
case rabbit_vhost:exists(Vh) of true -> ok; false -> rabbit_vhost:add(Vh, Us) end,
[rabbit_runtime_parameters:clear_any(Vh, proplists:get_value(component, P), proplists:get_value(name, P), Us)
 || P <- rabbit_runtime_parameters:list(Vh)],
[rabbit_policy:delete(Vh, proplists:get_value(name, P), Us)
 || P <- rabbit_policy:list(Vh) ++ rabbit_policy:list_op(Vh)],
[catch rabbit_amqqueue:delete(Q, false, false, Us) || Q <- rabbit_amqqueue:list(Vh)],
Restart(),
[rabbit_amqqueue:delete(Q, false, false, Us) || Q <- rabbit_amqqueue:list(Vh)],
Restart(),
[rabbit_exchange:delete(element(2, X), false, Us) || X <- rabbit_exchange:list(Vh),
 case element(4, element(2, X)) of <<>> -> false; <<"amq.", _/binary>> -> false; _ -> true end],
Guest = <<"guest">>,
[rabbit_auth_backend_internal:delete_user(U, Us) || L <- rabbit_auth_backend_internal:list_users(),
 U <- [proplists:get_value(user, L)], U =/= Guest],
case rabbit_auth_backend_internal:exists(Guest) of
 true -> rabbit_auth_backend_internal:change_password(Guest, Guest, Us);
 false -> rabbit_auth_backend_internal:add_user(Guest, Guest, Us) end,
rabbit_auth_backend_internal:set_tags(Guest, [administrator], Us),
rabbit_auth_backend_internal:set_permissions(Guest, Vh, <<".*">>, <<".*">>, <<".*">>, Us),
length(rabbit_amqqueue:list())
"""

# The same supervisor may also end a moment after the reset, or in a test that stops the broker with quorum queues
# in it. This process restarts it whenever that happens; it lives as long as the virtual machine.
KEEP_RUNNING: Final = """
case whereis(pairmq_keeper) of
 undefined -> Us = self(), spawn(fun() -> true = register(pairmq_keeper, self()), Us ! watching,
  (fun Watch() -> case whereis(rabbit_fifo_dlx_sup) of
   undefined -> catch supervisor:restart_child(rabbit_sup, rabbit_fifo_dlx_sup), timer:sleep(20), Watch();
   Sup -> Ref = monitor(process, Sup), receive {'DOWN', Ref, _, _, _} -> Watch() end end end)() end),
  receive watching -> ok end;
 _ -> ok end
"""

# A process with this name exists until the boot is over; during it, `rabbit:start` would do nothing.
_AWAIT_BOOT = """
ok = rabbit:await_startup(),
(fun Wait() -> case whereis(rabbit_boot) of undefined -> ok; _ -> timer:sleep(5), Wait() end end)()
"""

# Which queues there are is in Mnesia, and from 4.3 on in Khepri.
_SETTLE = """
[ok = dets:sync(T) || T <- dets:all()],
case mnesia:system_info(is_running) of
 yes -> mnesia:sync_log();
 _ -> khepri:fence(rabbit_khepri:get_store_id()) end
"""

# How many nodes of the cluster run; the function has another name from 3.12 on.
_MEMBERS = """
All = case erlang:function_exported(rabbit_nodes, list_members, 0) of
 true -> rabbit_nodes:list_members(); false -> rabbit_nodes:all() end,
length([N || N <- All, rabbit:is_running(N)])
"""

_calls = itertools.count()
_NOT_CONNECTED = "failed to connect to node"
_CONNECTS_WITHIN = 30.0  # s
_BY_ITSELF_WITHIN = 20.0  # s
_TOGETHER_WITHIN = 120.0  # s
_RESET_WITHIN = 120.0  # s; hundreds of queues take a busy machine more than half a minute

_log = logging.getLogger(__name__)


class PortMapper(ServerProcess):
    """Erlang's epmd, by which nodes and `erl_call` find each other."""

    def __init__(self, program: str, port: int, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port = port
        super().__init__(
            [program, "-port", str(port), "-address", HOST],
            ready=lambda: accepts_connections(HOST, port),
            directory=directory,
            environment=foreign_variables(),
            name="epmd",
        )


@dataclass(frozen=True, slots=True)
class Seat:
    """A node's place in a cluster: its name, the cluster's port mapper, its own one, and the secret that all share."""

    node: str
    epmd: PortMapper
    detour: Detour | None
    cookie: str
    net_ticktime: int


class RabbitServer(Operator, ServerProcess):
    """A rabbitmq-server process that keeps its data over `kill` and `restart`; the user is guest, password guest.

    Args:
        tls: (certificate file, key file, file of authorities) for a second listener that speaks TLS and asks clients
            for no certificate; none when left out.
        management: whether it serves its HTTP API too; that makes booting slower.
        plugins: names of more plugins of the server, such as ``("rabbitmq_shovel",)``.
        config: more lines of its configuration file.
        port: TCP port for AMQP; a free one when left out.
        directory: where it keeps data and log; a temporary one, removed at the end, when left out.
        start_timeout: seconds until it must be ready.
        seat: its place in a cluster; see `RabbitCluster`.

    Raises:
        FileNotFoundError: rabbitmq-server is not installed; the text says how to install it.
    """

    def __init__(
        self,
        *,
        tls: tuple[Path | str, Path | str, Path | str] | None = None,
        management: bool = False,
        plugins: Sequence[str] = (),
        config: Sequence[str] = (),
        port: int | None = None,
        directory: Path | None = None,
        start_timeout: float = 240.0,
        seat: Seat | None = None,
    ) -> None:
        program, epmd, self._erl_call = _programs()
        self.node = seat.node if seat else NODE
        self._ports = Ports(
            amqp=port or free_port(),
            tls=free_port() if tls else None,
            management=free_port() if management else None,
            epmd=(seat.detour or seat.epmd).port if seat else free_port(),
            distribution=free_port(),
        )
        self.port = self._ports.amqp
        self.url = self.url_for()
        super().__init__(
            [str(program)],
            ready=self._answers,
            directory=directory,
            start_timeout=start_timeout,
            name="rabbitmq-server",
        )
        plugins = [*(["rabbitmq_management"] if management else []), *plugins]
        flags = f" -kernel net_ticktime {seat.net_ticktime}" if seat else ""
        self._environment = environment_of(self.directory.resolve(), self._ports, program, plugins, self.node, flags)
        self._own_epmd = seat is None
        self._epmd = seat.epmd if seat else PortMapper(epmd, self._ports.epmd, self.directory / "epmd")
        if seat is not None:
            write_cookie(self.directory, seat.cookie)
        write_files(self.directory, self._ports, tls, plugins, config)

    def url_for(self, user: str = "guest", password: str = "guest", vhost: str = DEFAULT_VHOST) -> str:  # noqa: S107
        """Return the address for a client."""
        path = "" if vhost == DEFAULT_VHOST else quote(vhost, safe="")
        return f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@{HOST}:{self.port}/{path}"

    @property
    def distribution_port(self) -> int:
        return self._ports.distribution

    @property
    def tls_port(self) -> int:
        """The port of the TLS listener.

        Raises:
            ValueError: the server was made without ``tls``.
        """
        if self._ports.tls is None:
            raise ValueError("this server was made without tls")
        return self._ports.tls

    @property
    def tls_url(self) -> str:
        """The address for a client that speaks TLS; the certificate has to be for 127.0.0.1.

        Raises:
            ValueError: the server was made without ``tls``.
        """
        return f"amqps://guest:guest@{HOST}:{self.tls_port}/"

    @property
    def management_url(self) -> str:
        """The address of the HTTP interface, without user and path.

        Raises:
            ValueError: the server was made without ``management``.
        """
        if self._ports.management is None:
            raise ValueError("this server was made without management")
        return f"http://{HOST}:{self._ports.management}"

    def kill(self, *, settle: bool = True) -> None:
        """End it with SIGKILL and wait until it has ended; without effect when it does not run.

        Args:
            settle: call `settle` before, if it answers: most tests that kill a server don't check what happens to
                queues that were created a moment ago.
        """
        if settle and self.running and not self._paused:
            with contextlib.suppress(ServerError):
                self.settle(timeout=10.0)
        super().kill()
        if self._own_epmd:
            self._epmd.kill()

    def settle(self, *, timeout: float = 30.0) -> None:
        """Have it write its queues' definitions to disk: it does so some seconds late, and messages at once.

        Args:
            timeout: seconds; a busy disk may take some.

        Raises:
            ServerError: it does not answer.
        """
        self.erl(_SETTLE, timeout=timeout)

    def stop(self, timeout: float = 20.0) -> None:
        """Ask it to end with SIGTERM, which takes a second, and kill it when it does not.

        Args:
            timeout: seconds to wait for it.
        """
        super().stop(timeout)
        if self._own_epmd:
            self._epmd.kill()

    def log_tail(self, lines: int = 100) -> str:
        """The end of what it logged: warnings and worse."""
        return super().log_tail(lines)

    def reset(self) -> None:
        """Reset it in some 50 ms: running, no fault, no client, and nothing in it that a test has created.

        Raises:
            ServerError: it cannot be started.
        """
        if self.running and self._paused:
            self.resume()
        if not self.running:
            self.start()
        if self.erl("rabbit:is_running()") != "true":
            self.come_up()
        self.unblock()
        self.accept_clients()
        self.erl(RESET, timeout=_RESET_WITHIN)

    def erl(self, expression: str, *, timeout: float = 30.0) -> str:
        """Evaluate an expression in the server, in some 20 ms, and return the value as Erlang writes it.

        Args:
            expression: Erlang expressions, separated by commas, without the full stop.
            timeout: seconds.

        Raises:
            ServerError: the server does not run, does not answer in time, or the expression failed or returned
                ``{error, …}``.
        """
        value = self._call(expression, 'io_lib:format("~0tp", [PairmqValue])', timeout)
        if value.startswith("{error,"):
            raise ServerError(f"{expression}: {value}")
        return value

    def _launch(self) -> None:
        self._watermark = None
        self._epmd.start()
        super()._launch()

    def _await_ready(self) -> None:
        try:
            self._await_boot()
        except ServerError:
            if self._own_epmd:
                raise
            # A boot never ends when the connection to another node breaks in the middle of it, as on a busy machine.
            self._launch()
            self._await_boot()

    def _await_boot(self) -> None:
        super()._await_ready()
        # It accepts clients a little before its boot is over, and a broker stopped before that never starts again.
        try:
            self.erl(_AWAIT_BOOT, timeout=self._start_timeout)
        except ServerError:
            self.kill()
            raise

    def _json(self, expression: str) -> Any:
        return json.loads(self._call(expression, "rabbit_json:encode(PairmqValue)", 100.0))

    def _call(self, expression: str, as_text: str, timeout: float) -> str:
        """Evaluate Erlang expressions in the node, and return the text that ``as_text`` makes of `PairmqValue`."""
        self._running_process()
        merged = {**os.environ, **self._environment}
        connected_by = time.monotonic() + min(timeout, _CONNECTS_WITHIN)
        while True:
            try:
                done = subprocess.run(  # Erlang's own program with arguments of this module
                    # By default all calls share one node name, and the server refuses one while it still knows another.
                    [self._erl_call, "-sname", self.node, "-h", f"call{os.getpid()}n{next(_calls)}", "-e"],
                    input=ERLANG_CALL % (expression, as_text),
                    env={name: value for name, value in merged.items() if value is not None},
                    capture_output=True,
                    text=True,
                    timeout=timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise ServerError(f"{self.name} did not answer within {timeout} s: {expression}") from None
            if _NOT_CONNECTED not in done.stderr or time.monotonic() > connected_by:
                break
            time.sleep(0.2)  # on a busy machine the node takes longer than Erlang's own limit of 7 s
        kind, text = answer(done.stdout)
        if kind == "ok":
            return text
        raise ServerError(f"{expression}: {text or done.stdout or done.stderr or f'status {done.returncode}'}")

    def _answers(self) -> bool:
        with socket.create_connection((HOST, self.port), timeout=1) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(connection.recv(1))


class RabbitCluster:
    """Three nodes of one cluster; each is a `RabbitServer`, to be killed, stopped, paused and started by itself.

    The nodes find each other by their configuration; start them all before any is stopped.

    Args:
        partition_handling: what nodes do that see no majority: ``pause_minority``, ``ignore`` or ``autoheal``.
        net_ticktime: seconds after which a node that does not respond counts as down for the others.
        config: more lines of each node's configuration file.
        divisible: whether `isolate` can be used; what nodes send each other then goes through proxies of this process.

    Attributes:
        nodes: the servers.

    Raises:
        FileNotFoundError: rabbitmq-server is not installed.
    """

    def __init__(
        self,
        *,
        partition_handling: str = "pause_minority",
        net_ticktime: int = 60,
        config: Sequence[str] = (),
        divisible: bool = False,
    ) -> None:
        _, epmd, _ = _programs()
        self._directory = OwnDirectory()
        self._epmd = PortMapper(epmd, free_port(), self._directory.path)
        cookie = secrets.token_hex(20)
        names = [f"pairmq{number}@localhost" for number in (1, 2, 3)]
        lines = [
            "cluster_formation.peer_discovery_backend = classic_config",
            *(f"cluster_formation.classic_config.nodes.{at} = {name}" for at, name in enumerate(names, 1)),
            f"cluster_partition_handling = {partition_handling}",
            *config,
        ]
        detours = [Detour(self._epmd.port, name.partition("@")[0]) if divisible else None for name in names]
        self.nodes = [
            RabbitServer(seat=Seat(name, self._epmd, detour, cookie, net_ticktime), config=lines, start_timeout=120.0)
            for name, detour in zip(names, detours, strict=True)
        ]
        self._detours = [detour for detour in detours if detour is not None]
        for detour in self._detours:
            for node in self.nodes:
                if node.node.partition("@")[0] != detour.node:
                    detour.lead_to(node.node.partition("@")[0], node.distribution_port)

    @property
    def url(self) -> str:
        """The address for a client, with all nodes."""
        return f"amqp://guest:guest@{','.join(f'{HOST}:{node.port}' for node in self.nodes)}/"

    def isolate(self, node: RabbitServer, *, silently: bool = True) -> None:
        """Separate a node from the others, until `start`; clients reach all of them.

        Args:
            node: one of the nodes.
            silently: let nothing pass, as a link that is down, so that the others notice it after ``net_ticktime``;
                otherwise close what is open and refuse what is new, which they notice at once.

        Raises:
            ValueError: the cluster was made without ``divisible``.
        """
        if not self._detours:
            raise ValueError("this cluster was made without divisible")
        name = node.node.partition("@")[0]
        for detour in self._detours:
            for to, proxy in detour.proxies.items():
                if name in (detour.node, to):
                    if silently:
                        proxy.silence()
                    else:
                        proxy.reset(refuse=True)

    def start(self) -> None:
        """Start the nodes that do not run, and wait until all are members of one cluster.

        A node that was paused or isolated for long may not come back by itself, and is restarted.

        Raises:
            ServerError: one did not start.
        """
        for detour in self._detours:
            for proxy in detour.proxies.values():
                proxy.restore()
        for node in self.nodes:
            if node.running and node._paused:
                node.resume()
        start_together(*self.nodes)
        if not self._come_together(_BY_ITSELF_WITHIN):
            for node in self.nodes:
                if self._seen_by(node) < 2:
                    node.kill(settle=False)
            start_together(*self.nodes)
            if not self._come_together(_TOGETHER_WITHIN):
                raise ServerError(f"the nodes did not form a cluster\n{self.nodes[0].log_tail()}")

    def _come_together(self, within: float) -> bool:
        deadline = time.monotonic() + within
        while any(self._seen_by(node) < len(self.nodes) for node in self.nodes):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    @staticmethod
    def _seen_by(node: RabbitServer) -> int:
        try:
            return int(node.erl(_MEMBERS))
        except ServerError:
            return 0

    def leader_of(self, queue: str) -> RabbitServer | None:
        """The node that leads a queue of the default virtual host, or holds a classic one; None where it is down.

        Raises:
            ServerError: no node answers, or the queue does not exist.
        """
        lookup = f"{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r({binary(DEFAULT_VHOST)}, queue, {binary(queue)}))"
        pid = "case amqqueue:get_pid(Q) of {_, N} -> N; P when is_pid(P) -> node(P); _ -> none end"
        asked = next(node for node in self.nodes if node.running and not node._paused)
        name = asked.erl(f"{lookup}, {pid}").strip("'")
        return next((node for node in self.nodes if node.node == name and node.running), None)

    def move_leader(self, queue: str, to: RabbitServer) -> None:
        """Have another node lead a quorum queue of the default virtual host, as ``rabbitmq-queues rebalance`` does.

        Raises:
            ServerError: it can't.
        """
        lookup = f"{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r({binary(DEFAULT_VHOST)}, queue, {binary(queue)}))"
        transfer = f"{lookup}, rabbit_quorum_queue:transfer_leadership(Q, '{to.node}')"
        deadline = time.monotonic() + _TOGETHER_WITHIN
        while self.leader_of(queue) is not to:  # one that is behind can't lead, and it is written down a little later
            if time.monotonic() > deadline:
                raise ServerError(f"{to.node} does not lead {queue}")
            with contextlib.suppress(ServerError):
                to.erl(transfer)
            time.sleep(0.2)

    def close(self) -> None:
        """End all nodes and remove their directories; idempotent."""
        for node in self.nodes:
            node.kill(settle=False)
            node.close()
        for detour in self._detours:
            detour.close()
        self._epmd.close()
        self._directory.remove()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RabbitPool:
    """Servers that are kept from test to test, since booting one takes seconds."""

    def __init__(self) -> None:
        self._servers: list[RabbitServer] = []

    def take(self, count: int) -> list[RabbitServer]:
        """Return servers that run and are empty; those that a test killed or broke are started again.

        The same servers each time, so two callers must not use them at once. They end with the thread that called
        this (see `pairmq.testing.servers`), so call it in the main thread.

        Raises:
            FileNotFoundError: rabbitmq-server is not installed.
            ServerError: one does not start.
        """
        while len(self._servers) < count:
            self._servers.append(RabbitServer())
        taken = self._servers[:count]
        with contextlib.suppress(ServerError):
            start_together(*taken)
        for position, server in enumerate(taken):
            try:
                server.reset()
            except ServerError as error:
                # A broken server is replaced entirely, as its data may be the cause.
                _log.warning("a server is replaced, since it could not be reset: %s\n%s", error, server.log_tail())
                server.close()
                server = self._servers[position] = taken[position] = RabbitServer()
                server.start()
        return taken

    def close(self) -> None:
        """End all servers and remove their directories; idempotent."""
        while self._servers:
            self._servers.pop().close()


def _programs() -> tuple[Path, str, str]:
    """The server, epmd and erl_call. Raises FileNotFoundError."""
    program, epmd, erl_call = find_program(), shutil.which("epmd"), shutil.which("erl_call")
    if program is None or epmd is None or erl_call is None:
        raise FileNotFoundError(
            "rabbitmq-server, or Erlang's epmd or erl_call, is missing: apt-get install rabbitmq-server"
        )
    return program, epmd, erl_call


pool = RabbitPool()
"""The servers of this process, for all test folders of one run; its user closes it at the end of the run."""
