"""Two namespaces on this machine, whose administration stands at other ports than a connection string tells."""

import atexit
from functools import partial

from azure.servicebus import ServiceBusMessage

from pairmq_servicebus.paired import PairedServiceBusClient
from pairmq_servicebus.testing import ServiceBusServer

contoso, fabrikam = ServiceBusServer(queues=["orders"], topics=["prices"]), ServiceBusServer()
for server in (contoso, fabrikam):
    server.start()
    atexit.register(server.close)
primary, secondary = contoso.connection_string, fabrikam.connection_string
PairedServiceBusClient.from_connection_string = partial(
    PairedServiceBusClient.from_connection_string,
    admin_endpoint=f"http://127.0.0.1:{contoso.admin_port}",
    secondary_admin_endpoint=f"http://127.0.0.1:{fabrikam.admin_port}",
)
orders = [ServiceBusMessage("one"), ServiceBusMessage("two")]
