"""The parts of a chaos run that need no server: plans, ledgers, events, messages."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from pairmq.model import ConfigurationError
from pairmq.testing.chaos import KILL, PAUSE, FaultKind, Plan, ServerBroker, Settings, chaos_broker, network, planned
from pairmq.testing.chaos._books import backlog_queues
from pairmq.testing.chaos._ledger import (
    CANARIES_OF_A_SENDER,
    Ledger,
    first_canary,
    first_number,
    lines,
    message_of,
    number_of,
)
from pairmq.testing.chaos._run import ClientProcess
from pairmq.testing.chaos.client import Client
from pairmq.testing.chaos.network import BLIP_FAULTS, BOTH, NETWORK_FAULTS, Network
from pairmq.testing.chaos.plan import CLIENT_FAULTS, DISTANCES, drawn_settings
from pairmq.testing.history import CANARIES
from pairmq.transport import Capabilities

FAULTS = ((KILL, PAUSE), (KILL, FaultKind("of-a-secondary", primary=False), FaultKind("of-a-primary", secondary=False)))
PAIR = ("redis", "rabbitmq")


def test_one_seed_gives_one_plan() -> None:
    assert planned(PAIR, Settings(seed=7), FAULTS) == planned(PAIR, Settings(seed=7), FAULTS)
    assert planned(PAIR, Settings(seed=7), FAULTS) != planned(PAIR, Settings(seed=8), FAULTS)


def test_proxies_are_put_before_every_host_of_a_url() -> None:
    class OfAUrl(ServerBroker):
        @property
        def url(self) -> str:
            return "amqp://user:p%40ss@127.0.0.1:5672,localhost:5673/vhost?admin=http://127.0.0.1:15672"

        def count(self, queue: str) -> int:
            return 0

    assert OfAUrl(Mock()).addresses == [("127.0.0.1", 5672), ("localhost", 5673)]


def test_a_plan_goes_through_json_unchanged() -> None:
    plan = planned(PAIR, Settings(seed=7, faults=("kill", "reset"), distance="both", differing=True), FAULTS)
    assert plan.queue_counts
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"settings": 1}'])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no plan"):
        Plan.from_json(text)


def test_no_two_faults_of_one_broker_overlap() -> None:
    plan = planned(PAIR, Settings(seed=3, seconds=600), FAULTS)
    for side in ("primary", "secondary", BOTH, ""):
        strikes = plan.of(side)
        assert len(strikes) > 20
        assert all(one.at + one.seconds <= other.at for one, other in itertools.pairwise(strikes))


def test_a_long_plan_has_every_fault_on_its_side_only() -> None:
    plan = planned(PAIR, Settings(seed=3, seconds=3600), FAULTS)
    network = {kind.name for kind in NETWORK_FAULTS}
    assert {strike.kind for strike in plan.of("primary")} == {"kill", "pause", *network}
    assert {strike.kind for strike in plan.of("secondary")} == {"kill", "of-a-secondary", *network}
    assert {strike.kind for strike in plan.of("")} == {kind.name for kind in CLIENT_FAULTS}
    assert {strike.kind for strike in plan.of(BOTH)} == {kind.name for kind in BLIP_FAULTS}


def test_only_the_named_faults_happen() -> None:
    plan = planned(PAIR, Settings(seed=3, seconds=600, faults=("pause", "client-kill")), FAULTS)
    assert {strike.kind for strike in plan.strikes} == {"pause", "client-kill"}


def test_no_fault_lasts_longer_than_the_longest() -> None:
    plan = planned(PAIR, Settings(seed=3, seconds=3600, longest=1.0), FAULTS)
    assert max(strike.seconds for strike in plan.strikes) <= 1.0


def test_a_pause_of_a_minute_happens_where_it_is_asked_for() -> None:
    plan = planned(PAIR, Settings(seed=3, seconds=36_000, longest=60.0), FAULTS)
    assert max(strike.seconds for strike in plan.strikes if strike.kind == "pause") > 30


def test_an_unknown_fault_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"no faults flood: these brokers know .*kill"):
        planned(PAIR, Settings(faults=("flood",)), FAULTS)


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"clients": 9}, {"seconds": 0}, {"every": 0}, {"rate": 0}])
def test_a_setting_out_of_its_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Settings(**wrong)  # type: ignore[arg-type]


def test_an_unknown_ordering_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="ordering is 'fifo': it must be none or session"):
        Settings(ordering="fifo")  # type: ignore[arg-type]


def test_the_clients_keep_the_order_that_is_asked_for() -> None:
    assert "ordering" not in planned(PAIR, Settings(), FAULTS).options
    assert planned(PAIR, Settings(ordering="session"), FAULTS).options["ordering"] == "session"


def test_a_blip_of_both_brokers_is_shorter_than_what_a_patient_send_waits() -> None:
    plan = planned(PAIR, Settings(seed=3, seconds=3600), FAULTS)
    blips = plan.of(BOTH)
    assert 0.3 <= min(blip.seconds for blip in blips) < 0.5
    assert max(blip.seconds for blip in blips) <= 1.0 < max(plan.timeouts)
    assert {blip.client for blip in blips} == {"", *plan.clients}


def test_a_distance_gives_every_operation_its_time() -> None:
    near, *far = (planned(PAIR, Settings(seed=3, distance=each), FAULTS) for each in DISTANCES)
    for plan in far:
        assert plan.options["attempt_timeout"] >= near.options["attempt_timeout"] + 8 * 2 * network.DELAY
        assert plan.strikes == near.strikes
        assert plan.lock_duration >= 2 * plan.options["attempt_timeout"] > near.lock_duration == 5.0
    assert [plan.settings.distant for plan in far] == [("primary",), ("secondary",), ("primary", "secondary")]


def test_an_unknown_distance_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="distance is 'far'"):
        Settings(distance="far")


def test_differing_clients_have_different_numbers_of_backlog_queues() -> None:
    plan = planned(PAIR, Settings(seed=3, clients=4, differing=True), FAULTS)
    counts = [plan.options_of(name)["backlog_queue_count"] for name in plan.clients]
    assert len(set(counts)) == 4
    assert len(backlog_queues(plan)) == max(counts)
    others = [{**plan.options_of(name), "backlog_queue_count": 0} for name in plan.clients]
    assert all(each == others[0] for each in others)


def test_a_seed_draws_what_kind_of_run_it_is() -> None:
    assert drawn_settings(7) == drawn_settings(7)
    drawn = [drawn_settings(seed) for seed in range(100)]
    assert {each["distance"] for each in drawn} == set(DISTANCES)
    assert {(each["differing"], each["eager"]) for each in drawn} == set(itertools.product((True, False), repeat=2))


class Way:
    """A proxy that notes what it is to do."""

    def __init__(self, *address: object) -> None:
        self.now: tuple[object, ...] = ()

    def start(self) -> None:
        pass

    close = start

    def __getattr__(self, what: str) -> Callable[..., None]:
        return lambda *arguments, **more: setattr(self, "now", (what, *arguments, *more.values()))


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Network, Callable[[str, str], tuple[object, ...]]]]:
    """Two clients' network to a primary nearby and a distant secondary, and what is on between two places."""
    monkeypatch.setattr(network, "TcpProxy", Way)
    addresses = dict.fromkeys(("primary", "secondary"), (("127.0.0.1", 1),))
    with Network(addresses, ("a", "b"), ("secondary",)) as found:
        yield found, lambda side, client: found._ways[side, client][0].now  # type: ignore[attr-defined]


