import base64
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pairmq.model import ConfigurationError
from pairmq.pair import Pair
from pairmq.testing.servers import free_port
from pairmq_redis.testing import RedisServer


def has_unread(server: RedisServer) -> bool:
    """Whether bytes wait for a paused server: somebody has sent it something since."""
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(
        row.split()[1].endswith(f":{server.port:04X}") and int(row.split()[4].partition(":")[2], 16) > 0 for row in rows
    )


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal has not reached a process yet; a second one would be the same one then."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) >> (number - 1) & 1 for line in lines if line.startswith(("SigPnd", "ShdPnd")))


def until(condition: Callable[[], object]) -> None:
    ends_at = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < ends_at, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def orders(cli, primary) -> None:
    assert cli("entity", "create", "orders", *primary).status == 0


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("data", "bodies"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"\n", [b""]),
        (b"a\n\nb\r\n\xff\x00\x0b\xe2\x80\xa8c", [b"a", b"", b"b\r", b"\xff\x00\x0b\xe2\x80\xa8c"]),
        (b"x" * 600_000 + b"\ny", [b"x" * 600_000, b"y"]),
    ],
    ids=["nothing", "no end", "end", "empty line", "binary", "long"],
)
def test_lines_end_at_line_feeds_only_and_come_out_as_they_went_in(
    cli, brokers, primary, data: bytes, bodies: list[bytes]
) -> None:
    assert cli("send", "-e", "orders", *brokers, stdin=data).status == 0
    ended = cli("receive", "-e", "orders", "--idle", "50ms", "--json", *primary)
    received = [base64.b64decode(json.loads(line)["body"]) for line in ended.out.splitlines()]
    # Sorted: messages in flight while the connection is being made may change places.
    assert sorted(received) == sorted(bodies)


@pytest.mark.usefixtures("orders")
def test_null_separates_at_nul_only(cli, brokers, primary) -> None:
    assert cli("send", "-e", "orders", "--null", *brokers, stdin=b"a\nb\0c").status == 0
    ended = cli("receive", "-e", "orders", "--idle", "50ms", "--null", *primary)
    # Sorted: two messages in flight while the connection is being made may change places.
    assert sorted(ended.out.split("\0")) == ["", "a\nb", "c"]


@pytest.mark.usefixtures("orders")
def test_a_file_is_sent_and_counted(cli, brokers, tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"".join(b"%d\n" % number for number in range(5000)))
    ended = cli("send", "-e", "orders", "--input", str(file), *brokers)
    assert ended.status == 0
    assert ended.out == ""
    assert "5 000 messages accepted for orders" in ended.err


@pytest.mark.usefixtures("orders")
def test_receipts_are_json_lines_on_stdout_and_in_a_file(cli, brokers, tmp_path: Path) -> None:
    file = tmp_path / "receipts"
    ended = cli("send", "-e", "orders", "--json", "--receipts", str(file), *brokers, stdin=b"a\nb\n")
    assert file.read_text() == ended.out
    records = [json.loads(line) for line in ended.out.splitlines()]
    assert [(record["line"], record["accepted"], record["route"]) for record in records] == [
        (1, True, "primary"),
        (2, True, "primary"),
    ]


@pytest.mark.usefixtures("orders")
def test_an_id_prefix_makes_the_same_ids_in_every_run(cli, brokers, primary) -> None:
    for _ in range(2):
        assert cli("send", "-e", "orders", "--id-prefix", "run7", *brokers, stdin=b"a\nb\n").status == 0
    ended = cli("receive", "-e", "orders", "--idle", "50ms", "--json", "--unique", *primary)
    ids = [json.loads(line)["message_id"] for line in ended.out.splitlines()]
    assert ids == ["run7-1", "run7-2"]
    assert "seen before: 2" in ended.err


@pytest.mark.usefixtures("orders")
def test_what_all_messages_share_is_sent_along(cli, brokers, primary) -> None:
    shared = ["--session-id", "s1", "--content-type", "text/plain", "--ttl", "1h"]
    shared += ["--content-encoding", "gzip", "--priority", "0"]
    assert cli("send", "-e", "orders", *shared, *brokers, stdin=b"a").status == 0
    record = json.loads(cli("receive", "-e", "orders", "--max", "1", "--json", *primary).out)
    assert (record["session_id"], record["content_type"], record["time_to_live"]) == ("s1", "text/plain", 3600.0)
    assert (record["content_encoding"], record["priority"]) == ("gzip", 0)


