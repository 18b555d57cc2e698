"""Batches of a paired sender."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.exceptions import MessageSizeExceededError

from pairmq_servicebus.paired import PairedServiceBusClient, PairedServiceBusSender

PRIMARY = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey=U2VjcmV0S2V5"


@pytest.fixture
def sender() -> Iterator[PairedServiceBusSender]:
    """One that has not connected to anything."""
    with (
        contextlib.closing(PairedServiceBusClient.from_connection_string(PRIMARY, secondary="memory://west")) as client,
        contextlib.closing(client.get_queue_sender("orders")) as made,
    ):
        yield made


def test_a_batch_is_one_of_the_clients_and_measures_as_one(sender: PairedServiceBusSender) -> None:
    batch = sender.create_message_batch()
    assert isinstance(batch, ServiceBusMessageBatch)
    assert batch.max_size_in_bytes == 256 * 1024
    batch.add_message(ServiceBusMessage(b"x" * 1000))
    assert len(batch) == 1
    assert 1000 < batch.size_in_bytes < 1200


def test_a_full_batch_refuses_what_does_not_fit_and_keeps_the_rest(sender: PairedServiceBusSender) -> None:
    batch = sender.create_message_batch(1000)
    batch.add_message(ServiceBusMessage(b"x" * 500, message_id="1"))
    with pytest.raises(MessageSizeExceededError):
        batch.add_message(ServiceBusMessage(b"x" * 500, message_id="2"))
    assert [message.message_id for message in batch.converted] == ["1"]


def test_a_message_counts_as_it_was_when_it_was_added(sender: PairedServiceBusSender) -> None:
    batch = sender.create_message_batch()
    message = ServiceBusMessage("x")
    for number in "123":
        message.message_id = number
        batch.add_message(message)
    assert [message.message_id for message in batch.converted] == ["1", "2", "3"]


def test_what_a_pair_cannot_carry_is_not_added(sender: PairedServiceBusSender) -> None:
    batch = sender.create_message_batch()
    with pytest.raises(TypeError, match="None"):
        batch.add_message(ServiceBusMessage(None))
    assert len(batch) == 0


def test_a_batch_of_another_client_is_refused(sender: PairedServiceBusSender) -> None:
    with pytest.raises(TypeError, match="create_message_batch"):
        sender.send_messages(ServiceBusMessageBatch())


def test_a_batch_larger_than_any_namespace_takes_is_refused(sender: PairedServiceBusSender) -> None:
    with pytest.raises(ValueError, match="max_size_in_bytes"):
        sender.create_message_batch(2**20 + 1)
    assert sender.create_message_batch(2**20).max_size_in_bytes == 2**20