FAR = ("slow", network.DELAY, network.JITTER)


def test_a_distant_broker_is_so_whenever_nothing_is_wrong(ways) -> None:
    found, now = ways
    assert (now("primary", "a"), now("secondary", "a")) == (("restore",), FAR)
    found.apply("cut", "secondary", "a")
    assert (now("secondary", "a"), now("secondary", "b")) == (("cut",), FAR)
    found.cure("cut", "secondary", "a")
    assert now("secondary", "a") == FAR


def test_a_fault_outlasts_a_blip_that_came_over_it(ways) -> None:
    found, now = ways
    found.apply("silence", "primary")
    found.apply("blip", BOTH)
    assert {now(side, "a") for side in ("primary", "secondary")} == {("reset", True)}
    found.cure("blip", BOTH)
    assert (now("primary", "a"), now("secondary", "a")) == (("silence",), FAR)
    found.apply("blip", BOTH, "b")
    found.cure("silence", "primary")
    assert (now("primary", "a"), now("primary", "b")) == (("restore",), ("reset", True))
    found.heal()
    assert now("primary", "b") == ("restore",)


def test_no_two_clients_share_a_session() -> None:
    sessions = [{message_of(first_number(place, 1) + n).session_id for n in range(100)} - {None} for place in range(3)]
    assert all(sessions)
    assert len(set.union(*sessions)) == sum(map(len, sessions))


