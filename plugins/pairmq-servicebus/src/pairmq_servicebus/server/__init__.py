"""A local server of the Service Bus protocols: AMQP 1.0 for messages, ATOM over HTTP for administration.

It is for development and tests. What it does follows the service's documentation; where nobody compared the two, it may
differ from the real service.
"""

from pairmq_servicebus.server._server import Addresses, LocalServer
from pairmq_servicebus.server.settings import ServerSettings, TlsFiles

__all__ = ["Addresses", "LocalServer", "ServerSettings", "TlsFiles"]
