"""A pair's settings from a Kombu connection's, and what is refused with the words that help."""

from __future__ import annotations

import ssl
from typing import Any

import kombu
import pytest

from pairmq import ConfigurationError

pytestmark = pytest.mark.usefixtures("pairs_closed")

SECONDARY = "redis://:planted@127.0.0.1:6399/0"


def settings(url: str = "pairmq://127.0.0.1//", table: Any = None, **more: Any) -> dict[str, Any]:
    options = {"pairmq": {"secondary": SECONDARY} if table is None else table}
    connection = kombu.Connection(url, transport_options=options, **more)
    return dict(connection.transport.settings().arguments)


@pytest.mark.parametrize(
    ("url", "primary"),
    [
        ("pairmq://127.0.0.1//", "amqp://guest:guest@127.0.0.1:5672/%2F"),
        ("pairmq://127.0.0.1/", "amqp://guest:guest@127.0.0.1:5672/%2F"),
        ("pairmq://localhost:5673/shop", "amqp://guest:guest@localhost:5673/shop"),
        ("pairmq://me:p%40ss%2F@rabbit.example/a%2Fb", "amqp://me:p%40ss%2F@rabbit.example:5672/a%2Fb"),
        ("pairmqs://rabbit.example//", "amqps://guest:guest@rabbit.example:5671/%2F"),
        ("pairmq://one.example,two.example/shop", "amqp://guest:guest@one.example,two.example:5672/shop"),
    ],
)
def test_the_primary_is_the_broker_of_the_url(url: str, primary: str) -> None:
    assert settings(url)["primary"] == primary


def test_tls_checks_certificates_unless_that_is_switched_off() -> None:
    assert settings(ssl=True)["primary"] == "amqps://guest:guest@127.0.0.1:5671/%2F"
    primary = settings(ssl={"ca_certs": "/etc/ca.pem", "cert_reqs": ssl.CERT_NONE})["primary"]
    assert primary.endswith("?ssl_ca_certs=%2Fetc%2Fca.pem&ssl_cert_reqs=none")


@pytest.mark.parametrize(
    "primary",
    ["amqps://rabbit.example/?ssl_ca_certs=ca.pem", "amqp://me:secret@one.example:5673,two.example:5674/shop"],
)
def test_a_primary_of_its_own_takes_the_place_of_the_urls(primary: str) -> None:
    assert settings(table={"secondary": SECONDARY, "primary": primary})["primary"] == primary


def test_options_are_handed_on() -> None:
    assert settings(table={"secondary": SECONDARY, "failover_interval": 2, "allowed_entities": ["celery"]}) == {
        "primary": "amqp://guest:guest@127.0.0.1:5672/%2F",
        "secondary": SECONDARY,
        "failover_interval": 2,
        "allowed_entities": ("celery",),
    }


@pytest.mark.parametrize(
    ("url", "table", "more", "words"),
    [
        ("pairmq+amqp://127.0.0.1//", None, {}, "pairmq:// in the place of amqp://"),
        ("pairmq+redis://127.0.0.1/0", None, {}, "can be the secondary, not the primary"),
        ("pairmq://127.0.0.1//;pairmq://127.0.0.2//", None, {}, "no alternates"),
        ("pairmq://127.0.0.1//", {"primary": "redis://127.0.0.1/1"}, {}, "must be RabbitMQ"),
        ("pairmq://127.0.0.1//", {"secondry": SECONDARY}, {}, "unknown secondry"),
        ("pairmq://127.0.0.1//", [SECONDARY], {}, "must hold a table"),
        ("pairmq://127.0.0.1//", None, {"login_method": "EXTERNAL"}, "user name and password"),
        ("pairmq://127.0.0.1//", None, {"ssl": {"ciphers": "ALL"}}, "'ciphers'"),
    ],
)
def test_what_can_not_be_a_pair_is_refused(url: str, table: Any, more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match="(?s)" + words.replace("'", ".").replace("+", r"\+")) as refused:
        settings(url, table, **more)
    assert "planted" not in str(refused.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, "no secondary broker"),
        ({"secondary": SECONDARY, "failover_interval": -1}, "failover_interval"),
        ({"secondary": "nosuch://127.0.0.1"}, "nosuch"),
        ({"secondary": "amqp://127.0.0.1"}, "same broker"),
    ],
)
def test_a_publish_reports_what_is_wrong(table: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PAIRMQ_SECONDARY", raising=False)
    with (
        kombu.Connection("pairmq://127.0.0.1//", transport_options={"pairmq": table}) as connection,
        pytest.raises(ConfigurationError, match=words),
    ):
        connection.Producer().publish({}, routing_key="orders", retry=True, retry_policy={"max_retries": 1})


def test_no_password_is_shown() -> None:
    options = {"pairmq": {"secondary": SECONDARY}}
    connection = kombu.Connection("pairmq://me:planted@127.0.0.1//", transport_options=options)
    channel = connection.channel()
    shown = [repr(connection), connection.as_uri(), repr(connection.transport.settings()), repr(connection.connection)]
    shown += [repr(channel), repr(connection.transport)]
    assert "planted" not in "".join(shown)
    assert connection.as_uri() == "pairmq://me:**@127.0.0.1:5672//"
