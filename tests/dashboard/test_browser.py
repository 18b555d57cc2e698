"""The page in a real browser, of a pair of two real servers; scripts/system-packages.sh installs the browser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from chromium import Page, chromium
from pairmq import Entity, EntityState, Message, Pair, PairOptions
from pairmq.dashboard import Address, serving
from pairmq.testing import SimulatedBroker
from pairmq_redis.testing import RedisServer

pytestmark = pytest.mark.real_server

HOSTILE = "<img src=x onerror=alert(1)>"
OPTIONS = PairOptions(
    failover_interval=0.3,
    ping_primary_interval=0.5,
    attempt_timeout=20.0,  # what fails here fails at once, and nothing fails over because the machine is busy
    ping_timeout=20.0,
    backlog_queue_count=2,
    enable_syphon=True,
    backlog_retry_interval=1.0,
)
SAID = "document.querySelector('.verdict .said').textContent"


def row(entity: str) -> str:
    """JavaScript that gives an entity's row."""
    return f"[...document.querySelectorAll('#entities tbody tr')].find(r => r.children[0].textContent === {entity!r})"


def state(entity: str) -> str:
    return f"{row(entity)}?.querySelector('.state').textContent"


@dataclass
class Scene:
    """A pair, its servers, its page."""

    pair: Pair
    primary: RedisServer
    secondary: RedisServer
    address: Address
    page: Page

    async def press(self, label: str, entity: str, tick: str | None = None) -> None:
        """Press a button of an entity's row, tick a box of the question that comes, and answer it."""
        button = f"[...{row(entity)}.querySelectorAll('button')].find(b => b.textContent === {label!r})"
        await self.page.until(f"(b => b && !b.disabled && b.offsetWidth)({button})")
        await self.page.evaluate(f"{button}.click()")
        await self.page.until("document.getElementById('ask').open")
        if tick is not None:
            await self.page.evaluate(f"document.getElementById({tick!r}).click()")
        await self.page.evaluate("document.getElementById('ask-yes').click()")
        await self.page.until("!document.getElementById('ask').open")


@pytest.fixture
async def scene(tmp_path) -> AsyncIterator[Scene]:
    async with _scene(tmp_path) as made:
        yield made


@asynccontextmanager
async def _scene(tmp_path) -> AsyncIterator[Scene]:
    with RedisServer(appendfsync="everysec") as primary, RedisServer(appendfsync="everysec") as secondary:
        pair = Pair.connect(primary.url, secondary.url, options=OPTIONS)
        async with serving(pair, port=0) as address, pair, chromium(tmp_path) as page:
            for name in ("orders", "prices", HOSTILE):
                await pair.primary.admin.create(Entity(name))
                await pair.sender(name).send(Message(b"0"))
            yield Scene(pair, primary, secondary, address, page)


async def test_an_outage_an_operator_and_the_way_back(scene):
    page, pair = scene.page, scene.pair
    await page.screen(1240, 1000)
    await page.go(scene.address.operator_url)
    await page.until(f"{SAID} === 'All is well.'")
    assert await page.evaluate("location.hash + document.cookie") == ""  # the token is in neither
    assert await page.evaluate(f"{row(HOSTILE)}.querySelector('img')") is None

    # The primary is killed: the page says so, and which entity is failed over.
    scene.primary.kill()
    for number in range(5):
        await pair.sender("orders").send(Message(str(number).encode()))
    await page.until(f"{state('orders')} === 'failed over'")
    await page.until("document.querySelector('.tiles').textContent.includes('unavailable')")
    assert (await page.evaluate(SAID)).startswith("1 entity is failed over")
    assert await page.evaluate(f"!!{row('orders')}.querySelector('rect.failed-over')")
    await page.until(
        "[...document.querySelectorAll('.tile')].some(t => t.innerText.startsWith('In the backlog\\n5\\n'))"
    )

    # Held by the page, it stays failed over though the primary is back and its messages drain.
    await scene.press("Hold", "orders")
    await page.until(f"{state('orders')} === 'held'")
    scene.primary.start()
    async with asyncio.timeout(60):
        while pair.moved < 5:
            await asyncio.sleep(0.05)
    assert pair.state("orders") is EntityState.FAILED_OVER
    # Held once more, the syphon included, it keeps what waits until it is marked healthy.
    await scene.press("Mark healthy", "orders")
    await scene.press("Hold", "orders", tick="ask-keep")
    await page.until(f"{row('orders')}.textContent.includes('the syphon delivers nothing to it')")
    await pair.sender("orders").send(Message(b"5"))
    await asyncio.sleep(1)
    assert pair.moved == 5
    await scene.press("Mark healthy", "orders")
    await page.until(f"{state('orders')} === 'healthy'")
    await page.until(f"{SAID} === 'All is well.'")
    assert pair.moved == 6

    # What is left on the page when the pair has ended is dated.
    await pair.close()
    await page.until(f"{SAID} === 'The pair is closed.'")
    more = await page.evaluate("document.querySelector('.verdict .more').textContent")
    assert "brokers and backlog are as it saw them before" in more.lower()
    assert page.complaints == []


