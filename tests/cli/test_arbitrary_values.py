"""Whatever the command line is given, the outcome is a value or the one documented error."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from command_line import run
from hostile_text import documents, written
from pairmq import Entity, Message
from pairmq.testing import memory_broker


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.mark.parametrize("path", ["a\x00b", "\ud800", "", "x" * 10_000, "/"])
def test_a_path_that_can_not_be_is_refused(path: str) -> None:
    assert run(["cost", f"--prices={path}"]) == 2


@given(documents)
@example("[primary]\nbase = " + "[" * 10_000)
@example("[primary]\nbase = " + "9" * 10_000)
@example("[primary]\nbase = 0x" + "f" * 100_000)
@example("[primary]\nbase = 1e999999999")
@example("[primary]\nbase = 1e-999999999")
@example("[primary]\nbase = 'sNaN'")
@example("[primary]\nbase = 1979-05-27")
def test_a_price_list_is_read_or_refused(folder: Path, text: str) -> None:
    assert run(["cost", "--prices", written(folder, text)]) in (0, 2)


@given(
    st.text(max_size=30) | st.floats() | st.integers() | st.booleans() | st.from_regex(r"\A[0-9]{1,9}e-?[0-9]{1,9}\Z")
)
def test_a_price_is_a_number_or_refused(value: object) -> None:
    assert run(["cost", f"--price-per-million={value}"]) in (0, 2)


properties = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(max_size=20) | st.uuids() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["base64", "uuid", "a"]), inner),
    max_leaves=6,
)  # fmt: skip
drawn = st.tuples(st.binary(max_size=30), st.dictionaries(st.sampled_from(["a", "\u202e", "base64"]), properties))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(drawn, min_size=1, max_size=20))
def test_every_delivery_has_a_record_of_one_line(cli, sent: list[tuple[bytes, dict[str, Any]]]) -> None:
    broker = memory_broker()

    async def send() -> None:
        async with broker.transport() as transport:
            await transport.admin.create(Entity("orders"))
            for body, given_properties in sent:
                message = Message(body, subject="a\nb\x1b[2J", application_properties=given_properties)
                await transport.sender(Entity("orders")).send(message)

    asyncio.run(send())
    ended = cli("receive", "-e", "orders", "--json", "-n", str(len(sent)), "--primary", broker.url)
    assert ended.out.isascii()
    lines = ended.out.splitlines()
    assert len(lines) == len(sent)
    assert all(line.isprintable() and json.loads(line) for line in lines)
