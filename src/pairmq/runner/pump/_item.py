"""What a pump has in its hand, and how it is to leave it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pairmq.core import Diversion
from pairmq.model import Delivery, Message, TransportError


class Item:
    """One message in a pump's hand, locked until it is settled; ``lost`` once its lock is.

    ``diversion`` is None for poison that has none; ``locked_until`` is an instant of the loop's clock, and so are
    ``renew_at``, when its lock is to be renewed, and ``copy_after``, before which no other copy of it is put at its
    queue's tail: there may be one, in doubt. Its ``identity`` names a diverted message wherever copies of it lie: its
    id, and its sender's number of it. Where order is kept, messages of one destination and ``key`` go home one after
    another.
    """

    __slots__ = (
        "copies",
        "copy_after",
        "delivery",
        "diversion",
        "identity",
        "key",
        "locked_until",
        "lost",
        "message",
        "renew_at",
        "unknown",
    )

    def __init__(self, delivery: Delivery, message: Message, diversion: Diversion | None, locked_until: float) -> None:
        self.delivery = delivery
        self.message = message
        self.diversion = diversion
        self.locked_until = locked_until
        self.renew_at = locked_until
        self.lost = False
        self.copies = 0
        self.copy_after = 0.0
        self.unknown = False
        self.identity = ("", "", 0)
        if diversion is not None:
            self.unknown = diversion.maybe_duplicate
            self.identity = (message.message_id or "", diversion.sender_id, diversion.sequence)
        session = message.session_id
        self.key = (False, self.identity[1]) if session is None else (True, session)


@dataclass(slots=True)
class Settlement:
    """How an item is to leave the queue: completed, or dead-lettered with a reason.

    Args:
        item: in hand.
        done: told once of the item, with None when the broker confirmed it, or why it will be delivered again.
        reason: of a dead-letter; None to complete.
        description: of a dead-letter.
    """

    item: Item
    done: Callable[[Item, TransportError | None], None]
    reason: str | None = None
    description: str = ""
