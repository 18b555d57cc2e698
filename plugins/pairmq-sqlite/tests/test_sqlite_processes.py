"""Several processes at one file, and processes that are killed in the middle."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from pairmq.model import Entity, Source
from pairmq.transport import QueueProperties, Transport

pytestmark = pytest.mark.real_server

PROGRAM = Path(__file__).with_name("sqlite_program.py")
PATIENCE = 60.0
LOCK = 4.0
QUEUE = Entity("orders")
Start = Callable[[str, int], Awaitable["Program"]]


class Program:
    """A process that runs `sqlite_program`.

    Args:
        process: it.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.printed: list[str] = []

    async def run(self, *, kill_after: int | None = None) -> list[str]:
        """Read what it prints until it ends, or until it is killed after so many lines."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            async for line in self.process.stdout:
                self.printed.append(line.decode().strip())
                if len(self.printed) == kill_after:
                    self.process.kill()
            await self.process.wait()
        return self.printed


@pytest.fixture
async def start(path: Path) -> AsyncIterator[Start]:
    """Starts programs: ``await start("send", 10)``."""
    programs: list[Program] = []

    async def start(what: str, number: int) -> Program:
        command = (sys.executable, str(PROGRAM), what, f"sqlite://{path}?poll_interval=0.05", str(number))
        programs.append(Program(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)))
        return programs[-1]

    yield start
    for program in programs:
        if program.process.returncode is None:
            program.process.kill()
            await program.process.wait()


def numbers(found: Iterable[str], verb: str) -> list[int]:
    return [int(line.split()[1]) for line in found if line.startswith(f"{verb} ")]


def is_sound(path: Path) -> bool:
    connection = sqlite3.connect(path)
    told = connection.execute("PRAGMA integrity_check").fetchone()
    connection.close()
    return told == ("ok",)


@pytest.fixture
async def queue(transport: Transport) -> Entity:
    await transport.admin.create(QUEUE, QueueProperties(lock_duration=LOCK))
    return QUEUE


@pytest.mark.parametrize("kill_after", [1, 40, 333])
async def test_a_sender_that_is_killed_loses_nothing_that_was_accepted(path, transport, queue, start, kill_after):
    accepted = numbers(await (await start("send", 1_000_000)).run(kill_after=kill_after), "sent")
    assert len(accepted) >= kill_after
    stored = [int(delivery.message.body) for delivery in await transport.admin.peek(Source(queue), 1_000_000)]
    # What was on its way when it was killed may be there: no more than the one, as it sends one after the other.
    assert stored in (accepted, [*accepted, len(accepted)])
    assert is_sound(path)


async def test_a_receiver_that_is_killed_loses_nothing(path, transport, queue, message, start):
    sent = 200
    await transport.sender(queue).send_batch([message(str(number)) for number in range(sent)])
    found = await (await start("receive", 10)).run(kill_after=61)
    got, completed = numbers(found, "got"), numbers(found, "completed")
    receiver = transport.receiver(Source(queue))
    left: dict[int, int] = {}
    while deliveries := await receiver.receive(100, 2 * LOCK):
        left.update((int(delivery.message.body), delivery.delivery_count) for delivery in deliveries)
        assert not any(await receiver.complete_batch(deliveries))
    in_doubt = set(got) - set(completed)  # completed perhaps, but killed before it could say so
    assert set(range(sent)) - set(completed) - in_doubt <= set(left)
    assert set(left).isdisjoint(completed)
    # It held one at a time: the one in doubt, or one that it was killed before it could tell of.
    assert sorted(left.values())[:-1] == [1] * (len(left) - 1)
    assert left[max(left, key=left.__getitem__)] <= 2
    assert is_sound(path)


async def test_what_a_killed_receiver_held_comes_back_when_its_lock_ends(transport, queue, message, start):
    await transport.sender(queue).send(message("0"))
    assert await (await start("hold", 1)).run(kill_after=1) == ["got 0"]
    (delivery,) = await transport.receiver(Source(queue)).receive(1, PATIENCE)
    assert delivery.delivery_count == 2


async def test_two_processes_never_get_the_same_message(transport, message, start):
    queue = QUEUE
    await transport.admin.create(queue)  # with locks that last, however long a process is held up
    programs = [await start("receive", 3) for _ in range(2)]
    runs = [asyncio.ensure_future(program.run()) for program in programs]
    sent = 0
    async with asyncio.timeout(PATIENCE):
        while not all(program.printed for program in programs):
            await transport.sender(queue).send_batch([message(str(number)) for number in range(sent, sent + 20)])
            sent += 20
            await asyncio.sleep(0.05)
    one, other = (numbers(found, "got") for found in await asyncio.gather(*runs))
    assert sorted(one + other) == list(range(sent))
    assert (await transport.admin.counts(Source(queue))).pending == 0


async def test_several_processes_may_send_at_once(path, transport, queue, start):
    programs = [await start("send", 100) for _ in range(3)]
    accepted = [numbers(found, "sent") for found in await asyncio.gather(*(program.run() for program in programs))]
    assert accepted == [list(range(100))] * 3
    assert (await transport.admin.counts(Source(queue))).active == 300
    assert is_sound(path)


async def test_processes_that_start_together_make_one_file(path, start):
    """Each finds no file, or one without tables."""
    programs = [await start("fail", 1) for _ in range(4)]
    told = await asyncio.gather(*(program.run() for program in programs))
    assert told == [["failed refused not-found"]] * 4
    assert is_sound(path)
