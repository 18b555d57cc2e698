import base64
import errno
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def orders(cli, brokers) -> None:
    """A queue with the messages 1 to 5."""
    assert cli("send", "-e", "orders", "--create", *brokers, stdin=b"1\n2\n3\n4\n5\n").status == 0


@pytest.mark.usefixtures("orders")
def test_bodies_come_a_line_each_and_are_gone_from_the_queue(cli, primary) -> None:
    assert cli("receive", "-e", "orders", "--idle", "50ms", *primary).out == "1\n2\n3\n4\n5\n"
    assert cli("receive", "-e", "orders", "--idle", "50ms", *primary).out == ""


def test_no_body_steers_a_terminal(cli, brokers, primary) -> None:
    body = "ä\tred\x1b[31m\x07\r\u202e".encode() + b"\xff"
    assert cli("send", "-e", "q", "--create", *brokers, stdin=body).status == 0
    screen, terminal = os.openpty()
    try:
        assert cli("receive", "-e", "q", "--max", "1", "--output", os.ttyname(terminal), *primary).status == 0
        shown = os.read(screen, 4096).decode()
    finally:
        os.close(screen)
        os.close(terminal)
    assert shown.replace("\t", " ").split() == ["ä", r"red\x1b[31m\x07\r\u202e\xff"]


@pytest.mark.usefixtures("orders")
def test_max_takes_no_more_than_that(cli, primary) -> None:
    assert cli("receive", "-e", "orders", "--max", "2", *primary).out == "1\n2\n"
    assert cli("receive", "-e", "orders", "--idle", "50ms", *primary).out == "3\n4\n5\n"


@pytest.mark.usefixtures("orders")
def test_peek_changes_nothing(cli, primary) -> None:
    for _ in range(2):
        assert cli("receive", "-e", "orders", "--peek", "--max", "3", *primary).out == "1\n2\n3\n"
    assert cli("receive", "-e", "orders", "--idle", "50ms", *primary).out == "1\n2\n3\n4\n5\n"


@pytest.mark.usefixtures("orders")
def test_json_holds_the_whole_message(cli, primary) -> None:
    first = json.loads(cli("receive", "-e", "orders", "--max", "1", "--json", *primary).out)
    assert base64.b64decode(first["body"]) == b"1"
    assert first["delivery_count"] == 1
    assert "session_id" not in first


@pytest.mark.usefixtures("orders")
def test_a_file_is_appended_to(cli, primary, tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_bytes(b"before\n")
    assert cli("receive", "-e", "orders", "--idle", "50ms", "-o", str(file), *primary).status == 0
    assert file.read_bytes() == b"before\n1\n2\n3\n4\n5\n"


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(("more", "separator"), [([], b"\n"), (["--null"], b"\0")])
def test_a_file_that_ends_amid_a_message_does_not_spoil_the_next_one(
    cli, primary, tmp_path: Path, more: list[str], separator: bytes
) -> None:
    """A full disk, or a crash, leaves a part of a message, which is redelivered; the next one would be a part of it."""
    file = tmp_path / "out"
    file.write_bytes(b"before" + separator + b"bef")
    for number in (b"1", b"2"):
        assert cli("receive", "-e", "orders", "--max", "1", "-o", str(file), *more, *primary).status == 0
        assert file.read_bytes().split(separator)[-2] == number
    assert file.read_bytes() == separator.join((b"before", b"bef", b"1", b"2", b""))


def test_a_subscription_is_read_by_its_name(cli, brokers, primary) -> None:
    made = cli("entity", "create", "prices", "--kind", "topic", "-s", "audit", *primary)
    assert made.status == 0
    assert cli("send", "-e", "prices", "--kind", "topic", *brokers, stdin=b"7\n").status == 0
    assert cli("receive", "-e", "prices", "-s", "audit", "--max", "1", *primary).out == "7\n"


def test_a_missing_queue_is_a_clear_error(cli, primary) -> None:
    ended = cli("receive", "-e", "nowhere", "--idle", "50ms", *primary)
    assert ended.status == 1
    assert "has no queue 'nowhere'" in ended.err


@pytest.mark.parametrize("output", ["/", "/nowhere/at/all"])
def test_a_file_that_can_not_be_written_is_found_before_anything_is_received(cli, primary, output: str) -> None:
    ended = cli("receive", "-e", "orders", "-o", output, *primary)
    assert ended.status == 2
    assert ended.error_lines


@pytest.mark.usefixtures("orders")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_nothing_is_completed_that_could_not_be_written(cli, primary) -> None:
    ended = cli("receive", "-e", "orders", "-o", "/dev/full", "--idle", "50ms", *primary)
    assert ended.status == 1
    assert "No space left" in ended.err
    assert cli("receive", "-e", "orders", "--idle", "50ms", *primary).out == "1\n2\n3\n4\n5\n"


@pytest.mark.usefixtures("orders")
def test_nothing_is_completed_that_is_not_on_the_disk(cli, primary, tmp_path: Path, monkeypatch) -> None:
    """A machine that crashes keeps no more than that, and what was completed is nowhere else."""

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fsync", fails)
    ended = cli("receive", "-e", "orders", "-o", str(tmp_path / "out"), "--idle", "50ms", *primary)
    assert (ended.status, "can't write" in ended.err) == (1, True)
    monkeypatch.undo()
    assert cli("receive", "-e", "orders", "--idle", "50ms", *primary).out == "1\n2\n3\n4\n5\n"


@pytest.mark.real_server
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_cleanly(program, cli, servers, number: int, status: int) -> None:
    first, second = servers
    pair = ["--primary", first.url, "--secondary", second.url]
    assert cli("send", "-e", "orders", "--create", *pair, stdin=b"1\n").status == 0
    receiver = program("receive", "-e", "orders", "--primary", first.url)
    receiver.wait_for(b"1\n")
    receiver.signal(number)
    ended = receiver.end()
    assert (ended.status, ended.out) == (status, "1\n")
    assert "1 message written" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.real_server
def test_it_goes_on_after_an_outage(program, cli, servers) -> None:
    first, second = servers
    pair = ["--primary", first.url, "--secondary", second.url]
    assert cli("send", "-e", "orders", "--create", *pair, stdin=b"before\n").status == 0
    receiver = program("receive", "-e", "orders", "--primary", first.url)
    receiver.wait_for(b"before\n")
    first.kill()
    receiver.wait_for(b"trying again")
    first.start()
    assert cli("send", "-e", "orders", *pair, stdin=b"after\n").status == 0
    receiver.wait_for(b"after\n")
    receiver.signal(signal.SIGINT)
    assert receiver.end().status == 130


@pytest.mark.real_server
def test_a_reader_that_leaves_loses_no_message(cli, servers) -> None:
    first, second = servers
    pair = ["--primary", first.url, "--secondary", second.url]
    lines = b"".join(b"%d\n" % number for number in range(3000))
    assert cli("send", "-e", "orders", "--create", *pair, stdin=lines).status == 0
    command = (
        f"{shlex.quote(sys.executable)} -m pairmq receive -e orders --idle 1 --prefetch 100 --primary {first.url} "
        "| (read line; exec true); echo ${PIPESTATUS[0]}"
    )
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=100)
    assert (ended.stdout, ended.stderr) == ("141\n", "")
    rest = cli("receive", "-e", "orders", "--idle", "500ms", "--primary", first.url).out.split()
    assert rest[-1] == "2999"
    assert len(rest) >= 3000 - 1100  # what was written into the pipe before is gone, nothing else
