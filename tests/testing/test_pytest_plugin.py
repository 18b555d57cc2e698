"""The pytest plugin, as its users have it: in a fresh directory, in a pytest of its own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace

import pytest

from pairmq import Entity, EntityState, Message, PairOptions, Route
from pairmq.testing import in_virtual_time
from pairmq.testing.pytest_plugin import QUICK_OPTIONS, MemoryBroker, MemoryBrokers, VirtualTime, memory_pair

pytest_plugins = ["pytester"]
ASYNC = """
    import pytest
    from pairmq import Message, Route

    pytestmark = pytest.mark.asyncio
"""


@pytest.fixture
def run(pytester: pytest.Pytester):
    """Runs a file of tests, and tells how many of them ended in which way.

    In this process, unless what is imported matters: to start pytest takes longer than most of what it runs.
    """

    def run(
        tests: str, *arguments: str, mode: str = "strict", alone: bool = False, **outcomes: int
    ) -> pytest.RunResult:
        pytester.makepyprojecttoml(
            f"""
            [tool.pytest.ini_options]
            asyncio_mode = "{mode}"
            asyncio_default_fixture_loop_scope = "function"
            addopts = ["--strict-markers", "--strict-config", "-p", "no:cacheprovider"]
            filterwarnings = ["error"]
            """
        )
        pytester.makepyfile(tests)
        if alone:
            result = pytester.runpytest_subprocess(*arguments, timeout=120)
        else:
            result = pytester.runpytest_inprocess(*arguments)
        if outcomes:
            result.assert_outcomes(**outcomes)
        return result

    return run


# ----------------------------------------------------------------------------------------------------------- the pair

FAILOVER = """
    import pytest
    from pairmq import Message, Route
    MARK

    async def test_an_order_is_taken_while_the_primary_is_unavailable(pair, pair_primary):
        sender = pair.sender("orders")
        await pair_primary.stop()
        assert (await sender.send(Message(b"1"))).route is Route.BACKLOG
        await pair_primary.restore()
        async with pair.receiver("orders") as receiver:
            (delivery,) = await receiver.receive(wait=30)
        assert delivery.body == b"1"
"""


@pytest.mark.parametrize(("mode", "mark"), [("strict", "pytestmark = pytest.mark.asyncio"), ("auto", "")])
def test_a_pair_fails_over_in_either_mode_of_pytest_asyncio(run, mode: str, mark: str):
    run(FAILOVER.replace("MARK", mark), mode=mode, passed=1)


def test_the_marker_chooses_options_and_entities(run):
    run(
        ASYNC
        + """
    from pairmq import Entity, PairOptions

    @pytest.mark.pairmq(options={"backlog_queue_count": 3}, entities=["prices", "topic:news"])
    async def test_single_options(pair):
        assert len(pair.backlog_queues) == 3
        assert pair.options.failover_interval == 0.2
        assert await pair.primary.admin.exists(Entity("news", "topic"))
        assert not await pair.primary.admin.exists(Entity("orders"))

    @pytest.mark.pairmq(options=PairOptions(failover_interval=7))
    async def test_all_options(pair):
        assert pair.options == PairOptions(failover_interval=7)
    """,
        passed=2,
    )


def test_a_wrong_marker_is_one_clear_error(run):
    wrong = {
        "options={'colour': 1}": "unexpected keyword argument 'colour'",
        "options={'failover_interval': -1}": "failover_interval is -1",
        "colour=1": "unexpected keyword argument 'colour'",
        "entities='orders'": "entities='orders': several are expected",
    }
    tests = (
        f"""
    @pytest.mark.pairmq({mark})
    async def test_{number}(pair):
        pass
    """
        for number, mark in enumerate(wrong)
    )
    result = run(ASYNC + "".join(tests), errors=len(wrong))
    said = result.stdout.str().split("ERROR at setup of test_")[1:]
    assert [told in text for told, text in zip(wrong.values(), said, strict=True)] == [True] * len(wrong)


def test_a_test_that_fails_leaves_the_next_one_alone(run):
    run(
        ASYNC
        + """
    async def test_one(pair, pair_primary):
        await pair.sender("orders").send(Message(b"left behind"))
        await pair_primary.hang()
        raise AssertionError

    async def test_two(pair):
        async with pair.receiver("orders") as receiver:
            assert await receiver.receive(wait=0) == []
        assert (await pair.sender("orders").send(Message(b"1"))).route is Route.PRIMARY
    """,
        failed=1,
        passed=1,
    )


def test_the_primary_can_be_overridden(run):
    run(
        ASYNC
        + """
    @pytest.fixture
    def pair_primary(memory_broker):
        return memory_broker("mine")

    async def test_mine(pair, memory_broker):
        assert pair.primary.endpoint.url == memory_broker("mine").url
    """,
        passed=1,
    )


@pytest.mark.real_server  # it starts pytest
def test_without_pytest_asyncio_the_pair_says_what_to_install_and_the_rest_works(run, pytester: pytest.Pytester):
    pytester.makepyfile(pytest_asyncio="raise ImportError('not installed')")
    pytester.makepyfile(
        """
        from pairmq.testing import in_virtual_time

        def test_pair(pair):
            pass

        @in_virtual_time
        async def test_broker(memory_broker):
            await memory_broker().stop()

        def test_time(virtual_time):
            assert virtual_time.now == 0
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:cacheprovider", timeout=120)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*the fixture 'pair' needs pytest-asyncio (pip install 'pairmq[[]testing]')*"])


