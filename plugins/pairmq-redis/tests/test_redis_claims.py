"""Claims that consumers share in Redis."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap

import pytest

from pairmq import ConfigurationError, Entity, Message, Pair
from pairmq.model import TransportError
from pairmq.testing.claims import check_claim_store
from pairmq.transport import Claim, QueueProperties
from pairmq_redis import RedisClaims
from pairmq_redis.testing import RedisServer


@pytest.fixture
async def claims(url):
    store = RedisClaims(url)
    yield store
    await store.close()


async def test_redis_keeps_what_a_store_promises(claims):
    await check_claim_store(claims)


async def test_of_many_who_claim_at_once_one_wins(url):
    stores = [RedisClaims(url) for _ in range(5)]
    try:
        answers = await asyncio.gather(*(store.claim("k", f"t{n}", 60) for n, store in enumerate(stores * 4)))
    finally:
        for store in stores:
            await store.close()
    # The same store with another token is another consumer.
    assert sorted(answers).count(Claim.WON) == 1


async def test_two_prefixes_are_two_stores(url):
    one, two = RedisClaims(url, prefix="one:"), RedisClaims(url, prefix="two:")
    try:
        assert await one.claim("k", "t", 60) is Claim.WON
        assert await two.claim("k", "other", 60) is Claim.WON
    finally:
        await one.close()
        await two.close()


@pytest.mark.parametrize("prefix", ["", "x" * 101, "ä", "a\n"])
def test_a_prefix_is_short_and_printable(prefix):
    with pytest.raises(ConfigurationError, match="prefix"):
        RedisClaims("redis://127.0.0.1:1/0", prefix=prefix)


def test_no_password_is_shown():
    assert "geheim" not in repr(RedisClaims("redis://:geheim@127.0.0.1:1/0"))


async def test_a_missing_server_is_reported_as_by_every_transport():
    store = RedisClaims("redis://127.0.0.1:1/0")
    with pytest.raises(TransportError):
        await store.claim("k", "t", 60)
    await store.close()


async def test_a_closed_store_reports_it(claims):
    await claims.close()
    await claims.close()
    with pytest.raises(TransportError, match="closed"):
        await claims.claim("k", "t", 60)


@pytest.mark.real_server
async def test_every_key_ends_by_itself(redis_server):
    redis_server.flush()
    store = RedisClaims(redis_server.url)
    await store.claim("held", "t", 60)
    await store.claim("done", "t", 60)
    await store.confirm("done", "t", 60)
    await store.close()
    for key in ("held", "done"):
        assert 0 < int(redis_server.command("PTTL", f"pairmq:once:{key}").lstrip(":")) <= 60_000
    assert redis_server.command("DBSIZE") == ":2"


CONSUMER = """
    import asyncio, sys
    from pairmq import Deduplicator, Pair
    from pairmq_redis import RedisClaims

    async def main(primary, secondary, name):
        dedupe = Deduplicator(RedisClaims(primary), lease=10)
        async with Pair.connect(primary, secondary, backlog_queue_count=1) as pair:
            async with pair.receiver("orders") as receiver:
                print("ready", flush=True)
                async for delivery in receiver:
                    async with dedupe.once(delivery) as first:
                        if first:
                            print("begin", delivery.body.decode(), flush=True)
                            await asyncio.sleep(0.05)
                            print("end", delivery.body.decode(), flush=True)

    asyncio.run(main(*sys.argv[1:]))
"""
MESSAGES = 30


@pytest.mark.real_server
async def test_two_consumers_of_which_one_is_killed_end_every_message_once(tmp_path, redis_server):
    """Each message is there twice, as after an outage. Only what the killed one had in hand may be begun twice."""
    redis_server.flush()
    program = tmp_path / "consumer.py"
    program.write_text(textwrap.dedent(CONSUMER))
    with RedisServer(appendfsync="no") as west:
        async with Pair.connect(redis_server.url, west.url, backlog_queue_count=1) as pair:
            await pair.primary.admin.create(Entity("orders"), QueueProperties(lock_duration=5.0))
            consumers = [_started(program, redis_server.url, west.url, name) for name in ("one", "two")]
            try:
                for consumer in consumers:
                    assert await asyncio.to_thread(consumer.stdout.readline) == "ready\n"
                copies = [Message(b"%d" % n, message_id=f"m{n}") for n in range(MESSAGES)]
                await pair.sender("orders").send_batch([each for copy in copies for each in (copy, copy)])
                reading = [asyncio.create_task(asyncio.to_thread(_to_third_message, each)) for each in consumers]
                await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
                # Whichever comes to it: nobody says how the messages are shared out.
                consumers[0 if reading[0].done() else 1].kill()
                while (await pair.primary.admin.counts(pair.receiver("orders").source)).pending:
                    await asyncio.sleep(0.1)
            finally:
                for consumer in consumers:
                    consumer.kill()
            lines = [line for each in reading for line in await each]
            lines += [line for consumer in consumers for line in consumer.communicate()[0].splitlines()]
    ended = [line.split()[1] for line in lines if line.startswith("end")]
    begun = [line.split()[1] for line in lines if line.startswith("begin")]
    assert set(ended) == {str(n) for n in range(MESSAGES)}
    # One message may have been ended in the instant of the kill, before it was noted.
    assert len(ended) - len(set(ended)) <= 1
    assert len(begun) - len(set(begun)) <= 1


def _started(program, *arguments):
    return subprocess.Popen([sys.executable, "-u", program, *arguments], stdout=subprocess.PIPE, text=True)


def _to_third_message(consumer):
    """What it says until it is in the middle of its third message, or has ended."""
    lines = []
    while sum(each.startswith("begin") for each in lines) < 3 and (line := consumer.stdout.readline()):
        lines.append(line)
    return lines


@pytest.mark.real_server
async def test_a_server_that_restarts_remembers_what_was_handled():
    with RedisServer() as server:
        store = RedisClaims(server.url)
        await store.claim("k", "t", 60)
        await store.confirm("k", "t", 60)
        await asyncio.to_thread(server.kill)
        server.start()
        assert await _answer(store.claim, "k", "other", 60) is Claim.DONE
        await store.close()


async def _answer(call, *arguments):
    """What a call gives once the connection is made anew: the first one may learn that the old one is lost."""
    while True:
        try:
            return await call(*arguments)
        except TransportError:
            await asyncio.sleep(0.05)
