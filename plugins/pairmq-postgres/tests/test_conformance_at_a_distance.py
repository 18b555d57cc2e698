"""The conformance suite against PostgreSQL over a long, uneven link (SPEC 14.3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from far_broker import FarHarness
from pairmq.testing.conformance import Harness
from pairmq.testing.conformance.tests import *  # noqa: F403
from pairmq_postgres.testing import PostgresHarness

pytestmark = [pytest.mark.real_server, pytest.mark.long]


class FarPostgres(FarHarness, PostgresHarness):
    """A far server."""


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with FarPostgres() as harness:
        yield harness
