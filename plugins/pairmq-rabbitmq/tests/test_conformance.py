"""The conformance suite against RabbitMQ, a real process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairmq.testing.conformance import Harness
from pairmq.testing.conformance.tests import *  # noqa: F403
from pairmq_rabbitmq.testing import RabbitHarness

pytestmark = pytest.mark.real_server


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with RabbitHarness() as harness:
        yield harness
