"""Whatever the command line is given, the outcome is a value or the one documented error."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from hostile_text import documents, written
from pairmq.cli._output import delivery_record
from pairmq.cli._values import BadUsage, duration, positive, price_number, read_prices
from pairmq.model import Delivery, Message


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize("path", ["a\x00b", "\ud800", "", "x" * 10_000, "/"])
def test_a_path_that_can_not_be_is_refused(path: str) -> None:
    with pytest.raises(BadUsage):
        read_prices(path)


@given(st.text(max_size=60) | st.from_regex(r"\A\s*[0-9_.eE+-]{0,30}\s*(ms|s|m|min|h|d|y)?\Z"))
@example("9" * 100_000)
@example("1" + " " * 100_000 + "x")
@example("1." + "0" * 100_000)
@example("٣s")
def test_a_duration_is_a_number_or_refused(text: str) -> None:
    for read in (duration, positive):
        with contextlib.suppress(typer.BadParameter):
            assert read(text) >= 0


@given(documents)
@example("[primary]\nbase = " + "[" * 10_000)
@example("[primary]\nbase = " + "9" * 10_000)
@example("[primary]\nbase = 0x" + "f" * 100_000)
@example("[primary]\nbase = 1e999999999")
@example("[primary]\nbase = 1e-999999999")
@example("[primary]\nbase = 'sNaN'")
@example("[primary]\nbase = 1979-05-27")
def test_a_price_list_is_read_or_refused(folder: Path, text: str) -> None:
    with contextlib.suppress(BadUsage):
        for price in read_prices(written(folder, text)):
            assert price.base.adjusted() <= 15
            assert price.per_million.adjusted() <= 15


@given(
    st.text(max_size=30) | st.floats() | st.integers() | st.booleans() | st.from_regex(r"\A[0-9]{1,9}e-?[0-9]{1,9}\Z")
)
def test_a_price_is_a_number_or_refused(value: object) -> None:
    with contextlib.suppress(BadUsage):
        assert price_number("price", value) >= 0


properties = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(max_size=20) | st.uuids() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["base64", "uuid", "a"]), inner),
    max_leaves=6,
)  # fmt: skip


@given(st.binary(max_size=30), st.dictionaries(st.sampled_from(["a", "\u202e", "base64"]), properties))
def test_every_delivery_has_a_record_of_one_line(body: bytes, given_properties: dict[str, Any]) -> None:
    message = Message(body, subject="a\nb\x1b[2J", application_properties=given_properties)
    record = json.dumps(delivery_record(Delivery(message, None)))
    assert record.isascii()
    assert record.isprintable()
