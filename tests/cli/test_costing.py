from decimal import Decimal

import pytest

from pairmq.cli._cost import Cost
from pairmq.model import Price


def test_the_defaults_cost_40_receives_an_hour_960_a_day_28_800_in_30_days() -> None:
    result = Cost()
    assert result.receives_per_hour == 40
    assert result.idle_receives_in(1) == 960
    assert result.idle_receives == result.idle_receives_in(30) == 28_800


@pytest.mark.parametrize(("queues", "wait", "per_day"), [(1, 900, 96), (10, 60, 14_400), (4, 3600, 96), (1, 7, 12_343)])
def test_idle_receives_are_one_for_each_queue_and_long_poll(queues: int, wait: float, per_day: int) -> None:
    assert Cost(backlog_queues=queues, receive_wait=wait).idle_receives_in(1) == per_day


def test_a_diverted_message_costs_two_operations_at_each_broker() -> None:
    result = Cost(messages_diverted=1000)
    assert (result.primary_operations, result.secondary_operations) == (2000, 2000)
    assert result.operations == 28_800 + 4320 + 172_800 + 34_560 + 4000


def test_every_process_looks_at_the_record_six_times_an_hour() -> None:
    assert Cost(days=1).record_looks == 144
    assert Cost(days=1, processes=50).record_looks == 7200


def test_every_process_looks_at_the_switch_240_times_an_hour_and_reports_12_times() -> None:
    assert (Cost(days=1).switch_looks, Cost(days=1).switch_reports) == (240 * 24, 4 * 12 * 24)
    assert Cost(days=1, processes=50, control_interval=60).switch_looks == 50 * 60 * 24
    assert Cost(days=1, control_interval=0).looks == 144
    assert Cost(days=1, control_interval=3600).switch_reports == 4 * 12 * 24  # else it would not be listed


def test_each_broker_has_its_own_prices() -> None:
    result = Cost(
        messages_diverted=1_000_000,
        primary=Price(Decimal("0.80"), Decimal(10)),
        secondary=Price(Decimal("0.05")),
    )
    assert result.primary_money == Decimal("11.6000")  # 2 million at 0.80, and the base
    assert result.secondary_money == Decimal("0.1120")  # 2 240 480 at 0.05 a million
    assert result.money == Decimal("11.7120")


def test_the_base_charge_is_for_30_days() -> None:
    assert Cost(days=15, primary=Price(base=Decimal(10))).primary_money == 5
    assert Cost(days=365, primary=Price(base=Decimal(30))).primary_money == 365


def test_a_lane_costs_a_look_a_minute_and_a_long_poll_a_minute_of_each_receiver() -> None:
    result = Cost(days=1, lanes=2, receivers=3)
    assert (result.lane_looks, result.lane_receives) == (2 * 24 * 60, 3 * 24 * 60)
    assert result.operations == Cost(days=1).operations + 5 * 24 * 60