async def test_without_the_token_one_looks_and_with_it_one_signs_in(scene):
    page = scene.page
    await page.screen(1240, 1000)
    await page.go(scene.address.url)
    await page.until(f"{state('orders')} === 'healthy'")
    assert await page.evaluate(f"{row('orders')}.querySelector('button').offsetWidth") == 0
    await page.evaluate("document.getElementById('sign').click()")
    for token, says in (("wrong", "wrong token"), (scene.address.token, "")):
        await page.evaluate(f"document.getElementById('token').value = {token!r}")
        await page.evaluate("document.querySelector('#login form').requestSubmit()")
        if says:
            await page.until(f"document.getElementById('login-wrong').textContent === {says!r}")
    await page.until(f"{row('orders')}.querySelector('button').offsetWidth > 0")
    # By the keys alone: Tab reaches the button, Enter presses it, Escape leaves the question.
    await page.evaluate(f"{row('orders')}.querySelector('button').focus()")
    await page.key("Enter")
    await page.until("document.getElementById('ask').open")
    await page.key("Escape")
    await page.until("!document.getElementById('ask').open")
    assert scene.pair.state("orders") is EntityState.HEALTHY
    await page.evaluate("document.getElementById('sign').click()")
    await page.until(f"{row('orders')}.querySelector('button').offsetWidth === 0")


async def test_where_looking_needs_the_token_nothing_is_shown_or_asked_without_it(tmp_path):
    pair = Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport(), OPTIONS)
    async with chromium(tmp_path) as page, pair, serving(pair, host="0.0.0.0", port=0) as address:
        await page.go(address.url)
        await page.until("document.getElementById('login').open")
        assert await page.evaluate("document.getElementById('main').offsetWidth") == 0
        await page.key("Escape")
        await page.until("!document.getElementById('login').open")
        await page.evaluate("new Promise(done => setTimeout(done, 2500))")  # two questions' time
        assert len(page.complaints) == 1  # "401"
        await page.evaluate("document.getElementById('sign').click()")
        await page.evaluate(f"document.getElementById('token').value = {address.token!r}")
        await page.evaluate("document.querySelector('#login form').requestSubmit()")
        await page.until(f"{SAID} === 'All is well.'")


async def test_it_is_reported_when_the_server_is_gone_and_fits_on_every_screen(tmp_path):
    pair = Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport(), OPTIONS)
    async with chromium(tmp_path) as page, pair:
        async with serving(pair, port=0) as address:
            for number in range(1500):
                pair.sender(f"a-queue-with-a-rather-long-name/{number:04}" + "x" * 60)
            pair.hold("prices")
            await page.go(address.operator_url)
            await page.until(f"{state('prices')} === 'held'")
            assert await page.evaluate("document.querySelectorAll('#entities tbody tr').length") == 200
            assert await page.evaluate("document.querySelector('#entities tbody th').textContent") == "prices"
            for width in (320, 390, 768, 1240, 1920):
                await page.screen(width, 900)
                # The document, and the body, which would scroll by itself.
                wide = await page.evaluate("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
                assert wide <= width
            await page.evaluate("document.getElementById('more').click()")
            await page.until("document.querySelectorAll('#entities tbody tr').length === 1000")
            await page.evaluate("document.getElementById('search').value = '/1499'")
            await page.evaluate("document.getElementById('search').dispatchEvent(new Event('input', {bubbles: true}))")
            await page.until("document.querySelectorAll('#entities tbody tr').length === 1")
        await page.until("document.getElementById('live').textContent.includes('stale since')")
    gone = ("ERR_CONNECTION", "ERR_EMPTY_RESPONSE")  # the latter for a question that was under way
    assert not [each for each in page.complaints if not any(word in each for word in gone)]
