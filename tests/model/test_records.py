"""Events as rows: nothing is lost on the way, and the schema changes only on purpose."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq.model import Entity, EntityKind, EntityState, events, records
from pairmq.model.events import Cause, SendOutcome, Settlement, Side

FINGERPRINTS = {1: "0dbe193cdb6709d2", 2: "72aa80a04d9190e0", 3: "ab06a6f4b9afd46d", 4: "43d9157e4f5925c4"}
"""What the columns of each version of the schema hash to. A new line goes with a new `SCHEMA_VERSION`."""

EVENTS = [
    kind
    for _, kind in inspect.getmembers(events, inspect.isclass)
    if issubclass(kind, events.Event) and kind is not events.Event
]

_VALUES: dict[Any, Any] = {
    Entity: st.builds(Entity, st.sampled_from(("orders", "a/b")), st.sampled_from(EntityKind)),
    EntityState: st.sampled_from(EntityState),
    Cause: st.sampled_from(Cause),
    SendOutcome: st.sampled_from(SendOutcome),
    Settlement: st.sampled_from(Settlement),
    Side: st.sampled_from(Side),
    str: st.text(),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    tuple[str, ...]: st.lists(st.text()).map(tuple),
}


@functools.cache  # to make it takes longer than an example
def strategy(kind: type[events.Event]) -> st.SearchStrategy[events.Event]:
    """Any event of a kind."""
    values = {}
    for entry in dataclasses.fields(kind):
        hint = records._HINTS[kind][entry.name]
        values[entry.name] = _VALUES[hint]
        if "None" in str(entry.type):
            values[entry.name] |= st.none()
    return st.builds(kind, **values)


def test_every_kind_of_event_has_its_row():
    assert set(records.KINDS.values()) == set(EVENTS)


@pytest.mark.parametrize("kind", EVENTS)
def test_every_field_of_every_event_has_a_column(kind):
    named = {field.name for field in records.FIELDS[kind]}
    assert named == {entry.name for entry in dataclasses.fields(kind)}


@pytest.mark.parametrize("kind", EVENTS)
@given(data=st.data())
def test_a_row_gives_its_event_back(kind, data):
    event = data.draw(strategy(kind))
    row = records.row_of(event)
    assert set(row) <= {column.name for column in records.COLUMNS}
    assert records.event_of(json.loads(json.dumps(row))) == event


def test_a_row_holds_plain_values():
    row = records.row_of(
        events.PingCompleted(at=1.0, pair="p", entity=Entity("prices", EntityKind.TOPIC), ok=True, elapsed=0.5)
    )
    assert row == {
        "kind": "PingCompleted",
        "at": 1.0,
        "pair": "p",
        "entity": "prices",
        "entity_kind": "topic",
        "ok": True,
        "elapsed": 0.5,
        "error": None,
    }
    assert type(row["entity_kind"]) is str


def test_a_changed_schema_has_a_new_version():
    text = "\n".join(f"{column.name} {column.type} {column.nullable}" for column in records.COLUMNS)
    assert FINGERPRINTS.get(records.SCHEMA_VERSION) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_every_column_says_what_it_means():
    assert [column.name for column in records.COLUMNS if not column.meaning] == []


def test_no_name_stands_for_two_columns():
    names = [column.name for column in records.COLUMNS]
    assert len(set(names)) == len(names)


def test_a_row_of_a_kind_that_is_not_known_is_refused_clearly():
    with pytest.raises(ValueError, match="'Later': a newer PairMQ"):
        records.event_of({"kind": "Later", "at": 1.0, "pair": "p"})


# --------------------------------------------------------------------------- keys


def test_the_keys_of_ids_never_change():
    """They stand in files: a journal of last year is read together with one of today."""
    known = {
        "order-1": 4396106474611317029,
        "": -5426141060434712860,
        "0123456789abcdef0011223344556677": -7445577401089183231,
        "0123456789ABCDEF0011223344556677": -7856177423704899036,
    }
    found = {text: records.message_key(text) for text in known}
    assert found == known


@given(st.text())
def test_a_key_fits_into_64_bits(text):
    key = records.message_key(text)
    assert key is not None
    assert -(2**63) <= key < 2**63


def test_no_id_has_no_key():
    assert records.message_key(None) is None


@given(st.uuids(version=4), st.uuids(version=4))
def test_different_ids_of_pairmq_have_different_keys(one, other):
    assert (one == other) == (records.message_key(one.hex) == records.message_key(other.hex))
