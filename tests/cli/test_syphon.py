import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from pairmq import Entity, Message
from pairmq import sync as blocking
from pairmq.cli import _doctor, _syphon
from pairmq.cli._backlog import Depths
from pairmq.plugins import registry
from pairmq.testing.servers import free_port


@pytest.fixture
def diverted(cli, servers) -> list[str]:
    """Three messages for 'orders' in the backlog; the primary is there. Gives the pair's options."""
    first, second = servers
    pair = ["--primary", first.url, "--secondary", second.url]
    assert cli("entity", "create", "orders", "--primary", first.url).status == 0
    first.kill()
    ended = cli("send", "-e", "orders", "--failover-interval", "0", *pair, stdin=b"a\nb\nc\n")
    assert "by the backlog              3" in ended.err
    first.start()
    return pair


@pytest.mark.real_server
def test_it_moves_everything_back_and_leaves(cli, diverted) -> None:
    ended = cli("syphon", "--until-empty", *diverted)
    assert ended.status == 0, ended
    assert "moved 3 messages; the backlog is empty" in ended.err
    assert ended.out == ""
    assert sorted(cli("receive", "-e", "orders", "--idle", "50ms", *diverted[:2]).out.split()) == ["a", "b", "c"]


@pytest.mark.real_server
def test_json_has_the_end_on_stdout(cli, diverted) -> None:
    ended = cli("syphon", "--until-empty", "--json", "--metrics-interval", "100ms", *diverted)
    last = json.loads(ended.out.splitlines()[-1])
    assert (last["moved"], last["left"], last["emptied"], last["exit_status"]) == (3, 0, True, 0)


@pytest.mark.real_server
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_as_a_service_it_ends_cleanly_on_a_signal(program, diverted, number: int, status: int) -> None:
    service = program("syphon", "--metrics-interval", "200ms", *diverted)
    service.wait_for(b"moved 3, left 0")
    service.signal(number)
    ended = service.end()
    assert ended.status == status
    assert "moved 3 messages; left in the backlog: 0" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.real_server
def test_it_waits_for_a_primary_that_is_unavailable_and_loses_nothing(program, cli, servers, diverted) -> None:
    first, _ = servers
    first.kill()
    service = program("syphon", "--until-empty", "--ping-interval", "500ms", *diverted)
    service.wait_for(b"orders accepts no messages, they wait")
    first.start()
    ended = service.end()
    assert ended.status == 0
    assert "orders: open again" in ended.err
    assert "moved 3 messages" in ended.err


@pytest.mark.real_server
def test_stopping_it_in_an_outage_leaves_the_messages_in_the_backlog(program, cli, servers, diverted) -> None:
    first, _ = servers
    first.kill()
    service = program("syphon", "--ping-interval", "500ms", *diverted)
    service.wait_for(b"they wait")
    service.signal(signal.SIGTERM)
    ended = service.end()
    assert ended.status == 0
    assert "moved 0 messages; left in the backlog: 3" in ended.err
    first.start()
    assert cli("syphon", "--until-empty", *diverted).status == 0
    assert len(cli("receive", "-e", "orders", "--idle", "50ms", *diverted[:2]).out.split()) == 3


@pytest.mark.real_server
def test_what_can_not_be_delivered_is_dead_lettered_reported_and_can_be_requeued(cli, diverted) -> None:
    assert cli("entity", "delete", "orders", "--yes", *diverted[:2]).status == 0
    ended = cli("syphon", "--until-empty", "--ping-interval", "200ms", *diverted)
    assert ended.status == 1
    assert "dead-lettered 3 messages" in ended.err
    assert "not-found" in ended.err

    listed = json.loads(cli("backlog", "list", "--json", *diverted).out)
    assert (listed["pending"], listed["dead_letter"]) == (0, 3)
    peeked = [
        json.loads(line) for line in cli("backlog", "peek", "--dead-letter", "--json", *diverted).out.splitlines()
    ]
    assert [record["dead_letter_reason"] for record in peeked] == ["not-found"] * 3
    assert all(record["application_properties"]["x-ms-path"] == "orders" for record in peeked)

    assert cli("entity", "create", "orders", *diverted[:2]).status == 0
    requeued = cli("backlog", "requeue", *diverted)
    assert (requeued.status, requeued.out) == (0, "requeued 3 messages\n")
    assert cli("syphon", "--until-empty", *diverted).status == 0
    assert sorted(cli("receive", "-e", "orders", "--idle", "50ms", *diverted[:2]).out.split()) == ["a", "b", "c"]


