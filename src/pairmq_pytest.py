"""The pytest plugin: fixtures for tests of code that uses PairMQ.

Pytest imports this module in every run in an environment that has PairMQ, so it imports nothing of PairMQ until a
fixture is used. That is why it stands beside the package: to import a module of a package is to import the package.
What the fixtures give is in `pairmq.testing.pytest_plugin`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pairmq import Pair
    from pairmq.testing import MemoryBroker
    from pairmq.testing.pytest_plugin import MemoryBrokers, VirtualTime


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, so that ``--strict-markers`` knows it."""
    config.addinivalue_line(
        "markers",
        "pairmq(options=None, entities=('orders',)): options of the fixture pair, and entities of its primary",
    )


@pytest.fixture
def memory_broker() -> Iterator[MemoryBrokers]:
    """Makes brokers in this process, which lose their data after the test: ``memory_broker("east")``."""
    from pairmq.testing.pytest_plugin import MemoryBrokers

    with MemoryBrokers() as brokers:
        yield brokers


@pytest.fixture
def pair_primary(memory_broker: MemoryBrokers) -> MemoryBroker:
    """The primary of the fixture ``pair``, to be stopped, hung and restored; override it to bring your own."""
    return memory_broker("primary")


@pytest.fixture
def pair_secondary(memory_broker: MemoryBrokers) -> MemoryBroker:
    """The secondary of the fixture ``pair``, likewise."""
    return memory_broker("secondary")


try:
    import pytest_asyncio
except ImportError:

    @pytest.fixture
    def pair() -> None:
        """Says what is missing: opening and closing a pair takes the test's event loop."""
        pytest.fail(
            "the fixture 'pair' needs pytest-asyncio (pip install 'pairmq[testing]'); "
            "without it, use the fixture 'virtual_time', or open a Pair in the test",
            pytrace=False,
        )

else:

    @pytest_asyncio.fixture
    async def pair(  # type: ignore[misc]  # the other one is for those without pytest-asyncio
        request: pytest.FixtureRequest, pair_primary: MemoryBroker, pair_secondary: MemoryBroker
    ) -> AsyncIterator[Pair]:
        """An open pair with quick options, closed after the test; ``@pytest.mark.pairmq`` changes its options."""
        from pairmq.testing.pytest_plugin import memory_pair

        marker = request.node.get_closest_marker("pairmq")
        arguments, named = ((), {}) if marker is None else (marker.args, marker.kwargs)
        async with memory_pair(pair_primary, pair_secondary, *arguments, **named) as opened:
            yield opened


@pytest.fixture
def virtual_time() -> Iterator[VirtualTime]:
    """Runs coroutines of a test in virtual time: ``virtual_time.run(scene())``."""
    from pairmq.testing.pytest_plugin import VirtualTime

    with VirtualTime() as time:
        yield time
