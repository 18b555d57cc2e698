"""What waiting costs on fakeredis, where no server's thread waits in our place."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from pairmq.model import Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.plugins import registry
from pairmq.testing import memory_broker, run_virtual
from pairmq.transport import QueueProperties

QUEUE = Entity("orders")
URL = "fakeredis://waiting"


def test_waiting_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    make = registry.transport_record(URL).broker_control
    assert make is not None
    control: Any = make(URL)
    execute, done = control.execute, 0

    def counted(command: Any) -> Any:
        nonlocal done
        done += 1
        return execute(command)

    async def main() -> None:
        async with registry.transport(URL) as transport:
            await transport.admin.create(QUEUE)
            waiting = [asyncio.create_task(transport.receiver(Source(QUEUE)).receive(1, 61)) for _ in range(10)]
            await asyncio.sleep(1)
            monkeypatch.setattr(control, "execute", counted)
            await asyncio.sleep(59.5)
            # Each looks when its poll interval of a second is over: a script, the time, and a read in the beginning and
            # at the end; one more where a timer of the loop ends a rounding error before its time.
            assert 500 <= done <= 3500
            await asyncio.gather(*waiting)
        await control.forget()

    run_virtual(main())


def test_batches_side_by_side_are_stored_one_behind_the_other() -> None:
    async def main() -> None:
        async with memory_broker(scheme="fakeredis") as broker, broker.transport() as transport:
            await transport.admin.create(QUEUE)
            sender = transport.sender(QUEUE)
            await sender.send(Message(b"first"))
            batches = [[Message(b"%d" % (600 * n + m)) for m in range(600)] for n in range(3)]
            await asyncio.gather(*map(sender.send_batch, batches))
            receiver = transport.receiver(Source(QUEUE))
            received = [each.message.body for each in await receiver.receive(2000, 1)]
            assert received == [b"first", *(b"%d" % n for n in range(1800))]

    run_virtual(main())


@pytest.mark.parametrize("single", [False, True])
def test_a_long_poll_ends_soon_when_its_first_look_has_no_answer(single: bool) -> None:
    """Also the looks of one consumer at a time, which never wait in the server."""

    async def main() -> None:
        async with memory_broker(scheme="fakeredis") as broker, broker.transport() as transport:
            await transport.admin.create(QUEUE, QueueProperties(single_consumer=single))
            receiver = transport.receiver(Source(QUEUE))
            assert await receiver.receive(1, 0) == []
            await broker.hang()
            began = asyncio.get_running_loop().time()
            with pytest.raises(TransportError) as caught:
                await receiver.receive(1, 900)
            assert (caught.value.kind, caught.value.reason) == (FailureKind.UNAVAILABLE, FailureReason.TIMEOUT)
            assert asyncio.get_running_loop().time() - began < 30
            await broker.restore()

    run_virtual(main())


def test_closing_ends_soon_while_the_broker_is_silent() -> None:
    async def main() -> None:
        async with memory_broker(scheme="fakeredis") as broker:
            transport = broker.transport()
            await transport.admin.create(QUEUE)
            await transport.sender(QUEUE).send_batch([Message(b"", message_id=name) for name in "ab"])
            receivers = [transport.receiver(Source(QUEUE)) for _ in range(2)]
            for receiver in receivers:
                assert len(await receiver.receive(1, 60)) == 1
            waiting = asyncio.create_task(receivers[1].receive(1, 900))
            await asyncio.sleep(1)
            await broker.hang()
            began = asyncio.get_running_loop().time()
            await receivers[0].close()
            closed = asyncio.get_running_loop().time()
            await transport.close()
            ended = asyncio.get_running_loop().time()
            with pytest.raises(TransportError) as caught:
                await waiting
            assert caught.value.reason is FailureReason.CLOSED
            assert closed - began < 2
            assert ended - closed < 2

    run_virtual(main())


def test_a_program_that_lets_no_bytes_be_compared_with_numbers_sends() -> None:
    program = """
import asyncio
from pairmq.model import Entity, Message
from pairmq.plugins import registry

async def main():
    async with registry.transport("fakeredis://bytes") as transport:
        await transport.admin.create(Entity("q"))
        await transport.sender(Entity("q")).send(Message(b"x"))

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-bb", "-c", program], check=True)
