"""Runs the suites without a test module, and with defects planted: which of them would a plugin's own run not find?

It needs pytest, as the suites do, but no session of it: ``pairmq conformance`` calls it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from pairmq.model import ConfigurationError
from pairmq.plugins import registry
from pairmq.testing.conformance import suites
from pairmq.testing.conformance._broker import Broker, Limits, Skipped, limited
from pairmq.testing.conformance.harness import Harness, MemoryHarness
from pairmq.testing.defects import Defect
from pairmq.transport import Capabilities, Transport

_MODULE = "testing"
_LOST_CONFIRM = "Faults.test_a_confirm_that_is_lost_leaves_a_doubt"

TESTS = tuple(
    f"{suite.__name__}.{name}"
    for suite in suites.ALL
    for name, test in vars(suite).items()
    # One looks at the test module, which is missing here.
    if name.startswith("test_") and "request" not in inspect.signature(test).parameters
)
"""``Suite.test`` of each test of the suites, in their order."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one test.

    Args:
        test: ``Suite.test``.
        seconds: that it took, with the making of its broker.
        error: why it failed; None if it did not.
        skipped: why the harness can't run it; None if it can.
    """

    test: str
    seconds: float
    error: BaseException | None = None
    skipped: str | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one defect.

    Args:
        defect: that was planted.
        seconds: for all tests that ran.
        found_by: the first test that failed; None if all passed.
        not_applicable: why the transport can't have the defect; None if it can.
        skipped: why tests that would find it did not run.
    """

    defect: Defect
    seconds: float = 0.0
    found_by: str | None = None
    not_applicable: str | None = None
    skipped: tuple[str, ...] = ()


def harness_for(url: str, name: str | None = None) -> Harness:
    """Make the harness of a URL's product.

    Args:
        url: ``redis://``, without a host: the harness makes a broker of its own. A query is added to the URLs that it
            makes.
        name: ``module:class`` of a harness; where it is left out the plugin's module ``testing`` has one, and that of
            brokers in this process is `MemoryHarness`.

    Raises:
        ConfigurationError: it has no harness, or the URL names a broker.
    """
    parts = urlsplit(url if "://" in url else f"{url}://")
    if parts.netloc or parts.path:
        raise ConfigurationError(
            f"the suites stop and empty their broker, so the harness makes its own: write {parts.scheme}://"
        )
    kind = _named(name) if name else _kind_for(parts.scheme)
    try:
        harness = kind(parts.scheme) if kind is MemoryHarness else kind()
    except TypeError as error:
        raise ConfigurationError(f"{kind.__name__} can't be made without arguments: {error}") from error
    if parts.query:
        _add_query(harness, parts.query)
    return harness


def _named(name: str) -> type[Harness]:
    module, _, attribute = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"no harness {name!r}: {error}; write module:class") from error
    if not (isinstance(kind, type) and issubclass(kind, Harness)):
        raise ConfigurationError(f"{name} is not a subclass of Harness")
    return kind


def _kind_for(scheme: str) -> type[Harness]:
    record = registry.transport_record(f"{scheme}://")
    if record.broker_control is not None:
        return MemoryHarness
    module = f"{record.factory.__module__.partition('.')[0]}.{_MODULE}"
    if importlib.util.find_spec(module) is None:
        raise ConfigurationError(f"the plugin of {scheme}:// has no module {module}: name its harness, as module:class")
    kinds = {
        kind
        for kind in vars(importlib.import_module(module)).values()
        if isinstance(kind, type)
        and issubclass(kind, Harness)
        and not inspect.isabstract(kind)
        and not kind.__module__.startswith("pairmq.testing.")
    }
    if len(kinds) != 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "none"
        raise ConfigurationError(f"{module} must have one harness, and has {names}: name it, as module:class")
    return kinds.pop()


def _add_query(harness: Harness, query: str) -> None:
    make = harness.make

    async def with_query() -> str:
        url = await make()
        return f"{url}{'&' if '?' in url else '?'}{query}"

    harness.make = with_query  # type: ignore[method-assign]


