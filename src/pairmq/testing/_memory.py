"""A broker in this process for tests: ``async with memory_broker() as broker: Pair.connect(primary=broker.url, …)``."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable
from typing import Protocol, Self, cast

from pairmq.plugins import BrokerControl, registry
from pairmq.transport import Transport

_numbers = itertools.count(1)


class _Forgetful(Protocol):
    def forget(self) -> Awaitable[None]: ...


class MemoryBroker:
    """One broker in this process and the faults that can be put on it; see `pairmq.plugins.BrokerControl`.

    As a context manager it begins empty and sound, and loses its data at the end.

    Args:
        name: the broker's name; two objects of one name in one process are the same broker.
        scheme: ``memory``, or that of a plugin whose brokers are in this process, too, such as ``fakeredis``.

    Raises:
        ConfigurationError: no plugin serves the scheme; the text says what to install.
        TypeError: brokers of the scheme can't be controlled.
    """

    def __init__(self, name: str, *, scheme: str = "memory") -> None:
        self.name = name
        self.url = f"{scheme}://{name}"
        make = registry.transport_record(self.url).broker_control
        if make is None:
            raise TypeError(f"the plugin that serves {scheme}:// provides no broker control")
        self._control: BrokerControl = make(self.url)

    def transport(self) -> Transport:
        """Make a transport to it; close it yourself."""
        return registry.transport(self.url)

    async def stop(self) -> None:
        """Refuse connections and drop the open ones, as a killed process does."""
        await self._control.stop()

    async def hang(self) -> None:
        """Take connections and never answer, as a process under SIGSTOP does."""
        await self._control.hang()

    async def slow(self, delay: float) -> None:
        """Answer each call ``delay`` seconds late."""
        await self._control.slow(delay)

    async def refuse(self, *, kind: str = "unavailable") -> None:
        """Answer each write with an error: ``unavailable``, ``busy`` or ``refused``; reads go on."""
        await self._control.refuse(kind=kind)

    async def lose_confirms(self, *, applied: bool = True) -> None:
        """Drop the connection instead of confirming writes, after they were applied, or before."""
        await self._control.lose_confirms(applied=applied)

    async def restore(self) -> None:
        """End every fault: the broker is as it was, with its messages."""
        await self._control.restore()

    async def forget(self) -> None:
        """End every fault and lose all data, where the plugin's control has a way."""
        if hasattr(self._control, "forget"):
            await cast(_Forgetful, self._control).forget()
        else:
            await self._control.restore()

    async def __aenter__(self) -> Self:
        await self.forget()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.forget()

    def __repr__(self) -> str:
        return f"MemoryBroker({self.url!r})"


def memory_broker(name: str | None = None, *, scheme: str = "memory") -> MemoryBroker:
    """Make a broker in this process.

    Args:
        name: its name; a new one when left out.
        scheme: as for `MemoryBroker`.

    Raises:
        ConfigurationError: as `MemoryBroker`.
    """
    return MemoryBroker(name or f"test-{next(_numbers)}", scheme=scheme)
