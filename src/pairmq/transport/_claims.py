"""The interface of a store that remembers which messages were handled, and who handles one now."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod


class Claim(enum.StrEnum):
    """What a store answers to whoever wants to handle a message."""

    WON = "won"
    """It is yours, until the lease ends or you give it back."""
    HELD = "held"
    """Somebody else has it; that may end well or not."""
    DONE = "done"
    """It was handled."""


class ClaimStore(ABC):
    """Keeps one claim for each key: free, held under a lease, or done for a while.

    Every step is atomic among all who use the store. Objects belong to the loop that first awaited them; every method
    may be called concurrently with every other. A call that failed, or was cancelled, may have been carried out: each
    may be made again with the same arguments. Time limits come from above, as cancellation.

    Every method but `close` raises `TransportError` when the store can't be reached.
    """

    def __repr__(self) -> str:
        """Name the store in errors, without a secret."""
        return f"{type(self).__name__}()"

    @abstractmethod
    async def claim(self, key: str, token: str, lease: float) -> Claim:
        """Take a free key, or keep one's own.

        Args:
            key: names a message; 1 to 200 characters of ASCII.
            token: names who claims, for one delivery; random.
            lease: seconds until the claim ends by itself unless renewed.
        """

    @abstractmethod
    async def renew(self, key: str, token: str, lease: float) -> bool:
        """Let one's own claim last ``lease`` seconds from now; False when it is no longer one's own."""

    @abstractmethod
    async def confirm(self, key: str, token: str, window: float) -> bool:
        """Remember for ``window`` seconds that the message was handled, whoever holds the claim by now.

        Returns:
            Whether it was one's own until then, or done: if not, somebody else may have handled the message too.
        """

    @abstractmethod
    async def release(self, key: str, token: str) -> None:
        """Give one's own claim back at once; without effect when it is somebody else's, or done."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections; idempotent, never raises."""
