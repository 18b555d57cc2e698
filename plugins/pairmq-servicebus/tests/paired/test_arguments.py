"""The arguments of the constructors, as far as the pair is concerned."""

from __future__ import annotations

import re
import ssl
from typing import Any

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import TransportType

from pairmq import ConfigurationError, PairOptions
from pairmq_servicebus.paired import PairedServiceBusClient
from pairmq_servicebus.paired.aio import PairedServiceBusClient as AsyncPairedServiceBusClient

KEY = "U2VjcmV0S2V5"
PRIMARY = f"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={KEY}"
SECONDARY = f"Endpoint=sb://fabrikam.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey={KEY}"
LOCAL = f"Endpoint=sb://localhost:5673;SharedAccessKeyName=root;SharedAccessKey={KEY};UseDevelopmentEmulator=true"


def pair_of(primary: str = PRIMARY, *, secondary: str = SECONDARY, **arguments: Any) -> Any:
    """What a client sends through, which has opened nothing."""
    return AsyncPairedServiceBusClient.from_connection_string(primary, secondary=secondary, **arguments).pair


def test_a_connection_string_becomes_a_transport() -> None:
    transport = pair_of().primary
    assert transport.endpoint.identity == ("servicebus", "contoso.servicebus.windows.net", "5671")
    assert transport.endpoint.name == "contoso"
    assert KEY not in repr(transport)


def test_an_emulator_is_found_at_its_port_and_its_administration_where_the_argument_says() -> None:
    url = pair_of(LOCAL, admin_endpoint="http://localhost:5301").primary._namespace.url
    assert (url.host, url.port, url.emulator) == ("localhost", 5673, True)
    assert (url.admin.host, url.admin.plain) == ("localhost:5301", True)


def test_what_concerns_the_network_is_used_for_sends_to_both_sides() -> None:
    proxy = {"proxy_hostname": "proxy", "proxy_port": 8080}
    pair = pair_of(http_proxy=proxy, user_agent="shop", custom_endpoint_address="sb://gate:8443", retry_total=9)
    primary, secondary = (side._namespace._made() for side in (pair.primary, pair.secondary))
    assert primary._config.http_proxy == proxy
    assert secondary._config.http_proxy == proxy
    assert primary._config.user_agent == secondary._config.user_agent == "shop"
    assert primary._config.transport_type is TransportType.AmqpOverWebsocket
    assert primary._custom_endpoint_address == "sb://gate:8443"
    assert secondary._custom_endpoint_address is None
    assert primary._config.retry_total == 0


def test_a_custom_endpoint_uses_tcp_when_configured() -> None:
    pair = pair_of(custom_endpoint_address="sb://gate:8443", transport_type=TransportType.Amqp)
    client = pair.primary._namespace._made()
    assert client._config.transport_type is TransportType.Amqp
    assert client._config.connection_port == 8443


def test_certificates_are_checked_as_the_application_says(tmp_path: Any) -> None:
    context = ssl.create_default_context()
    assert pair_of(ssl_context=context).primary._namespace._made()._ssl_context is context
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(ConfigurationError, match="tls-ca"):
        pair_of(connection_verify=missing)
    # An emulator has no TLS, and the client ignores the argument then.
    pair_of(LOCAL, secondary="memory://west", connection_verify=missing)


def test_an_argument_that_the_client_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match=r"unknown argument retry_totel: .*options=PairOptions"):
        PairedServiceBusClient.from_connection_string(PRIMARY, secondary=SECONDARY, retry_totel=3)
    with pytest.raises(TypeError, match="failover_interval"):
        AsyncPairedServiceBusClient.from_connection_string(PRIMARY, secondary=SECONDARY, failover_interval=3)


def test_every_documented_argument_of_the_client_is_known() -> None:
    from azure.servicebus import ServiceBusClient

    with pytest.raises(TypeError) as caught:
        pair_of(retry_totel=3)
    known = re.findall(r"\w+", str(caught.value).partition("ServiceBusClient's are ")[2].partition(";")[0])
    text = ServiceBusClient.__doc__ or ""
    documented = {line.split(":")[1].split()[-1] for line in text.splitlines() if line.strip().startswith(":keyword")}
    assert documented
    assert documented <= set(known)


def test_a_secondary_is_a_connection_string_or_a_url() -> None:
    assert pair_of(secondary="memory://west").secondary.endpoint.url == "memory://west"
    in_another_order = "SharedAccessKeyName=root;" + SECONDARY.replace("SharedAccessKeyName=root;", "")
    assert pair_of(secondary=in_another_order).secondary.endpoint.name == "fabrikam"
    with pytest.raises(ConfigurationError, match="a URL has the option admin"):
        pair_of(secondary="sb://a:b@localhost/?emulator=true", secondary_admin_endpoint="localhost:5300")


