"""The test kit's RabbitMQ: isolated, durable, with faults on request, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPConnectionError, AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from pairmq.testing.servers import ServerError, servers_end_with_parent
from pairmq_rabbitmq.testing import RabbitServer, pool, start_together

# pika leaves its sockets to the garbage collector where a server refuses or drops it.
pytestmark = [pytest.mark.real_server, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

DURABLE = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def connect() -> Iterator[Callable[[str], pika.BlockingConnection]]:
    opened: list[pika.BlockingConnection] = []

    def connect(url: str) -> pika.BlockingConnection:
        parameters = pika.URLParameters(url)
        parameters.socket_timeout = parameters.stack_timeout = 30
        opened.append(pika.BlockingConnection(parameters))
        return opened[-1]

    yield connect
    for one in opened:
        with contextlib.suppress(AMQPError):  # some have lost their server
            one.close()
    opened.clear()
    gc.collect()  # here, where the warnings are expected


def publish(channel, queue: str, body: bytes = b"x") -> None:
    channel.basic_publish("", queue, body, DURABLE, mandatory=True)


def processes_in(directory: Path) -> list[int]:
    """The processes of a server in that directory, also those that the test did not start."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and Path(os.readlink(entry / "cwd")).is_relative_to(directory):
                found.append(int(entry.name))
        except OSError:  # ended meanwhile
            continue
    return found


