"""The session that a receiving link asks for.

The filter ``com.microsoft:session-filter`` of the link's source holds the session's id, or nothing for the next one
that is free; its answer holds the id in the same form (Service Bus documentation: "AMQP 1.0 in Azure Service Bus:
protocol guide", sessions).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pairmq_servicebus.server.amqp import Described, Link, Source, Symbol

_NAME = "com.microsoft:session-filter"
_TIMEOUT = "com.microsoft:timeout"
_DEFAULT_WAIT = 60.0
_TICKS_PER_SECOND = 10_000_000
_TICKS_OF_1970 = 621_355_968_000_000_000


@dataclass(frozen=True, slots=True)
class SessionWish:
    """What a link asks for: ``session_id`` None means any; ``wait`` in seconds."""

    session_id: str | None
    wait: float


def session_wish(link: Link) -> SessionWish | None:
    """Read the filter of a link; None when it asks for no session."""
    source = link.source
    filters = source.filter if source is not None else None
    if not filters:
        return None
    for name, value in filters.items():
        if str(name) == _NAME:
            asked = value.value if isinstance(value, Described) else value
            timeout = (link.properties or {}).get(_TIMEOUT)
            wait = timeout / 1000 if isinstance(timeout, int) else _DEFAULT_WAIT
            return SessionWish(asked if isinstance(asked, str) else None, wait)
    return None


def answered(source: Source, session_id: str) -> Source:
    """The source as the answer shows it: with the session that was locked."""
    filters: dict[Any, Any] = {}
    for name, value in (source.filter or {}).items():
        if str(name) == _NAME:
            value = Described(value.descriptor, session_id) if isinstance(value, Described) else session_id
        filters[name] = value
    return replace(source, filter=filters)


def locked_until_property(locked_until: float) -> dict[Any, Any]:
    """The link property that tells until when, in ticks of 100 ns since the year 1.

    Args:
        locked_until: seconds of Unix time.
    """
    return {Symbol("com.microsoft:locked-until-utc"): _TICKS_OF_1970 + int(locked_until * _TICKS_PER_SECOND)}
