"""The options of a journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from pairmq.model import ConfigurationError

OnFull = Literal["wait", "drop"]
Compression = Literal["zstd", "snappy", "none"]

_NUMBERS: dict[str, tuple[float, float]] = {
    "flush_interval": (0.001, 60.0),
    "max_age": (0.1, 24 * 3600.0),
    "stall_timeout": (0.0, 60.0),
    "sample_healthy": (0.0, 1.0),
}
_COUNTS: dict[str, tuple[int, int]] = {
    "max_rows": (1, 5_000_000),
    "max_bytes": (1024, 1 << 30),
    "max_buffered": (1, 10_000_000),
}
_CHOICES: dict[str, tuple[str, ...]] = {"on_full": get_args(OnFull), "compression": get_args(Compression)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """The options of a journal; the defaults suit a service.

    Args:
        flush_interval: seconds after which an event is written to the operating system, 1 ms to 60 s: what a killed
            process may lose.
        max_age: seconds after which rows become a segment, however few, 100 ms to 24 h.
        max_rows: likewise, by number of rows, 1 to 5 000 000.
        max_bytes: likewise, by bytes in memory, 1 KiB to 1 GiB.
        max_buffered: events that may wait for the writer, 1 to 10 000 000.
        on_full: ``"wait"`` blocks the reporter of an event until there is room, at most ``stall_timeout``; ``"drop"``
            drops the event. Both count dropped events.
        stall_timeout: most seconds to wait for room, 0 to 60: a disk that takes longer counts as failed.
        sample_healthy: the fraction of healthy sends that is kept, 0 to 1. Everything else is always kept.
        fsync: sync every batch to the disk, so that a power cut loses no more than a killed process.
        compression: of the segments.

    Raises:
        ConfigurationError: a value is out of range; names the option, the value and the range.
    """

    flush_interval: float = 0.2
    max_age: float = 60.0
    max_rows: int = 250_000
    max_bytes: int = 64 << 20
    max_buffered: int = 100_000
    on_full: OnFull = "wait"
    stall_timeout: float = 1.0
    sample_healthy: float = 1.0
    fsync: bool = False
    compression: Compression = "zstd"

    def __post_init__(self) -> None:
        for name, (low, high) in _NUMBERS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise _bad(name, value, f"{low:g} to {high:g}")
            object.__setattr__(self, name, float(value))
        for name, (least, most) in _COUNTS.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise _bad(name, value, f"a whole number from {least} to {most}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise _bad(name, getattr(self, name), " or ".join(map(repr, choices)))
        if not isinstance(self.fsync, bool):
            raise _bad("fsync", self.fsync, "True or False")


def _bad(name: str, value: object, allowed: str) -> ConfigurationError:
    return ConfigurationError(f"journal option {name} is {value!r}: it must be {allowed}")
