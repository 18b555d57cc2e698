"""Messages as Service Bus carries them, both ways, every field without loss.

A field of PairMQ's messages is the AMQP field of that name (Service Bus documentation: AMQP 1.0 protocol guide,
"Messages"). What does not come back by itself stands once more, exactly, in one application property of our own: see
`pairmq_servicebus._codec._fields`. A message that needs none of it has none.
"""

from pairmq_servicebus._codec._fields import FIELDS, PING_CONTENT_TYPE
from pairmq_servicebus._codec._reading import Decoded, decode, decode_leniently
from pairmq_servicebus._codec._values import Malformed
from pairmq_servicebus._codec._writing import Parts, encode, take_apart

__all__ = [
    "FIELDS",
    "PING_CONTENT_TYPE",
    "Decoded",
    "Malformed",
    "Parts",
    "decode",
    "decode_leniently",
    "encode",
    "take_apart",
]
