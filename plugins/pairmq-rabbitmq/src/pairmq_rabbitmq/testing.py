"""Real RabbitMQ servers for tests: on free ports of this machine, apart from whatever else runs here.

Each server has its own port mapper (epmd), Erlang cookie, node name and directories, so that any number of them run
side by side and none meets a RabbitMQ that the system runs. A boot takes seconds: tests share servers through a
`RabbitPool`, and most of them can take a server away with `RabbitServer.go_down` instead of a kill.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import logging
import os
import re
import secrets
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from pairmq.testing.conformance import Interruption, Server, ServerHarness
from pairmq.testing.servers import ServerError, ServerProcess, free_port, start_together

__all__ = ["RabbitHarness", "RabbitPool", "RabbitServer", "pool", "start_together"]

# The wrapper of the same name on PATH switches to the user rabbitmq, and refuses everyone but root and that user.
_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_HOST = "127.0.0.1"
_NODE = "pairmq@localhost"
_DEFAULT_VHOST = "/"

# Two schedulers and one thread for files boot in 3 s where the defaults take 5 on two cores; many would only
# compete with the tests. A node with a name from the start does not spend a second on looking for an epmd.
_ERLANG_FLAGS = "+S 2:2 +SDcpu 1:1 +A 1 -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"

# Gives the value, or the error, as text that no printing of terms can mangle.
_ERLANG_CALL = """
begin PairmqText = fun(T) -> base64:encode_to_string(unicode:characters_to_binary(T)) end,
try begin PairmqValue = begin %s end, PairmqText(%s) end of Ok -> "ok " ++ Ok
catch C:R -> "error " ++ PairmqText(io_lib:format("~0tp: ~0tp", [C, R])) end end.
"""

# The process of this name is there until the boot is over; looking at nothing else, `rabbit:start` would do nothing.
_AWAIT_BOOT = """
ok = rabbit:await_startup(),
(fun Wait() -> case whereis(rabbit_boot) of undefined -> ok; _ -> timer:sleep(5), Wait() end end)()
"""

# Everything that tests make; what a server has from the start stays, with its first values. The supervisor of quorum
# queues' dead-lettering ends for good when two of its workers fail within 5 s, as they may when a queue is deleted in
# the midst of its work; without it no such queue can be made or deleted. Hence the mending, and two attempts.
_RESET = """
Us = <<"pairmq-reset">>, Vh = <<"/">>,
Mend = fun() -> case whereis(rabbit_fifo_dlx_sup) of
 undefined -> supervisor:restart_child(rabbit_sup, rabbit_fifo_dlx_sup); _ -> ok end end,
Mend(),
rabbit_networking:close_all_connections("reset by a test"),
[catch rabbit_vhost:delete(V, Us) || V <- rabbit_vhost:list_names(), V =/= Vh],
Mend(),
[rabbit_vhost:delete(V, Us) || V <- rabbit_vhost:list_names(), V =/= Vh],
case rabbit_vhost:exists(Vh) of true -> ok; false -> rabbit_vhost:add(Vh, Us) end,
[rabbit_runtime_parameters:clear_any(Vh, proplists:get_value(component, P), proplists:get_value(name, P), Us)
 || P <- rabbit_runtime_parameters:list(Vh)],
[rabbit_policy:delete(Vh, proplists:get_value(name, P), Us)
 || P <- rabbit_policy:list(Vh) ++ rabbit_policy:list_op(Vh)],
[catch rabbit_amqqueue:delete(Q, false, false, Us) || Q <- rabbit_amqqueue:list(Vh)],
Mend(),
[rabbit_amqqueue:delete(Q, false, false, Us) || Q <- rabbit_amqqueue:list(Vh)],
Mend(),
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

# The same supervisor may also end a moment after the reset, or in a test that takes the broker down with quorum queues
# in it. This process starts it again whenever that happens; it lives as long as the virtual machine.
_KEEP_MENDED = """
case whereis(pairmq_mender) of
 undefined -> Us = self(), spawn(fun() -> true = register(pairmq_mender, self()), Us ! watching,
  (fun Watch() -> case whereis(rabbit_fifo_dlx_sup) of
   undefined -> catch supervisor:restart_child(rabbit_sup, rabbit_fifo_dlx_sup), timer:sleep(20), Watch();
   Sup -> Ref = monitor(process, Sup), receive {'DOWN', Ref, _, _, _} -> Watch() end end end)() end),
  receive watching -> ok end;
 _ -> ok end
"""


