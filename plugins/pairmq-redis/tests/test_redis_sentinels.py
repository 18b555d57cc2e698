"""Asking sentinels for the master, and hearing of another one, with scripted sentinels."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from pairmq.testing.servers import free_port
from pairmq_redis._cluster import Cluster
from pairmq_redis._nodes import Address, Sentinels
from pairmq_redis._transport import _sentinel_factory
from pairmq_redis._url import parse_redis_url
from scripted_redis import ScriptedRedis, bulk, listening


class Sentinel(ScriptedRedis):
    """Names a master, unless it hangs or knows none."""

    def __init__(self) -> None:
        super().__init__()
        self.master: Address | None = ("10.0.0.1", 6379)
        self.epoch: int | None = 0
        self.asked = 0
        self.subscribers: list[asyncio.StreamWriter] = []

    def switch(self, master: Address, service: str = "orders") -> None:
        """Say that another server is the master."""
        self.master = master
        text = f"{service} 10.0.0.1 6379 {master[0]} {master[1]}"
        for writer in self.subscribers:
            writer.write(f"*3\r\n{bulk('message')}{bulk('+switch-master')}{bulk(text)}".encode())

    def answer(self, command: list[bytes], writer: asyncio.StreamWriter) -> bytes:
        if command[0] == b"SUBSCRIBE":
            self.subscribers.append(writer)
            return f"*3\r\n{bulk('subscribe')}{bulk('+switch-master')}:1\r\n".encode()
        if command[0] != b"SENTINEL":
            return super().answer(command, writer)
        if command[1] == b"MASTER":
            if self.epoch is None or self.master is None:
                return b"-NOPERM this user has no permissions to run the 'sentinel|master' command\r\n"
            return f"*4\r\n{bulk('name')}{bulk('orders')}{bulk('config-epoch')}{bulk(str(self.epoch))}".encode()
        self.asked += 1
        if self.master is None or command[2] != b"orders":
            return b"*-1\r\n"
        host, port = self.master
        return f"*2\r\n{bulk(host)}{bulk(str(port))}".encode()


@pytest.fixture
async def three() -> AsyncIterator[list[Sentinel]]:
    sentinels = [Sentinel() for _ in range(3)]
    async with listening(*sentinels):
        yield sentinels


@contextlib.asynccontextmanager
async def asking(addresses: list[Address], options: str = "") -> AsyncIterator[tuple[Sentinels, list[Address]]]:
    """Sentinels, and the masters that they were heard to switch to."""
    hosts = ",".join(f"{host}:{port}" for host, port in addresses)
    url = parse_redis_url(f"redis+sentinel://alice:hunter2@{hosts}/orders{options}")
    heard: list[Address] = []
    made = Sentinels(url.host, url.sentinels, _sentinel_factory(url, None), heard.append)
    yield made, heard
    await made.close()


async def subscribed(sentinel: Sentinel) -> None:
    while not sentinel.subscribers:
        await asyncio.sleep(0.01)


async def test_the_master_is_found_by_the_sentinel_that_knows_it(three: list[Sentinel]) -> None:
    three[0].hangs, three[1].master = True, None
    down = ("127.0.0.1", free_port())
    async with asking([down, *(each.address for each in three)]) as (sentinels, _):
        assert await sentinels.master() == ("10.0.0.1", 6379)


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
async def test_each_process_asks_in_an_order_of_its_own(kind: str) -> None:
    addresses = [(host, 26379) for host in ("a", "b", "c")]
    make = _sentinel_factory(parse_redis_url("redis+sentinel://a/orders"), None)
    first = set()
    for _ in range(60):
        random.seed(1)  # as a program may, and those that are forked from one
        cluster = Cluster(addresses, make, 1.0, lambda _: None)
        sentinels = Sentinels("orders", addresses, make, lambda _: None)
        order = (cluster if kind == "cluster" else sentinels)._order
        assert sorted(order) == addresses
        first.add(order[0])
    assert first == {*addresses}


async def test_a_sentinel_that_hung_is_asked_last(three: list[Sentinel]) -> None:
    """A caller with little time would never get to the next one."""
    three[0].hangs = True
    async with asking([three[0].address, three[1].address]) as (sentinels, _):
        await sentinels.master()
        assert sentinels._order[-1] == three[0].address or not three[0].commands


async def test_no_master_is_one_error_without_secrets(three: list[Sentinel]) -> None:
    three[0].master = None
    down = ("127.0.0.1", free_port())
    async with asking([down, three[0].address]) as (sentinels, _):
        with pytest.raises(RedisConnectionError, match="no sentinel names the master 'orders'") as caught:
            await sentinels.master()
    assert str(down[1]) in str(caught.value)
    assert "it does not know this master" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("epochs", [(0, 1, 0), (5, 6, 5)])
async def test_a_sentinel_that_is_behind_leads_no_call_back_to_the_old_master(
    three: list[Sentinel], epochs: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be up again, and takes writes that it loses when the sentinels make it a replica."""
    monkeypatch.setattr("pairmq_redis._nodes._LISTEN_AGAIN", 0.01)
    monkeypatch.setattr("pairmq_redis._nodes._LISTEN_FOR", 0.1)
    for each, epoch in zip(three, epochs, strict=True):
        each.epoch = epoch
    three[1].master = ("10.0.0.2", 6380)
    async with asking([each.address for each in three]) as (sentinels, heard):
        sentinels._order = [each.address for each in three]
        assert await sentinels.master() == ("10.0.0.1", 6379)
        while not heard:  # each is listened to
            await asyncio.sleep(0.01)
        before = three[0].asked
        while three[0].asked < before + 5:
            sentinels._order = [each.address for each in three]
            assert await sentinels.master() == ("10.0.0.2", 6380)
            await asyncio.sleep(0.01)
        assert heard == [("10.0.0.2", 6380)]


