"""The conformance suite against the local Service Bus server over a long, uneven link (SPEC 14.3)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from far_broker import FarHarness
from pairmq.testing.conformance import Harness
from pairmq.testing.conformance.tests import *  # noqa: F403
from pairmq_servicebus.testing import ServiceBusHarness

pytestmark = [pytest.mark.real_server, pytest.mark.long]


class FarServiceBus(FarHarness, ServiceBusHarness):
    """A far server."""


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with FarServiceBus() as harness:
        yield harness