class RabbitServer(ServerProcess):
    """A rabbitmq-server process that keeps its data over `kill` and `restart`; the user is guest, password guest.

    Args:
        tls: (certificate file, key file, file of authorities) for a second listener that speaks TLS and asks clients
            for no certificate; none when left out.
        management: whether it serves its HTTP interface too; that makes booting slower.
        plugins: names of more plugins of the server, such as ``("rabbitmq_shovel",)``.
        config: more lines of its configuration file.
        port: TCP port for AMQP; a free one when left out.
        directory: where it keeps data and log; a temporary one, removed at the end, when left out.
        start_timeout: seconds until it must be ready.

    Raises:
        FileNotFoundError: there is no rabbitmq-server; the text says how to get it.
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
        start_timeout: float = 90.0,
    ) -> None:
        program = _find_program()
        epmd, self._erl_call = shutil.which("epmd"), shutil.which("erl_call")
        if program is None or epmd is None or self._erl_call is None:
            raise FileNotFoundError(
                "rabbitmq-server, or Erlang's epmd or erl_call, is missing: apt-get install rabbitmq-server"
            )
        self.port = port or free_port()
        self.url = self.url_for()
        self._tls_port = free_port() if tls else None
        self._management_port = free_port() if management else None
        self._epmd_port, self._distribution_port = free_port(), free_port()
        self._watermark: str | None = None
        super().__init__(
            [str(program)],
            ready=self._answers,
            directory=directory,
            start_timeout=start_timeout,
            name="rabbitmq-server",
        )
        home = self.directory.resolve()
        # Nothing that is set for another RabbitMQ or Erlang may reach this one; systemd must not hear of it either.
        foreign = {name: None for name in os.environ if name.startswith(("RABBITMQ_", "ERL_"))}
        self._environment = {
            **foreign,
            "NOTIFY_SOCKET": None,
            "HOME": str(home),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": _HOST,
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(home / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(home / "generated"),
            "RABBITMQ_PID_FILE": str(home / "server.pid"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                f"{_ERLANG_FLAGS} -sname {_NODE} -kernel inet_dist_listen_min {self._distribution_port}"
                f" -kernel inet_dist_listen_max {self._distribution_port}"
            ),
            # Makes the script become the server, so that the process id is the server's.
            "RUNNING_UNDER_SYSTEMD": "true",
        }
        epmd_directory = self.directory / "epmd"
        epmd_directory.mkdir(parents=True, exist_ok=True)
        self._epmd = ServerProcess(
            [epmd, "-port", str(self._epmd_port), "-address", _HOST],
            ready=self._epmd_answers,
            directory=epmd_directory,
            environment={**foreign, "NOTIFY_SOCKET": None},
            name="epmd",
        )
        self._write_files(tls, [*(["rabbitmq_management"] if management else []), *plugins], config)

    # ------------------------------------------------------------------ addresses

    def url_for(self, user: str = "guest", password: str = "guest", vhost: str = _DEFAULT_VHOST) -> str:  # noqa: S107
        """Give the address for a client.

        Args:
            user: who connects.
            password: that user's.
            vhost: virtual host; the default one ends the address with a bare slash.
        """
        path = "" if vhost == _DEFAULT_VHOST else quote(vhost, safe="")
        return f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@{_HOST}:{self.port}/{path}"

    @property
    def tls_port(self) -> int:
        """The port of the TLS listener.

        Raises:
            ValueError: the server was made without ``tls``.
        """
        if self._tls_port is None:
            raise ValueError("this server was made without tls")
        return self._tls_port

    @property
    def tls_url(self) -> str:
        """The address for a client that speaks TLS; the certificate has to be for 127.0.0.1.

        Raises:
            ValueError: the server was made without ``tls``.
        """
        return f"amqps://guest:guest@{_HOST}:{self.tls_port}/"

    @property
    def management_url(self) -> str:
        """The address of the HTTP interface, without user and path.

        Raises:
            ValueError: the server was made without ``management``.
        """
        if self._management_port is None:
            raise ValueError("this server was made without management")
        return f"http://{_HOST}:{self._management_port}"

    # ------------------------------------------------------------------ the process

    def kill(self, *, settle: bool = True) -> None:
        """End it with SIGKILL and wait until it is gone; without effect when it does not run.

        Args:
            settle: call `settle` before, if it answers: most tests that kill a server don't ask what becomes of
                queues that were made a moment ago.
        """
        if settle and self.running and not self._paused:
            with contextlib.suppress(ServerError):
                self.settle()
        super().kill()
        self._epmd.kill()

    def settle(self) -> None:
        """Have it write to the disk which queues there are: it does so some seconds late, messages it writes at once.

        Raises:
            ServerError: it does not answer.
        """
        self.erl("[ok = dets:sync(T) || T <- dets:all()], mnesia:sync_log()", timeout=3.0)

    def stop(self, timeout: float = 20.0) -> None:
        """Ask it to end with SIGTERM, which takes it a second, and kill it when it does not.

        Args:
            timeout: seconds to wait for it.
        """
        super().stop(timeout)
        self._epmd.kill()

    def log_tail(self, lines: int = 100) -> str:
        """The end of what it logged: warnings and worse.

        Args:
            lines: how many lines; Erlang writes some forty about the end of the server below the reason for it.
        """
        return super().log_tail(lines)

    # ------------------------------------------------------------------ faults

    def go_down(self) -> None:
        """Take the broker away in 0.1 s and leave its virtual machine: clients are cut off, new ones refused.

        Raises:
            ServerError: it does not run or does not answer.
        """
        self.erl("rabbit:stop()", timeout=60)

    def come_up(self) -> None:
        """Bring the broker back after `go_down`, in 0.6 s; without effect when it is there.

        Raises:
            ServerError: it does not run, or the broker does not start.
        """
        self._watermark = None  # starting sets it anew
        self.erl("rabbit:start(), true = rabbit:is_running()", timeout=60)

    def block(self) -> None:
        """Raise the memory alarm: connections that publish are not read any more, until `unblock`.

        Raises:
            ServerError: it does not run or does not answer.
        """
        if self._watermark is None:
            self._watermark = self.erl("vm_memory_monitor:get_vm_memory_high_watermark()")
        # Asking for the alarms waits until this one has been told to the connections.
        self._set_watermark(
            "0.0", "true = lists:keymember({resource_limit, memory, node()}, 1, rabbit_alarm:get_alarms())"
        )

    def unblock(self) -> None:
        """End the memory alarm; without effect when `block` was not called.

        Raises:
            ServerError: it does not run or does not answer.
        """
        if self._watermark is not None:
            self._set_watermark(
                self._watermark,
                "false = lists:keymember({resource_limit, memory, node()}, 1, rabbit_alarm:get_alarms())",
            )
            self._watermark = None

    def refuse_clients(self) -> None:
        """Refuse new connections and keep those that are open, until `accept_clients`.

        Raises:
            ServerError: it does not run or does not answer.
        """
        self.erl("rabbit_maintenance:suspend_all_client_listeners()")

    def accept_clients(self) -> None:
        """Take new connections again after `refuse_clients`.

        Raises:
            ServerError: it does not run or does not answer.
        """
        self.erl("rabbit_maintenance:resume_all_client_listeners()")

    def drop_clients(self, reason: str = "dropped by a test") -> None:
        """Close all connections in order, as an operator does (reply code 320); new ones are taken.

        Args:
            reason: what the clients are told.

        Raises:
            ServerError: it does not run or does not answer.
        """
        self.erl(f"rabbit_networking:close_all_connections({_string(reason)})")

    # ------------------------------------------------------------------ what operators do

    def add_user(
        self,
        name: str,
        password: str,
        *,
        vhost: str | None = _DEFAULT_VHOST,
        configure: str = ".*",
        write: str = ".*",
        read: str = ".*",
        tags: Sequence[str] = (),
    ) -> None:
        """Make a user.

        Args:
            name: the user's.
            password: the user's.
            vhost: where it gets permissions; nowhere with None.
            configure: expression for the names that it may declare and delete.
            write: expression for the names that it may publish to.
            read: expression for the names that it may read from.
            tags: such as ``("administrator",)``.

        Raises:
            ServerError: there is such a user, or the server does not answer.
        """
        words = ", ".join(f"binary_to_atom({_binary(tag)})" for tag in tags)
        self.erl(
            f"ok = rabbit_auth_backend_internal:add_user({_binary(name)}, {_binary(password)}, {_ACTOR}),"
            f" rabbit_auth_backend_internal:set_tags({_binary(name)}, [{words}], {_ACTOR})"
        )
        if vhost is not None:
            self.set_permissions(name, vhost=vhost, configure=configure, write=write, read=read)

    def change_password(self, name: str, password: str) -> None:
        """Give a user another password; connections that are open stay.

        Args:
            name: the user's.
            password: the new one.

        Raises:
            ServerError: there is no such user, or the server does not answer.
        """
        self.erl(f"ok = rabbit_auth_backend_internal:change_password({_binary(name)}, {_binary(password)}, {_ACTOR})")

    def set_permissions(
        self, name: str, *, vhost: str = _DEFAULT_VHOST, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        """Set what a user may do; open channels go on for a while with what they were once allowed.

        Args:
            name: the user's.
            vhost: where.
            configure: expression for the names that it may declare and delete; nothing with ``""``.
            write: expression for the names that it may publish to.
            read: expression for the names that it may read from.

        Raises:
            ServerError: there is no such user or virtual host, or the server does not answer.
        """
        arguments = ", ".join(_binary(text) for text in (name, vhost, configure, write, read))
        self.erl(f"ok = rabbit_auth_backend_internal:set_permissions({arguments}, {_ACTOR})")

    def delete_user(self, name: str) -> None:
        """Delete a user, whose connections are closed.

        Args:
            name: the user's.

        Raises:
            ServerError: there is no such user, or the server does not answer.
        """
        self.erl(f"ok = rabbit_auth_backend_internal:delete_user({_binary(name)}, {_ACTOR})")

    def add_vhost(self, name: str, *, user: str = "guest") -> None:
        """Make a virtual host.

        Args:
            name: the virtual host's.
            user: who may do everything in it.

        Raises:
            ServerError: there is such a virtual host or no such user, or the server does not answer.
        """
        self.erl(f"false = rabbit_vhost:exists({_binary(name)}), rabbit_vhost:add({_binary(name)}, {_ACTOR})")
        self.set_permissions(user, vhost=name)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host and all in it; its connections are closed.

        Args:
            name: the virtual host's.

        Raises:
            ServerError: there is no such virtual host, or the server does not answer.
        """
        self.erl(f"ok = rabbit_vhost:delete({_binary(name)}, {_ACTOR})")

    def delete_queue(self, name: str, *, vhost: str = _DEFAULT_VHOST) -> None:
        """Delete a queue with its messages.

        Args:
            name: the queue's.
            vhost: where.

        Raises:
            ServerError: there is no such queue, or the server does not answer.
        """
        self.erl(
            f"{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r({_binary(vhost)}, queue, {_binary(name)})),"
            f" {{ok, _}} = rabbit_amqqueue:delete(Queue, false, false, {_ACTOR})"
        )

    def set_policy(
        self,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        *,
        vhost: str = _DEFAULT_VHOST,
        target: str = "queues",
    ) -> None:
        """Set a policy.

        Args:
            name: the policy's.
            pattern: expression for the names that it is for.
            definition: such as ``{"max-length": 3, "overflow": "reject-publish"}``.
            vhost: where.
            target: ``queues``, ``exchanges`` or ``all``.

        Raises:
            ServerError: the server refuses it or does not answer.
        """
        self.erl(
            f"ok = rabbit_policy:set({_binary(vhost)}, {_binary(name)}, {_binary(pattern)},"
            f" maps:to_list(rabbit_json:decode({_binary(json.dumps(definition))})), 0, {_binary(target)}, {_ACTOR})"
        )

    def queues(self, vhost: str = _DEFAULT_VHOST) -> dict[str, tuple[int, int]]:
        """Count the messages, asking each queue now: name to (ready, delivered and not acknowledged).

        Args:
            vhost: where.

        Raises:
            ServerError: there is no such virtual host, or the server does not answer.
        """
        found = self._json(
            f"true = rabbit_vhost:exists({_binary(vhost)}),"
            " [begin [R, U] = case amqqueue:get_type(Q) of"
            # What the server itself tells of a quorum queue is some seconds old: its leader knows.
            " rabbit_quorum_queue -> {ok, {_, O}, _} ="
            " ra:leader_query(amqqueue:get_pid(Q), fun rabbit_fifo:overview/1, 10000),"
            " [maps:get(K, O) || K <- [num_ready_messages, num_checked_out]];"
            " _ -> [N || {_, N} <- rabbit_amqqueue:info(Q, [messages_ready, messages_unacknowledged])] end,"
            " [element(4, element(2, Q)), R, U] end"
            f" || Q <- rabbit_amqqueue:list({_binary(vhost)})]"
        )
        return {name: (ready, unacknowledged) for name, ready, unacknowledged in found}

    def connections(self) -> int:
        """Count the clients' connections.

        Raises:
            ServerError: it does not run or does not answer.
        """
        return int(self.erl("length(rabbit_networking:connections())"))

    def reset(self) -> None:
        """Make it as new in some 50 ms: running, no fault, no client, and nothing in it that a test has made.

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
        self.erl(_RESET)

    def erl(self, expression: str, *, timeout: float = 20.0) -> str:
        """Evaluate an expression in the server, in some 20 ms, and give the value as Erlang writes it.

        Args:
            expression: Erlang expressions, separated by commas, without the full stop.
            timeout: seconds.

        Raises:
            ServerError: the server does not run, does not answer in time, or the expression failed or gave
                ``{error, …}``.
        """
        value = self._call(expression, 'io_lib:format("~0tp", [PairmqValue])', timeout)
        if value.startswith("{error,"):
            raise ServerError(f"{expression}: {value}")
        return value

    def __enter__(self) -> Self:
        self.start()
        return self

    # ------------------------------------------------------------------ inside

    def _launch(self) -> None:
        self._watermark = None
        self._epmd.start()
        super()._launch()

    def _await_ready(self) -> None:
        super()._await_ready()
        # It takes clients a little before its boot is over, and a broker that goes down before that never comes up.
        try:
            self.erl(_AWAIT_BOOT, timeout=self._start_timeout)
        except ServerError:
            self.kill()
            raise

    def _json(self, expression: str) -> Any:
        return json.loads(self._call(expression, "rabbit_json:encode(PairmqValue)", 20.0))

    def _call(self, expression: str, as_text: str, timeout: float) -> str:
        self._running_process()
        environment = {**os.environ, **self._environment}
        try:
            done = subprocess.run(  # noqa: S603  # Erlang's own program, nothing from outside
                # Under its own name all calls have one, and the server refuses one while it still knows another.
                [str(self._erl_call), "-sname", _NODE, "-h", f"call{os.getpid()}n{next(_calls)}", "-e"],
                input=_ERLANG_CALL % (expression, as_text),
                env={name: value for name, value in environment.items() if value is not None},
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ServerError(f"{self.name} did not answer within {timeout} s: {expression}") from None
        kind, text = _answer(done.stdout)
        if kind == "ok":
            return text
        raise ServerError(f"{expression}: {text or done.stdout or done.stderr or f'status {done.returncode}'}")

    def _set_watermark(self, value: str, check: str) -> None:
        self.erl(f"vm_memory_monitor:set_vm_memory_high_watermark({value}), {check}")

    def _write_files(
        self,
        tls: tuple[Path | str, Path | str, Path | str] | None,
        plugins: Sequence[str],
        config: Sequence[str],
    ) -> None:
        lines = [
            f"listeners.tcp.1 = {_HOST}:{self.port}",
            # A nearly full disk or memory of the machine that runs the tests is no alarm.
            "disk_free_limit.absolute = 1MB",
            "vm_memory_high_watermark.relative = 0.9",
            # To standard output, where `log_tail` reads.
            "log.file = false",
            "log.console = true",
            "log.console.level = warning",
            "log.console.formatter = plaintext",
        ]
        if tls is not None:
            certificate, key, authorities = (str(Path(path).resolve()) for path in tls)
            lines += [
                f"listeners.ssl.1 = {_HOST}:{self._tls_port}",
                f"ssl_options.certfile = {certificate}",
                f"ssl_options.keyfile = {key}",
                f"ssl_options.cacertfile = {authorities}",
                "ssl_options.verify = verify_none",
                "ssl_options.fail_if_no_peer_cert = false",
            ]
        if self._management_port is not None:
            lines += [f"management.tcp.ip = {_HOST}", f"management.tcp.port = {self._management_port}"]
        (self.directory / "rabbitmq.conf").write_text("\n".join([*lines, *config]) + "\n")
        (self.directory / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        cookie = self.directory / ".erlang.cookie"
        if not cookie.exists():
            cookie.touch(mode=0o600)
            cookie.write_text(secrets.token_hex(20))
            cookie.chmod(0o400)

    def _answers(self) -> bool:
        with socket.create_connection((_HOST, self.port), timeout=1) as connection:
            connection.sendall(b"AMQP\x00\x00\x09\x01")
            return bool(connection.recv(1))

    def _epmd_answers(self) -> bool:
        with socket.create_connection((_HOST, self._epmd_port), timeout=1):
            return True


def _find_program() -> Path | None:
    if _PROGRAM.exists():
        return _PROGRAM
    # Elsewhere the programs lie beside each other, without wrappers.
    command = shutil.which("rabbitmqctl")
    beside = Path(command).resolve().with_name("rabbitmq-server") if command else None
    return beside if beside is not None and beside.exists() else None


_log = logging.getLogger(__name__)
_calls = itertools.count()

# Who the server's records say it was.
_ACTOR = '<<"pairmq">>'


def _binary(text: str) -> str:
    # Readable where that is safe, since errors show it; else by its bytes, so that nothing has to be escaped.
    if re.fullmatch(r"[\w ./*^$#:-]*", text, re.ASCII):
        return f'<<"{text}">>'
    return f"<<{','.join(str(byte) for byte in text.encode())}>>"


def _string(text: str) -> str:
    return f"unicode:characters_to_list({_binary(text)})"


def _answer(printed: str) -> tuple[str, str]:
    # erl_call prints short strings as such and long ones as lists of numbers.
    found = re.fullmatch(r'\s*\{ok, (?:"(?P<text>[^"]*)"|\[(?P<codes>[\d, ]*)\])\}\s*', printed)
    if found is None:
        return "", ""
    text = found["text"] if found["codes"] is None else "".join(chr(int(code)) for code in found["codes"].split(","))
    kind, _, encoded = text.partition(" ")
    return kind, base64.b64decode(encoded).decode()


class RabbitPool:
    """Servers that are kept from test to test, since booting one takes seconds."""

    def __init__(self) -> None:
        self._servers: list[RabbitServer] = []

    def take(self, count: int) -> list[RabbitServer]:
        """Give servers that run and hold nothing; those that a test killed or broke are started again.

        The same servers each time, so two callers must not use them at once. They end with the thread that called
        this (see `pairmq.testing.servers`), so call it in the main thread.

        Args:
            count: how many.

        Raises:
            FileNotFoundError: there is no rabbitmq-server.
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
                # Nothing of a broken server is worth keeping, its data may be what is broken.
                _log.warning("a server is replaced, since it could not be reset: %s\n%s", error, server.log_tail())
                server.close()
                server = self._servers[position] = taken[position] = RabbitServer()
                server.start()
        return taken

    def close(self) -> None:
        """End all servers and remove their directories; idempotent."""
        while self._servers:
            self._servers.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


