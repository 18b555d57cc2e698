"""Markers: what travels through a queue for one consumer at a time to prove what of it is settled (SPEC 8.3).

AMQP tells nobody what other consumers hold. So whoever wants to know publishes a marker: it stands behind all that was
confirmed before, and the consumer that meets it answers when everything it was given before is settled. A queue for one
consumer hands out in order, so that what earlier consumers were given is settled by then, or was given to this one.

No message of PairMQ's senders looks like a marker: a diverted one has headers, and none has its correlation id for a
message id. Who may write to the queue can forge one, and gains nothing: it is answered to nobody but its own channel.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from pamqp.commands import Basic

from pairmq_rabbitmq import _header

WINDOW: Final = 250
"""Unsettled messages of every consumer of such a queue, in every process and version.

A quorum queue hands out again what was given back in the order in which it came back. When the holder of a, b, c is
lost, and the next one is lost as well with a and b, then c comes first. So each must take at least what the last had.
"""

REPLY_TO: Final = "amq.rabbitmq.reply-to"
"""RabbitMQ's direct reply-to: it writes the asking channel's address in its place."""

_TYPE: Final = "pairmq.marker"
_RAW_TYPE: Final = _TYPE.encode()
_ID = re.compile(r"[0-9a-f]{32}")
_BROKERS_HEADERS: Final = frozenset(("x-delivery-count", "x-acquired-count"))
_PERSISTENT = 2


class Marker(NamedTuple):
    """One marker as a consumer meets it.

    Args:
        id: random; the answer repeats it.
        reply_to: the routing key of whoever asked.
    """

    id: str
    reply_to: str


def marker_properties(marker_id: str) -> Basic.Properties:
    """Give the properties of a new marker; its body is empty."""
    return Basic.Properties(
        message_type=_TYPE,
        message_id=marker_id,  # what the broker returns is found by it
        correlation_id=marker_id,
        reply_to=REPLY_TO,
        delivery_mode=_PERSISTENT,
    )


def marker_of(header: bytes, body: bytes) -> Marker | None:
    """Recognise a marker; None for any other message.

    Args:
        header: the payload of a content header frame, as it came.
        body: as it came.
    """
    if body or _RAW_TYPE not in header:
        return None
    found = _header.read(header)
    marker_id, reply_to = found.correlation_id or "", found.reply_to or ""
    if found.message_type != _TYPE or found.message_id != marker_id or not _ID.fullmatch(marker_id):
        return None
    if not reply_to.startswith(REPLY_TO + ".") or not _BROKERS_HEADERS.issuperset(found.headers or ()):
        return None
    return Marker(marker_id, reply_to)