@pytest.mark.real_server
def test_many_dead_letters_are_counted_not_shown(cli, servers, diverted) -> None:
    first, _ = servers
    first.kill()
    more = cli("send", "-e", "orders", "--failover-interval", "0", *diverted, stdin=b"x\n" * 500)
    assert more.status == 0
    first.start()
    assert cli("entity", "delete", "orders", "--yes", *diverted[:2]).status == 0
    ended = cli("syphon", "--until-empty", "--ping-interval", "200ms", *diverted)
    assert ended.status == 1
    assert "dead-lettered 503 messages" in ended.err
    assert len(ended.err.splitlines()) < 30
    assert cli("backlog", "requeue", "--json", *diverted).out.startswith('{\n  "requeued": 503')


@pytest.mark.real_server
def test_purge_deletes_what_waits_only_with_a_yes(cli, diverted) -> None:
    assert cli("backlog", "purge", *diverted).status == 2
    assert cli("backlog", "purge", "--dead-letter", "--yes", *diverted).out == "deleted 0 messages\n"
    assert cli("backlog", "purge", "--yes", *diverted).out == "deleted 3 messages\n"
    assert cli("backlog", "peek", *diverted).err == "nothing there\n"


@pytest.mark.real_server
def test_peek_shows_where_a_message_belongs(cli, diverted) -> None:
    ended = cli("backlog", "peek", *diverted)
    assert ended.status == 0
    assert ended.out.count("to orders, diverted 20") == 3
    assert "1 byte: a" in ended.out


def test_a_secondary_that_is_down_fails_a_run_that_should_end(cli) -> None:
    urls = [f"redis://127.0.0.1:{free_port()}/0" for _ in range(2)]
    ended = cli("syphon", "--until-empty", "--primary", urls[0], "--secondary", urls[1])
    assert ended.status == 1
    assert len(ended.error_lines) == 1