@pytest.mark.usefixtures("orders")
def test_what_is_not_given_is_not_sent(cli, brokers, primary) -> None:
    assert cli("send", "-e", "orders", *brokers, stdin=b"a").status == 0
    record = json.loads(cli("receive", "-e", "orders", "--max", "1", "--json", *primary).out)
    assert {"content_type", "content_encoding", "priority"}.isdisjoint(record)


@pytest.mark.parametrize("value", ["-1", "256", "high", ""])
def test_a_priority_out_of_its_range_is_bad_usage(cli, brokers, value: str) -> None:
    ended = cli("send", "-e", "orders", f"--priority={value}", *brokers, stdin=b"a")
    assert ended.status == 2
    assert "--priority" in ended.err


def test_lines_that_no_broker_took_are_named_and_kept(cli, brokers, tmp_path: Path) -> None:
    failed = tmp_path / "failed"
    ended = cli("send", "-e", "nowhere", "--failed", str(failed), "--json", *brokers, stdin=b"a\n\xff\n")
    assert ended.status == 1
    assert failed.read_bytes() == b"a\n\xff\n"
    assert "line 1: refused: " in ended.err
    assert "line 2: refused: " in ended.err
    records = [json.loads(line) for line in ended.out.splitlines()]
    assert {(record["accepted"], record["error"]) for record in records} == {(False, "EntityNotFound")}


def test_many_failing_lines_are_counted_not_shown(cli, brokers) -> None:
    ended = cli("send", "-e", "nowhere", *brokers, stdin=b"x\n" * 500)
    assert ended.status == 1
    assert len(ended.err.splitlines()) < 40
    assert "refused                   500" in ended.err


def test_create_makes_the_entity(cli, brokers) -> None:
    assert cli("send", "-e", "new/queue", "--create", *brokers, stdin=b"a").status == 0
    assert cli("send", "-e", "news", "--kind", "topic", "--create", *brokers, stdin=b"a").status == 0


@pytest.mark.real_server
def test_with_the_primary_down_the_backlog_takes_everything(cli, servers) -> None:
    _, second = servers
    down = f"redis://127.0.0.1:{free_port()}/0"
    pair = ["--primary", down, "--secondary", second.url, "--failover-interval", "0"]
    ended = cli("send", "-e", "orders", "--create", *pair, stdin=b"a\nb\nc\n")
    assert ended.status == 0
    assert "warning: orders could not be created" in ended.err
    assert "by the backlog              3" in ended.err


@pytest.mark.real_server
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_an_open_input_cleanly(program, servers, number: int, status: int) -> None:
    first, second = servers
    sender = program("send", "-e", "q", "--create", "--json", "--primary", first.url, "--secondary", second.url)
    sender.write(b"a\nb\nunfinished")
    sender.wait_for(b'"line": 2')
    sender.signal(number)
    ended = sender.end()
    assert ended.status == status
    assert "2 messages accepted" in ended.err
    assert f"stopped by {signal.Signals(number).name}: line 2 was the last one read; go on from line 3" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.real_server
def test_a_signal_while_both_brokers_hang_gives_every_line_a_result(program, servers, tmp_path: Path) -> None:
    first, second = servers
    failed = tmp_path / "failed"
    pair = ["--primary", first.url, "--secondary", second.url, "--close-grace", "500ms"]
    sender = program("send", "-e", "q", "--create", "--json", "--failed", str(failed), *pair)
    sender.write(b"a\n")
    sender.wait_for(b'"line": 1')
    first.pause()
    second.pause()
    sender.write(b"b\nc\n")
    until(lambda: has_unread(first))
    time.sleep(0.3)  # the two lines are taken at one time
    sender.signal(signal.SIGINT)
    ended = sender.end()
    assert ended.status == 130
    assert failed.read_bytes() == b"b\nc\n"
    assert "go on from line 4" in ended.err


@pytest.mark.real_server
def test_a_second_ctrl_c_ends_at_once(program, servers) -> None:
    first, second = servers
    pair = ["--primary", first.url, "--secondary", second.url, "--close-grace", "10min"]  # what the first one waits for
    sender = program("send", "-e", "q", "--create", "--json", *pair)
    sender.write(b"a\n")
    sender.wait_for(b'"line": 1')
    first.pause()
    second.pause()
    sender.write(b"b\n")
    until(lambda: has_unread(first))
    sender.signal(signal.SIGINT)
    until(lambda: not is_pending(sender.process.pid, signal.SIGINT))
    sender.signal(signal.SIGINT)
    assert sender.end().status == 130


