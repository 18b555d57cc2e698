"""The conformance suite against PostgreSQL, a real process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairmq.testing.conformance import Harness, suites
from pairmq_postgres.testing import PostgresHarness

pytestmark = pytest.mark.real_server


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with PostgresHarness() as harness:
        yield harness


class TestSend(suites.Send): ...


class TestReceive(suites.Receive): ...


class TestSettlement(suites.Settlement): ...


class TestAdmin(suites.Admin): ...


class TestTopics(suites.Topics): ...


class TestSessions(suites.Sessions): ...


class TestLifecycle(suites.Lifecycle): ...


class TestCancellation(suites.Cancellation): ...


class TestFaults(suites.Faults): ...


class TestProbe(suites.Probe): ...


class TestFailover(suites.Failover): ...
