"""The network of a chaos run: every client reaches every broker through a proxy of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Self

from pairmq.testing.chaos.broker import FaultKind
from pairmq.testing.proxy import TcpProxy

DELAY: Final = 0.15
"""Seconds that a slow line takes in each direction; sends still succeed on it."""

JITTER: Final = 0.05
"""Seconds that a distant broker's line takes longer at most, by chance."""

BOTH: Final = "both"
"""The side of a fault that strikes the ways to both brokers at once."""

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


BLIP_FAULTS: Final = (FaultKind("blip", 0.3, 1.0), FaultKind("stall", 0.3, 1.0))
"""Both brokers at once, and shorter than what a patient send waits: connections are reset and refused; silent."""


class Network:
    """All ways from clients to brokers; a context manager. Ways to ``distant`` sides are slow (`DELAY`, `JITTER`)."""

    def __init__(
        self, addresses: Mapping[str, Sequence[tuple[str, int]]], clients: Iterable[str], distant: Iterable[str] = ()
    ) -> None:
        self._addresses = addresses
        self._ways = {
            (side, client): [TcpProxy(*address) for address in of]
            for client in clients
            for side, of in addresses.items()
        }
        self._distant = frozenset(distant)
        # Faults of one broker and of both overlap: what began last is on.
        self._faults: dict[tuple[str, str], list[str]] = {way: [] for way in self._ways}
        self._lock = threading.Lock()

    def url(self, side: str, client: str, url: str) -> str:
        """The address by which a client reaches a side's broker, whose own address is ``url``."""
        for (host, port), proxy in zip(self._addresses[side], self._ways[side, client], strict=True):
            url = url.replace(f"{host}:{port}", f"{proxy.host}:{proxy.port}", 1)
        return url

    def apply(self, fault: str, side: str, client: str = "") -> None:
        """Begin a fault (`NETWORK_FAULTS`, `BLIP_FAULTS`) on the ways to a side or `BOTH`, of one client if named."""
        with self._lock:
            for way in self._chosen(side, client):
                self._become(way, fault)
                self._faults[way].append(fault)

    def cure(self, fault: str, side: str, client: str = "") -> None:
        """End what `apply` began with the same arguments."""
        with self._lock:
            for way in self._chosen(side, client):
                faults = self._faults[way]
                if fault in faults:
                    faults.remove(fault)
                    self._become(way, faults[-1] if faults else "")

    def heal(self) -> None:
        with self._lock:
            for way, faults in self._faults.items():
                faults.clear()
                self._become(way, "")

    def _become(self, way: tuple[str, str], fault: str) -> None:
        for proxy in self._ways[way]:
            match fault:
                case "" if way[0] in self._distant:
                    proxy.slow(delay=DELAY, jitter=JITTER)
                case "":
                    proxy.restore()
                case "reset" | "blip":
                    proxy.reset(refuse=True)
                case "cut":
                    proxy.cut()
                case "silence" | "stall":
                    proxy.silence()
                case "silence-to-client":
                    proxy.silence("to_client")
                case "silence-and-loss":
                    proxy.silence(drop=True)
                case "slow":
                    proxy.slow(delay=DELAY)
                case _:
                    raise ValueError(f"the network knows no fault {fault!r}")

    def _chosen(self, side: str, client: str) -> list[tuple[str, str]]:
        return [(of, to) for of, to in self._ways if side in (of, BOTH) and client in ("", to)]

    def __enter__(self) -> Self:
        for proxy in chain.from_iterable(self._ways.values()):
            proxy.start()
        self.heal()
        return self

    def __exit__(self, *error: object) -> None:
        for proxy in chain.from_iterable(self._ways.values()):
            proxy.close()
