"""Passwords, keys and signatures stand in no output: no log at DEBUG, event, error or repr, nor what commands print.

Each product's real server lets a user in whose secret is planted, and everything is done that says anything: with the
right secret, with a wrong one, with nobody there, and with settings that can't work (SPEC 10.2).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote

import pytest

from command_line import run
from pairmq import Entity, Message, Pair, PairOptions
from pairmq.model import ConfigurationError, EntityKind, Source
from pairmq.pair import load_settings
from pairmq.plugins import registry
from pairmq.testing.servers import free_port
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer
from pairmq_servicebus.testing import ServiceBusServer

PASSWORD = "pl@nted: hunter2/ö%?&#"
WRONG = "wr@ng: hunter3/ö%?&#"
KEY = base64.b64encode(b"planted hunter2 key of 32 bytes!").decode()
WRONG_KEY = base64.b64encode(b"another hunter3 key of 32 bytes!").decode()

_SIGNATURE = re.compile(r"sig(=|%3D)[A-Za-z0-9%+/]{8}")
"""What a shared access signature looks like in clear."""


def forms(secret: str) -> set[str]:
    """What a secret looks like on its way through URLs, JSON, reprs and base64."""
    encoded = {quote(secret, safe=""), quote(secret), quote_plus(secret), quote(secret, safe="").lower()}
    written = {repr(secret)[1:-1], ascii(secret)[1:-1], repr(secret.encode())[2:-1]}
    armoured = {base64.b64encode(secret.encode()).decode().rstrip("=")[:-1]}
    return {secret, *encoded, *written, *armoured}


FORMS = {form for secret in (PASSWORD, WRONG, KEY, WRONG_KEY) for form in forms(secret)} | {"hunter2", "hunter3"}


def leaks(text: str) -> list[str]:
    """The lines of a text in which a secret stands."""
    return [
        line[:300]
        for line in text.splitlines()
        if any(form in line for form in FORMS)
        or any(form in unquote(line) for form in FORMS)
        or _SIGNATURE.search(line)
    ]


@dataclass(frozen=True)
class Product:
    """One product's server and the URLs that name it."""

    name: str
    good: str
    wrong: str
    dead: str


def redis_url(secret: str, port: int) -> str:
    return f"redis://:{quote(secret, safe='')}@127.0.0.1:{port}/0"


@pytest.fixture(scope="module")
def redis() -> Iterator[Product]:
    with RedisServer(appendfsync="no", password=PASSWORD) as server:
        port = server.port
        yield Product("redis", redis_url(PASSWORD, port), redis_url(WRONG, port), redis_url(PASSWORD, free_port()))


@pytest.fixture(scope="module")
def rabbitmq(rabbit_servers: Callable[[int], list[RabbitServer]]) -> Product:
    [server] = rabbit_servers(1)
    server.add_user("planted", PASSWORD)
    good = server.url_for("planted", PASSWORD)
    dead = good.replace(f":{server.port}/", f":{free_port()}/")
    return Product("rabbitmq", good, server.url_for("planted", WRONG), dead)


@pytest.fixture(scope="module")
def servicebus() -> Iterator[Product]:
    with ServiceBusServer(durable=False, key=KEY) as server:
        wrong = server.url.replace(quote(KEY, safe=""), quote(WRONG_KEY, safe=""))
        assert wrong != server.url
        yield Product("servicebus", server.url, wrong, server.url.replace(f":{server.port}/", f":{free_port()}/"))


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.real_server) for name in ("redis", "rabbitmq", "servicebus")]
)
def product(request: pytest.FixtureRequest) -> Product:
    found: Product = request.getfixturevalue(request.param)
    return found


