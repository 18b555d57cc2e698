"""Links that an administration keeps for a while, one for each thing that it looks into."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

from pairmq_servicebus._client import Namespace
from pairmq_servicebus._lane._job import OpenLink
from pairmq_servicebus._lane._lane import Lane

K = TypeVar("K", bound=Hashable)
L = TypeVar("L", bound=OpenLink)

_MOST: Final = 16  # links that are kept
_IDLE: Final = 60.0  # s


class Lanes(Generic[K, L]):
    """The lanes of the last few things; the one that was not used for longest gives way.

    Args:
        namespace: the transport's.
        opener: opens a thing's link.
    """

    def __init__(self, namespace: Namespace, opener: Callable[[K], Awaitable[L]]) -> None:
        self._namespace = namespace
        self._opener = opener
        self._kept: dict[K, Lane[L]] = {}

    def get(self, thing: K) -> Lane[L]:
        """The lane of a thing, made when first needed."""
        lane = self._kept.pop(thing, None)
        if lane is None:
            lane = Lane(lambda: self._opener(thing), f"look into {thing}", idle_limit=_IDLE)
            if len(self._kept) >= _MOST:
                self._namespace.spawn(self._kept.pop(next(iter(self._kept))).close())
        self._kept[thing] = lane
        return lane

    async def close(self) -> None:
        """Close all; never raises."""
        for lane in self._kept.values():
            await lane.close()
