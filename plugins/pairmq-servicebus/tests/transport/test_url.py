"""URLs, connection strings and credentials."""

from __future__ import annotations

import builtins
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq.model import ConfigurationError, Entity, TransportError
from pairmq.plugins import registry
from pairmq.testing.servers import free_port
from pairmq_servicebus._client import Namespace
from pairmq_servicebus._url import AdminAddress, Identity, SharedKey, SharedSignature, parse_servicebus_url

KEY = "a%2Bb%2Fc%3D"
NAMESPACE = f"sb://policy:{KEY}@contoso.servicebus.windows.net"


def test_a_namespace_with_a_key() -> None:
    url = parse_servicebus_url(f"{NAMESPACE}/")
    assert url.credential == SharedKey("policy", "a+b/c=")
    assert (url.host, url.port, url.emulator) == ("contoso.servicebus.windows.net", 5671, False)
    assert url.endpoint.name == "contoso"
    assert url.endpoint.identity == ("servicebus", "contoso.servicebus.windows.net", "5671")
    assert url.endpoint.url == "sb://contoso.servicebus.windows.net:5671/"
    assert url.admin == AdminAddress("contoso.servicebus.windows.net")
    for shown in (repr(url), repr(url.credential), repr(url.endpoint), str(url)):
        assert "a+b" not in shown
        assert "policy" not in shown


def test_an_emulator_is_plain_tcp_on_this_machine() -> None:
    url = parse_servicebus_url("sb://k:v@localhost/?emulator=true")
    assert (url.emulator, url.port) == (True, 5672)
    assert url.admin == AdminAddress("localhost:5300", plain=True)
    assert url.endpoint.identity == ("servicebus", "127.0.0.1", "5672")
    assert url.endpoint.name == parse_servicebus_url("sb://k:v@127.0.0.1/?emulator=true").endpoint.name
    with pytest.raises(ConfigurationError, match="allow-remote-emulator"):
        parse_servicebus_url("sb://k:v@10.0.0.5/?emulator=true")
    remote = "sb://k:v@10.0.0.5:99/?emulator=true&allow-remote-emulator=true"
    assert parse_servicebus_url(remote).port == 99


async def test_the_administration_follows_a_name_that_leads_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client kept a name's addresses for ten seconds, also those where nothing answers."""
    addresses = ["127.0.0.2", "127.0.0.3"]

    def resolve(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (addresses.pop(0), free_port()))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    url = "sb://k:v@broker.example/?emulator=true&allow-remote-emulator=true"
    async with registry.transport(url) as transport:
        for address in tuple(addresses):
            with pytest.raises(TransportError, match=address):
                await transport.admin.exists(Entity("orders"))


def test_namespaces_of_two_clouds_have_different_names() -> None:
    clouds = ("windows.net", "usgovcloudapi.net", "chinacloudapi.cn")
    urls = [parse_servicebus_url(f"sb://k:v@contoso.servicebus.{cloud}/") for cloud in clouds]
    assert urls[0].endpoint.name == "contoso"
    assert len({url.endpoint.name for url in urls}) == len(clouds)


def test_options_say_the_rest() -> None:
    url = parse_servicebus_url(
        f"{NAMESPACE}:444/?name=west&admin=127.0.0.1:8443&transport=websocket&connect-timeout=2&operation_timeout=3"
    )
    assert (url.endpoint.name, url.port, url.websocket) == ("west", 444, True)
    assert url.admin == AdminAddress("127.0.0.1:8443")
    assert (url.connect_timeout, url.operation_timeout) == (2, 3)
    assert parse_servicebus_url("sb://k:v@h/?admin=http://127.0.0.1:1").admin == AdminAddress("127.0.0.1:1", plain=True)
    with pytest.raises(ConfigurationError, match="plain HTTP"):
        parse_servicebus_url("sb://k:v@h/?admin=http://elsewhere:1")


def test_a_connection_string_comes_from_the_environment() -> None:
    text = (
        "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=p;SharedAccessKey=a+b/c=;EntityPath=orders"
    )
    for url in ("sb://", "sb://?name=west"):
        found = parse_servicebus_url(url, {"SERVICEBUS_CONNECTION_STRING": text})
        assert found.credential == SharedKey("p", "a+b/c=")
        assert found.host == "contoso.servicebus.windows.net"
    emulator = "endpoint=sb://localhost:5000;sharedaccesskeyname=p;sharedaccesskey=k;UseDevelopmentEmulator=true;"
    found = parse_servicebus_url("sb://?connection-string-env=OTHER", {"OTHER": emulator})
    assert (found.emulator, found.port) == (True, 5000)
    signature = "SharedAccessSignature sr=sb%3a%2f%2fh&sig=abc%3d&se=9&skn=p"
    found = parse_servicebus_url(
        "sb://", {"SERVICEBUS_CONNECTION_STRING": f"Endpoint=sb://h/;{signature.replace(' ', '=')}"}
    )
    assert found.credential == SharedSignature(signature)
    assert "abc" not in repr(found)


