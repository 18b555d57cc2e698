"""How transports and observers join: pluggy hooks, the records that they yield, and the registry."""

from pairmq.plugins._manager import PluginInfo, Registry, registry
from pairmq.plugins._records import (
    BrokerControl,
    LocalServer,
    Observer,
    ObserverRecord,
    SendTrace,
    TracingObserver,
    TransportRecord,
)
from pairmq.plugins.hookspecs import hookimpl, hookspec

__all__ = [
    "BrokerControl",
    "LocalServer",
    "Observer",
    "ObserverRecord",
    "PluginInfo",
    "Registry",
    "SendTrace",
    "TracingObserver",
    "TransportRecord",
    "hookimpl",
    "hookspec",
    "registry",
]