async def test_sentinels_that_were_set_up_anew_are_believed(three: list[Sentinel]) -> None:
    for each in three:
        each.epoch = 7
    async with asking([each.address for each in three]) as (sentinels, _):
        await sentinels.master()
        for each in three:
            each.epoch, each.master = 0, ("10.0.0.3", 6379)
        assert await sentinels.master() == ("10.0.0.3", 6379)


async def test_a_sentinel_that_reports_no_epoch_is_believed(three: list[Sentinel]) -> None:
    three[0].epoch = None
    async with asking([three[0].address]) as (sentinels, _):
        assert await sentinels.master() == ("10.0.0.1", 6379)


@pytest.mark.parametrize(("options", "login"), [("", False), ("?sentinel_login=same", True)])
async def test_sentinels_get_the_login_only_when_the_url_has_the_option(
    three: list[Sentinel], options: str, login: bool
) -> None:
    async with asking([three[0].address], options) as (sentinels, _):
        await sentinels.master()
        assert ([b"AUTH", b"alice", b"hunter2"] in three[0].commands) is login


async def test_another_master_is_heard_of_once(three: list[Sentinel]) -> None:
    async with asking([each.address for each in three]) as (sentinels, heard):
        await sentinels.master()
        for each in three:
            await subscribed(each)
        three[0].switch(("10.0.0.9", 6379), service="other")
        for each in three:
            each.switch(("10.0.0.2", 6380))
        while sentinels.found != ("10.0.0.2", 6380):
            await asyncio.sleep(0.01)
        assert await sentinels.master() == ("10.0.0.2", 6380)
        assert heard == [("10.0.0.2", 6380)]


async def test_an_unannounced_switch_is_found_when_listening_again(
    three: list[Sentinel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pairmq_redis._nodes._LISTEN_AGAIN", 0.01)
    async with asking([three[0].address]) as (sentinels, heard):
        await sentinels.master()
        await subscribed(three[0])
        three[0].master = ("10.0.0.2", 6380)
        for writer in three[0].subscribers:
            writer.transport.abort()
        while not heard:
            await asyncio.sleep(0.01)
        assert heard == [("10.0.0.2", 6380)]


@pytest.mark.parametrize("news", [b"", b"*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$8\r\nnonsense\r\n"])
async def test_a_switch_is_found_though_the_connection_says_nothing_that_makes_sense(
    three: list[Sentinel], monkeypatch: pytest.MonkeyPatch, news: bytes
) -> None:
    monkeypatch.setattr("pairmq_redis._nodes._LISTEN_AGAIN", 0.01)
    monkeypatch.setattr("pairmq_redis._nodes._LISTEN_FOR", 0.1)
    async with asking([three[0].address]) as (sentinels, heard):
        await sentinels.master()
        while three[0].asked < 2:  # once to find the master, once after it listens
            await asyncio.sleep(0.01)
        for writer in three[0].subscribers:
            writer.write(news)
        three[0].master = ("10.0.0.2", 6380)
        while not heard:
            await asyncio.sleep(0.01)
        assert heard == [("10.0.0.2", 6380)]
