"""Default names of brokers (SPEC 13.3)."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pairmq.model import ConfigurationError, Entity
from pairmq.plugins import registry
from pairmq.transport import Endpoint, _naming, endpoint_with_default_name, is_local_address

IDENTITY = ("product", "127.0.0.1", "1234")


@pytest.fixture(autouse=True)
def unknown_machine() -> Iterator[None]:
    _naming._machine.cache_clear()
    yield
    _naming._machine.cache_clear()


def on(machine: str, monkeypatch: pytest.MonkeyPatch, **more: object) -> Endpoint:
    _naming._machine.cache_clear()
    monkeypatch.setattr(socket, "gethostname", lambda: machine)
    return endpoint_with_default_name(IDENTITY, "product://localhost:1234", "1234", local=True)


def test_a_readable_name_that_is_unique_is_the_name() -> None:
    endpoint = endpoint_with_default_name(("product", "h", "1"), "product://h:1", "h-1", former=("h-1",))
    assert (endpoint.name, endpoint.scope, endpoint.former_names) == ("h-1", "", ())


@pytest.mark.parametrize("readable", ["a/b", "日本", "", "x" * 129, "a--0123456789ab", "a{b}"])
def test_a_name_that_loses_something_has_a_digest(readable: str) -> None:
    one, two = (endpoint_with_default_name(("product", each), "product://h", readable) for each in "ab")
    assert one.name != two.name
    assert one.name != readable
    Entity(f"{one.name}/x-servicebus-transfer/0")


def test_a_local_broker_has_another_name_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    east, west, again = (on(machine, monkeypatch) for machine in ("east.example", "west.example", "east.example"))
    assert east.name != west.name
    assert east.scope != west.scope
    assert east == again
    assert east.name.startswith("east-1234--")


@pytest.mark.parametrize("machine", ["", "é", "x" * 300, "-", "a/b"])
def test_any_machine_gives_a_legal_name(machine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = on(machine, monkeypatch).name
    Entity(f"{name}/x-servicebus-transfer/0")
    assert len(name) <= 62


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "x.localhost"])
def test_local_addresses_are_known(host: str) -> None:
    assert is_local_address(host)


@pytest.mark.parametrize("host", ["example", "10.0.0.1", "fe80::1", "localhost.example", "128.0.0.1", ""])
def test_other_addresses_are_not_local(host: str) -> None:
    assert not is_local_address(host)


ADDRESSES = {
    "amqp": ("amqp://h:1/v", "amqps://other"),
    "redis": ("redis://h:1/2", "rediss://10.0.0.1"),
    "memory": ("memory://one", "memory://other"),
    "sb": ("sb://k:v@contoso.servicebus.windows.net", "sb://k:v@localhost:1/?emulator=true"),
    "sqlite": ("sqlite:///one.db", "sqlite:///other.db"),
}
EVERY_PRODUCT = pytest.mark.parametrize("urls", ADDRESSES.values(), ids=ADDRESSES)


def endpoint_of(url: str, option: str) -> Endpoint:
    return registry.transport(f"{url}{'&' if '?' in url else '?'}{option}").endpoint


@EVERY_PRODUCT
def test_a_stated_identity_is_one_broker_at_every_address(urls: tuple[str, str]) -> None:
    one, two = (endpoint_of(url, "identity=orders-eu") for url in urls)
    assert one.identity == two.identity
    assert one.name == two.name
    assert one.name.startswith("orders-eu--")
    assert one.scope == two.scope == ""
    assert registry.transport(urls[0]).endpoint.name in one.former_names


@EVERY_PRODUCT
@pytest.mark.parametrize("option", ["name=orders", "identity=orders"])
def test_a_stated_name_or_identity_leaves_it_known_what_the_address_alone_gives(
    urls: tuple[str, str], option: str
) -> None:
    default, stated = registry.transport(urls[0]).endpoint, endpoint_of(urls[0], option)
    assert default.name in stated.former_names
    assert stated.by_default == (*default.identity, *((default.scope,) if default.scope else ()))
    assert stated.name not in stated.former_names
    assert default.by_default == ()


@EVERY_PRODUCT
def test_another_stated_identity_is_another_broker(urls: tuple[str, str]) -> None:
    one, two = (endpoint_of(urls[0], f"identity=orders-{each}&name=orders") for each in ("eu", "us"))
    assert one.identity != two.identity
    assert one.name == two.name == "orders"


@EVERY_PRODUCT
def test_one_address_is_one_broker_whatever_identity_is_stated(urls: tuple[str, str]) -> None:
    ends = [registry.transport(urls[0]).endpoint, *(endpoint_of(urls[0], f"identity={each}") for each in "ab")]
    assert all(one.is_same_broker(other) for one in ends for other in ends)
    assert not any(end.is_same_broker(registry.transport(urls[1]).endpoint) for end in ends)
    assert ends[1].is_same_broker(endpoint_of(urls[1], "identity=a"))


@EVERY_PRODUCT
@pytest.mark.parametrize("option", ["identity", "name"])
@pytest.mark.parametrize(
    ("stated", "said"),
    [("", "has 0 characters"), ("n" * 300, "300"), ("a/b", "one of"), ("..", "valid"), ("a{b", "one")],
)
def test_what_is_no_name_is_refused(urls: tuple[str, str], option: str, stated: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"option {option} of the .* {said}.*: use letters"):
        endpoint_of(urls[0], f"{option}={stated}")


def test_products_that_state_one_identity_have_different_names() -> None:
    assert len({endpoint_of(urls[0], "identity=eu").name for urls in ADDRESSES.values()}) == len(ADDRESSES)


def test_no_address_can_pass_for_a_stated_identity() -> None:
    with pytest.raises(ConfigurationError, match="name"):
        registry.transport("memory://%3Fidentity=orders-eu")