pool = RabbitPool()
"""The servers of this process, for all test folders of one run; whoever uses it closes it at the end of the run."""


class RabbitHarness(ServerHarness):
    """The pool's first server for the conformance suite.

    It is stopped by `RabbitServer.go_down`, which takes a tenth of a second where a kill and a boot take ten, and
    killed where the suite asks for a crash.

    Attributes:
        lock_duration: an option of the URL here, so that it is every queue's, and long enough for a slow machine.
    """

    lock_duration = 3.0

    def __init__(self) -> None:
        super().__init__()
        self._gone = False

    def start(self) -> Server:
        """Take the server."""
        return pool.take(1)[0]

    def clear(self, server: Server) -> str:
        """Make it as new; one that can't be is replaced by the pool."""
        self._server = rabbit = pool.take(1)[0]
        return f"{rabbit.url}?lock_duration={self.lock_duration:g}"

    async def interrupt(self, how: Interruption) -> None:
        """Take the broker away and leave its virtual machine, or pause all of it."""
        if how is Interruption.FREEZE:
            await self.by_hand(self._rabbit().settle)  # it may be killed from there
            await super().interrupt(how)
        elif self._paused:
            await super().interrupt(how)
        else:
            await self.by_hand(self._rabbit().go_down)
            self._gone = True

    async def crash(self) -> None:
        """Kill it, once the registers of its queues are on the disk: RabbitMQ writes them some seconds late."""
        await self.by_hand(self._rabbit().settle)
        await super().interrupt(Interruption.STOP)

    async def restore(self) -> None:
        """Bring the broker back."""
        await super().restore()
        if self._gone:
            await self.by_hand(self._rabbit().come_up)
            self._gone = False
        await self.by_hand(lambda: self._rabbit().erl(_KEEP_MENDED))

    def close(self) -> None:
        """End the pool, since no other user of it is left at the end of the run."""
        self._server = None
        super().close()
        pool.close()

    def _rabbit(self) -> RabbitServer:
        server = self._made()
        if not isinstance(server, RabbitServer):
            raise TypeError("the harness holds a server of another kind")
        return server
