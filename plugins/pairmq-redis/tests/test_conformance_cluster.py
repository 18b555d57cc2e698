"""The conformance suite against a Redis Cluster of three masters, real processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairmq.testing.conformance import Harness
from pairmq.testing.conformance.tests import *  # noqa: F403
from pairmq_redis.testing import RedisHarness

pytestmark = pytest.mark.real_server


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with RedisHarness(cluster=True) as harness:
        yield harness
