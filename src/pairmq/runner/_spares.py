"""The primary's senders that are spare, as nobody has their `PairSender` any more: for the next one of the entity.

A transport's sender may be a link to the broker, and only who closes it gives it back. An application that makes a
sender for each message closes none of them.
"""

from __future__ import annotations

from pairmq.model import Entity
from pairmq.transport import Sender, Transport


class SpareSenders:
    """Gives senders out, each to one user at a time. The transport closes them all when it is closed.

    Args:
        transport: makes a sender where none is spare.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._spare: dict[Entity, list[Sender]] = {}

    def take(self, entity: Entity) -> Sender:
        """A sender that nobody uses, a new one if need be; no IO. To be called on the pair's loop alone.

        Raises:
            TransportError: the transport can't have such an entity.
        """
        spare = self._spare.get(entity)
        return spare.pop() if spare else self._transport.sender(entity)

    def give(self, entity: Entity, sender: Sender) -> None:
        """Keep a sender for the next one who takes one.

        From any thread, and at any point of what that thread does: it may be garbage that is collected. So there is no
        lock here, no step that another thread could come between, and no need of a loop, which may be closed.
        """
        self._spare.setdefault(entity, []).append(sender)