@pytest.mark.real_server
def test_a_reader_that_leaves_ends_it_quietly(servers) -> None:
    first, second = servers
    command = (
        f"yes | {shlex.quote(sys.executable)} -m pairmq send -e q --create --json "
        f"--primary {first.url} --secondary {second.url} | head -n 1; echo ${{PIPESTATUS[1]}}"
    )
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=100)
    assert ended.stdout.splitlines()[-1] == "141"
    # A busy machine may keep it waiting for its first result, and it says so.
    assert [line for line in ended.stderr.splitlines() if not line.startswith("no result for ")] == []


@pytest.mark.real_server
def test_a_large_file_streams_in_little_memory(program, servers, tmp_path: Path) -> None:
    first, second = servers
    file = tmp_path / "large"
    with file.open("wb") as out:
        for number in range(30_000):
            out.write(b"%d " % number + b"x" * 4000 + b"\n")
    sender = program("send", "-e", "q", "--create", "-i", str(file), "--primary", first.url, "--secondary", second.url)
    peak = 0
    status = Path(f"/proc/{sender.process.pid}/status")
    while sender.process.poll() is None:
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                peak = max(peak, int(line.split()[1]))
        time.sleep(0.02)
    ended = sender.end()
    assert ended.status == 0
    assert "30 000 messages accepted" in ended.err
    assert peak < 150_000  # kB; the file alone has 120,000


@pytest.mark.parametrize("option", ["--failed", "--receipts"])
@pytest.mark.parametrize("how", ["same path", "symbolic link", "hard link", "stdin"])
def test_the_input_is_never_written_to(cli, brokers, tmp_path: Path, option: str, how: str) -> None:
    file = tmp_path / "stdin"
    file.write_bytes(b"a\nb\n")
    other = tmp_path / "other"
    if how == "symbolic link":
        other.symlink_to(file)
    elif how == "hard link":
        other.hardlink_to(file)
    named = str(other if "link" in how else file)
    source = [] if how == "stdin" else ["-i", str(file)]
    ended = cli("send", "-e", "q", "--create", *source, option, named, *brokers, stdin=b"a\nb\n")
    assert ended.status == 2
    assert f"{option} names the same file as the input" in ended.err
    assert file.read_bytes() == b"a\nb\n"


@pytest.mark.parametrize("exists", [True, False])
def test_receipts_and_failed_lines_are_never_one_file(cli, brokers, tmp_path: Path, exists: bool) -> None:
    file = tmp_path / "out"
    if exists:
        file.write_bytes(b"old")
    again = f"{tmp_path}/./out"
    ended = cli("send", "-e", "q", "--create", "--receipts", str(file), "--failed", again, *brokers, stdin=b"a\n")
    assert ended.status == 2
    assert "--failed names the same file as --receipts" in ended.err
    assert (file.read_bytes() == b"old") if exists else not file.exists()


def test_a_device_may_be_named_twice(cli, brokers) -> None:
    twice = ["-i", "/dev/null", "--receipts", "/dev/null", "--failed", "/dev/null"]
    assert cli("send", "-e", "q", "--create", *twice, *brokers).status == 0


def test_what_an_earlier_run_left_is_kept_until_the_pair_is_open(
    cli, brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "receipts", tmp_path / "failed"]
    for file in files:
        file.write_bytes(b"from an earlier run, and longer than what comes now" * 9)
    named = ["--receipts", str(files[0]), "--failed", str(files[1])]

    async def refuse(self: Pair) -> Pair:
        raise ConfigurationError("not today")

    with monkeypatch.context() as patch:
        patch.setattr(Pair, "__aenter__", refuse)
        assert cli("send", "-e", "q", *named, *brokers, stdin=b"a\n").status == 2
    assert all(file.read_bytes().startswith(b"from an earlier run") for file in files)
    assert cli("send", "-e", "q", "--create", *named, *brokers, stdin=b"a\n").status == 0
    assert json.loads(files[0].read_text())["line"] == 1
    assert files[1].read_bytes() == b""


