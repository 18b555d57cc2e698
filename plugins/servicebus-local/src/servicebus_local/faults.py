"""Faults on demand: what the server shall do wrong, where, and how often.

A test sets rules, and the fronts ask at each point whether one of them strikes. The rules imitate what the service and
its network do in trouble; nothing else in the server knows of them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, get_args, get_type_hints


class FaultPoint(enum.StrEnum):
    """Where a fault strikes."""

    CONNECTION = "connection"
    """Everything that a client sends, on open connections too; it can't be refused, detached or delayed."""
    CBS = "cbs"
    """The put-token request of the claims-based security node."""
    ATTACH = "attach"
    """A link of either direction to an entity, or to its management node, whose path is ``ENTITY/$management``."""
    SEND = "send"
    """A message that arrives."""
    SETTLE = "settle"
    """A settlement over a receiving link."""
    MANAGEMENT = "management"
    """A request at an entity's management node; ``operation`` picks one, such as ``renew-lock``."""


class FaultAction(enum.StrEnum):
    """What happens there."""

    ERROR = "error"
    """It is refused with ``condition`` and ``description``, or with ``status`` where the node answers with numbers."""
    DETACH = "detach"
    """The link is detached with the error; at *attach*, after it was granted."""
    CLOSE = "close"
    """The connection is closed with the error."""
    SILENCE = "silence"
    """No answer; at *connection*, not even when the faults are over."""
    DROP = "drop"
    """The socket is reset."""
    DELAY = "delay"
    """It is done ``seconds`` late; with ``apply`` it is done at once, and answered late."""


@dataclass(slots=True)
class FaultRule:
    """One fault."""

    at: FaultPoint  # where it strikes
    action: FaultAction  # what happens
    entity: str = "*"  # a pattern of entity paths, in the manner of file names; without regard to case
    operation: str = "*"  # a pattern of management operations, without their prefix
    condition: str = "amqp:internal-error"  # the error condition, ``com.microsoft:server-busy`` for one
    description: str = "a fault that was asked for"  # the error's text
    info: bool = True  # whether the error carries an (empty) info map; without, clients have been seen to hang
    status: int = 0  # the status code that *cbs* and *management* answer; 0 for the usual one of an error
    # Whether what was asked is done all the same, before the fault; without a meaning at *connection* and *attach*.
    apply: bool = False
    seconds: float = 0.0  # how late, for *delay*
    times: int | None = None  # how often it strikes before it is over; None forever
    skip: int = 0  # how many it lets pass first

    @classmethod
    def from_json(cls, rule: object) -> FaultRule:
        """Read a rule that came from outside."""
        if not isinstance(rule, Mapping):
            raise ValueError(f"a fault is an object of fields, not a {type(rule).__name__}")
        known = {entry.name for entry in fields(cls)}
        unknown = sorted(str(name) for name in rule if name not in known)
        if unknown:
            raise ValueError(f"a fault has no field {unknown[0]!r}: it has {', '.join(sorted(known))}")
        values: dict[str, Any] = dict(rule)
        for name, kind in (("at", FaultPoint), ("action", FaultAction)):
            try:
                values[name] = kind(str(values.get(name)))
            except ValueError:
                raise ValueError(f"{name} is {values.get(name)!r}: one of {', '.join(kind)}") from None
        for name, types in _types().items():
            value = values.get(name)
            if name in values and (not isinstance(value, types) or (type(value) is bool and bool not in types)):
                kinds = " or ".join("null" if kind is type(None) else kind.__name__ for kind in types)
                raise ValueError(f"{name} is {value!r}: it must be {kinds}")
        for name, (least, most) in _RANGES.items():
            value = values.get(name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} is {value!r}: it must be from {least} to {most}")
        if values["at"] is FaultPoint.CONNECTION and values["action"] not in _AT_CONNECTION:
            raise ValueError(f"action is {values['action']!s}: at connection it is one of {', '.join(_AT_CONNECTION)}")
        return cls(**values)


@lru_cache
def _types() -> dict[str, tuple[type, ...]]:
    """What a field takes from outside, but for the two that are one of several words."""
    kinds = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(FaultRule).items()}
    plain = {name: types for name, types in kinds.items() if name not in ("at", "action")}
    return {**plain, "seconds": (int, float)}


_MOST = 2**31
_RANGES = {"status": (0, 999), "seconds": (0, 86_400), "times": (0, _MOST), "skip": (0, _MOST)}
_AT_CONNECTION = (FaultAction.SILENCE, FaultAction.DROP, FaultAction.CLOSE)


class FaultPlan:
    """All rules in force; the first that fits strikes."""

    def __init__(self) -> None:
        self.rules: list[FaultRule] = []

    def set_json(self, rules: object) -> None:
        """Add rules that came from outside: all of them, or none when one can't be read."""
        if not isinstance(rules, Sequence) or isinstance(rules, str | bytes):
            raise ValueError("faults are a list of objects")
        self.rules.extend([FaultRule.from_json(rule) for rule in rules])

    def clear(self) -> None:
        """Let everything work again."""
        self.rules.clear()

    def strike(self, at: FaultPoint, entity: str = "", operation: str = "") -> FaultRule | None:
        """Find the fault of this moment, and count it."""
        for rule in self.rules:
            if rule.at is not at or rule.times == 0:
                continue
            if not fnmatchcase(entity.lower(), rule.entity.lower()) or not fnmatchcase(operation, rule.operation):
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if rule.times is not None:
                rule.times -= 1
            return rule
        return None
