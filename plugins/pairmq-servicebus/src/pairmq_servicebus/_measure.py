"""The size of a message as AMQP 1.0 encodes it (part 1.6, part 3.2), without encoding it.

Service Bus counts a message with its headers and properties. The sums below follow the client's encoder, which writes
the header and the properties with all their fields and the smallest form of each value.
"""

from __future__ import annotations

from typing import Any

from pairmq_servicebus._codec import Parts
from pairmq_servicebus._private import BINARY, LONG, TIMESTAMP, untyped

_SECTION = 3  # bytes of a section's descriptor
_HEADER_FIELDS = 5
_PROPERTY_FIELDS = 13
_TIMESTAMP = 9
_INSTANTS = frozenset(("creation_time", "absolute_expiry_time"))


def measure(parts: Parts) -> int:
    """Give the encoded size in bytes: never less than the client's encoder writes, and at most a few bytes more."""
    size = _SECTION + _variable(len(parts.body))
    if parts.header:
        # A priority is an octet, a time-to-live at most four, each with its constructor.
        size += _SECTION + _compound(_HEADER_FIELDS + len(parts.header) * 4)
    if parts.annotations:
        size += _SECTION + _compound(
            sum(_text(key.decode()) + _value(value) for key, value in parts.annotations.items())
        )
    if parts.properties or "time_to_live" in parts.header:
        size += _SECTION + _compound(_properties(parts))
    if parts.application:
        size += _SECTION + _compound(
            sum(_text(name) + _value(value) for name, value in parts.application.items()), len(parts.application) * 2
        )
    return size


def without_body(size: int, parts: Parts) -> int:
    """Give what of a message's size is not the body: the header and all properties."""
    return size - _SECTION - _variable(len(parts.body))


def _properties(parts: Parts) -> int:
    size = _PROPERTY_FIELDS  # a null each
    for name, value in parts.properties.items():
        size += _TIMESTAMP - 1 if name in _INSTANTS else _text(value) - 1
    if "time_to_live" in parts.header:
        size += 2 * (_TIMESTAMP - 1)  # the client adds both instants
    return size


def _value(value: Any) -> int:
    type_, inner = untyped(value)
    if type_ is None:
        if isinstance(inner, str):
            return _text(inner)
        if inner is None:
            return 1
        if isinstance(inner, bool):
            return 2
        if isinstance(inner, int):
            return 2 if -128 <= inner < 128 else 5
        return 9 if isinstance(inner, float) else 17  # a double, or a UUID
    if type_ == BINARY:
        return _variable(len(inner))
    if type_ == LONG:
        return 2 if -128 <= inner < 128 else 9
    assert type_ == TIMESTAMP  # noqa: S101 - there are no others
    return _TIMESTAMP


def _text(text: str) -> int:
    return _variable(len(text) if text.isascii() else len(text.encode()))


def _variable(length: int) -> int:
    return length + (2 if length <= 255 else 5)


def _compound(size: int, count: int = 0) -> int:
    return size + (3 if size < 255 and count <= 255 else 9)
