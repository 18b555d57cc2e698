"""A batch that knows its messages, so that each of them can have its own receipt."""

from __future__ import annotations

from typing import Final

from azure.servicebus import ServiceBusMessageBatch

from pairmq import Message
from pairmq_servicebus.paired._convert import SingleMessage, convert

_DEFAULT_SIZE: Final = 256 * 1024
_MOST: Final = 1024 * 1024


class PairedMessageBatch(ServiceBusMessageBatch):
    """A `ServiceBusMessageBatch` of a paired sender; made by its ``create_message_batch``.

    A message is taken as it is when it is added: what is changed in it later does not count, as with the client's own.
    """

    def __init__(self, max_size_in_bytes: int) -> None:
        super().__init__(max_size_in_bytes)
        self._converted: list[Message] = []

    def add_message(self, message: SingleMessage) -> None:
        """Add one message.

        Args:
            message: as ``send_messages`` takes it.

        Raises:
            MessageSizeExceededError: the batch is full; the message is not in it.
            TypeError, ValueError: a pair can't carry the message; the text names the field.
        """
        converted = convert(message)
        super().add_message(message)
        self._converted.append(converted)

    @property
    def converted(self) -> tuple[Message, ...]:
        """Its messages as PairMQ carries them, in order."""
        return tuple(self._converted)


def make_batch(max_size_in_bytes: int | None) -> PairedMessageBatch:
    """Make an empty batch, without asking the service for its limit, which may be away.

    Args:
        max_size_in_bytes: at most 1 MiB, what a premium namespace takes; 256 KiB, what every namespace takes, when left
            out.

    Raises:
        ValueError: more than any namespace takes.
    """
    if max_size_in_bytes and max_size_in_bytes > _MOST:
        raise ValueError(f"max_size_in_bytes is {max_size_in_bytes}: no namespace takes a batch of more than {_MOST}")
    return PairedMessageBatch(max_size_in_bytes or _DEFAULT_SIZE)


def messages_of(batch: ServiceBusMessageBatch) -> tuple[Message, ...]:
    """The messages of a batch.

    Args:
        batch: made by a paired sender.

    Raises:
        TypeError: it was made by another client, which keeps only the encoded messages.
    """
    if not isinstance(batch, PairedMessageBatch):
        raise TypeError("this batch was made by another client: use the paired sender's own create_message_batch")
    return batch.converted