def listening(pids: list[int]) -> set[tuple[str, int]]:
    """The addresses, in hexadecimal as the kernel has them, and ports that these processes listen on."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # ended meanwhile
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    inodes.add(os.readlink(descriptor).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address, port = fields[1].split(":")
                found.add((address, int(port, 16)))
    return found


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.02)


def answers(port: int, seconds: float) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(b"AMQP\x00\x00\x09\x01")
        try:
            return bool(connection.recv(1))
        except TimeoutError:
            return False


# ---------------------------------------------------------------------- apart, and kept


def test_two_servers_are_independent(rabbit_servers, connect):
    east, west = rabbit_servers(2)
    connect(east.url).channel().queue_declare("q", durable=True)
    assert east.queues() == {"q": (0, 0)}
    assert west.queues() == {}
    assert east.erl("nodes()") == west.erl("nodes()") == "[]"
    assert east.erl("erlang:get_cookie()") != west.erl("erlang:get_cookie()")
    east.go_down()
    with pytest.raises(AMQPConnectionError):
        connect(east.url)
    assert connect(west.url).is_open


def test_it_keeps_to_its_ports_and_its_directory(rabbit):
    own = {rabbit.port, rabbit._ports.epmd, rabbit._ports.distribution}
    ends_at = time.monotonic() + 60
    # A command that asks the server for something has a port of its own while it runs.
    while {port for _, port in listening(processes_in(rabbit.directory))} != own:
        assert time.monotonic() < ends_at, listening(processes_in(rabbit.directory))
        time.sleep(0.1)
    everywhere = listening(processes_in(rabbit.directory))
    loopback = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
    assert {address for address, _ in everywhere} <= loopback
    assert not {5672, 4369, 25672} & {port for _, port in everywhere}
    cookie = rabbit.directory / ".erlang.cookie"
    assert cookie.stat().st_mode & 0o777 == 0o400
    assert rabbit.erl('os:getenv("HOME")') == f'"{rabbit.directory}"'
    assert str(rabbit.directory) in rabbit.erl("rabbit_mnesia:dir()")


def test_its_modules_are_searched_in_few_directories(rabbit):
    # Behind all plugins' directories they would be found, too, but a boot would cost twice as much.
    first = rabbit.erl("[filename:basename(filename:dirname(D)) || D <- lists:sublist(code:get_path(), 4)]")
    assert re.fullmatch(r'\["rabbit-[^"]+","rabbit-[^"]+","stdlib-[^"]+","rabbit_common-[^"]+"\]', first)


def test_foreign_settings_reach_it_not_and_close_leaves_nothing(monkeypatch):
    monkeypatch.setenv("RABBITMQ_NODE_PORT", "5672")
    monkeypatch.setenv("RABBITMQ_NODENAME", "other@localhost")
    monkeypatch.setenv("RABBITMQ_PLUGINS_DIR", "/nowhere")
    monkeypatch.setenv("ERL_FLAGS", "-nonsense")
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere")
    with RabbitServer() as server:
        assert server.erl("node()") == "pairmq@localhost"
        assert server.erl('[os:getenv(N) || N <- ["ERL_FLAGS", "NOTIFY_SOCKET"]]') == "[false,false]"
        assert {port for _, port in listening([server.pid])} == {server.port, server._ports.distribution}
        pid, directory = server.pid, server.directory
        assert pid in processes_in(directory)
        assert len(processes_in(directory)) > 1  # the port mapper too
    assert not directory.exists()
    until(lambda: processes_in(directory) == [] and not Path(f"/proc/{pid}").exists())
    server.close()  # twice is once
    with pytest.raises(ServerError, match="does not run"):
        server.erl("node()")


def test_queues_are_counted_while_they_are_made(rabbit, connect):
    channel = connect(rabbit.url).channel()
    names = [f"made-{number}" for number in range(60)]

    def make() -> None:
        for name in names:
            channel.queue_declare(name, durable=True, arguments={"x-queue-type": "quorum"})

    with ThreadPoolExecutor(1) as executor:
        made = executor.submit(make)
        while not made.done():
            assert set(rabbit.queues().values()) <= {(0, 0)}
    assert sorted(rabbit.queues()) == sorted(names)


@pytest.mark.long  # as the conformance suite asks of every broker
def test_confirmed_data_outlives_kill_and_restart(rabbit, connect):
    channel = connect(rabbit.url).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    for _ in range(10):
        publish(channel, "q")
    pid = rabbit.pid
    rabbit.kill()
    assert not rabbit.running
    until(lambda: processes_in(rabbit.directory) == [])  # its helpers go by themselves
    with pytest.raises(AMQPConnectionError):
        connect(rabbit.url)
    rabbit.start()
    assert rabbit.pid != pid
    assert rabbit.queues() == {"q": (10, 0)}
    rabbit.stop()
    until(lambda: processes_in(rabbit.directory) == [])
    rabbit.restart()
    assert rabbit.queues() == {"q": (10, 0)}


@pytest.mark.skipif(
    not servers_end_with_parent(), reason="only setpriv of util-linux 2.33 or newer ends a server with its parent"
)
@pytest.mark.long
def test_no_orphan_is_left_when_the_test_process_is_killed(tmp_path):
    script = (
        "import time\n"
        "from pairmq_rabbitmq.testing import RabbitServer\n"
        "server = RabbitServer(); server.start(); print(server.directory, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert parent.stdout is not None
    directory = Path(parent.stdout.readline().strip())
    assert directory.is_relative_to(tmp_path)
    assert len(processes_in(directory)) > 1
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: processes_in(directory) == [])


@pytest.mark.long
@pytest.mark.skipif(os.getuid() != 0, reason="every other test runs it as a plain user")
def test_a_plain_user_without_a_home_can_run_it():
    # As root before it imports, since a virtual environment may lie where that user cannot read.
    script = (
        "import encodings.idna, os, pwd\n"
        "from pairmq_rabbitmq.testing import RabbitServer\n"
        "user = pwd.getpwnam('nobody'); path = os.environ['PATH']\n"
        "os.setgroups([]); os.setgid(user.pw_gid); os.setuid(user.pw_uid); os.chdir('/')\n"
        "os.environ.clear(); os.environ['PATH'] = path\n"
        "with RabbitServer() as server:\n"
        "    print(os.getuid(), os.stat(f'/proc/{server.pid}').st_uid, server.erl('rabbit:is_running()'))\n"
        "print(server.directory.exists())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert done.stderr == ""
    assert done.stdout.split() == ["65534", "65534", "true", "False"]


def test_missing_rabbitmq_server_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(FileNotFoundError, match="apt-get install rabbitmq-server"):
        RabbitServer()


def test_start_error_shows_the_end_of_the_log():
    server = RabbitServer(config=["no.such.setting = 1"])
    try:
        with pytest.raises(ServerError, match=r"no\.such\.setting"):
            start_together(server)
        until(lambda: processes_in(server.directory) == [])
    finally:
        server.close()


def test_tls(tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    with RabbitServer(tls=(certificate, key, certificate)) as server:
        context = ssl.create_default_context(cafile=str(certificate))
        parameters = pika.URLParameters(server.tls_url)
        parameters.ssl_options = pika.SSLOptions(context, "127.0.0.1")
        connection = pika.BlockingConnection(parameters)
        assert connection.is_open
        connection.close()


def test_tls_and_management_urls_raise_when_not_enabled(rabbit):
    with pytest.raises(ValueError, match="without tls"):
        _ = rabbit.tls_url
    with pytest.raises(ValueError, match="without management"):
        _ = rabbit.management_url


# ---------------------------------------------------------------------- faults


def test_pause_and_resume(rabbit):
    rabbit.pause()
    assert not answers(rabbit.port, 0.5)  # connected, but nobody speaks
    with pytest.raises(ServerError, match=r"did not answer within 0\.5 s"):
        rabbit.erl("ok", timeout=0.5)
    rabbit.resume()
    assert answers(rabbit.port, 30)


def test_down_and_up_without_a_boot(rabbit, connect):
    connection = connect(rabbit.url)
    connection.channel().queue_declare("q", durable=True)
    pid = rabbit.pid
    rabbit.go_down()
    with pytest.raises(ConnectionClosedByBroker):
        connection.process_data_events(30)
    with pytest.raises(AMQPConnectionError):
        connect(rabbit.url)
    rabbit.come_up()
    rabbit.come_up()
    assert rabbit.pid == pid
    assert connect(rabbit.url).is_open
    assert rabbit.queues() == {"q": (0, 0)}


@pytest.mark.long
def test_it_can_go_down_right_after_the_boot(rabbit):
    for _ in range(2):
        rabbit.restart()
        rabbit.go_down()
        rabbit.come_up()
        assert answers(rabbit.port, 30)


def test_block_stops_publishers_until_unblock(rabbit, connect):
    channel = connect(rabbit.url).channel()
    channel.confirm_delivery()
    channel.queue_declare("q", durable=True)
    before = rabbit.erl("vm_memory_monitor:get_vm_memory_high_watermark()")
    rabbit.block()
    rabbit.block()  # must not take the alarm's mark for the old one
    publisher = threading.Thread(target=publish, args=(channel, "q"), daemon=True)
    publisher.start()
    publisher.join(0.5)
    assert publisher.is_alive()
    assert rabbit.queues() == {"q": (0, 0)}
    rabbit.unblock()
    publisher.join(30)
    assert not publisher.is_alive()
    assert rabbit.queues() == {"q": (1, 0)}
    assert rabbit.erl("vm_memory_monitor:get_vm_memory_high_watermark()") == before


def test_a_block_ends_with_the_broker_that_had_it(rabbit, connect):
    rabbit.block()
    rabbit.go_down()
    rabbit.come_up()
    channel = connect(rabbit.url).channel()
    channel.confirm_delivery()
    channel.queue_declare("q")
    publish(channel, "q")
    rabbit.block()
    rabbit.unblock()
    publish(channel, "q")


def test_refused_clients_leave_the_others_alone(rabbit, connect):
    connection = connect(rabbit.url)
    rabbit.refuse_clients()
    with pytest.raises(AMQPConnectionError):
        connect(rabbit.url)
    connection.channel().queue_declare("q")
    rabbit.accept_clients()
    assert connect(rabbit.url).is_open


def test_dropped_clients_may_come_back(rabbit, connect):
    connection = connect(rabbit.url)
    until(lambda: rabbit.connections() == 1)  # those of the test before may be ending
    rabbit.drop_clients('with "reason"')
    with pytest.raises(ConnectionClosedByBroker, match='with "reason"') as told:
        connection.process_data_events(30)
    assert told.value.reply_code == 320
    assert connect(rabbit.url).is_open


# ---------------------------------------------------------------------- what operators do


def test_users_and_permissions(rabbit, connect):
    rabbit.add_user("jürgen", 'p"@ss', write="^mine$")
    channel = connect(rabbit.url_for("jürgen", 'p"@ss')).channel()
    channel.queue_declare("mine")
    with pytest.raises(ServerError, match="user_already_exists"):
        rabbit.add_user("jürgen", "x")
    rabbit.change_password("jürgen", "other")
    with pytest.raises(AMQPConnectionError):
        connect(rabbit.url_for("jürgen", 'p"@ss'))
    rabbit.set_permissions("jürgen", configure="", write="", read="")
    channel = connect(rabbit.url_for("jürgen", "other")).channel()
    with pytest.raises(ChannelClosedByBroker) as refusal:
        channel.queue_declare("mine2")
    assert refusal.value.reply_code == 403
    rabbit.delete_user("jürgen")
    with pytest.raises(AMQPConnectionError):
        connect(rabbit.url_for("jürgen", "other"))
    with pytest.raises(ServerError, match="no_such_user"):
        rabbit.change_password("jürgen", "x")


def test_virtual_hosts(rabbit, connect):
    rabbit.add_vhost("a/b")
    with pytest.raises(ServerError):
        rabbit.add_vhost("a/b")
    url = rabbit.url_for(vhost="a/b")
    connect(url).channel().queue_declare("q")
    assert rabbit.queues("a/b") == {"q": (0, 0)}
    assert rabbit.queues() == {}
    rabbit.delete_vhost("a/b")
    with pytest.raises(AMQPConnectionError):
        connect(url)
    with pytest.raises(ServerError):
        rabbit.queues("a/b")


def test_queues_counts_what_is_there_now(rabbit, connect):
    channel = connect(rabbit.url).channel()
    channel.confirm_delivery()
    channel.queue_declare("grüße", durable=True)
    for _ in range(3):
        publish(channel, "grüße")
    assert rabbit.queues() == {"grüße": (3, 0)}
    method, _, _ = channel.basic_get("grüße")
    assert rabbit.queues() == {"grüße": (2, 1)}
    channel.basic_ack(method.delivery_tag)
    until(lambda: rabbit.queues() == {"grüße": (2, 0)})
    rabbit.delete_queue("grüße")
    assert rabbit.queues() == {}
    with pytest.raises(ServerError, match="not_found"):
        rabbit.delete_queue("grüße")


def test_long_answers_arrive_whole(rabbit):
    assert rabbit.erl("lists:duplicate(100000, $x)") == '"' + "x" * 100_000 + '"'
    assert rabbit.erl("[]") == "[]"
    with pytest.raises(ServerError, match="badarith"):
        rabbit.erl("1 / 0")
    with pytest.raises(ServerError, match="syntax"):
        rabbit.erl("1 +")


def test_any_number_of_calls_at_once(rabbit):
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda n: rabbit.erl(f"{n}"), range(200))) == [f"{n}" for n in range(200)]


def test_a_policy_is_applied(rabbit, connect):
    rabbit.set_policy("short", "^q", {"max-length": 2, "overflow": "reject-publish"})
    channel = connect(rabbit.url).channel()
    channel.confirm_delivery()
    channel.queue_declare("q")
    publish(channel, "q")
    publish(channel, "q")
    with pytest.raises(pika.exceptions.NackError):
        publish(channel, "q")
    with pytest.raises(ServerError, match="nonsense"):
        rabbit.set_policy("bad", "^q", {"nonsense": 1})


def test_reset_leaves_no_trace(rabbit, connect):
    state = (
        "[rabbit_vhost:list_names(), lists:sort(rabbit_auth_backend_internal:list_users()),"
        " lists:sort([X || X <- rabbit_exchange:list()]), rabbit_policy:list(),"
        ' rabbit_runtime_parameters:list(<<"/">>),'
        " rabbit_auth_backend_internal:list_permissions(), vm_memory_monitor:get_vm_memory_high_watermark()]"
    )
    new = rabbit.erl(state)
    channel = connect(rabbit.url).channel()
    for kind in ("classic", "quorum", "stream"):
        channel.queue_declare(f"q-{kind}", durable=True, arguments={"x-queue-type": kind})
    channel.queue_declare("mine", exclusive=True)
    channel.exchange_declare("x", "topic")
    channel.queue_bind("q-classic", "x", "#")
    channel.queue_bind("q-classic", "amq.topic", "#")
    rabbit.add_vhost("v")
    rabbit.add_user("u", "p")
    rabbit.set_policy("p", ".*", {"max-length": 1})
    rabbit.change_password("guest", "changed")
    rabbit.set_permissions("guest", configure="", write="", read="")
    rabbit.block()
    rabbit.refuse_clients()
    assert rabbit.erl(state) != new
    rabbit.reset()
    assert rabbit.erl(state) == new
    assert rabbit.queues() == {}
    channel = connect(rabbit.url).channel()
    channel.confirm_delivery()
    channel.queue_declare("q-classic", durable=False)
    publish(channel, "q-classic")


def test_reset_restarts_a_failed_dead_letter_supervisor(rabbit, connect):
    safe = {"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    safe |= {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish"}
    connect(rabbit.url).channel().queue_declare("q", durable=True, arguments=safe)
    rabbit.erl("ok = supervisor:terminate_child(rabbit_sup, rabbit_fifo_dlx_sup)")
    rabbit.reset()
    assert rabbit.queues() == {}
    connect(rabbit.url).channel().queue_declare("q", durable=True, arguments=safe)
    assert rabbit.queues() == {"q": (0, 0)}


# ---------------------------------------------------------------------- the pool


def test_pool_resets_its_servers(rabbit_servers):
    (server,) = rabbit_servers(1)
    assert rabbit_servers(1) == [server]
    for harm in (server.pause, server.go_down, server.block, server.kill):
        harm()
        assert rabbit_servers(1) == [server]
        assert server.running
        assert answers(server.port, 30)


@pytest.mark.long
def test_pool_replaces_a_server_when_reset_fails(rabbit_servers):
    (server,) = rabbit_servers(1)
    server.kill()
    (server.directory / "rabbitmq.conf").write_text("broken\n")
    (another,) = rabbit_servers(1)
    assert another is not server
    assert answers(another.port, 30)
    assert not server.directory.exists()
    assert rabbit_servers(1) == pool.take(1) == [another]
