"""The conformance suite. Nothing is to be written here: `tests` has every suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pairmq.testing.conformance import Harness
from pairmq.testing.conformance.tests import *  # noqa: F403
from pairmq_template.testing import TemplateHarness


@pytest.fixture(scope="session")
def harness() -> Iterator[Harness]:
    with TemplateHarness() as harness:
        yield harness
