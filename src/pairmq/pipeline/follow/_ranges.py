"""Sets of whole numbers as ranges: which rows of a process were taken, in as many pairs as there are gaps, plus one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Ranges = tuple[tuple[int, int], ...]
"""First and last number of each range, both in it: sorted, apart from each other, none beside the next."""

Seen = Mapping[str, Ranges]
"""Numbers of rows by process."""


def joined(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """Put sets together; the ranges of each may be in any order, and may overlap."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(each for ranges in sets for each in ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def without(ranges: Ranges, taken: Ranges) -> Ranges:
    """What is left of a set when another is taken from it."""
    left: list[tuple[int, int]] = []
    others = iter(taken)
    other = next(others, None)
    for first, last in ranges:
        while other is not None and other[1] < first:
            other = next(others, None)
        while other is not None and other[0] <= last:
            if first < other[0]:
                left.append((first, other[0] - 1))
            first = other[1] + 1
            if first > last:
                break
            other = next(others, None)
        if first <= last:
            left.append((first, last))
    return tuple(left)


def size(ranges: Ranges) -> int:
    """How many numbers are in a set."""
    return sum(last - first + 1 for first, last in ranges)


def all_joined(*parts: Seen) -> dict[str, Ranges]:
    """Put together what was seen of each process."""
    names = {name for part in parts for name in part}
    return {name: joined(*(part.get(name, ()) for part in parts)) for name in names}