class Everything(logging.Handler):
    """Keeps all that is logged by anyone, as it would be written, and the arguments by themselves."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.texts: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    def says(self, text: object) -> None:
        self.texts.append(str(text))

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


@pytest.fixture
def heard() -> Iterator[Everything]:
    """Every logger at DEBUG, those of the client libraries too, and every warning."""
    root = logging.getLogger()
    names = ("", *logging.root.manager.loggerDict)
    levels = {name: logging.getLogger(name).level for name in names}
    handler = Everything()
    root.addHandler(handler)
    for name in names:
        logging.getLogger(name).setLevel(logging.DEBUG)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: handler.says(message)
        yield handler
    root.removeHandler(handler)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def told(error: BaseException) -> str:
    """An error in all ways in which it can be shown, with everything behind it."""
    whole = "".join(traceback.format_exception(error))
    behind = [repr(cause) for cause in getattr(error, "causes", ())]
    return "\n".join((str(error), repr(error), repr(error.args), repr(vars(error)), whole, *behind))


async def use(primary: str, secondary: str, heard: Everything) -> None:
    """Open a pair, send, receive, look around; say all that can be said."""
    options = PairOptions(
        backlog_queue_count=1,
        attempt_timeout=2,
        send_timeout=3,
        failover_interval=0.2,
        ping_timeout=1,
        enable_syphon=True,
    )
    try:
        async with asyncio.timeout(60):
            async with Pair.connect(primary=primary, secondary=secondary, options=options) as pair:
                pair.subscribe(heard.says)
                sender = pair.sender("orders")
                for thing in (
                    pair,
                    sender,
                    options,
                    pair.primary,
                    pair.primary.endpoint,
                    pair.primary.admin,
                    vars(pair),
                ):
                    heard.says(repr(thing))
                try:
                    await pair.primary.admin.create(Entity("orders"))
                    heard.says(await pair.primary.admin.list_entities())
                except Exception as error:
                    heard.says(told(error))
                for result in await sender.send_batch([Message(b"1"), Message(b"2")]):
                    heard.says(told(result) if isinstance(result, BaseException) else repr(result))
                receiver = pair.primary.receiver(Source(Entity("orders")))
                heard.says(repr(receiver))
                try:
                    for delivery in await receiver.receive(10, 0.5):
                        heard.says(repr(delivery))
                        await receiver.complete(delivery)
                finally:
                    await receiver.close()
    except Exception as error:
        heard.says(told(error))


@pytest.mark.real_server
@pytest.mark.parametrize("case", ["good", "wrong", "dead"])
@pytest.mark.parametrize("side", ["primary", "secondary"])
async def test_nothing_that_a_pair_says_holds_a_secret(
    product: Product, heard: Everything, case: str, side: str
) -> None:
    url, other = getattr(product, case), f"memory://secrets-{product.name}-{case}-{side}"
    pairing = (url, other) if side == "primary" else (other, url)
    await use(*pairing, heard)
    assert len(heard.texts) > 3
    assert leaks(heard.text) == []


@pytest.mark.parametrize("form", [*sorted(FORMS), "x?sig=abcdefgh", "sig%3Dabc%2Bdefgh"])
def test_every_form_of_a_secret_would_be_seen(form: str) -> None:
    assert leaks(f"first\nsomething {form} else") != []


def test_what_is_no_secret_is_not_taken_for_one() -> None:
    assert leaks("redis://127.0.0.1:6379/0: sig=… refused, amqp://planted:******@h/") == []


# --------------------------------------------------------------------------------------------- reprs and settings


def test_no_object_shows_a_secret(product: Product) -> None:
    transport = registry.transport(product.good)
    shown = [repr(transport), str(transport), repr(vars(transport)), repr(transport.endpoint), repr(transport.admin)]
    shown += [repr(transport.sender(Entity("q"))), repr(transport.receiver(Source(Entity("q"))))]
    shown += [repr(load_settings(primary=product.good, secondary=product.wrong, environ={}))]
    assert leaks("\n".join(shown)) == []


_MISPLACED = ("max_pending_sends", "enable_syphon", "syphon_max_rate", "failover_interval", "while_failing", "ordering")
_MISPLACED += ("backlog_name_template",)


@pytest.mark.parametrize("name", _MISPLACED)
@pytest.mark.parametrize("given_by", ["environment", "file", "argument"])
def test_a_url_in_the_place_of_another_setting_is_not_repeated(tmp_path: Path, name: str, given_by: str) -> None:
    url = redis_url(PASSWORD, 6379)
    file = tmp_path / "pair.toml"
    file.write_text(f"[pair]\n{name} = '{url}'\n")
    arguments: dict[str, object] = {
        "environment": {"environ": {f"PAIRMQ_{name.upper()}": url}},
        "file": {"environ": {}, "config": file},
        "argument": {"environ": {}, "overrides": {name: url}},
    }[given_by]
    with pytest.raises(ConfigurationError) as caught:
        load_settings(primary="memory://a", secondary="memory://b", **arguments)  # type: ignore[arg-type]
    assert leaks(told(caught.value)) == []


def test_a_url_as_a_key_a_path_or_an_entity_is_not_repeated(tmp_path: Path) -> None:
    url = redis_url(PASSWORD, 6379)
    file = tmp_path / "pair.toml"
    file.write_text(f"[pair]\n'{url}' = 1\n")
    attempts: list[Callable[[], object]] = [
        lambda: load_settings(primary="memory://a", secondary="memory://b", config=file, environ={}),
        lambda: load_settings(primary="memory://a", secondary="memory://b", config=url, environ={}),
        lambda: Entity(url),
        lambda: Source(Entity("topic", EntityKind.TOPIC), url),
        lambda: registry.transport(url.replace("redis", "nothing")),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r".") as caught:
            attempt()
        assert leaks(told(caught.value)) == []


# ----------------------------------------------------------------------------------------------------- commands

_QUICK = ("--attempt-timeout", "1s")
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("entity", "create", "orders", "--primary", "{url}"),
    ("entity", "list", "--primary", "{url}"),
    ("entity", "list", "--primary", "{url}", "--json"),
    ("send", "-e", "orders", "--primary", "{url}", "--secondary", "{other}", "--send-timeout", "500ms", *_QUICK),
    ("send", "-e", "orders", "--primary", "{other}", "--secondary", "{url}", "--send-timeout", "500ms", *_QUICK),
    ("send", "-e", "orders", "--primary", "{url}", "--secondary", "{other}", "--json", "--send-timeout", "500ms"),
    ("receive", "-e", "orders", "--primary", "{url}", "--idle", "0.2", *_QUICK),
    ("receive", "-e", "orders", "--primary", "{url}", "--idle", "0.2", "--json", *_QUICK),
    ("ping", "-e", "orders", "--primary", "{url}", *_QUICK),
    ("ping", "-e", "orders", "--primary", "{url}", "--json", *_QUICK),
    ("status", "--primary", "{url}", "--secondary", "{other}", *_QUICK),
    ("status", "--primary", "{other}", "--secondary", "{url}", "--json", *_QUICK),
    ("backlog", "list", "--primary", "{other}", "--secondary", "{url}", *_QUICK),
    ("backlog", "list", "--primary", "{other}", "--secondary", "{url}", "--json", *_QUICK),
    ("backlog", "peek", "--primary", "{other}", "--secondary", "{url}", "--index", "0", *_QUICK),
    ("backlog", "purge", "--primary", "{other}", "--secondary", "{url}", "--yes", *_QUICK),
    ("backlog", "requeue", "--primary", "{other}", "--secondary", "{url}", *_QUICK),
    ("syphon", "--until-empty", "--primary", "{url}", "--secondary", "{other}", *_QUICK),
    ("doctor", "--primary", "{url}", "--secondary", "{other}", *_QUICK),
    ("doctor", "--primary", "{other}", "--secondary", "{url}", *_QUICK),
    ("demo", "--primary", "{url}", "--secondary", "{other}", "--messages", "1", "--nope"),
    ("plugins",),
    ("plugins", "--json"),
    ("entity", "delete", "orders", "--yes", "--primary", "{url}"),
)
MISPLACED: tuple[tuple[str, ...], ...] = (
    ("status", "{url}"),
    ("{url}",),
    ("send", "--entity", "{url}", "--primary", "memory://a", "--secondary", "memory://b"),
    ("send", "--kind", "{url}"),
    ("send", "--{url}"),
    ("send", "-e", "q", "--backlog-queues", "{url}"),
    ("send", "-e", "q", "--failover-interval", "{url}"),
    ("send", "-e", "q", "--while-failing", "{url}", "--primary", "memory://a", "--secondary", "memory://b"),
    ("send", "-e", "q", "--input", "{url}", "--primary", "memory://a", "--secondary", "memory://b"),
    ("send", "-e", "q", "--config", "{url}"),
    ("cost", "--prices", "{url}"),
    ("cost", "--price-per-million", "{url}"),
    ("cost", "--days", "{url}"),
    ("simulate", "--seeds", "{url}"),
    ("simulate", "--replay", "{url}"),
    ("simulate", "--faults", "{url}"),
    ("syphon", "--max-rate", "{url}"),
    ("entity", "create", "{url}", "--primary", "memory://a"),
    ("demo", "--entity", "{url}"),
    ("doctor", "--primary", "nothing{url}", "--secondary", "memory://b"),
    ("status", "--primary", "{url}?nope=1", "--secondary", "memory://b"),
    ("status", "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={key}"),
    ("status", "--primary", "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={key}"),
)


@pytest.fixture
def cli(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs a command line in this process; gives its status and all that it wrote."""
    logger = logging.getLogger("pairmq")
    before = logger.level, list(logger.handlers)
    for name in list(os.environ):
        if name.startswith("PAIRMQ_"):
            monkeypatch.delenv(name)
    (tmp_path / "stdin").write_bytes(b"one\ntwo\n")

    def call(*arguments: str) -> tuple[int, str]:
        with (tmp_path / "stdin").open("rb") as file:
            monkeypatch.setattr(sys, "stdin", file)
            try:
                status = run(list(arguments))
            except Exception as error:  # with -v an unexpected error shows its traceback
                return 1, told(error)
        return status, "\n".join(capfd.readouterr())

    yield call
    logger.setLevel(before[0])
    logger.handlers[:] = before[1]


