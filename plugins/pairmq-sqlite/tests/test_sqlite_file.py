"""The file: whose it is, who may use it, and what becomes of messages when it is damaged, full or gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from pairmq.model import Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq_sqlite import _database
from pairmq_sqlite._database import STEPS, VERSION, Database
from pairmq_sqlite._store import shown

PROGRAM = Path(__file__).with_name("sqlite_program.py")
SECONDS = 60
QUEUE = Entity("orders")


async def failure(call) -> TransportError:
    with pytest.raises(TransportError) as caught:
        await call
    return caught.value


async def outcome(call) -> TransportError | None:
    try:
        await call
    except TransportError as error:
        return error
    return None


async def fails(call, kind: FailureKind, reason: FailureReason) -> None:
    error = await failure(call)
    assert (error.kind, error.reason, error.maybe_applied) == (kind, reason, False), repr(error)


async def is_one_file(path: Path) -> None:
    """Wait until the last one to close has brought everything into the one file; a slow disk may outlast the close."""
    async with asyncio.timeout(SECONDS):
        while [file.name for file in path.parent.iterdir()] != [path.name]:
            await asyncio.sleep(0.02)


async def bodies(transport, queue: Entity) -> list[bytes]:
    return [delivery.message.body for delivery in await transport.admin.peek(Source(queue), 1000)]


def in_a_process(*words: object) -> str:
    command = [sys.executable, str(PROGRAM), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


async def test_a_new_file_is_its_owners_alone(path, transport, queue):
    files = [file for file in path.parent.iterdir() if file.name.startswith(path.name)]
    assert {file.name for file in files} == {"broker.db", "broker.db-wal", "broker.db-shm"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


async def test_a_confirmed_message_is_in_the_file(path, transport, queue, message):
    await transport.sender(queue).send(message("kept"))
    other = sqlite3.connect(path)
    assert other.execute("SELECT body FROM message").fetchall() == [(b"kept",)]
    other.close()


async def test_the_last_to_close_leaves_one_file(path, connect, transport, queue, message):
    other = connect()
    await transport.sender(queue).send(message(bytes(100_000)))
    await other.admin.check()
    await transport.close()
    await other.close()
    await is_one_file(path)
    assert path.stat().st_size > 100_000


async def test_every_commit_is_synced(transport, queue):
    def setting(store):
        return store._database.connection.execute("PRAGMA synchronous").fetchone()[0]

    full = 2
    assert await transport._context.calls().run(setting, "look") == full


@pytest.mark.parametrize("content", [b"this is a text of some length, and no database\n" * 30, b"x"])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(path, transport, content):
    path.write_bytes(content)
    await fails(transport.admin.check(), FailureKind.REFUSED, FailureReason.DISABLED)
    assert path.read_bytes() == content


async def test_another_programs_database_is_refused_and_left_alone(path, transport):
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE contacts (name TEXT)")
    theirs.close()
    before = path.read_bytes()
    await fails(transport.admin.check(), FailureKind.REFUSED, FailureReason.DISABLED)
    assert path.read_bytes() == before


@pytest.mark.parametrize("version", [0, VERSION + 1])
async def test_a_later_versions_file_is_refused_and_one_whose_version_an_application_has_set(
    path, connect, transport, queue, version
):
    await transport.close()
    with sqlite3.connect(path) as later:
        later.execute(f"PRAGMA user_version = {version:d}")
    later.close()
    error = await failure(connect().admin.check())
    assert (error.kind, error.reason) == (FailureKind.REFUSED, FailureReason.DISABLED)
    assert f"set it back to {VERSION}" in str(error)
    with sqlite3.connect(path) as later:
        later.execute(f"PRAGMA user_version = {VERSION:d}")
    later.close()
    await connect().admin.check()


async def test_an_earlier_versions_file_is_brought_up_and_keeps_what_it_holds(transport, connect, queue, monkeypatch):
    await transport.sender(QUEUE).send(Message(b"kept"))
    await transport.close()
    monkeypatch.setattr(_database, "STEPS", (*STEPS, ("ALTER TABLE message ADD COLUMN later_added TEXT",)))
    monkeypatch.setattr(_database, "VERSION", VERSION + 1)
    later = connect()
    (delivery,) = await later.receiver(Source(QUEUE)).receive(1, 5.0)
    assert delivery.message.body == b"kept"
    await connect().admin.check()  # once more: there is nothing left to be done
    monkeypatch.undo()
    await fails(connect().admin.check(), FailureKind.REFUSED, FailureReason.DISABLED)


async def test_an_empty_file_is_made_into_one_of_ours(path, transport):
    path.touch()
    path.chmod(0o640)
    assert await transport.admin.create(QUEUE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_two_that_find_an_empty_file_make_its_tables_once(path, monkeypatch):
    make_tables = Database._make_tables

    def be_overtaken(self):
        monkeypatch.undo()
        Database(path).close()
        make_tables(self)

    monkeypatch.setattr(Database, "_make_tables", be_overtaken)
    database = Database(path)
    database.begin()
    database.close()


def test_a_file_whose_tables_are_just_being_made_is_not_taken_for_a_foreign_one(path, monkeypatch):
    pragma = Database._pragma

    def be_overtaken(self, name):
        value = pragma(self, name)
        monkeypatch.undo()
        with contextlib.suppress(sqlite3.OperationalError):  # the other one may have to wait
            Database(path).close()
        return value

    monkeypatch.setattr(Database, "_pragma", be_overtaken)
    Database(path).close()


async def test_a_missing_directory_is_unavailable_until_it_is_there(path, connect, message):
    shutil.rmtree(path.parent)
    transport = connect()
    await fails(transport.sender(QUEUE).send(message()), FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
    path.parent.mkdir()
    assert await transport.admin.create(QUEUE)


async def test_a_directory_in_the_files_place_is_unavailable(path, transport):
    path.mkdir()
    await fails(transport.admin.check(), FailureKind.UNAVAILABLE, FailureReason.CONNECTION)


@pytest.mark.parametrize("mode", [0o444, 0o000])
def test_a_file_without_the_right_to_write_is_refused(mode):
    # In a process without root's rights, to whom permissions mean nothing, and in a directory that it may enter.
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o777)
        path = Path(directory, "broker.db")
        path.touch()
        path.chmod(mode)
        assert in_a_process("--nobody", "fail", f"sqlite://{path}", 1) == "failed refused unauthorized\n"


async def test_a_disk_that_is_mounted_read_only_is_unavailable_and_named(transport, monkeypatch):
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_RDONLY))
    await fails(transport.admin.check(), FailureKind.UNAVAILABLE, FailureReason.OTHER)
    with pytest.raises(TransportError, match="the disk is mounted read-only"):
        await transport.admin.check()


async def test_a_deleted_file_takes_no_more_messages_and_no_other_is_made(path, transport, queue, message):
    sender = transport.sender(queue)
    await sender.send(message("before"))
    for file in path.parent.glob("broker.db*"):
        file.unlink()
    for _ in range(2):
        await fails(sender.send(message("lost?")), FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
    assert not path.exists()


async def test_a_file_that_comes_back_has_all_that_was_accepted(path, transport, queue, message):
    sender = transport.sender(queue)
    await sender.send(message("before"))
    away = path.parent.with_name("away")
    path.parent.rename(away)
    assert (await failure(sender.send(message("during")))).kind is FailureKind.UNAVAILABLE
    away.rename(path.parent)
    await sender.send(message("after"))
    assert await bodies(transport, queue) == [b"before", b"after"]


async def test_a_log_that_was_deleted_takes_no_more_messages_and_loses_none(path, transport, queue, message):
    sender = transport.sender(queue)
    await sender.send(message("before"))
    path.with_name("broker.db-wal").unlink()
    await fails(sender.send(message("too early")), FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
    await sender.send(message("after"))
    assert await bodies(transport, queue) == [b"before", b"after"]


async def test_a_file_put_in_its_place_is_used_after_one_failure(path, connect, transport, queue, message):
    sender = transport.sender(queue)
    await sender.send(message("in the old file"))
    other = connect()
    os.rename(path, path.with_name("old.db"))
    for file in path.parent.glob("broker.db-*"):
        file.rename(file.with_name(file.name.replace("broker", "old")))
    assert await other.admin.create(queue)
    await fails(sender.send(message("too early")), FailureKind.UNAVAILABLE, FailureReason.CONNECTION)
    await sender.send(message("in the new file"))
    assert await bodies(other, queue) == [b"in the new file"]


async def test_a_damaged_file_is_unavailable_and_loses_nothing_that_its_backup_has(
    path, connect, transport, queue, message
):
    await transport.sender(queue).send_batch([message(bytes([number]) * 3000) for number in range(50)])
    await transport.close()
    await is_one_file(path)
    backup = path.with_name("backup.db")
    shutil.copy(path, backup)
    size = path.stat().st_size
    with path.open("r+b") as file:  # all but the first page, which says what file this is
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    damaged = connect()
    sender = damaged.sender(queue)
    for _ in range(2):
        await fails(sender.send(message()), FailureKind.UNAVAILABLE, FailureReason.OTHER)
    os.replace(backup, path)
    await sender.send(message(b"after"))
    assert len(await bodies(damaged, queue)) == 51


async def test_a_full_file_is_unavailable_keeps_what_it_took_and_goes_on_when_there_is_room(connect, message):
    transport = connect(max_megabytes=1)
    await transport.admin.create(QUEUE)
    sender = transport.sender(QUEUE)
    outcomes = [await outcome(sender.send(message(bytes(50_000)))) for _ in range(25)]
    sent = outcomes.count(None)
    assert 5 < sent < 20
    assert {(error.kind, error.reason, error.maybe_applied) for error in outcomes[sent:]} == {
        (FailureKind.UNAVAILABLE, FailureReason.QUOTA, False)
    }
    receiver = transport.receiver(Source(QUEUE))
    deliveries = await receiver.receive(100, 0)
    assert len(deliveries) == sent
    assert not any(await receiver.complete_batch(deliveries))
    await sender.send(message(bytes(50_000)))


async def test_a_full_file_fails_the_probe(connect, message):
    transport = connect(max_megabytes=1)
    await transport.admin.create(QUEUE)
    await transport.admin.probe(QUEUE)
    sender = transport.sender(QUEUE)
    while await outcome(sender.send(message(bytes(20_000)))) is None:
        pass
    await fails(transport.admin.probe(QUEUE), FailureKind.UNAVAILABLE, FailureReason.QUOTA)


async def test_a_disk_that_takes_no_more_is_unavailable_and_nothing_accepted_is_lost(path, transport, queue, message):
    """The operating system fails a write in the middle, as a full or failing disk does."""
    await transport.sender(queue).send(message("accepted"))
    told = in_a_process("--file-limit=1000000", "fail", f"sqlite://{path}", 3_000_000)
    assert told.startswith("failed unavailable")
    await transport.sender(queue).send(message("after"))
    found = await bodies(transport, queue)
    assert [body for body in found if len(body) < 100] == [b"accepted", b"after"]
    assert len(found) == 2, "a write that failed in the middle is a message"


@pytest.mark.parametrize(("header", "body"), [("{", b"x"), (None, b"x"), (b"\xff", None), ("\ud800", b"")])
def test_a_person_can_look_at_what_is_malformed(header, body):
    found = shown(header, body)
    assert set(found.application_properties) == {"raw:header"}
    assert found.body == (body or b"")
