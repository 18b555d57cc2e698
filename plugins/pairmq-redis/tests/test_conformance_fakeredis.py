"""The conformance suite against ``fakeredis://``, this transport in one process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairmq.testing.conformance import Harness, MemoryHarness
from pairmq.testing.conformance.tests import *  # noqa: F403


class FakeRedisHarness(MemoryHarness):
    async def make(self) -> str:
        return f"{await super().make()}?poll_interval=0.2"


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with FakeRedisHarness("fakeredis") as harness:
        yield harness
