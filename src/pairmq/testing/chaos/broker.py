"""What a broker product brings to a chaos run: a real server, and what can be done to it.

A plugin's package has a module ``testing_chaos`` with a function ``chaos_broker()`` that makes a `ChaosBroker`; the run
finds it by the transport's name. What can be done to the network between client and server needs no product's help.
"""

from __future__ import annotations

import importlib
import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, cast
from urllib.parse import urlsplit

from pairmq.model import ConfigurationError
from pairmq.plugins import registry
from pairmq.testing import conformance

MODULE = "testing_chaos"
FUNCTION = "chaos_broker"


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One thing that can be done to a broker."""

    name: str  # in lower case, words joined by `-`
    least: float = 0.3  # seconds that it lasts at least
    most: float = 5.0  # seconds that it lasts at most; plans draw from between, short ones more often
    primary: bool = True  # whether it may strike a primary
    secondary: bool = True  # whether it may strike a secondary


KILL = FaultKind("kill", 0.2, 3.0)
"""SIGKILL, and a start with the data that it kept."""

PAUSE = FaultKind("pause", 0.1, 60.0)
"""SIGSTOP: the kernel accepts connections and bytes, but no response comes; a minute only in runs with this option."""


class ChaosBroker(ABC):
    """One real server under chaos. Every method blocks, and all are called by one thread, which outlives the server.

    Attributes:
        faults: what `apply` can do to it.
        attempt_timeout: seconds that one operation of the product's client needs at most on a busy machine.
    """

    faults: ClassVar[tuple[FaultKind, ...]] = (KILL, PAUSE)
    attempt_timeout: ClassVar[float] = 1.0

    @abstractmethod
    def start(self) -> None:
        """Start it, empty, and wait until it takes clients."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The address for a transport, without any proxy; it stays the same over `kill` and restart."""

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """The hosts and ports of `url`, before which proxies are put; none where servers name their own to clients."""
        hosts = urlsplit(self.url).netloc.rpartition("@")[2].split(",")
        return [(host, int(port)) for host, _, port in (each.rpartition(":") for each in hosts)]

    @abstractmethod
    def apply(self, fault: str) -> None:
        """Begin one of `faults`."""

    @abstractmethod
    def cure(self, fault: str) -> None:
        """End a fault that `apply` began, and wait until the server takes clients again."""

    @abstractmethod
    def heal(self) -> None:
        """End all faults; the server then runs and accepts clients."""

    @abstractmethod
    def count(self, queue: str) -> int:
        """Count the messages of a queue as the server itself does, not by PairMQ's transport; 0 without the queue."""

    @abstractmethod
    def close(self) -> None:
        """End the server and remove its data; idempotent."""


class Server(conformance.Server, Protocol):
    """A process that can be killed and paused, with its URL; a `pairmq.testing.servers.ServerProcess` has the rest."""

    @property
    def url(self) -> str:
        """The address for a transport."""

    def start(self) -> None:
        """Start it and wait until it is ready; one that runs is left alone."""


class ServerBroker(ChaosBroker):
    """A chaos broker around a server process, with the faults `KILL` and `PAUSE`, and the product's own.

    Args:
        server: runs and is empty, or is not started yet.
        own: for each of the product's faults what begins it, and what ends it; `heal` ends them in this order, also
            those that did not begin.
    """

    def __init__(
        self, server: Server, own: Mapping[str, tuple[Callable[[], object], Callable[[], object]]] | None = None
    ) -> None:
        self._process = server
        self._own = own or {}
        self._paused = False

    @property
    def url(self) -> str:
        return self._process.url

    def start(self) -> None:
        self._process.start()

    def apply(self, fault: str) -> None:
        """Kill or pause it, or begin a fault of its own."""
        if fault in self._own:
            self._own[fault][0]()
        elif fault == KILL.name:
            self._process.kill()
        elif fault == PAUSE.name:
            self._process.pause()
            self._paused = True
        else:
            raise ValueError(f"{type(self).__name__} knows no fault {fault!r}")

    def cure(self, fault: str) -> None:
        """Start it again, or let it go on, and end a fault of its own."""
        if self._paused:
            self._process.resume()
            self._paused = False
        self._process.start()
        if fault in self._own:
            self._own[fault][1]()

    def heal(self) -> None:
        """End a kill or a pause, and all faults of its own."""
        for fault in self._own or ("",):
            self.cure(fault)

    def close(self) -> None:
        self._process.close()


def chaos_broker(name: str) -> ChaosBroker:
    """Make the chaos broker of a product.

    Args:
        name: a transport's name or the scheme of its URLs, such as ``redis``, or the name with another function of its
            module, such as ``redis:cluster``; or ``module:function`` for one that is not installed as a plugin.

    Raises:
        ConfigurationError: it is unknown; lists the known ones.
        FileNotFoundError: the product's server is not installed; says how to get it.
    """
    known = _known()
    module, _, function = name.partition(":")
    if function:
        try:
            found = getattr(importlib.import_module(known.get(module, module)), function)
            return cast("Callable[[], ChaosBroker]", found)()
        except (ImportError, AttributeError, TypeError) as error:
            raise ConfigurationError(f"no chaos broker {name}: {error}") from error
    name = next((record.name for record in registry.transports() if name in record.schemes), name)
    if name not in known:
        raise ConfigurationError(f"no chaos broker {name!r}: known are {', '.join(sorted(known)) or 'none'}")
    return cast("Callable[[], ChaosBroker]", getattr(importlib.import_module(known[name]), FUNCTION))()


def _known() -> dict[str, str]:
    """The module of each product that brings one, by the product's name."""
    found: dict[str, str] = {}
    for record in registry.transports():
        module = f"{record.factory.__module__.partition('.')[0]}.{MODULE}"
        # Several transports of one plugin share its module: the first is the product, the others its variants.
        if module not in found.values() and importlib.util.find_spec(module) is not None:
            found[record.name] = module
    return found
