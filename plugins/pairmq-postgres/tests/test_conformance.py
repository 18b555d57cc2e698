"""The conformance suite against PostgreSQL, a real process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairmq.testing.conformance import Harness
from pairmq.testing.conformance.tests import *  # noqa: F403
from pairmq_postgres.testing import PostgresHarness

pytestmark = pytest.mark.real_server


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with PostgresHarness() as harness:
        yield harness
