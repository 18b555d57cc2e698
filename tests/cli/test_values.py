import pytest
import typer

from pairmq.cli._values import duration, grouped, plural, positive, printable, short_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10", 10),
        ("10s", 10),
        ("500ms", 0.5),
        ("5min", 300),
        ("5m", 300),
        ("1.5h", 5400),
        ("2d", 172_800),
        (" 3 s ", 3),
    ],
)
def test_a_duration_is_a_number_with_or_without_its_unit(text: str, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1", "1e3", "10 parsecs", "\u0661\u0660", "nan", "1:30"])
def test_the_error_for_an_invalid_duration_says_how_to_write_one(text: str) -> None:
    with pytest.raises(typer.BadParameter, match=r"use e\.g\. 10, 10s, 500ms, 5min, 1h or 2d"):
        duration(text)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x"])
def test_a_rate_is_a_finite_number_above_zero(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        positive(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0 ms"),
        (0.87, "870 ms"),
        (4.2, "4.2 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_durations_are_written_for_people(seconds: float, text: str) -> None:
    assert short_duration(seconds) == text


def test_counts_are_grouped_and_know_their_plural() -> None:
    assert grouped(28_800) == "28 800"
    assert plural(1, "message") == "1 message"
    assert plural(2000, "copy") == "2 000 copies"


def test_control_characters_never_reach_a_terminal() -> None:
    assert printable("a\x1b[2Jb\n") == "a\\x1b[2Jb\\n"
