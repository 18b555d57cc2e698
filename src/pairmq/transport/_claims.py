"""The interface of a store of which messages were handled or are being handled."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod


class Claim(enum.StrEnum):
    """A store's answer to a consumer that wants to handle a message."""

    WON = "won"
    """The caller holds it, until the lease ends or it is released."""
    HELD = "held"
    """Another consumer holds it, and may succeed or fail."""
    DONE = "done"
    """It was handled."""


class ClaimStore(ABC):
    """Keeps one claim for each key: free, held under a lease, or done for a while.

    Every step is atomic among all users of the store. Objects belong to the loop that first awaited them; methods may
    be called concurrently. A call that failed or was cancelled may have been applied; it may be repeated with the same
    arguments. Time limits come from above, as cancellation.

    Every method except `close` raises `TransportError` if the store is unavailable.
    """

    def __repr__(self) -> str:
        """Name the store in errors, without a secret."""
        return f"{type(self).__name__}()"

    @abstractmethod
    async def claim(self, key: str, token: str, lease: float) -> Claim:
        """Claim a free key, or extend the caller's own claim.

        Args:
            key: names a message; 1 to 200 characters of ASCII.
            token: identifies the claimant, for one delivery; random.
            lease: seconds until the claim expires unless renewed.
        """

    @abstractmethod
    async def renew(self, key: str, token: str, lease: float) -> bool:
        """Extend the caller's claim to ``lease`` seconds from now; False if the caller no longer holds it."""

    @abstractmethod
    async def confirm(self, key: str, token: str, window: float) -> bool:
        """Record for ``window`` seconds that the message was handled, regardless of the claim's current holder.

        Returns:
            Whether the caller held the claim, or it was done: if not, another consumer may have handled the message,
            too.
        """

    @abstractmethod
    async def release(self, key: str, token: str) -> None:
        """Release the caller's claim; without effect if another consumer holds it, or it is done."""

    @abstractmethod
    async def close(self) -> None:
        """Close connections; idempotent, never raises."""
