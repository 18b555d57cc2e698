"""A client for asyncio, in the shape of ``azure.servicebus.aio``, that sends through a pair.

In a program that uses ``azure.servicebus.aio`` today::

    from pairmq_servicebus.paired.aio import PairedServiceBusClient as ServiceBusClient

    client = ServiceBusClient.from_connection_string(primary, secondary=secondary)

What comes from ``azure.servicebus.aio`` besides can be imported from here as well.
"""

from azure.servicebus.aio import AutoLockRenewer, ServiceBusReceiver, ServiceBusSession

from pairmq_servicebus.paired.aio._client import PairedServiceBusClient
from pairmq_servicebus.paired.aio._sender import PairedServiceBusSender

__all__ = [
    "AutoLockRenewer",
    "PairedServiceBusClient",
    "PairedServiceBusSender",
    "ServiceBusReceiver",
    "ServiceBusSession",
]
