"""What a link needs of the client that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from pairmq_servicebus.server.amqp import AmqpError, Link
from pairmq_servicebus.server.faults import FaultRule
from pairmq_servicebus.server.front._endpoint import Endpoint
from pairmq_servicebus.server.front._shared import Shared
from pairmq_servicebus.server.front._tokens import Grants


class Owner(Protocol):
    """A client, as its links see it."""

    @property
    def shared(self) -> Shared:
        """What it shares with all clients."""

    @property
    def grants(self) -> Grants:
        """What its tokens allow."""

    @property
    def endpoints(self) -> Mapping[Link, Endpoint]:
        """What stands behind each of its links."""

    @property
    def congested(self) -> bool:
        """Whether it does not read what it is sent."""

    def soon(self, action: Callable[[], None]) -> None:
        """Do something when the broker's present call is over."""

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """Do something after a while, if the client is still there."""

    def add(self, endpoint: Endpoint) -> None:
        """Put something behind a link, in place of what was there."""

    def suffer(self, fault: FaultRule, link: Link | None) -> None:
        """Let a fault strike that is the same everywhere."""

    def detach(self, link: Link, error: AmqpError) -> None:
        """End a link, for a reason that the client is told; one without an answer so far is refused."""

    def forget(self, link: Link) -> None:
        """Give back what a link held."""
