from __future__ import annotations

import pytest

from servicebus_local.broker import Broker


class HandClock:
    """A clock that stands still until a test moves it."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def broker(clock: HandClock) -> Broker:
    return Broker(clock)
