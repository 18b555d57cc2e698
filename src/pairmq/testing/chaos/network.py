"""The network of a chaos run: every client reaches every broker through a proxy of its own."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from pairmq.testing.chaos.broker import FaultKind
from pairmq.testing.proxy import TcpProxy

_DELAY = 0.15  # s in each direction: a slow line, on which sends still succeed

NETWORK_FAULTS: Final = (
    FaultKind("reset", 0.1, 3.0),
    FaultKind("cut", 0.2, 4.0),
    FaultKind("silence", 0.2, 6.0),
    FaultKind("silence-to-client", 0.2, 6.0),
    FaultKind("silence-and-loss", 0.2, 6.0),
    FaultKind("slow", 0.5, 4.0),
)
"""Connections are reset, and refused; ended in order, and refused; silent in both directions; silent towards the
client, so that writes arrive and their confirmations do not; silent, and what was held back is lost in the end; slow.
"""


class Network:
    """All ways from clients to brokers; a context manager.

    Args:
        addresses: host and port of each broker, by its side.
        clients: the clients' names.
    """

    def __init__(self, addresses: dict[str, tuple[str, int]], clients: Iterable[str]) -> None:
        self._ways = {
            (side, client): TcpProxy(*address) for side, address in addresses.items() for client in tuple(clients)
        }

    def url(self, side: str, client: str, url: str) -> str:
        """The address by which a client reaches a broker.

        Args:
            side: the broker's.
            client: the client's name.
            url: the broker's own address.
        """
        return self._ways[side, client].rewrite(url)

    def apply(self, fault: str, side: str, client: str = "") -> None:
        """Begin a fault on the ways to a broker.

        Args:
            fault: a name of `NETWORK_FAULTS`.
            side: the broker's.
            client: whose way; of all when empty.

        Raises:
            ValueError: there is no such fault.
        """
        for way in self._chosen(side, client):
            match fault:
                case "reset":
                    way.reset(refuse=True)
                case "cut":
                    way.cut()
                case "silence":
                    way.silence()
                case "silence-to-client":
                    way.silence("to_client")
                case "silence-and-loss":
                    way.silence(drop=True)
                case "slow":
                    way.slow(delay=_DELAY)
                case _:
                    raise ValueError(f"the network knows no fault {fault!r}")

    def cure(self, side: str, client: str = "") -> None:
        """End what `apply` began."""
        for way in self._chosen(side, client):
            way.restore()

    def heal(self) -> None:
        """End all faults."""
        for way in self._ways.values():
            way.restore()

    def _chosen(self, side: str, client: str) -> list[TcpProxy]:
        return [way for (of, to), way in self._ways.items() if of == side and client in ("", to)]

    def __enter__(self) -> Self:
        for way in self._ways.values():
            way.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for way in self._ways.values():
            way.close()
