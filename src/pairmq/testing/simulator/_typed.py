"""Checks that values out of a file have the types that their fields say."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def check_types(value: Any, where: str = "scenario") -> None:
    """Check every field of a dataclass, and of those in it.

    Args:
        value: an instance of a dataclass.
        where: its name, for the error.

    Raises:
        ValueError: a field holds something else than its annotation says, or a number that is not finite; names it.
    """
    hints = get_type_hints(type(value))
    for entry in fields(value):
        _check(getattr(value, entry.name), hints[entry.name], f"{where}.{entry.name}")


def _check(value: Any, hint: Any, where: str) -> None:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return
        hint = next(each for each in inner if each is not type(None))
        origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, tuple):
        hints = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(hints) != len(value):
            raise ValueError(f"{where} must have {len(hints)} values")
        for index, (each, expected) in enumerate(zip(value, hints, strict=True)):
            _check(each, expected, f"{where}[{index}]")
    elif origin is Literal:
        if value not in inner:
            raise ValueError(f"{where} must be one of {', '.join(map(repr, inner))}")
    elif is_dataclass(hint) and type(value) is hint:
        check_types(value, where)
    elif hint is float and type(value) in (int, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} must be a finite number")
    elif origin is Mapping:
        if not isinstance(value, Mapping):
            raise ValueError(f"{where} is a {type(value).__name__}: it must be a mapping")
    elif type(value) is not hint:
        raise ValueError(f"{where} is a {type(value).__name__}: it must be a {getattr(hint, '__name__', hint)}")
