"""How much a pump may have in hand."""

from __future__ import annotations

from collections.abc import Sequence

from pairmq.model import Delivery
from pairmq.runner._rate import RateLimit

_AHEAD = 5  # batches in hand at most while messages are small, so that neither broker waits for the other
_SMALL = 1 << 13  # bytes of a body, on a batch's average
HOME_AT_ONCE = 2  # batches in one operation at most: when it is cut off, nobody knows of any of them


class Window:
    """A batch, or several while more than that is there, is small, and flows.

    Args:
        rate: of the syphon.
        batch: messages a receive.
    """

    def __init__(self, rate: RateLimit, batch: int) -> None:
        self._rate = rate
        self._wanted = batch
        self._ahead = False

    @property
    def batch(self) -> int:
        """Messages of one receive at most."""
        return self._rate.most_at_once(self._wanted)

    @property
    def home_at_once(self) -> int:
        """Messages that are taken from one line at once, at most; its gate says how many an operation carries."""
        return self.batch if self._rate.limits else self._wanted * HOME_AT_ONCE

    @property
    def most(self) -> int:
        """Messages in hand from which no more are received; a batch that was asked for may come on top."""
        return self.batch * _AHEAD if self._ahead else self.batch

    @property
    def ahead(self) -> int:
        """Messages that the broker may lock here before they are asked for."""
        return self.most if self._ahead else 0

    def received(self, deliveries: Sequence[Delivery], *, flows: bool) -> None:
        """Widen or narrow it by what a receive gave.

        Args:
            deliveries: all of it.
            flows: every destination that was tried takes messages. What is read ahead and can't go on is given back,
                and delivered once more: that must not happen again and again because one destination is away while
                others flow (SPEC 7.3).
        """
        full = len(deliveries) == self.batch
        size = sum(len(delivery.message.body) for delivery in deliveries)
        goes_on = full or (self._ahead and bool(deliveries))
        self._ahead = goes_on and flows and not self._rate.limits and size <= _SMALL * len(deliveries)

    def narrow(self) -> None:
        """Have no more than a batch in hand."""
        self._ahead = False
