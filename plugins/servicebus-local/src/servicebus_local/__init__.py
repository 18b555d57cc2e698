"""A local server with the protocols of Azure Service Bus: AMQP 1.0 for messages, ATOM over HTTP for administration.

It is for development and tests. It follows the service's documentation; where the two were not compared, it may differ
from the real service. `servicebus_local.amqp` is its AMQP 1.0 engine, which needs nothing of the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from servicebus_local._server import Addresses, LocalServer
    from servicebus_local.settings import ServerSettings, TlsFiles

__all__ = ["Addresses", "LocalServer", "ServerSettings", "TlsFiles"]

_FROM = {"Addresses": "_server", "LocalServer": "_server", "ServerSettings": "settings", "TlsFiles": "settings"}


def __getattr__(name: str) -> Any:
    # Imported when used, so that the engine alone can be used without the server's dependencies.
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_FROM[name]}"), name)