# ------------------------------------------------------------------------------------------------------- virtual time

VIRTUAL = """
    import asyncio
    import time

    import pytest
    from pairmq import Message, Route
    from pairmq.testing import Fault, in_virtual_time, simulated_pair

    def test_run(virtual_time):
        async def scene():
            async with simulated_pair(failover_interval=600) as it:
                it.primary.fail(Fault.DOWN)
                receipt = await it.pair.sender("orders").send(Message(b"1"), timeout=3600)
                assert receipt.route is Route.BACKLOG
                return receipt.elapsed

        assert virtual_time.run(scene()) == pytest.approx(600, abs=5)
        assert 600 <= virtual_time.now < 700

    @in_virtual_time
    async def test_decorated(virtual_time):
        async with simulated_pair(entities=["prices"]) as it:
            it.primary.fail(Fault.DOWN)
            await it.pair.sender("prices").send(Message(b"1"))
            it.primary.heal()
            await asyncio.sleep(60)
            assert [message.body for message in it.delivered("prices")] == [b"1"]
"""


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_virtual_time_works_in_either_mode_of_pytest_asyncio(run, mode: str):
    run(VIRTUAL, mode=mode, passed=2)


def test_the_error_for_an_async_test_in_real_time_names_virtual_time(run):
    result = run(
        """
        from pairmq.testing import simulated_pair

        async def test_pair(virtual_time):
            async with simulated_pair():
                pass

        async def test_run(virtual_time):
            virtual_time.run(anything())

        async def anything():
            pass
        """,
        mode="auto",
        failed=2,
    )
    result.stdout.fnmatch_lines(["*decorate the test with pairmq.testing.in_virtual_time*"])
    result.stdout.fnmatch_lines(["*virtual_time.run is for plain tests*"])


def test_coroutines_of_one_test_share_a_loop_and_its_clock():
    with VirtualTime() as time:
        event = asyncio.Event()
        time.run(asyncio.sleep(5))
        event.set()
        time.run(event.wait())
        assert time.now == 5


# How far brokers in this process take part in virtual time: the documents say so.