async def _describe(harness: Harness) -> tuple[str, Capabilities]:
    url = await harness.make()
    broker = Broker(harness, url)
    try:
        return url, broker.capabilities
    finally:
        await broker.end()


def run_tests(
    harness: Harness, tests: Iterable[str] = TESTS, limits: dict[str, Limits] | None = None
) -> Iterator[Outcome]:
    """Run tests of the suites, one after the other, each in an event loop of its own.

    Args:
        harness: of the broker; the caller closes it.
        tests: ``Suite.test`` of each.
        limits: of some of them, in place of the usual ones.

    Yields:
        The outcome of each, when it is known.
    """
    for test in tests:
        began = time.monotonic()
        error: BaseException | None = None
        skipped: str | None = None
        with limited((limits or {}).get(test, Limits())):
            try:
                with asyncio.Runner() as runner:
                    # What a defect leaves behind is not reported.
                    runner.get_loop().set_exception_handler(lambda *_: None)
                    runner.run(run_test(harness, test))
            except Skipped as why:
                skipped = str(why)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as failure:  # pytest's own failures are not exceptions
                error = failure
        yield Outcome(test, time.monotonic() - began, error, skipped)


async def run_test(harness: Harness, test: str) -> None:
    """Run one test of the suites against a new broker.

    Args:
        harness: makes it.
        test: ``Suite.test``.
    """
    suite, _, name = test.partition(".")
    broker = Broker(harness, await harness.make())
    try:
        await getattr(getattr(suites, suite)(), name)(broker=broker)
    finally:
        await broker.end()


@contextmanager
def planted(harness: Harness, defect: Defect) -> Iterator[None]:
    """Let a harness make transports with a defect."""
    sound = harness.transport

    def make(url: str) -> Transport:
        return defect.plant(sound(url), url)

    harness.transport = make  # type: ignore[method-assign]
    try:
        yield
    finally:
        harness.transport = sound  # type: ignore[method-assign]


def find(harness: Harness, defects: Iterable[Defect], sound: Iterable[Outcome]) -> Iterator[Finding]:
    """Plant one defect after the other, and run tests until one fails.

    First those that are known to find it, the quickest one first; then all others. A known one has three times as long
    as it took without a defect, and two seconds, for what must happen: it need not wait for half a minute for what a
    defect keeps back. The others have their usual time, so that one that is only slow is not found by mistake.

    Args:
        harness: of the broker; the caller closes it.
        defects: which.
        sound: what became of all tests without a defect: those that passed are used.

    Yields:
        What became of each, when it is known.
    """
    outcomes = {outcome.test: outcome for outcome in sound}
    passed = sorted(
        (each for each in outcomes.values() if not (each.error or each.skipped)), key=lambda outcome: outcome.seconds
    )
    usual = Limits().patience
    short = {each.test: Limits(patience=min(usual, 2.0 + 3.0 * each.seconds)) for each in passed}
    url, capabilities = asyncio.run(_describe(harness))
    for defect in defects:
        reason = defect.not_applicable(capabilities, url)
        if harness.in_process and defect.found_by == (_LOST_CONFIRM,):
            reason = "the broker is a library in this process: no confirmation can be lost"
        if reason is not None:
            yield Finding(defect, not_applicable=reason)
            continue
        began = time.monotonic()
        # A stable sort: the quickest of those that are known, then the quickest of the others.
        tests = sorted((each.test for each in passed), key=lambda test: test not in defect.found_by)
        limits = {test: short[test] for test in defect.found_by if test in short}
        with planted(harness, defect):
            found = next((each.test for each in run_tests(harness, tests, limits) if each.error), None)
        skipped = {outcomes[test].skipped for test in defect.found_by if test in outcomes}
        yield Finding(
            defect,
            time.monotonic() - began,
            found,
            skipped=() if found else tuple(sorted(each for each in skipped if each)),
        )
