"""docs/how-to/upgrade-a-broker.md, walked on a RabbitMQ server that is restarted while programs send steadily."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from doc_blocks import blocks
from doc_commands import lines
from pairmq import Entity, Message, Pair, Route
from pairmq.model import Source
from pairmq.plugins import registry
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer

pytestmark = [pytest.mark.real_server, pytest.mark.timeout(600)]

EXPORT, BEFORE, UPGRADE, RESTART, REPORT, HOLD, AFTER = blocks("docs/how-to/upgrade-a-broker.md")
OPTIONS = {"control_interval": 1.0, "failover_interval": 30.0, "send_timeout": 60.0}

Hands = Callable[..., Awaitable[Any]]


class Walk:
    """A reader at a shell.

    Args:
        primary: its URL.
        secondary: likewise.
    """

    def __init__(self, primary: str, secondary: str) -> None:
        known = {name: value for name, value in os.environ.items() if not name.startswith("PAIRMQ_")}
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = known | {"PATH": programs, "PAIRMQ_PRIMARY": primary, "PAIRMQ_SECONDARY": secondary}

    async def start(self, typed: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *("bash", "-euo", "pipefail", "-c", typed),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    async def run(self, typed: str) -> str:
        shell = await self.start(typed)
        printed, _ = await shell.communicate()
        assert shell.returncode == 0, printed.decode()
        return printed.decode()


@asynccontextmanager
async def senders(primary: str, secondary: str, count: int) -> AsyncIterator[list[Route]]:
    """Programs that send steadily, each through its own pair; none of their sends may fail."""
    routes: list[Route] = []
    stopping = asyncio.Event()

    async def send_steadily(number: int) -> None:
        async with Pair.connect(primary, secondary, **OPTIONS) as pair, pair.sender("orders") as sender:
            while not stopping.is_set():
                body = f"{number}-{len(routes)}"
                routes.append((await sender.send(Message(body.encode(), message_id=body))).route)
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(send_steadily(number))
        try:
            yield routes
        finally:
            stopping.set()


async def arrived(url: str) -> int:
    async with registry.transport(url) as transport:
        return (await transport.admin.counts(Source(Entity("orders")))).pending


async def reported(walk: Walk, count: int) -> None:
    while (await walk.run("pairmq switch status")).count(" yes ") < count:
        await asyncio.sleep(0.5)


async def test_a_planned_upgrade_refuses_and_loses_nothing(
    rabbit_servers: Callable[[int], list[RabbitServer]], hands: Hands
) -> None:
    (server,) = rabbit_servers(1)
    with RedisServer() as west:
        walk = Walk(server.url, west.url)
        await walk.run("pairmq entity create orders")
        async with senders(server.url, west.url, 3) as routes:
            await walk.run(lines(BEFORE)[1])
            await reported(walk, 3)
            upgrading = await walk.start("\n".join(lines(UPGRADE)))
            assert upgrading.stdout is not None
            printed = []
            async for line in upgrading.stdout:
                printed.append(line.decode())
                if "restart the primary now" in printed[-1]:
                    await hands(server.stop)
                    await asyncio.sleep(1)
                    await hands(server.start)
            assert await upgrading.wait() == 0, printed
            one_command = len(routes)
            assert routes.count(Route.BACKLOG) > 50
            text = "".join(printed)
            for line in REPORT.text.splitlines():
                assert re.sub(r"\s{2,}.*", "", line.strip()) in text
            # The same by hand.
            await walk.run("\n".join(lines(HOLD)))
            await hands(server.stop)
            await asyncio.sleep(1)
            await hands(server.start)
            ping, resume, drain = lines(AFTER)
            while await (await walk.start(f"{ping} > /dev/null")).wait():
                await asyncio.sleep(0.5)
            await walk.run(resume)
            assert Route.BACKLOG in routes[one_command:]
        await walk.run(drain)
        assert await arrived(server.url) == len(routes)