@in_virtual_time
async def test_a_memory_pair_fails_over_and_drains_in_virtual_time(memory_broker: MemoryBrokers):
    primary, secondary = memory_broker("primary"), memory_broker("secondary")
    async with memory_pair(primary, secondary, {"failover_interval": 20, "ping_primary_interval": 20}) as pair:
        await primary.stop()
        assert (await pair.sender("orders").send(Message(b"1"), timeout=60)).route is Route.BACKLOG
        await primary.restore()
        await asyncio.sleep(60)
        assert pair.state("orders") is EntityState.HEALTHY
        async with pair.receiver("orders") as receiver:
            assert [delivery.body for delivery in await receiver.receive(wait=60)] == [b"1"]


@in_virtual_time
async def test_a_memory_brokers_own_clock_is_real(memory_broker: MemoryBrokers):
    async with memory_pair(memory_broker("primary"), memory_broker("secondary")) as pair:
        await pair.sender("orders").send(Message(b"1", time_to_live=300))
        await asyncio.sleep(600)
        async with pair.receiver("orders") as receiver:
            assert [delivery.body for delivery in await receiver.receive(wait=1)] == [b"1"]


# --------------------------------------------------------------------------------------------------------- the plugin


@pytest.mark.real_server  # it starts pytest
def test_a_pytest_that_uses_no_fixture_of_it_imports_nothing_of_pairmq(run):
    run(
        """
        import sys

        def test_nothing():
            assert [name for name in sys.modules if name.split(".")[0] == "pairmq"] == []
        """,
        alone=True,
        passed=1,
    )


@pytest.mark.real_server  # it starts pytest
def test_it_does_without_hypothesis(run, pytester: pytest.Pytester):
    pytester.makepyfile(hypothesis="raise ImportError('not installed')")
    run(FAILOVER.replace("MARK", ""), "-p", "no:hypothesispytest", mode="auto", alone=True, passed=1)


def test_the_fixtures_and_the_marker_are_documented(run):
    result = run("def test_nothing(): pass", "--fixtures", mode="auto")
    names = ("pair", "pair_primary", "pair_secondary", "memory_broker", "virtual_time")
    result.stdout.re_match_lines_random([f"{name}( .*|$)" for name in names])
    result = run("def test_nothing(): pass", "--markers", mode="auto")
    result.stdout.fnmatch_lines(["@pytest.mark.pairmq(options=None, entities=('orders',)):*"])


def test_one_name_is_one_broker_within_a_test_and_another_in_the_next():
    with MemoryBrokers() as one, MemoryBrokers() as another:
        assert one("a") is one("a")
        assert one("a").url != one("b").url != one().url != one().url
        assert one("a").url != another("a").url


def test_a_broker_loses_its_data_after_the_test():
    with MemoryBrokers() as brokers:
        broker = brokers("a")
        asyncio.run(_has_queue(broker, create=True))
    assert not asyncio.run(_has_queue(broker, create=False))


async def _has_queue(broker: MemoryBroker, *, create: bool) -> bool:
    async with broker.transport() as transport:
        if create:
            await transport.admin.create(Entity("orders"))
        return await transport.admin.exists(Entity("orders"))


def test_what_is_left_in_virtual_time_is_cancelled_after_the_test():
    with VirtualTime() as time:
        task = time.run(_left_behind())
        assert not task.done()
    assert task.cancelled()


async def _left_behind() -> asyncio.Task[None]:
    task = asyncio.create_task(asyncio.sleep(60))
    await asyncio.sleep(1)
    return task


async def test_all_options_may_be_given_at_once(memory_broker: MemoryBrokers):
    async with memory_pair(memory_broker(), memory_broker(), PairOptions(backlog_queue_count=1)) as pair:
        assert pair.options == PairOptions(backlog_queue_count=1)


async def test_single_options_complete_the_quick_ones(memory_broker: MemoryBrokers):
    async with memory_pair(memory_broker(), memory_broker(), {"backlog_queue_count": 1}) as pair:
        assert pair.options == replace(QUICK_OPTIONS, backlog_queue_count=1)


def test_the_module_of_the_plugin_imports_nothing_of_the_package():
    program = "import sys, pairmq_pytest; print([m for m in sys.modules if m == 'pairmq' or m.startswith('pairmq.')])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert run.stdout.strip() == "[]"
