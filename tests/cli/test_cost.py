import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def test_the_defaults_are_those_of_the_specification(cli) -> None:
    ended = cli("cost")
    assert ended.status == 0
    for number in (" 40\n", " 960\n", " 28 800\n"):
        assert number in ended.out
    assert "Money" not in ended.out


@pytest.fixture
def estimate(cli) -> Callable[..., dict[str, Any]]:
    """Gives what is reported of the period as JSON."""
    return lambda *arguments: json.loads(cli("cost", *arguments, "--json").out)["period"]


def test_the_defaults_are_28_800_receives_in_30_days(cli, estimate) -> None:
    idle = json.loads(cli("cost", "--json").out)["idle_receives"]
    assert idle == {"hour": 40.0, "day": 960, "30_days": 28_800}
    assert estimate()["idle_receives"] == 28_800


@pytest.mark.parametrize(("queues", "wait", "per_day"), [(1, 900, 96), (10, 60, 14_400), (4, 3600, 96), (1, 7, 12_343)])
def test_idle_receives_are_one_for_each_queue_and_long_poll(estimate, queues: int, wait: float, per_day: int) -> None:
    found = estimate("--backlog-queues", str(queues), "--receive-wait", str(wait), "--days", "1")
    assert found["idle_receives"] == per_day


def test_a_diverted_message_costs_two_operations_at_each_broker(estimate) -> None:
    found = estimate("--messages-diverted", "1000")
    assert (found["primary_operations"], found["secondary_operations"]) == (2000, 2000)
    assert found["operations"] == 28_800 + 4320 + 172_800 + 34_560 + 4000


@pytest.mark.parametrize(
    ("arguments", "record", "switch", "reports"),
    [
        ((), 144, 240 * 24, 4 * 12 * 24),
        (("--processes", "50"), 7200, 50 * 240 * 24, 50 * 4 * 12 * 24),
        (("--control-interval", "60"), 144, 60 * 24, 4 * 12 * 24),
        (("--control-interval", "0"), 144, 0, 0),
        (("--control-interval", "1h"), 144, 24, 4 * 12 * 24),  # else it would not be listed
    ],
)
def test_every_process_looks_at_record_and_switch_and_reports(
    estimate, arguments: tuple[str, ...], record: int, switch: int, reports: int
) -> None:
    found = estimate("--days", "1", *arguments)
    assert (found["record_looks"], found["switch_looks"], found["switch_reports"]) == (record, switch, reports)
    assert found["operations"] == 960 + record + switch + reports


def test_a_lane_costs_a_look_a_minute_and_a_long_poll_a_minute_of_each_receiver(estimate) -> None:
    found = estimate("--days", "1", "--lanes", "2", "--receivers", "3")
    assert (found["lane_looks"], found["lane_receives"]) == (2 * 24 * 60, 3 * 24 * 60)
    assert found["operations"] == estimate("--days", "1")["operations"] + 5 * 24 * 60


def test_prices_make_money(estimate) -> None:
    found = estimate("--price-per-million", "0.05", "--messages-diverted", "1000000")
    assert (found["primary_money"], found["secondary_money"], found["money"]) == ("0.1000", "0.1120", "0.2120")


def test_a_price_list_has_a_table_for_each_broker(estimate, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[primary]\nper_million = 0.8\nbase = 10\n[secondary]\nper_million = 0.05\n")
    found = estimate("--prices", str(prices), "--messages-diverted", "1000000")
    assert found["primary_money"] == "11.6000"  # 2 million at 0.80, and the base
    assert found["secondary_money"] == "0.1120"  # 2 240 480 at 0.05 a million
    assert found["money"] == "11.7120"


@pytest.mark.parametrize(("days", "money"), [("15", "5.0000"), ("30", "10.0000"), ("365", "121.6667")])
def test_the_base_charge_is_for_30_days(estimate, tmp_path: Path, days: str, money: str) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[primary]\nbase = 10\n")
    assert estimate("--prices", str(prices), "--days", days)["primary_money"] == money


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[primary]\nper_million = -1\n", "at least 0"),
        ("[primary]\nper_million = 'x'\n", "at least 0"),
        ("[third]\n", "unknown third"),
        ("[primary]\nfee = 1\n", "per_million and base"),
        ("primary = 3\n", "per_million and base"),
        ("[", "is not valid TOML"),
    ],
)
def test_a_bad_price_list_is_one_line(cli, tmp_path: Path, text: str, says: str) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(text)
    ended = cli("cost", "--prices", str(prices))
    assert (ended.status, ended.out, len(ended.err.splitlines())) == (2, "", 1)
    assert says in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--backlog-queues", "0"],
        ["--receive-wait", "0"],
        ["--days", "-1"],
        ["--days", "x"],
        ["--price-per-million", "free"],
        ["--prices", "nowhere.toml"],
        ["--prices", "p", "--price-per-million", "1"],
        ["--messages-diverted", "-1"],
    ],
)
def test_bad_values_are_refused(cli, arguments: list[str]) -> None:
    ended = cli("cost", *arguments)
    assert ended.status == 2
    assert ended.error_lines
    assert ended.out == ""
