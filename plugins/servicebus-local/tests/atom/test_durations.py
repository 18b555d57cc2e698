"""Durations in the service's form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebus_local.descriptions import UNLIMITED, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("PT0S", 0),
        ("PT30S", 30),
        ("PT1M", 60),
        ("P1D", 86400),
        ("P1W", 7 * 86400),
        ("P14DT1H2M3.5S", 14 * 86400 + 3723.5),
        ("PT0.0000001S", 1e-7),
        (" PT5M ", 300),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [UNLIMITED, "P10675199DT2H48M5.477581S", "P10675199DT2H48M5.47758S", "P106751991D", "PT922337203685.4775807S"],
)
def test_the_largest_time_span_has_no_end_however_a_client_rounds_it(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1D", "P1Y", "P1M", "PT1", "-PT1S", "PT-1S", "PT1.S", "PT\uff11S", "5"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "PT0S"),
        (60, "PT1M"),
        (86400, "P1D"),
        (3723.5, "PT1H2M3.5S"),
        (86400.25, "P1DT0.25S"),
        (None, UNLIMITED),
        (1e15, UNLIMITED),
    ],
)
def test_a_duration_is_written_as_the_service_does(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.integers(0, 10_675_199 * 86_400 * 1000 - 1))
def test_a_duration_comes_back_as_it_was(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == seconds
