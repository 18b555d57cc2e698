"""Default names of brokers (SPEC 13.3)."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from pairmq.model import Entity
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