@pytest.mark.usefixtures("orders")
def test_receipts_go_to_stdout_while_progress_is_drawn_on_a_terminal(cli, brokers, monkeypatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # stderr counts as a terminal
    ended = cli("send", "-e", "orders", "--json", *brokers, stdin=b"a\nb\n")
    assert [json.loads(line)["line"] for line in ended.out.splitlines()] == [1, 2]
    assert "\x1b[" in ended.err  # it was drawn


@pytest.mark.usefixtures("orders")
def test_the_rest_of_a_file_gets_the_ids_of_its_own_lines(cli, brokers, primary) -> None:
    arguments = ["send", "-e", "orders", "--id-prefix", "run7", "--json", *brokers]
    assert cli(*arguments, stdin=b"a\nb\n").status == 0
    rest = cli(*arguments, "--first-line", "3", stdin=b"c\nd\n")
    assert [json.loads(line)["line"] for line in rest.out.splitlines()] == [3, 4]
    ended = cli("receive", "-e", "orders", "--idle", "50ms", "--json", "--unique", *primary)
    ids = [json.loads(line)["message_id"] for line in ended.out.splitlines()]
    assert sorted(ids) == ["run7-1", "run7-2", "run7-3", "run7-4"]


def test_failures_under_an_id_prefix_report_how_to_send_the_rest(cli, brokers, tmp_path: Path) -> None:
    failed = tmp_path / "failed"
    arguments = ["send", "-e", "nowhere", *brokers]
    ended = cli(*arguments, "--id-prefix", "run7", "--failed", str(failed), stdin=b"a\n")
    assert f"send {failed} with another --id-prefix" in ended.err
    from_seven = cli(*arguments, "--id-prefix", "run7", "--first-line", "7", stdin=b"a\n").err
    assert "send the input again from line 7 on, with --first-line 7" in from_seven
    without = cli(*arguments, "--failed", str(failed), stdin=b"a\n").err
    assert "--id-prefix" not in without
    assert "--first-line" not in without


@pytest.mark.parametrize("keeps", [True, pytest.param(False, marks=pytest.mark.real_server)])
def test_a_stopped_run_reports_the_first_line_not_accepted_and_what_to_do(
    program, brokers, tmp_path: Path, keeps: bool
) -> None:
    failed = tmp_path / "failed"
    sender = program("send", "-e", "nowhere", *(["--failed", str(failed)] if keeps else []), "--json", *brokers)
    sender.write(b"a\nb\n")
    sender.wait_for(b'"line": 2')
    sender.signal(signal.SIGTERM)
    ended = sender.end()
    assert ended.status == 143
    assert "stopped by SIGTERM: line 1 was the first one not accepted; " in ended.err
    assert (f"send {failed} again, then go on from line 3" if keeps else "; go on from line 1, ") in ended.err
    assert "go on from line 3" in ended.err or not keeps


@pytest.mark.real_server  # a program
def test_a_stopped_run_under_an_id_prefix_reports_the_number_to_go_on_with(program, brokers) -> None:
    arguments = ["send", "-e", "q", "--create", "--id-prefix", "run7", "--first-line", "1501", "--json", *brokers]
    sender = program(*arguments)
    sender.write(b"a\n")
    sender.wait_for(b'"line": 1501')
    sender.signal(signal.SIGTERM)
    ended = sender.end()
    assert "line 1501 was the last one read; go on from line 1502 with --first-line 1502" in ended.err


@pytest.mark.parametrize(
    ("arguments", "to", "says"),
    [
        (["--receipts", "/dev/full"], "/dev/null", "/dev/full"),
        pytest.param(["--json"], "/dev/full", "standard output", marks=pytest.mark.real_server),
    ],
    ids=["receipts", "stdout"],
)
def test_a_full_disk_is_one_error_after_the_summary(brokers, arguments: list[str], to: str, says: str) -> None:
    with Path(to).open("wb") as out:
        command = [sys.executable, "-m", "pairmq", "send", "-e", "q", "--create", *arguments, *brokers]
        ended = subprocess.run(command, input=b"a\n" * 3000, stdout=out, stderr=subprocess.PIPE, check=False)
    lines = ended.stderr.decode().splitlines()
    assert ended.returncode == 1
    # A busy machine may be a second without a result, which is reported before.
    assert sum("3 000 messages accepted" in line for line in lines) == 1
    assert lines[-1] == f"error: can't write {says}: No space left on device"
    assert sum(line.startswith("error: ") for line in lines) == 1


def test_failed_lines_that_can_not_be_kept_are_not_said_to_be(cli, brokers) -> None:
    ended = cli("send", "-e", "nowhere", "--failed", "/dev/full", *brokers, stdin=b"a\n")
    assert ended.status == 1
    assert "not accepted: /dev/full" not in ended.err
    assert ended.error_lines == ["error: can't write /dev/full: No space left on device"]
