"""The ledgers of a chaos run: one file for each life of a process, a JSON object on each line.

Each line is one write without a buffer, so that what a process wrote down before a SIGKILL is there afterwards.
Instants are of the machine's monotonic clock, which all processes share; it is the event loop's clock too.
"""

from __future__ import annotations

import enum
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Self, get_type_hints

from pairmq.model import Entity, EntityKind, events
from pairmq.model.events import Event


class Ledger:
    """Writes lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, kind: str, **values: Any) -> None:
        """Write one line, with the instant."""
        self._file.write(json.dumps({"t": time.monotonic(), "k": kind, **values}).encode() + b"\n")

    def close(self) -> None:
        """Close the file; idempotent."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lines(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """All lines of all ledgers in the order of their instants, with the file's name without its ending.

    A line truncated by a kill is ignored.
    """
    found: list[tuple[float, str, int, dict[str, Any]]] = []
    for path in sorted(directory.glob("*.jsonl")):
        for position, line in enumerate(path.read_bytes().split(b"\n")):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            found.append((entry["t"], path.stem, position, entry))
    for _, name, _, entry in sorted(found, key=lambda each: each[:3]):
        yield name, entry


# Events as JSON, and back.

_KINDS: dict[str, type[Event]] = {
    name: kind for name, kind in vars(events).items() if isinstance(kind, type) and issubclass(kind, Event)
}
_TYPES = {name: get_type_hints(kind) for name, kind in _KINDS.items()}


def event_to_json(event: Event) -> dict[str, Any]:
    """Write an event as an object of JSON's types."""
    values = {entry.name: _plain(getattr(event, entry.name)) for entry in fields(event)}
    return {"type": type(event).__name__, **values}


def event_from_json(data: Mapping[str, Any]) -> Event:
    """Read what `event_to_json` wrote."""
    values = dict(data)
    name = values.pop("type", None)
    if name not in _KINDS:
        raise ValueError(f"no event {name!r}")
    try:
        return _KINDS[name](**{key: _rich(value, _TYPES[name][key]) for key, value in values.items()})
    except (KeyError, TypeError) as error:
        raise ValueError(f"no {name}: {error!r}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, Entity):
        return {"path": value.path, "kind": value.kind.value}
    return value.value if isinstance(value, enum.Enum) else value


def _rich(value: Any, kind: Any) -> Any:
    if isinstance(value, dict):
        return Entity(value["path"], EntityKind(value["kind"]))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    return tuple(value) if isinstance(value, list) else value
