"""What all suites have in common: a broker for each test, and an end for each test."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import CoroutineType
from typing import Any

import pytest
import pytest_asyncio

from pairmq.testing.conformance._broker import Broker
from pairmq.testing.conformance.harness import Harness

_MAKING = 120.0
"""Seconds in which a harness must have made its broker, the first boot included."""

_FAREWELL = 5.0
"""Seconds that a test which is cut off has for its own cleaning up."""


class Suite:
    """The base of the suites; what is found below it is tests.

    The marks and the fixture name their loop scope, so that the tests run in every mode of pytest-asyncio, whatever the
    author's configuration says.
    """

    pytestmark = pytest.mark.asyncio(loop_scope="function")

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        for name, test in list(vars(cls).items()):
            if name.startswith("test_") and inspect.iscoroutinefunction(test):
                setattr(cls, name, _ending(test, test.__doc__ or cls.__doc__ or ""))

    @pytest_asyncio.fixture(loop_scope="function")
    async def broker(self, harness: Harness) -> AsyncIterator[Broker]:
        """A broker that runs and holds nothing, and whatever the test opens there."""
        _check_harness(harness)
        try:
            async with asyncio.timeout(_MAKING):
                url = await harness.make()
        except TimeoutError:
            pytest.fail(f"{type(harness).__name__}.make() gave no broker within {_MAKING:g} s", pytrace=False)
        _check_url(harness, url)
        broker = Broker(harness, url)
        try:
            yield broker
        finally:
            await broker.end()


def _ending(test: Callable[..., Awaitable[None]], clause: str) -> Callable[..., Awaitable[None]]:
    """Give a test an end of its own: a transport that hangs must fail one test and not hold up the run.

    Its failures name the clause that they break: a test's name says what was done, and not where that is asked for.
    """

    @functools.wraps(test)
    async def limited(self: Suite, *arguments: Any, **fixtures: Any) -> None:
        broker = fixtures.get("broker")
        limit = broker.harness.time_limit if isinstance(broker, Broker) else Harness.time_limit
        running = asyncio.ensure_future(test(self, *arguments, **fixtures))
        try:
            await asyncio.wait((running,), timeout=limit)
            if not running.done():
                where = "\n".join(_awaiting(running.get_coro()))
                running.cancel()
                # Not awaited itself: it may be what swallows cancellations.
                await asyncio.wait((running,), timeout=_FAREWELL)
                pytest.fail(f"still running after {limit:g} s: something hangs, at\n{where}", pytrace=False)
            running.result()
        except (Exception, pytest.fail.Exception) as error:
            error.add_note(f"the contract (pairmq.transport): {clause}")
            raise
        finally:
            running.cancel()

    return limited


def _check_harness(harness: object) -> None:
    if not isinstance(harness, Harness):
        pytest.fail(f"the fixture 'harness' gives {harness!r}: it must give a Harness, made and entered", pytrace=False)


def _check_url(harness: Harness, url: object) -> None:
    if not isinstance(url, str):
        pytest.fail(f"{type(harness).__name__}.make() returned {url!r}: it must be the broker's URL", pytrace=False)


def _awaiting(coroutine: Any) -> Iterator[str]:
    """Where a coroutine waits, from the outermost call to the innermost; a task's own stack shows the first alone."""
    while isinstance(coroutine, CoroutineType) and coroutine.cr_frame is not None:
        code = coroutine.cr_code
        yield f"  {code.co_filename}:{coroutine.cr_frame.f_lineno} {code.co_qualname}"
        coroutine = coroutine.cr_await
