"""The conformance suite against RabbitMQ over a long, uneven link (SPEC 14.3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from far_broker import FarHarness
from pairmq.testing.conformance import Harness
from pairmq.testing.conformance.tests import *  # noqa: F403
from pairmq_rabbitmq.testing import RabbitHarness

pytestmark = [pytest.mark.real_server, pytest.mark.long]


class FarRabbit(FarHarness, RabbitHarness):
    """A far server."""


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with FarRabbit() as harness:
        yield harness
