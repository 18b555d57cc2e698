"""The conformance suite against ``memory://``, a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairmq.testing.conformance import Harness, MemoryHarness
from pairmq.testing.conformance.tests import *  # noqa: F403


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with MemoryHarness() as harness:
        yield harness
