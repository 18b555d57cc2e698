"""A message as AMQP 0-9-1 properties and body, and back, without loss; readable by clients that don't know PairMQ.

What AMQP 0-9-1 has a property for is sent as that property, the rest as headers that are named after AMQP 1.0 and
Service Bus (``group-id``, ``to``, ``x-opt-partition-key`` and the like), application properties as headers of their
own names. Three cases need more than that, and only messages that need it carry it:

- an application property whose header would be interpreted or removed on the way (``CC`` sends copies elsewhere,
  ``group-id`` is the session) is in the table ``application-properties``, which no broker interprets; so is one
  whose name is too long for a table: then all are sent as an array of alternating names and values;
- a value that AMQP has no type for is sent as readable text, and the table ``application-property-types`` holds its
  type. It has the shape of the headers themselves: members by name, elements by their index, and under the name ``""``
  that an array was a mapping;
- text too long for an AMQP property is sent in a header instead.

Any client may put anything into a queue: decoding raises `MalformedMessage` and nothing else.

`_message` has both directions, and the copy in a dead-letter queue with the broker's own notes, by the `_layout` of
names and times; `_values` are converted to AMQP's types and back.
"""

from pairmq_rabbitmq._codec._layout import DELIVERY_COUNT, DIRECT_REPLY_TO, MalformedMessage, is_plain
from pairmq_rabbitmq._codec._message import (
    MAX_REASON_LENGTH,
    count_of,
    dead_letter_reason,
    death_reason,
    decode,
    decode_leniently,
    delivery_count,
    encode,
    size,
    with_dead_letter,
)

__all__ = [
    "DELIVERY_COUNT",
    "DIRECT_REPLY_TO",
    "MAX_REASON_LENGTH",
    "MalformedMessage",
    "count_of",
    "dead_letter_reason",
    "death_reason",
    "decode",
    "decode_leniently",
    "delivery_count",
    "encode",
    "is_plain",
    "size",
    "with_dead_letter",
]
