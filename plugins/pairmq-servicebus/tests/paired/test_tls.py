"""A namespace behind TLS on a port of its own, reached with the client's own arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.servicebus import ServiceBusMessage, TransportType, exceptions

from pairmq import PairOptions, Receipt, Route
from pairmq_servicebus.paired import PairedServiceBusClient
from pairmq_servicebus.paired.aio import PairedServiceBusClient as AsyncPairedServiceBusClient
from pairmq_servicebus.testing import ServiceBusServer

pytestmark = pytest.mark.real_server


@pytest.fixture(scope="module")
def gate() -> Iterator[ServiceBusServer]:
    with ServiceBusServer(tls=True, durable=False, queues=["orders"]) as server:
        yield server


@pytest.fixture
def arguments(gate: ServiceBusServer) -> dict[str, Any]:
    return {
        "custom_endpoint_address": f"sb://127.0.0.1:{gate.tls_port}",
        "connection_verify": str(gate.ca_file),
        "transport_type": TransportType.Amqp,
        "retry_total": 0,
        "admin_endpoint": f"https://127.0.0.1:{gate.admin_tls_port}",
        "options": PairOptions(backlog_queue_count=1, close_grace=1, send_timeout=50, attempt_timeout=30),
    }


def test_sends_and_receives_go_the_way_that_the_arguments_say(
    gate: ServiceBusServer, secondary: ServiceBusServer, arguments: dict[str, Any]
) -> None:
    receipts: list[Receipt] = []
    text = f"Endpoint=sb://127.0.0.1/;SharedAccessKeyName={gate.key_name};SharedAccessKey={gate.key}"
    with PairedServiceBusClient.from_connection_string(
        text, secondary=secondary.url, on_receipt=receipts.append, **arguments
    ) as client:
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("by TLS"))
        with client.get_queue_receiver("orders", max_wait_time=30) as receiver:
            (message,) = receiver.receive_messages()
            assert str(message) == "by TLS"
            receiver.complete_message(message)
    assert [receipt.route for receipt in receipts] == [Route.PRIMARY]


async def test_a_name_and_a_key_credential_do_it_too(
    gate: ServiceBusServer, secondary: ServiceBusServer, arguments: dict[str, Any]
) -> None:
    receipts: list[Receipt] = []
    key = AzureNamedKeyCredential(gate.key_name, gate.key)
    async with AsyncPairedServiceBusClient(
        "127.0.0.1", key, secondary=secondary.url, on_receipt=receipts.append, **arguments
    ) as client:
        await client.get_queue_sender("orders").send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
        async with client.get_queue_receiver("orders", max_wait_time=30) as receiver:
            found = []
            while len(found) < 2:
                for message in await receiver.receive_messages(2):
                    found.append(str(message))
                    await receiver.complete_message(message)
    assert found == ["a", "b"]
    assert [receipt.route for receipt in receipts] == [Route.PRIMARY] * 2


def test_a_certificate_without_an_authority_is_refused(
    gate: ServiceBusServer, secondary: ServiceBusServer, arguments: dict[str, Any]
) -> None:
    del arguments["connection_verify"]
    arguments["options"] = replace(arguments["options"], while_failing="raise", failover_interval=1000)
    text = f"Endpoint=sb://127.0.0.1/;SharedAccessKeyName={gate.key_name};SharedAccessKey={gate.key}"
    with (
        PairedServiceBusClient.from_connection_string(text, secondary=secondary.url, **arguments) as client,
        pytest.raises(exceptions.ServiceBusConnectionError),
    ):
        client.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