@pytest.mark.parametrize("wrong", ["sb://root:key@contoso/", "contoso.servicebus.windows.net", ""])
def test_a_primary_that_is_no_connection_string_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        PairedServiceBusClient.from_connection_string(wrong, secondary=SECONDARY)


def test_a_primary_that_only_azure_takes_for_a_connection_string_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not a connection string"):
        pair_of(f"Region=west;{PRIMARY}")


def test_an_emulator_on_another_machine_has_to_be_allowed() -> None:
    remote = LOCAL.replace("localhost", "emulator")
    with pytest.raises(ConfigurationError, match="allow-remote-emulator"):
        pair_of(remote)
    assert pair_of(remote, allow_remote_emulator=True).primary._namespace.url.host == "emulator"


def test_a_namespace_is_not_its_own_secondary() -> None:
    client = PairedServiceBusClient.from_connection_string(PRIMARY, secondary=PRIMARY)
    with pytest.raises(ConfigurationError, match="same broker"):
        client.__enter__()
    client.close()


class Tokens:
    """A blocking credential."""

    def __init__(self) -> None:
        self.closed = False

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken(f"token for {scopes[0]}", 2**31)

    def close(self) -> None:
        self.closed = True


class AsyncTokens:
    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        return AccessToken("token", 2**31)

    async def close(self) -> None:
        raise AssertionError("it belongs to the application")


async def test_credential_objects_are_used_and_left_open() -> None:
    host = "contoso.servicebus.windows.net"
    clients: list[AsyncPairedServiceBusClient] = []

    def namespace(host: str, credential: Any) -> Any:
        clients.append(AsyncPairedServiceBusClient(host, credential, secondary="memory://west"))
        primary: Any = clients[-1].pair.primary
        return primary._namespace

    key = namespace(host, AzureNamedKeyCredential("root", KEY))
    assert key._made()._credential.named_key == ("root", KEY)
    signature = namespace(f"sb://{host}/", AzureSasCredential("SharedAccessSignature sr=a&sig=b&se=9"))
    assert signature._made()._credential.signature == "SharedAccessSignature sr=a&sig=b&se=9"
    blocking = Tokens()
    tokens = namespace(host, blocking)
    assert tokens.identity is not None
    assert (await tokens.identity.get_token("scope")).token == "token for scope"
    not_blocking = AsyncTokens()
    assert namespace(host, not_blocking)._made()._credential is not_blocking
    for client in clients:
        await client.pair.close()
    assert not blocking.closed
    with pytest.raises(TypeError, match="a str is not a credential: give an AzureNamedKeyCredential"):
        namespace(host, "secret")


def test_a_client_is_made_of_a_name_and_a_credential() -> None:
    client = PairedServiceBusClient(
        "contoso.servicebus.windows.net", AzureNamedKeyCredential("root", KEY), secondary=SECONDARY
    )
    assert client.fully_qualified_namespace == "contoso.servicebus.windows.net"
    client.close()


def test_options_come_from_the_environment_when_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRMQ_FAILOVER_INTERVAL", "3s")
    client = AsyncPairedServiceBusClient.from_connection_string(PRIMARY, secondary=SECONDARY)
    assert client.pair.options.failover_interval == 3.0
    own = AsyncPairedServiceBusClient.from_connection_string(PRIMARY, secondary=SECONDARY, options=PairOptions())
    assert own.pair.options.failover_interval == 10.0


@pytest.mark.parametrize("name", ["EntityPath", "entitypath"])
def test_the_entity_path_of_a_connection_string_is_kept_to(name: str) -> None:
    client = PairedServiceBusClient.from_connection_string(f"{PRIMARY};{name}=orders", secondary=SECONDARY)
    assert client.get_queue_sender("orders").entity_name == "orders"
    with pytest.raises(ValueError, match="EntityPath"):
        client.get_queue_sender("prices")
    client.close()


@pytest.mark.parametrize("client", [PairedServiceBusClient, AsyncPairedServiceBusClient])
def test_warning_about_an_argument_of_a_receiver_names_the_line_that_made_it(client: Any) -> None:
    options = PairOptions(continuity=("orders",))
    paired = client.from_connection_string(LOCAL, secondary=SECONDARY, options=options)
    with pytest.warns(UserWarning, match="Unsupported keyword args: colour") as caught:
        paired.get_queue_receiver("orders", colour="red")
    assert [warning.filename for warning in caught] == [__file__]
