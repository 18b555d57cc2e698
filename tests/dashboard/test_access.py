"""Who may look and who may act; what other sites, other names and other texts can do to it, which is nothing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.resources import files

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from pairmq import Entity, EntityState, Message, Pair
from pairmq.dashboard import Dashboard
from pairmq.model import ConfigurationError
from pairmq.model.events import Warned
from pairmq.runner import Clock
from pairmq.testing import Fault, SimulatedBroker, in_virtual_time, virtual_wall
from shown_dashboard import MARK, OPERATOR, TOKEN, client_of, shown

HOSTILE = "<script>alert('x')</script>"


# Looking.


@in_virtual_time
async def test_without_open_to_read_nothing_is_shown_without_the_token():
    async with shown(open_to_read=False) as page:
        answer = await page.client.get("/api/status")
        assert (answer.status_code, answer.json()) == (401, {"error": "a token is required"})
        told = await page.client.get("/api/status", headers={"authorization": f"Bearer {TOKEN}"})
        assert told.json()["access"] == {"read_only": False, "operator": True, "may_operate": True}


@in_virtual_time
async def test_the_page_itself_holds_nothing_and_needs_no_token():
    async with shown(open_to_read=False) as page:
        for path, kind in (("/", "text/html"), ("/dashboard.js", "text/javascript"), ("/parts.js", "text/javascript")):
            answer = await page.client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)


@in_virtual_time
async def test_every_answer_forbids_scripts_frames_and_keeping():
    async with shown() as page:
        paths = ("/", "/dashboard.css", "/icon.svg", "/api/status", "/api/status?state=no")
        answers = [await page.client.get(path) for path in paths]
        answers.append(await page.operate("hold", "orders", **MARK))
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765", "localhost", "localhost:80", "[::1]:8765", "10.0.0.5", "me.localhost:1", "ops.example"]
)
@in_virtual_time
async def test_it_answers_to_addresses_and_to_names_that_are_allowed(host):
    async with shown(allowed_hosts=["ops.example"]) as page:
        answer = await page.client.get("/api/status", headers={"host": host})
        assert answer.status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "localhost.evil", ""])
@in_virtual_time
async def test_a_foreign_name_that_leads_here_gets_nothing(host):
    async with shown() as page:
        for path in ("/", "/api/status"):
            answer = await page.client.get(path, headers={"host": host})
            assert (answer.status_code, "orders" in answer.text) == (421, False)
        assert (await page.operate("hold", "orders", **OPERATOR, host=host)).status_code == 421


# Acting.


@pytest.mark.parametrize(
    ("word", "states"),
    [
        ("hold", {EntityState.FAILED_OVER}),
        ("force_failover", {EntityState.FAILED_OVER}),
        ("mark_healthy", {EntityState.DRAINING, EntityState.HEALTHY}),
    ],
)
@in_virtual_time
async def test_an_operator_s_word_reaches_the_pair(word, states):
    async with shown() as page:
        page.it.pair.hold("orders") if word == "mark_healthy" else page.it.pair.sender("orders")
        answer = await page.operate(word, "orders")
        assert (answer.status_code, answer.json()["state"]) == (200, page.it.pair.state("orders"))
        assert page.it.pair.state("orders") in states


@in_virtual_time
async def test_a_hold_diverts_and_marking_healthy_drains():
    async with shown() as page:
        sender = page.it.pair.sender("orders")
        await page.operate("hold", "orders")
        assert (await sender.send(Message(b"1"))).route == "backlog"
        await page.operate("mark_healthy", "orders")
        assert (await sender.send(Message(b"2"))).route == "primary"
        await asyncio.sleep(60)
        assert len(page.it.delivered("orders")) == 2
        assert page.it.pair.state("orders") is EntityState.HEALTHY


@in_virtual_time
async def test_a_hold_may_keep_the_syphon_too_and_is_shown():
    async with shown(changes={"failover_interval": 0}) as page:
        body = {"word": "hold", "entity": "orders", "kind": "queue", "syphon": True}
        assert (await page.client.post("/api/operate", json=body, headers=OPERATOR)).status_code == 200
        await page.it.pair.sender("orders").send(Message(b"1"))
        await asyncio.sleep(60)
        assert page.it.delivered("orders") == []
        told = (await page.status())["entities"]
        assert (told["held"], told["syphon_held"]) == (1, 1)
        assert [(row["held"], row["syphon_held"], row["shut"]) for row in told["rows"]] == [
            (True, True, "held by an operator")
        ]
        await page.operate("mark_healthy", "orders")
        await asyncio.sleep(1)
        assert len(page.it.delivered("orders")) == 1
        told = (await page.status())["entities"]
        assert (told["held"], told["syphon_held"], told["rows"][0]["syphon_held"]) == (0, 0, False)


@in_virtual_time
async def test_an_operator_s_word_reaches_the_other_processes_of_the_pair():
    async with shown(changes={"enable_syphon": False}) as page:
        options = replace(page.it.pair.options, enable_syphon=True)
        clock = Clock(virtual_wall)
        async with Pair(page.it.primary.transport(), page.it.secondary.transport(), options, clock=clock) as other:
            await asyncio.sleep(2)
            body = {"word": "hold", "entity": "orders", "kind": "queue", "syphon": True}
            answer = await page.client.post("/api/operate", json=body, headers=OPERATOR)
            assert (answer.status_code, answer.json()["processes"]) == (200, {"followed": 1, "missing": 1})
            await asyncio.sleep(page.it.pair.options.control_interval + 2)
            assert other.state("orders") is EntityState.FAILED_OVER
            assert other.syphon_holds == {Entity("orders")}
            assert (await page.operate("mark_healthy", "orders")).status_code == 200
            await asyncio.sleep(page.it.pair.options.control_interval + 2)
            assert (other.state("orders"), other.syphon_holds) == (EntityState.HEALTHY, frozenset())


@in_virtual_time
async def test_a_word_that_the_secondary_can_not_keep_changes_nothing():
    async with shown() as page:
        await page.it.pair.sender("orders").send(Message(b""))
        page.it.secondary.fail(Fault.DOWN)
        answer = await page.operate("hold", "orders")
        assert (answer.status_code, "nothing has changed" in answer.json()["error"]) == (409, True)
        assert page.it.pair.state("orders") is not EntityState.FAILED_OVER


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (MARK, 401),
        ({**MARK, "authorization": "Bearer wrong-token-of-these-tests"}, 401),
        ({**MARK, "authorization": f"Basic {TOKEN}"}, 401),
        ({**MARK, "authorization": "Bearer "}, 401),
        ({**MARK, "authorization": b"Bearer \xff\xfe"}, 401),
        ({**MARK, "cookie": "pairmq-00000000=1"}, 401),
        ({"authorization": f"Bearer {TOKEN}"}, 403),
        ({**OPERATOR, "origin": "http://evil.example"}, 403),
        ({**OPERATOR, "origin": "null"}, 403),
        ({**OPERATOR, "sec-fetch-site": "cross-site"}, 403),
        ({**OPERATOR, "sec-fetch-site": "same-site"}, 403),
        ({**OPERATOR, "origin": "http://127.0.0.1:8765", "sec-fetch-site": "same-origin"}, 200),
    ],
)
@in_virtual_time
async def test_only_an_operator_of_this_page_may_act(headers, status):
    async with shown() as page:
        body = {"word": "hold", "entity": "orders", "kind": "queue"}
        answer = await page.client.post("/api/operate", json=body, headers=headers)
        assert answer.status_code == status
        assert (page.it.pair.state("orders") is EntityState.FAILED_OVER) == (status == 200)


@in_virtual_time
async def test_behind_a_proxy_that_calls_it_by_another_name_its_own_name_may_act():
    async with shown(allowed_hosts=["ops.example"]) as page:
        origin = {"origin": "https://ops.example", "sec-fetch-site": "same-origin"}
        assert (await page.operate("hold", "orders", **OPERATOR, **origin)).status_code == 200
        assert "Secure" in (await sign_in(page.client, **origin)).headers["set-cookie"]


@in_virtual_time
async def test_a_read_only_dashboard_refuses_all_actions():
    async with shown(read_only=True) as page:
        assert (await page.operate("hold", "orders")).status_code == 403
        assert (await page.status())["access"]["read_only"] is True
        assert page.it.pair.states() == {}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"not json",
        b"[" * 4000,
        b'{"word": "close", "entity": "orders", "kind": "queue"}',
        b'{"word": "__init__", "entity": "orders", "kind": "queue"}',
        b'{"word": ["hold"], "entity": "orders", "kind": "queue"}',
        b'{"word": "hold", "entity": 7, "kind": "queue"}',
        b'{"word": "hold", "entity": "orders", "kind": "queue", "syphon": "yes"}',
        b'{"word": "mark_healthy", "entity": "orders", "kind": "queue", "syphon": true}',
        b'{"word": "hold", "entity": "../x", "kind": "queue"}',
        b'{"word": "hold", "entity": "orders", "kind": "exchange"}',
        b'{"word": "hold", "entity": "orders", "kind": ["queue"]}',
        b'{"word": "hold", "entity": "orders", "kind": "queue", "more": "' + b"x" * 5000 + b'"}',
    ],
)
@in_virtual_time
async def test_words_that_make_no_sense_are_refused_and_do_nothing(body):
    async with shown() as page:
        answer = await page.client.post("/api/operate", content=body, headers=OPERATOR)
        assert answer.status_code == 400
        assert page.it.pair.states() == {}


@in_virtual_time
async def test_an_ended_pair_takes_no_words():
    async with shown() as page:
        await page.it.pair.close()
        answer = await page.operate("hold", "orders")
        assert (answer.status_code, answer.json()) == (409, {"error": "the pair is closed"})


# The cookie.


async def sign_in(client: httpx.AsyncClient, token: str = TOKEN, **headers: str) -> httpx.Response:
    return await client.post("/api/session", json={"token": token}, headers={**MARK, **headers})


@in_virtual_time
async def test_signing_in_gives_a_cookie_that_scripts_and_other_sites_do_not_get():
    async with shown(open_to_read=False) as page:
        answer = await sign_in(page.client)
        cookie = answer.headers["set-cookie"]
        assert answer.status_code == 204
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert TOKEN not in cookie
        assert (await page.status())["access"]["may_operate"] is True
        assert (await page.operate("hold", "orders", **MARK)).status_code == 200


@in_virtual_time
async def test_a_cookie_without_the_page_s_own_header_does_nothing():
    async with shown() as page:
        await sign_in(page.client)
        assert (await page.operate("hold", "orders", accept="*/*")).status_code == 403


@in_virtual_time
async def test_a_wrong_token_gives_no_cookie():
    async with shown(open_to_read=False) as page:
        for token in ("", TOKEN[:-1], f"{TOKEN}x", "ключ-из-шестнадцати-букв"):
            answer = await sign_in(page.client, token)
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
        for body in (b'{"token": ["%s"]}' % TOKEN.encode(), b'{"token": "\\ud800"}'):
            answer = await page.client.post("/api/session", content=body, headers=MARK)
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


@in_virtual_time
async def test_another_site_can_not_sign_a_browser_in():
    async with shown() as page:
        answer = await page.client.post("/api/session", json={"token": TOKEN})
        assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


@in_virtual_time
async def test_signing_out_takes_the_cookie_away():
    async with shown(open_to_read=False) as page:
        await sign_in(page.client)
        assert (await page.client.delete("/api/session", headers=MARK)).status_code == 204
        assert (await page.client.get("/api/status")).status_code == 401


@in_virtual_time
async def test_over_tls_the_cookie_stays_there():
    async with shown() as page, client_of(page.dashboard, "https://localhost") as client:
        assert "Secure" in (await sign_in(client)).headers["set-cookie"]


@in_virtual_time
async def test_the_cookie_of_one_dashboard_opens_no_other():
    async with shown() as page, Dashboard(page.it.pair, token=TOKEN) as other:
        await sign_in(page.client)
        [value] = page.client.cookies.values()
        name = other._guard._cookie_name
        assert name not in page.client.cookies  # a browser sends it to every port of the host
        async with client_of(other, cookies={name: value}) as client:
            assert (await client.get("/api/status")).status_code == 401


# The token.


@pytest.mark.parametrize("token", ["", "short", "x" * 513, "a token with spaces", "sixteen-chars-and-\n", "ключ" * 5])
async def test_an_invalid_token_is_refused_and_not_repeated(token, closed_pair):
    with pytest.raises(ConfigurationError, match="token") as refusal:
        Dashboard(closed_pair, token=token)
    assert not token or token not in str(refusal.value)


async def test_a_token_is_made_at_random(closed_pair):
    first, second = Dashboard(closed_pair), Dashboard(closed_pair)
    assert first.token != second.token
    assert len(first.token) >= 32


@pytest.fixture
def closed_pair():
    """A pair that is never opened."""
    return Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport())


# Mounted in an application.


@in_virtual_time
async def test_it_works_below_a_path_of_another_application():
    async with shown() as page:
        around = Starlette(routes=[Mount("/ops/pairmq", app=page.dashboard)])
        async with client_of(around, follow_redirects=True) as client:
            assert "PairMQ" in (await client.get("/ops/pairmq")).text
            assert (await client.get("/ops/pairmq/dashboard.js")).status_code == 200
            assert (await client.get("/ops/pairmq/api/status")).json()["pair"] == "primary>secondary"
            answer = await client.post("/ops/pairmq/api/session", json={"token": TOKEN}, headers=MARK)
            assert "Path=/ops/pairmq/;" in answer.headers["set-cookie"]


def test_the_page_asks_for_nothing_by_an_absolute_path_or_from_elsewhere():
    folder = files("pairmq.dashboard").joinpath("page")
    for name in ("index.html", "dashboard.js", "parts.js", "dashboard.css"):
        text = folder.joinpath(name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text.replace('partition("://")', ""), name
        assert 'href="/' not in text, name
        assert 'src="/' not in text, name
        assert "innerHTML" not in text, name
        assert "eval(" not in text, name


# Texts from elsewhere.


@in_virtual_time
async def test_hostile_texts_come_as_texts_without_control_characters_and_logins():
    async with shown(HOSTILE, changes={"failover_interval": 0}) as page:
        page.it.primary.fail(Fault.DOWN)
        await page.it.pair.sender(HOSTILE).send(Message(b"1"))
        text = "\x1b[31mamqp://user:hunter2@broker/\u202e"
        page.it.pair._emit(Warned, subject=text, text=text)
        answer = await page.client.get("/api/status")
    assert answer.headers["content-type"] == "application/json"
    assert [row["path"] for row in answer.json()["entities"]["rows"]] == [HOSTILE]
    assert "hunter2" not in answer.text
    [line] = [line for line in answer.json()["events"] if "amqp" in line["text"]]
    assert line["text"] == line["subject"] == r"\x1b[31mamqp://…@broker/\u202e"


def test_serving_in_another_loop_than_the_pair_s_is_an_error():
    pair = Pair(SimulatedBroker("east").transport(), SimulatedBroker("west").transport())
    dashboard = Dashboard(pair)

    async def open_and_close() -> None:
        async with pair:
            pass

    async def ask() -> None:
        async with client_of(dashboard) as client:
            await client.get("/")

    asyncio.run(open_and_close())
    with pytest.raises(RuntimeError, match="event loop of its pair"):
        asyncio.run(ask())


@in_virtual_time
@pytest.mark.parametrize("word", ["hold", "force_failover", "mark_healthy"])
async def test_an_unknown_entity_is_not_operated_on(word):
    async with shown("orders") as page:
        answer = await page.operate(word, "ordres")
        assert answer.status_code == 404
        assert "is the name misspelt?" in answer.json()["error"]
        assert (await page.status())["entities"]["total"] == 0
        sender = page.it.pair.sender("orders")
        assert "no such entity, but queue orders: is" in (await page.operate(word, "ordres")).json()["error"]
        await sender.close()


@in_virtual_time
async def test_an_entity_that_the_primary_has_is_operated_on_before_its_first_send():
    async with shown("orders") as page:
        assert (await page.operate("hold", "orders")).status_code == 200
        assert (await page.status())["entities"]["held"] == 1


@in_virtual_time
async def test_an_unknown_entity_is_operated_on_when_it_is_meant():
    async with shown("orders") as page:
        page.it.primary.fail(Fault.DOWN)
        refused = await page.operate("hold", "late")
        assert refused.status_code == 409
        assert "unknown=true" in refused.json()["error"]
        body = {"word": "hold", "entity": "late", "kind": "queue", "unknown": True}
        assert (await page.client.post("/api/operate", json=body, headers=OPERATOR)).status_code == 200
