"""A Kombu transport that publishes through a pair of brokers: what Celery sends survives its broker's outage.

Importing this package makes the URL schemes ``pairmq://`` and ``pairmqs://`` known to Kombu:

    import pairmq_kombu

    app.conf.broker_url = "amqp://guest:guest@127.0.0.1:5672//"
    app.conf.broker_write_url = "pairmq://guest:guest@127.0.0.1:5672//"
    app.conf.broker_transport_options = {"pairmq": {"secondary": "redis://127.0.0.1:6379/0"}}
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from pairmq_kombu._errors import PublishRefused, PublishUnknown
from pairmq_kombu._outbox import outbox

__all__ = ["PublishRefused", "PublishUnknown", "outbox"]

# Kombu imports no module that a URL names, so that the schemes are made known here, and the modules loaded by use.
TRANSPORT_ALIASES["pairmq"] = "pairmq_kombu.transport:Transport"
TRANSPORT_ALIASES["pairmqs"] = "pairmq_kombu.transport:TLSTransport"