@pytest.mark.real_server
@pytest.mark.parametrize("case", ["good", "wrong", "dead"])
@pytest.mark.parametrize("verbose", [(), ("-v", "-v")], ids=["plain", "verbose"])
def test_no_command_writes_a_secret(
    redis: Product, cli: Callable[..., tuple[int, str]], case: str, verbose: tuple[str, ...]
) -> None:
    url = getattr(redis, case)
    for command in COMMANDS:
        arguments = [word.replace("{url}", url).replace("{other}", "memory://cli-other") for word in command]
        status, written = cli(*verbose, *arguments)
        assert leaks(written) == [], command
        assert written.strip() or status == 0, command


@pytest.mark.real_server
@pytest.mark.real_server
@pytest.mark.parametrize("product_name", ["rabbitmq", "servicebus"])
@pytest.mark.parametrize("case", ["good", "wrong", "dead"])
def test_no_command_writes_a_secret_of_another_product(
    request: pytest.FixtureRequest, cli: Callable[..., tuple[int, str]], product_name: str, case: str
) -> None:
    url = getattr(request.getfixturevalue(product_name), case)
    for command in (("ping", "-e", "q", "--primary", url), ("doctor", "--primary", url, "--secondary", "memory://d")):
        status, written = cli("-v", "-v", *command, *_QUICK)
        assert written.strip() or status == 0
        assert leaks(written) == [], command


@pytest.mark.parametrize("command", MISPLACED, ids=range(len(MISPLACED)))
def test_a_url_in_a_wrong_place_of_a_command_line_is_not_repeated(
    cli: Callable[..., tuple[int, str]], command: tuple[str, ...]
) -> None:
    url = redis_url(PASSWORD, 1)
    status, written = cli(*(word.replace("{url}", url).replace("{key}", KEY) for word in command))
    assert status != 0
    assert "error: " in written or "FAIL" in written
    assert leaks(written) == []


@pytest.mark.real_server
def test_the_environment_and_a_file_keep_their_secrets_too(
    redis: Product, cli: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "pair.toml"
    file.write_text(f"[pair]\nprimary = '{redis.good}'\nbacklog_queue_count = 2\n")
    monkeypatch.setenv("PAIRMQ_CONFIG", str(file))
    monkeypatch.setenv("PAIRMQ_SECONDARY", redis.dead)
    for command in ("status", "doctor"):
        _, written = cli("-v", "-v", command, *_QUICK)
        assert "127.0.0.1" in written
        assert leaks(written) == []
