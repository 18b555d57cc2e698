"""Events as JSON, and back."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pairmq.model import Entity, EntityKind, events
from pairmq.model.events import Event

_KINDS: dict[str, type[Event]] = {
    name: kind for name, kind in vars(events).items() if isinstance(kind, type) and issubclass(kind, Event)
}
_TYPES = {name: get_type_hints(kind) for name, kind in _KINDS.items()}


def event_to_json(event: Event) -> dict[str, Any]:
    """Write an event as an object of JSON's types.

    Args:
        event: any of `pairmq.model.events`.
    """
    values = {entry.name: _plain(getattr(event, entry.name)) for entry in fields(event)}
    return {"type": type(event).__name__, **values}


def event_from_json(data: Mapping[str, Any]) -> Event:
    """Read what `event_to_json` wrote.

    Raises:
        ValueError: it is something else.
    """
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
