"""Nodes that answer requests: a pair of links, and a message for each message."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from pairmq_servicebus.server.amqp import Accepted, Link, Properties, Sections, encode_message
from pairmq_servicebus.server.front._endpoint import Endpoint

_UNSETTLED = 0  # AMQP 1.0 part 2, section 2.8.2
_MOST_WAITING = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """A request, taken apart.

    Args:
        sections: the message.
        value: its body, when that is one value.
        link: on which it came.
    """

    sections: Sections
    value: Any
    link: Link

    @property
    def arguments(self) -> dict[str, Any]:
        """The application properties, by their names as plain text."""
        return {str(name): value for name, value in (self.sections.application_properties or {}).items()}


@dataclass(frozen=True, slots=True)
class Response:
    """An answer.

    Args:
        arguments: the application properties, which hold the status.
        body: one value.
    """

    arguments: dict[str, Any]
    body: Any


class ReplyLink(Endpoint):
    """A link to the client over which answers go, each as soon as there is credit.

    Args:
        link: the peer receives on it.
    """

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._waiting: deque[bytes] = deque()
        self._tags = 0
        self._settled = link.snd_settle_mode != _UNSETTLED

    @property
    def full(self) -> bool:
        """Whether so many answers wait for the client that it may not ask for more."""
        return len(self._waiting) >= _MOST_WAITING

    def answer(self, request: Request, response: Response) -> None:
        """Send an answer.

        Args:
            request: what it answers; its message id becomes the correlation id.
            response: the answer.
        """
        asked = request.sections.properties
        properties = Properties(correlation_id=None if asked is None else asked.message_id)
        self._waiting.append(
            encode_message(properties=properties, application_properties=response.arguments, body=response.body)
        )
        self.pump()

    def pump(self) -> None:
        """Send what waits, as far as the credit goes."""
        while self._waiting and self.link.credit > 0 and self.link.state == "open":
            self._tags += 1
            tag = self._tags.to_bytes(8, "big")
            delivery = self.link.send(self._waiting.popleft(), tag=tag, settled=self._settled)
            delivery.settle(Accepted())
        if self.link.drain and not self._waiting:
            self.link.drained()
