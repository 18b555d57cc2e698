"""The conformance suite. Nothing is to be written here: each suite is subclassed, none is left out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairmq.testing.conformance import Harness
from pairmq.testing.conformance.tests import *  # noqa: F403
from pairmq_sqlite.testing import SQLiteHarness


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with SQLiteHarness() as harness:
        yield harness
