"""A client in the shape of ``azure.servicebus`` that sends through a pair; `pairmq_servicebus.paired.aio` for asyncio.

In a program that uses ``azure.servicebus`` today::

    from pairmq_servicebus.paired import PairedServiceBusClient as ServiceBusClient

    client = ServiceBusClient.from_connection_string(primary, secondary=secondary)

What comes from ``azure.servicebus`` besides can be imported from here as well.
"""

from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    AutoLockRenewer,
    ServiceBusConnectionStringProperties,
    ServiceBusMessage,
    ServiceBusMessageBatch,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSession,
    ServiceBusSessionFilter,
    ServiceBusSubQueue,
    TransportType,
    parse_connection_string,
)

from pairmq_servicebus.paired._client import PairedServiceBusClient, PairedServiceBusReceiver, PairedServiceBusSender
from pairmq_servicebus.paired._convert import PairedMessageBatch
from pairmq_servicebus.paired._errors import (
    NotAllowedError,
    NotReachableError,
    PairedBatchError,
    ReservedNameError,
    SendFailure,
    SendOutcomeUnknownError,
)
from pairmq_servicebus.paired._receiving import PairedReceivedMessage

__all__ = [
    "NEXT_AVAILABLE_SESSION",
    "AutoLockRenewer",
    "NotAllowedError",
    "NotReachableError",
    "PairedBatchError",
    "PairedMessageBatch",
    "PairedReceivedMessage",
    "PairedServiceBusClient",
    "PairedServiceBusReceiver",
    "PairedServiceBusSender",
    "ReservedNameError",
    "SendFailure",
    "SendOutcomeUnknownError",
    "ServiceBusConnectionStringProperties",
    "ServiceBusMessage",
    "ServiceBusMessageBatch",
    "ServiceBusMessageState",
    "ServiceBusReceiveMode",
    "ServiceBusReceivedMessage",
    "ServiceBusReceiver",
    "ServiceBusSession",
    "ServiceBusSessionFilter",
    "ServiceBusSubQueue",
    "TransportType",
    "parse_connection_string",
]
