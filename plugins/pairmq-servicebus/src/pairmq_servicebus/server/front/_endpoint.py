"""What stands behind a link on our side."""

from __future__ import annotations

from pairmq_servicebus.server.amqp import Delivery, Link, Outcome


class Endpoint:
    """A link that was answered, or waits for its answer; what a kind of link has no use for does nothing.

    Args:
        link: it.
    """

    def __init__(self, link: Link) -> None:
        self.link = link

    def on_transfer(self, delivery: Delivery, payload: bytes) -> None:
        """Take a message of the peer's."""

    def on_disposition(self, delivery: Delivery, outcome: Outcome | None, settled: bool) -> None:
        """Take what the peer says about a message that was sent to it."""

    def on_flow(self, credit: int) -> None:
        """Take how much the peer lets through from now on."""
        self.pump()

    def pump(self) -> None:
        """Send what there is to send, as far as the peer lets it through."""

    def check(self) -> None:
        """Detach the link if what it belongs to is gone."""

    def end(self) -> None:
        """Give back what the link held; it is gone."""
