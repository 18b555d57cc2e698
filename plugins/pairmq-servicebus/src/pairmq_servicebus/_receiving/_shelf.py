"""What a receiver has handed out and is not settled."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from azure.servicebus import ServiceBusReceivedMessage as Received
from azure.servicebus.aio import ServiceBusSession

from pairmq.model import Delivery
from pairmq_servicebus import _codec
from pairmq_servicebus._receiving._link import ReceiveLink


class Held:
    """A message that was handed out, by what it is settled.

    Args:
        received: the client's message.
        link: that it came over; its delivery number means something there only.
        shelf: of the receiver that handed it out, which alone settles it.
        in_session: its lock is the session's.
    """

    __slots__ = ("in_session", "link", "received", "settled", "shelf")

    def __init__(self, received: Received, link: ReceiveLink, shelf: Shelf, in_session: bool) -> None:
        self.received = received
        self.link = link
        self.shelf = shelf
        self.in_session = in_session
        self.settled = False

    @property
    def lock_ended(self) -> bool:
        """Whether its lock has run out, by this machine's clock, or has gone with its session's link."""
        if self.in_session:
            return self.link.ended
        until = self.received.locked_until_utc
        return until is not None and until <= datetime.now(UTC)


class Shelf:
    """The deliveries of one receiver that are not settled.

    Args:
        dead_letter: it reads a dead-letter queue.
    """

    def __init__(self, dead_letter: bool) -> None:
        self._dead_letter = dead_letter
        self._held: dict[int, Held] = {}

    def hand_out(self, received: Received, link: ReceiveLink) -> Delivery:
        """Make a delivery of a message, and remember it.

        Raises:
            Malformed: it can't be read.
        """
        decoded = _codec.decode(received.raw_amqp_message, dead_letter=self._dead_letter)
        session: ServiceBusSession | None = link.client.session
        held = Held(received, link, self, in_session=session is not None)
        delivery = replace(
            delivery_of(received, decoded, held, again=link.came_before(received)),
            locked_until=received.locked_until_utc if session is None else session.locked_until_utc,
        )
        self._held[id(held)] = held
        return delivery

    def tidy(self) -> None:
        """Forget what nobody settled before its lock ended."""
        for held in [held for held in self._held.values() if held.lock_ended]:
            self.forget(held)

    def forget(self, held: Held) -> None:
        """It is settled, or lost."""
        held.settled = True
        self._held.pop(id(held), None)

    def unsettled(self) -> list[Held]:
        """What is not settled, oldest first."""
        return list(self._held.values())


def delivery_of(received: Received, decoded: _codec.Decoded, token: object, *, again: bool = False) -> Delivery:
    """Make a delivery of a message that was received or looked at.

    Args:
        received: it.
        decoded: what it says.
        token: settles it.
        again: it was handed out before, whether the service has counted that or not.
    """
    number = received.sequence_number
    return Delivery(
        decoded.message,
        lock_token=token,
        # The header counts the deliveries before this one (AMQP 1.0, part 3.2.1).
        delivery_count=max(1 + (received.delivery_count or 0), 2 if again else 1),
        sequence_number="" if number is None else str(number),
        enqueued_at=received.enqueued_time_utc,
        dead_letter_reason=decoded.dead_letter_reason,
        dead_letter_description=decoded.dead_letter_description,
    )
