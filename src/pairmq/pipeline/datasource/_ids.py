"""Message ids that are made of a row's own values, so that a row that is sent again has the id that it had."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

from pyspark.sql import types as t

KEY_TYPES: Final = (
    t.BinaryType,
    t.BooleanType,
    t.ByteType,
    t.DateType,
    t.DecimalType,
    t.IntegerType,
    t.LongType,
    t.ShortType,
    t.StringType,
    t.TimestampType,
)
"""Types of columns that an id may be made of; not floating point, as a sum in another order would be another id."""

_DIGITS = 32  # 128 bits: two rows of a trillion share an id with a chance of one in 10**15


def derived_id(prefix: str, names: Sequence[str], values: Sequence[object]) -> str:
    """Make a message id of the values that make a row unique.

    Args:
        prefix: what it begins with.
        names: the columns' names; other columns with the same values give another id.
        values: one each, of `KEY_TYPES`' Python types or None.

    Returns:
        The prefix and 32 hexadecimal digits of a SHA-256; the same in every process and version.
    """
    digest = hashlib.sha256()
    for name, value in zip(names, values, strict=True):
        for part in (name.encode(), *_parts(value)):
            # Lengths, so that ("ab", "c") and ("a", "bc") are not the same.
            digest.update(b"%d:" % len(part))
            digest.update(part)
    return prefix + digest.hexdigest()[:_DIGITS]


def _parts(value: object) -> tuple[bytes, bytes]:
    """The value's kind, so that 1 and "1" are not the same, and what it holds."""
    if value is None:
        return b"null", b""
    if isinstance(value, bytes):
        return b"bytes", value
    if isinstance(value, str):
        return b"text", value.encode()
    if isinstance(value, bool):
        return b"bool", str(value).encode()
    if isinstance(value, int):
        return b"int", str(value).encode()
    if isinstance(value, Decimal):
        return b"decimal", format(value, "f").encode()
    if isinstance(value, datetime):
        return b"instant", value.astimezone(UTC).isoformat(timespec="microseconds").encode()
    if isinstance(value, date):
        return b"date", value.isoformat().encode()
    raise TypeError(f"no id can be made of a {type(value).__name__}")
