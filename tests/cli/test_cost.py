import json
from pathlib import Path

import pytest


def test_the_defaults_are_those_of_the_specification(cli) -> None:
    ended = cli("cost")
    assert ended.status == 0
    for number in (" 40\n", " 960\n", " 28 800\n"):
        assert number in ended.out
    assert "Money" not in ended.out


def test_prices_make_money(cli) -> None:
    ended = cli("cost", "--price-per-million", "0.05", "--messages-diverted", "1000000", "--json")
    period = json.loads(ended.out)["period"]
    assert (period["primary_money"], period["secondary_money"], period["money"]) == ("0.1000", "0.1120", "0.2120")


def test_a_price_list_has_a_table_for_each_broker(cli, tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[primary]\nper_million = 0.8\nbase = 10\n[secondary]\nper_million = 0.05\n")
    ended = cli("cost", "--prices", str(prices), "--days", "30", "--json")
    assert json.loads(ended.out)["period"]["money"] == "10.0120"


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