@pytest.mark.real_server
def test_an_idle_syphon_does_not_count_its_queues_again_and_again(
    cli, servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = servers
    counted, told = [], []
    count_queues, tell = _syphon.count_queues, _syphon.ProgressLines.report

    async def count(*arguments: Any) -> Depths:
        counted.append(arguments)
        return await count_queues(*arguments)

    def tell_and_stop(lines: _syphon.ProgressLines, progress: _syphon.SyphonProgress) -> None:
        tell(lines, progress)
        told.append(progress)
        if len(told) == 10:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(_syphon, "count_queues", count)
    monkeypatch.setattr(_syphon.ProgressLines, "report", tell_and_stop)
    pair = ["--primary", first.url, "--secondary", second.url]
    ended = cli("syphon", "--metrics-interval", "200ms", *pair)
    assert ended.status == 0
    assert ended.err.count("moved 0, left 0") > 3
    assert len(counted) == 3  # at the start, once more, and after the end


@pytest.mark.real_server
def test_an_outage_of_the_secondary_is_a_line_when_it_begins_and_one_when_it_is_over(program, servers) -> None:
    first, second = servers
    pair = ["--primary", first.url, "--secondary", second.url]
    service = program("syphon", "--attempt-timeout", "5s", "--metrics-interval", "200ms", *pair)
    service.wait_for(b"moved 0, left 0")  # it has begun to read the queues
    second.kill()
    service.wait_for(b"trying again", 100)
    second.start()
    service.wait_for(b"the secondary responds again, after ", 90)
    service.signal(signal.SIGTERM)
    ended = service.end()
    assert ended.status == 0
    # Connections that end, and connections that are refused: reasons, not queues.
    assert len([line for line in ended.err.splitlines() if "trying again" in line]) <= 4, ended.err


@pytest.fixture
def many_diverted(cli, servers, tmp_path) -> list[str]:
    """2,000 messages for 'orders' in four backlog queues; the primary is there. Gives the pair's options."""
    first, second = servers
    pair = ["--primary", first.url, "--secondary", second.url, "--backlog-queues", "4"]
    assert cli("entity", "create", "orders", "--primary", first.url).status == 0
    first.kill()
    lines = "".join(f"{number}\n" for number in range(2000)).encode()
    assert cli("send", "-e", "orders", "--failover-interval", "0", *pair, stdin=lines).status == 0
    first.start()
    return pair


@pytest.mark.real_server
@pytest.mark.parametrize("count", [2, 3])
def test_several_processes_empty_the_backlog_as_one(cli, program, many_diverted, count: int) -> None:
    drained = program("syphon", "--processes", str(count), "--until-empty", "--json", *many_diverted).end()
    assert drained.status == 0, drained
    assert f"{count} processes share the backlog queues" in drained.err
    assert drained.err.count("moved 2 000 messages; the backlog is empty") == 1, drained.err
    last = json.loads(drained.out.splitlines()[-1])
    assert (last["moved"], last["left"], last["emptied"], last["exit_status"]) == (2000, 0, True, 0)
    received = cli("receive", "-e", "orders", "--idle", "50ms", *many_diverted[:2]).out.split()
    assert sorted(map(int, received)) == list(range(2000))


@pytest.mark.real_server
def test_several_processes_empty_queues_that_only_other_processes_use(program, many_diverted) -> None:
    *pair, _ = many_diverted
    drained = program("syphon", "--processes", "2", "--until-empty", *pair, "2").end()
    assert drained.status == 0, drained
    assert "moved 2 000 messages; the backlog is empty" in drained.err


@pytest.mark.real_server
@pytest.mark.usefixtures("with_hangups")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_several_processes_end_on_one_signal(program, many_diverted, number: int, status: int) -> None:
    service = program("syphon", "--processes", "2", "--metrics-interval", "200ms", *many_diverted)
    service.wait_for(b"left 0")
    if number == signal.SIGHUP:  # which a terminal that is closed sends to all of them
        for each in working(service.process.pid):
            os.kill(each, number)
    service.signal(number)
    ended = service.end()
    assert ended.status == status, ended
    assert "moved 2 000 messages; left in the backlog: 0" in ended.err
    assert "Traceback" not in ended.err


def working(pid: int) -> list[int]:
    """The processes that share the work of a syphon."""
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [each for each in children if b"spawn_main" in Path(f"/proc/{each}/cmdline").read_bytes()]


@pytest.mark.real_server
def test_ctrl_c_ends_several_processes_in_order_while_they_start(program, tmp_path) -> None:
    pair = ("--primary", f"sqlite://{tmp_path}/first.db", "--secondary", f"sqlite://{tmp_path}/second.db")
    service = program("syphon", "--processes", "2", *pair)
    ends_at = time.monotonic() + 60
    while len(begun := working(service.process.pid)) < 2:
        assert time.monotonic() < ends_at, "they do not start"
        time.sleep(0.01)
    for each in (*begun, service.process.pid):
        os.kill(each, signal.SIGINT)
    ended = service.end()
    assert ended.status == 130, ended
    assert "Traceback" not in ended.err


@pytest.mark.real_server
def test_a_killed_process_ends_the_others_and_is_reported(program, many_diverted) -> None:
    service = program("syphon", "--processes", "2", "--metrics-interval", "200ms", *many_diverted)
    service.wait_for(b"left 0")
    os.kill(working(service.process.pid)[0], signal.SIGKILL)
    ended = service.end()
    assert ended.status == 1
    assert "a process ended with SIGKILL" in ended.err


@pytest.mark.real_server
def test_the_processes_end_when_the_one_that_started_them_is_killed(program, many_diverted) -> None:
    service = program("syphon", "--processes", "2", "--metrics-interval", "200ms", *many_diverted)
    service.wait_for(b"left 0")
    processes = working(service.process.pid)
    service.signal(signal.SIGKILL)
    assert len(processes) == 2
    ends_at = time.monotonic() + 60
    while any(Path(f"/proc/{each}").exists() for each in processes):
        assert time.monotonic() < ends_at, "they go on"
        time.sleep(0.05)


@pytest.mark.real_server
def test_queues_of_another_machine_are_left_to_it(cli, many_diverted) -> None:
    def active() -> list[int]:
        queues = json.loads(cli("status", "--json", *many_diverted).out)["backlog"]["queues"]
        return [queue["active"] for queue in queues]

    before = active()
    ended = cli("syphon", "--queues", "0-1", "--until-empty", *many_diverted)
    assert ended.status == 0, ended
    assert f"moved {before[0] + before[1]:,} messages; these queues are empty".replace(",", " ") in ended.err
    assert active() == [0, 0, *before[2:]]
    assert cli("syphon", "--queues", "2,3", "--until-empty", *many_diverted).status == 0
    assert len(cli("receive", "-e", "orders", "--idle", "50ms", *many_diverted[:2]).out.split()) == 2000


def test_more_processes_than_queues_are_refused(cli) -> None:
    pair = ("--primary", "memory://a", "--secondary", "memory://b", "--backlog-queues", "2")
    ended = cli("syphon", "--processes", "3", *pair)
    assert ended.status == 2
    assert "3 processes can't share 2 queues" in ended.err


def test_commands_show_the_outbox_and_what_keeps_it_from_being_moved(cli, tmp_path, monkeypatch):
    urls = [f"sqlite://{tmp_path}/primary.db", f"sqlite://{tmp_path}/secondary.db"]
    brokers = ["--primary", urls[0], "--secondary", urls[1]]
    assert "outbox: none yet" in cli("status", *brokers).out
    assert "/x-pairmq-outbox yet: a program that opens" in cli("doctor", *brokers).out
    with blocking.Pair.connect(*urls, attempt_timeout=30) as pair:
        pair.primary.admin.create(Entity("orders"))
        with contextlib.closing(sqlite3.connect(tmp_path / "secondary.db")) as connection, connection:
            pair.outbox("orders").send_batch([Message(b"1"), Message(b"2")], connection=connection)
            pair.outbox("nowhere").send(Message(b"3", message_id="stray"), connection=connection)
    for command in (["status"], ["backlog", "list"]):
        assert "outbox: 3 messages to be moved, the oldest for " in cli(*command, *brokers).out
        assert json.loads(cli(*command, "--json", *brokers).out)["outbox"]["pending"] == 3
    assert "ok    outbox: 3 messages to be moved" in cli("doctor", *brokers).out
    monkeypatch.setattr(_doctor, "_UNMOVED", 0.0)
    warned = cli("doctor", *brokers).out
    assert "warn  outbox: 3 messages to be moved, the oldest for " in warned
    assert "no syphon moves them\n      → run `pairmq syphon`, or enable_syphon=True in one program" in warned
    # Until it is empty, the outbox included.
    assert "dead-lettered 1 message" in cli("syphon", "--until-empty", "--ping-interval", "200ms", *brokers).err
    seen = json.loads(cli("status", "-e", "orders", "--json", *brokers).out)
    assert (seen["outbox"]["pending"], seen["outbox"]["oldest_seconds"]) == (0, None)
    assert (seen["outbox"]["dead_letter"], seen["entities"][0]["active"]) == (1, 2)
    # What was dead-lettered.
    assert "/x-pairmq-outbox\n      → `pairmq backlog peek --outbox --dead" in cli("doctor", *brokers).out
    for only in ([], ["--outbox"]):
        assert "outbox  stray  to nowhere, stored " in cli("backlog", "peek", "--dead-letter", *only, *brokers).out
    assert cli("entity", "create", "nowhere", *brokers[:2]).status == 0
    assert "requeued 1 message" in cli("backlog", "requeue", *brokers).out
    assert cli("syphon", "--until-empty", *brokers).status == 0
    assert cli("receive", "-e", "nowhere", "--idle", "50ms", *brokers[:2]).out == "3\n"


def test_backlog_refuses_an_outbox_that_can_not_be(cli, brokers, tmp_path) -> None:
    ended = cli("backlog", "peek", "--outbox", *brokers)
    assert (ended.status, "is not a database: the pair has no outbox" in ended.err) == (2, True)
    ended = cli(
        "backlog", "requeue", "--outbox", "--index", "1", *brokers[:2], "--secondary", f"sqlite://{tmp_path}/s.db"
    )
    assert (ended.status, "there is one outbox" in ended.err) == (2, True)


def test_the_backlog_is_not_said_to_be_empty_where_a_newer_release_may_have_other_queues(cli, tmp_path) -> None:
    urls = f"sqlite://{tmp_path}/east.db?name=east", f"sqlite://{tmp_path}/west.db"
    pair = ["--primary", urls[0], "--secondary", urls[1]]
    assert cli("entity", "create", "orders", *pair[:2]).status == 0

    async def write() -> None:
        record = Entity("east/x-pairmq-record")
        async with registry.transport(urls[1]) as west:
            await west.admin.create(record)
            await west.sender(record).send(Message(b'{"pairmq_record": 2}'))

    asyncio.run(write())
    ended = cli("syphon", "--until-empty", *pair)
    assert (ended.status, "the backlog is empty" in ended.err) == (1, False), ended
    assert "warning: a message of the record has format 2" in ended.err.split("moved 0 messages")[1]