def test_an_identity_needs_no_key() -> None:
    url = parse_servicebus_url("sb://contoso.servicebus.windows.net/?credential=managed-identity&client-id=abc")
    assert url.credential == Identity("managed-identity", "abc", None)
    assert url.connect_timeout > 5
    registry.transport("sb://contoso.servicebus.windows.net/?credential=default")


def test_an_identity_without_azure_identity_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("azure.identity"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigurationError, match=r"pairmq-servicebus\[identity\]"):
        registry.transport("sb://contoso.servicebus.windows.net/?credential=default")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("amqp://k:v@h/", "does not begin with sb://"),
        ("sb://h/", "no key"),
        ("sb://k@h/", "no key"),
        ("sb://k:SECRET@h/path", "names a namespace"),
        ("sb://k:SEC/RET@h/", "has a path|no key|host"),
        ("sb://k:SEC?RET@h/", "in an option"),
        ("sb://k:SECRET@h/#x", "'#'"),
        ("sb://k:SECRET@h:0/", "port"),
        ("sb://k:SECRET@h:99999/", "port"),
        ("sb://k:SECRET@a,b/", "host"),
        ("sb://k:SEC RET@h/", "space"),
        ("sb://k:SECRET%3B@h/", "';'"),
        ("sb://k:SECRET%FF@h/", "UTF-8"),
        ("sb://k:SECRET@h/?secret=x", "unknown option 'secret'"),
        ("sb://k:SECRET@h/?name=a&name=b", "twice"),
        ("sb://k:SECRET@h/?name=a/b", "name"),
        ("sb://k:SECRET@h/?emulator=maybe", "emulator"),
        ("sb://k:SECRET@h/?transport=carrier-pigeon", "transport"),
        ("sb://k:SECRET@h/?operation-timeout=0", "operation-timeout"),
        ("sb://k:SECRET@h/?connect-timeout=x", "connect-timeout"),
        ("sb://k:SECRET@h/?admin=ftp://x", "admin"),
        ("sb://k:SECRET@h/?admin=[::1]x:5", "admin"),
        ("sb://k:SECRET@h/?credential=default", "give one of them"),
        ("sb://h/?credential=magic", "use one of"),
        ("sb://h/?client-id=x", "without credential"),
        ("sb://h/?connection-string-env=X", "give one of them"),
        ("sb://", "SERVICEBUS_CONNECTION_STRING is not set"),
        ("sb://k:v@localhost/?emulator=true&transport=websocket", "plain TCP"),
        ("sb://localhost/?emulator=true&credential=default", "keys only"),
        ("sb://[::1", "bracket"),
        ("sb://k:SECRET@[::1]:5672/?emulator=true", "IPv6 address ::1"),
    ],
)
def test_a_bad_url_says_what_is_wrong_and_no_secret(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        parse_servicebus_url(url, {})
    assert "SEC" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "unknown setting"),
        ("Endpoint=sb://h/;Secret=SECRET", "unknown setting"),
        ("SharedAccessKeyName=p;SharedAccessKey=SECRET", "no Endpoint"),
        ("Endpoint=sb://h/;SharedAccessKey=SECRET", "no SharedAccessKeyName"),
        ("Endpoint=sb://h/;Endpoint=sb://i/", "twice"),
        ("Endpoint=sb://[::1]x:5/;SharedAccessKeyName=p;SharedAccessKey=SECRET", "Endpoint"),
        ("Endpoint=sb://h/path;SharedAccessKeyName=p;SharedAccessKey=SECRET", "Endpoint"),
        ("Endpoint=sb://h/;SharedAccessKeyName=p;SharedAccessKey=SECRET;UseDevelopmentEmulator=perhaps", "Emulator"),
        ("Endpoint=sb://h/;SharedAccessKeyName=p;SharedAccessSignature=sr=SECRET", "give one"),
    ],
)
def test_a_bad_connection_string_says_what_is_wrong_and_no_secret(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        parse_servicebus_url("sb://", {"SERVICEBUS_CONNECTION_STRING": text})
    assert "SECRET" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_without_a_surprise(text: str) -> None:
    for url in (text, f"sb://{text}", f"sb://k:v@{text}", f"sb://k:v@h/?{text}"):
        try:
            parse_servicebus_url(url, {})
        except ConfigurationError:
            continue


def test_a_file_of_authorities_that_is_missing_is_reported_at_once() -> None:
    with pytest.raises(ConfigurationError, match="tls-ca"):
        Namespace(parse_servicebus_url("sb://k:v@h/?tls-ca=/no/such/file"))