async def test_a_process_that_waits_while_it_writes_of_a_wait_writes_of_both(tmp_path: Path) -> None:
    spec = {"ledger": tmp_path / "client-a-1.jsonl", "seed": 7, "name": "client-a", "place": 0, "life": 1}
    client = Client({**spec, "options": {}, "syphon": False, "journal": ""})
    waits: list[float] = []

    def write(_: str, *, due: float, woken: float) -> None:
        waits.append(woken - due)
        if len(waits) == 1:
            time.sleep(0.2)

    with client._ledger as ledger, patch.object(ledger, "write", write):
        beat = asyncio.create_task(client._beat())
        await asyncio.sleep(0)
        time.sleep(0.2)
        async with asyncio.timeout(60):
            while len(waits) < 2:
                await asyncio.sleep(0.01)
        beat.cancel()
    assert waits[0] > 0.15
    assert waits[1] > 0.15


def test_an_unknown_product_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="known are postgres, rabbitmq, redis, servicebus"):
        chaos_broker("carrier-pigeons")


def test_a_module_without_the_function_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="json:chaos"):
        chaos_broker("json:chaos")


def test_lines_of_several_ledgers_come_in_the_order_of_their_instants(tmp_path: Path) -> None:
    with Ledger(tmp_path / "a.jsonl") as one, Ledger(tmp_path / "b.jsonl") as other:
        for number in range(6):
            (one if number % 2 else other).write("line", number=number)
    assert [entry["number"] for _, entry in lines(tmp_path)] == list(range(6))


def test_a_line_that_is_cut_off_is_left_out(tmp_path: Path) -> None:
    with Ledger(tmp_path / "a.jsonl") as ledger:
        ledger.write("whole")
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"t": 1.0, "k": "cut')
    assert [entry["k"] for _, entry in lines(tmp_path)] == ["whole"]


def test_a_message_has_its_number() -> None:
    for number in range(50):
        assert number_of(message_of(number)) == number


def test_each_session_of_a_client_has_a_canary() -> None:
    for client, life in ((0, 1), (3, 42)):
        start, canary = first_number(client, life), first_canary(client, life)
        sessions = {message_of(number).session_id for number in range(start, start + 100)}
        assert {message_of(canary + turn).session_id for turn in range(CANARIES_OF_A_SENDER)} == sessions


@pytest.mark.parametrize(("primary", "secondary"), [(True, False), (False, True), (False, False)])
def test_products_without_a_time_to_live_are_sent_none(tmp_path: Path, primary: bool, secondary: bool) -> None:
    spec = {"ledger": tmp_path / "client-a-1.jsonl", "seed": 7, "name": "client-a", "place": 0, "life": 1}
    client = Client({**spec, "options": {}, "syphon": False, "journal": ""})
    with client._ledger:
        client._leave_out_what_is_disclaimed(*(Capabilities(time_to_live=claimed) for claimed in (primary, secondary)))
    numbers = [*itertools.islice(client._numbers, 40), *range(first_canary(0, 1), first_canary(0, 1) + 10)]
    assert [number for number in numbers if message_of(number).time_to_live is not None] == []


def test_no_two_lives_send_the_same_numbers() -> None:
    starts = sorted(first_number(client, life) for client in range(8) for life in range(1, 100))
    assert all(later - earlier >= 100_000 for earlier, later in itertools.pairwise(starts))
    assert starts[-1] + 100_000 <= CANARIES
    canaries = sorted(first_canary(client, life) for client in range(8) for life in range(1, 100))
    assert all(later - earlier >= 2 * CANARIES_OF_A_SENDER for earlier, later in itertools.pairwise(canaries))
    with pytest.raises(ValueError, match="no number is left"):
        first_number(0, 100)


def test_ctrl_c_in_a_terminal_does_not_reach_a_client_that_has_only_begun_to_start(tmp_path: Path) -> None:
    with Ledger(tmp_path / "run.jsonl") as ledger:
        client = ClientProcess({"name": "client-a"}, tmp_path, ledger)
        client.start()
        try:
            process = client._process
            assert process is not None
            # A terminal tells the whole process group in its foreground.
            assert os.getpgid(process.pid) != os.getpgid(0)
        finally:
            client.close()
