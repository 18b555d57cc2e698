"""What the conventions want to know of a broker, read off its URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from pairmq.observe.otel import _names as names

_SYSTEMS = {"amqp": "rabbitmq", "amqps": "rabbitmq", "rediss": "redis", "sb": "servicebus"}
"""By scheme, where the scheme is not the product's name."""


@dataclass(frozen=True, slots=True)
class Broker:
    """One side of a pair.

    Args:
        system: the product, as the conventions call it.
        address: its host; None where there is none.
        port: its TCP port; None where the URL does not say.
    """

    system: str
    address: str | None = None
    port: int | None = None

    @property
    def attributes(self) -> Mapping[str, str | int]:
        """As attributes of a span or a metric."""
        found: dict[str, str | int] = {names.SYSTEM: self.system}
        if self.address is not None:
            found[names.SERVER_ADDRESS] = self.address
            if self.port is not None:
                found[names.SERVER_PORT] = self.port
        return found


UNKNOWN = Broker("pairmq")
"""Stands for a broker whose URL was never told."""


def broker_of(url: str) -> Broker:
    """Read a broker's URL, which has no password in it; one that can't be read is `UNKNOWN`."""
    try:
        parts = urlsplit(url)
        address, port = parts.hostname, parts.port
    except ValueError:
        return UNKNOWN
    if not parts.scheme:
        return UNKNOWN
    return Broker(_SYSTEMS.get(parts.scheme, parts.scheme), address or None, port)


class Brokers:
    """Both sides of each pair by the pair's name, as their `PairOpened` told them."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[Broker, Broker]] = {}

    def opened(self, pair: str, primary: str, secondary: str) -> None:
        """Take a pair's URLs."""
        self._of[pair] = broker_of(primary), broker_of(secondary)

    def knows(self, pair: str) -> bool:
        """Whether a pair has told its URLs."""
        return pair in self._of

    def primary(self, pair: str) -> Broker:
        """The broker where a pair's messages belong."""
        return self._of.get(pair, (UNKNOWN, UNKNOWN))[0]

    def secondary(self, pair: str) -> Broker:
        """The broker that holds its backlog."""
        return self._of.get(pair, (UNKNOWN, UNKNOWN))[1]
