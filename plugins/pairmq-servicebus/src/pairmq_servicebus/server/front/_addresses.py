"""Addresses of links: which entity or node a client means."""

from __future__ import annotations

import re

from pairmq_servicebus.server.amqp import Source, Target

MANAGEMENT = "/$management"
CBS = "$cbs"

_SCHEME_AND_HOST = re.compile(r"^[a-z]+://[^/]*/?", re.IGNORECASE)


def path_of(terminus: Source | Target | object) -> str:
    """The path that a link's source or target names, without scheme, host and outer slashes; empty when none."""
    address = getattr(terminus, "address", None)
    if not isinstance(address, str):
        return ""
    return _SCHEME_AND_HOST.sub("", address).strip("/")


def managed_entity(path: str) -> str | None:
    """The entity whose management node a path names; None for any other path."""
    return path[: -len(MANAGEMENT)] if path.lower().endswith(MANAGEMENT) else None
