"""The header where properties stand that somebody would act on, or whose names are too long for a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pairmq_rabbitmq._codec._layout import SHELTER, SHELTERED, fits_short, place
from pairmq_rabbitmq._codec._values import INDEX, misfit


def sheltered_in(header: object) -> dict[str, Any] | None:
    """Read the header of sheltered properties; None if it is not of our making."""
    if isinstance(header, dict):
        found = header
        ours = bool(found)
    elif isinstance(header, list) and len(header) % 2 == 0 and all(isinstance(name, str) for name in header[::2]):
        found = dict(zip(header[::2], header[1::2], strict=True))
        ours = len(found) * 2 == len(header) and not all(map(fits_short, found))
    else:
        return None
    return found if ours and all(place(name) == SHELTERED for name in found) else None


def types_by_name(pairs: list[Any], node: dict[str, Any], refuse: Callable[[str], None]) -> dict[str, Any]:
    """Turn what the types' tree says of names and values in turn, by index, into the same by name."""
    named = {}
    for index, inner in node.items():
        if INDEX.fullmatch(index) and int(index) < len(pairs) and int(index) % 2:
            named[pairs[int(index) - 1]] = inner
        else:
            refuse(misfit(SHELTER))
    return named


def shelter(headers: dict[str, Any], name: str) -> None:
    """Move a foreign header to where nobody acts on it and `decode` finds it."""
    value = headers.pop(name)
    there = headers.get(SHELTER)
    if there is None:
        headers[SHELTER] = {name: value}
    elif (sheltered_in(there) or {name: None}).keys() >= {name}:
        headers[SHELTER] = {SHELTER: there, name: value}  # an application's own of this name
    elif isinstance(there, list):
        headers[SHELTER] = [*there, name, value]
    else:
        headers[SHELTER] = {**there, name: value}
