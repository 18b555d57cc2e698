"""The administration as HTTP: who may ask, what is refused and how, and what tests may ask besides."""

from __future__ import annotations

import json
import ssl
import time
from typing import Any

import pytest
from aiohttp import web
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from servicebus_local.atom import Administration
from servicebus_local.broker import Broker, Incoming
from servicebus_local.certificates import OwnAuthority

_KEY = "c2VjcmV0IGtleQ=="
_ENTRY = '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{}</content></entry>'


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "not well-formed"),
        ("<entry", "not well-formed"),
        ("<!DOCTYPE a [<!ENTITY b 'c'>]><entry>&b;</entry>", "document type"),
        ("<entry/>", "no Atom entry"),
        (_ENTRY.format(""), "no Atom entry"),
        (_ENTRY.format("<RuleDescription/>"), "can't be put there"),
        (
            _ENTRY.format("<QueueDescription><MaxDeliveryCount>1e3</MaxDeliveryCount></QueueDescription>"),
            "not a number",
        ),
        (_ENTRY.format("<QueueDescription><RequiresSession>2</RequiresSession></QueueDescription>"), "true nor false"),
    ],
)
async def test_a_body_that_can_t_be_read_is_400_with_a_sentence(front: Any, body: str, says: str) -> None:
    status, text = await front.call("PUT", "/q", body)
    assert status == 400
    assert text.startswith("<Error><Code>400</Code><Detail>")
    assert says in text.replace("&#x27;", "'")
    assert front.broker.queues() == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/$Resources/queues?$skip=-1", 400),
        ("GET", "/$Resources/queues?$top=x", 400),
        ("GET", "/$Resources/nothing", 404),
        ("GET", "/none/subscriptions", 404),
        ("GET", "/%ff", 400),
        ("GET", "/" + "x" * 3000, 200),
        ("DELETE", "/$namespaceinfo", 404),
        ("PATCH", "/q", 405),
        ("PUT", "/$Resources/queues", 404),
    ],
)
async def test_a_request_that_makes_no_sense_is_an_error_in_the_service_s_form(
    front: Any, method: str, path: str, status: int
) -> None:
    got, text = await front.call(method, path)
    assert got == status
    assert "<feed" in text if status == 200 else text.startswith(f"<Error><Code>{status}</Code><Detail>")


async def test_a_body_that_is_too_long_is_not_read(front: Any) -> None:
    status, text = await front.call("PUT", "/q", b" " * 300_000)
    assert (status, text[:11]) == (413, "<Error><Cod")


# ---------------------------------------------------------------------------------------------------- who may ask


async def test_a_request_without_the_key_is_refused(front: Any) -> None:
    tokens = (
        "",
        "Bearer abc",
        "SharedAccessSignature",
        front.token(key="wrong"),
        front.token(lasts=-1),
        front.token(resource="other"),
    )
    for token in tokens:
        for path in ("/q", "/$Resources/queues", "/$control/operations", "/$namespaceinfo"):
            status, text = await front.call("GET", path, headers={"Authorization": token})
            assert status == 401
            assert _KEY not in text


async def test_a_token_for_one_entity_opens_that_one_only(front: Any) -> None:
    front.broker.create_queue("mine")
    headers = {"Authorization": front.token(resource="mine")}
    assert (await front.call("GET", "/mine", headers=headers))[0] == 200
    assert (await front.call("GET", "/mine2", headers=headers))[0] == 401
    assert (await front.call("GET", "/$Resources/queues", headers=headers))[0] == 401


async def test_a_wrong_key_is_an_error_in_the_client(front: Any) -> None:
    wrong = front.connection_string.replace(_KEY, "bm90IGl0")
    async with ServiceBusAdministrationClient.from_connection_string(
        wrong, connection_verify=str(front.ca_file), retry_total=0
    ) as client:
        with pytest.raises(ClientAuthenticationError):
            await client.get_queue("q")


async def test_bearer_tokens_are_accepted_if_asked_for(authority: OwnAuthority) -> None:
    class Credential:
        async def get_token(self, *scopes: str, **options: object) -> AccessToken:
            return AccessToken("abc", int(time.time()) + 3600)

        async def close(self) -> None:
            return None

    headers = []

    def authorize(header: str, url: str) -> bool:
        headers.append(header)
        return header.startswith("Bearer ")

    app = Administration(
        Broker(time.time), authorize=authorize, namespace="n", on_change=lambda: None, control=None
    ).app
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.tls.certificate, authority.tls.key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    async with ServiceBusAdministrationClient(
        address, Credential(), connection_verify=str(authority.ca_file), retry_total=0
    ) as client:
        await client.create_queue("q")
    await runner.cleanup()
    assert set(headers) == {"Bearer abc"}


# -------------------------------------------------------------------------------------------------------- control


async def test_the_control_endpoint_sets_faults_counts_and_drops(front: Any) -> None:
    assert await front.call("POST", "/$control/faults", '[{"at": "send", "action": "drop"}]') == (200, "{}")
    assert [rule.at for rule in front.faults.rules] == ["send"]
    assert await front.call("DELETE", "/$control/faults") == (200, "{}")
    assert front.faults.rules == []
    assert await front.call("POST", "/$control/connections/drop") == (200, '{"dropped": 3}')
    front.broker.create_queue("q")
    front.broker.send("q", [Incoming(b"x", 1)])
    status, text = await front.call("GET", "/$control/operations")
    assert status == 200
    assert '"send": 1' in text


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "faults", "{", 400),
        ("POST", "faults", "[" * 5000, 400),
        ("POST", "faults", '{"at": "send"}', 400),
        ("POST", "faults", " " * 70_000, 413),
        ("GET", "faults", None, 404),
        ("GET", "nothing", None, 404),
    ],
)
async def test_the_control_endpoint_refuses_what_it_does_not_know(
    front: Any, method: str, path: str, body: str | None, status: int
) -> None:
    got, text = await front.call(method, f"/$control/{path}", body)
    assert got == status
    assert text.startswith('{"error": ')
    assert front.faults.rules == []


async def test_the_control_endpoint_makes_counts_and_deletes_queues(front: Any) -> None:
    for path in ("a/b", "c"):
        assert await front.call("PUT", f"/$control/queues/{path}") == (200, "{}")
    front.broker.send("a/b", [Incoming(b"x", 1)])
    status, text = await front.call("GET", "/$control/queues")
    assert status == 200
    assert {path: counts["active"] for path, counts in json.loads(text).items()} == {"a/b": 1, "c": 0}
    assert (await front.call("PUT", "/$control/queues/c"))[0] == 409
    assert await front.call("DELETE", "/$control/queues/c") == (200, "{}")
    assert await front.call("DELETE", "/$control/entities") == (200, "{}")
    assert front.broker.queues() == []
