"""The options of a pair, with their defaults and ranges (SPEC 2)."""

from __future__ import annotations

import fnmatch
import math
import re
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal, get_args

from pairmq.model import ConfigurationError, Entity

WhileFailing = Literal["wait", "raise"]
Ordering = Literal["none", "session"]
TtlPolicy = Literal["restore", "elapse"]

_MS = 0.001
_MINUTE = 60.0
_HOUR = 3600.0

# name -> (lowest, highest) in seconds, both allowed.
_DURATIONS: dict[str, tuple[float, float]] = {
    "failover_interval": (0.0, 60 * _MINUTE),
    "ping_primary_interval": (100 * _MS, 30 * _MINUTE),
    "send_timeout": (10 * _MS, 24 * _HOUR),
    "attempt_timeout": (10 * _MS, 10 * _MINUTE),
    "close_grace": (0.0, 10 * _MINUTE),
    "syphon_receive_wait": (1.0, 60 * _MINUTE),
    "ping_timeout": (10 * _MS, 2 * _MINUTE),
    "flap_window": (0.0, 24 * _HOUR),
    "backlog_retry_interval": (100 * _MS, 1 * _HOUR),
    "control_interval": (0.0, 60 * _MINUTE),
}
_COUNTS: dict[str, tuple[int, int]] = {
    "backlog_queue_count": (1, 1000),
    "syphon_batch": (1, 10_000),
    "max_pending_sends": (1, 10_000_000),
}
OPTION_RANGES = _COUNTS
"""Minimum and maximum of the integer options."""

RECORD_QUEUE = "x-pairmq-record"
"""Last part of the name of the queue that holds what the processes of a pair agree on (SPEC 13)."""

OUTBOX_QUEUE = "x-pairmq-outbox"
"""Last part of the name of the queue of a pair's outbox (SPEC 12)."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "while_failing": get_args(WhileFailing),
    "ordering": get_args(Ordering),
    "ttl_policy": get_args(TtlPolicy),
}
_PLACEHOLDERS = {"{primary}": "(?P<primary>.+)", "{index}": "[0-9]+"}
_SWITCHES = ("enable_syphon", "failover_on_busy")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """The options of a pair; durations are seconds as a number or a timedelta, kept as float seconds.

    Args:
        backlog_queue_count: backlog queues on the secondary, 1 to 1000.
        failover_interval: seconds that an entity may fail before failover, 0 to 60 min; 0 diverts at the first failure.
        ping_primary_interval: seconds between pings of a failed-over entity, 100 ms to 30 min.
        enable_syphon: drain the backlog in this process; one long-lived process per pair is enough.
        while_failing: ``"wait"`` retries a failing send until it succeeds, failover engages or its deadline passes,
            also while neither broker accepts messages; ``"raise"`` raises the failure immediately.
        send_timeout: seconds that one send may take, including retries, 10 ms to 24 h.
        attempt_timeout: seconds that one operation at a broker may take, 10 ms to 10 min; an unresponsive broker is
            noticed after this long.
        ordering: ``"none"``; ``"session"`` keeps the order of each session through an outage (SPEC 8), with a secondary
            that can.
        ttl_policy: ``"restore"`` restarts a message's time-to-live when it is moved to the primary; ``"elapse"`` counts
            the time in the backlog.
        failover_on_busy: let throttling count toward failover.
        close_grace: seconds that closing waits for sends in flight, 0 to 10 min.
        syphon_receive_wait: seconds of one long poll at a backlog queue, 1 s to 60 min.
        syphon_batch: messages per receive, 1 to 10 000.
        syphon_max_rate: most messages per second that the syphon moves; None for no limit.
        ping_timeout: seconds that one ping may take, 10 ms to 2 min.
        flap_window: seconds after a recovery within which another failover is a flap (SPEC 4.8), 0 to 24 h.
        backlog_retry_interval: seconds until a backlog queue out of the rotation is retried while others are in use,
            100 ms to 1 h.
        backlog_name_template: name of backlog queues; must hold ``{index}``, may hold ``{primary}``.
        allowed_entities: patterns (``*``, ``?``) of entities that the syphon may deliver to (SPEC 5.8), and so of
            those that a pair sends to; empty allows all except system entities and backlog queues.
        max_pending_sends: sends in flight per pair; further ones wait within their own deadline.
        control_interval: seconds between two looks at what ``pairmq switch`` has decided (SPEC 13.4), 0 to 60 min; 0
            never looks.

    Raises:
        ConfigurationError: a value is out of range; names the option, the value and the range. It is a `ValueError`.
    """

    backlog_queue_count: int = 10
    failover_interval: float = 10.0
    ping_primary_interval: float = 60.0
    enable_syphon: bool = False
    while_failing: WhileFailing = "wait"
    send_timeout: float = 60.0
    attempt_timeout: float = 10.0
    ordering: Ordering = "none"
    ttl_policy: TtlPolicy = "restore"
    failover_on_busy: bool = False
    close_grace: float = 5.0
    syphon_receive_wait: float = 15 * _MINUTE
    syphon_batch: int = 100
    syphon_max_rate: float | None = None
    ping_timeout: float = 10.0
    flap_window: float = 5 * _MINUTE
    backlog_retry_interval: float = 30.0
    backlog_name_template: str = "{primary}/x-servicebus-transfer/{index}"
    allowed_entities: tuple[str, ...] = ()
    max_pending_sends: int = 10_000
    control_interval: float = 15.0

    def __post_init__(self) -> None:
        put = object.__setattr__
        for name, (low, high) in _DURATIONS.items():
            put(self, name, _duration(name, getattr(self, name), low, high))
        for name, (least, most) in _COUNTS.items():
            _check_count(name, getattr(self, name), least, most)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise _bad(name, getattr(self, name), " or ".join(repr(choice) for choice in choices))
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise _bad(name, getattr(self, name), "True or False")
        if self.syphon_max_rate is not None:
            rate: object = self.syphon_max_rate
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
                raise _bad("syphon_max_rate", rate, "a number of messages a second above 0, or None")
        _check_template(self.backlog_name_template)
        put(self, "allowed_entities", _patterns(self.allowed_entities))

    def backlog_queue_names(self, primary_name: str) -> tuple[str, ...]:
        """Name the backlog queues of a primary, in order of their index (SPEC 5.1).

        Args:
            primary_name: the primary endpoint's name.
        """
        template = self.backlog_name_template
        return tuple(backlog_queue_name(template, primary_name, index) for index in range(self.backlog_queue_count))

    def is_backlog_queue(self, path: str) -> bool:
        """Return whether a path is the name of a backlog queue of any primary, also one out of this pair's count.

        So are the queues of a pair's record and outbox.
        """
        is_own = path.lower().endswith((RECORD_QUEUE, OUTBOX_QUEUE))
        return is_own or _backlog_pattern(self.backlog_name_template).fullmatch(path) is not None

    def primary_of_backlog_queue(self, path: str) -> str | None:
        """Read the primary's name out of the name of a backlog queue.

        Args:
            path: any queue of the secondary.

        Returns:
            None where it is not named by the template, or the template does not name the primary.
        """
        found = _backlog_pattern(self.backlog_name_template).fullmatch(path)
        return None if found is None else found.groupdict().get("primary")

    def allows(self, path: str) -> bool:
        """Return whether the patterns of ``allowed_entities`` match an entity's path (SPEC 5.8)."""
        return not self.allowed_entities or any(fnmatch.fnmatchcase(path, p) for p in self.allowed_entities)


OPTION_NAMES = tuple(entry.name for entry in fields(PairOptions))
"""The names of all options, in their order."""


def backlog_queue_name(template: str, primary_name: str, number: int, *, index: str | None = None) -> str:
    """Name one backlog queue (SPEC 5.1).

    Args:
        template: ``backlog_name_template``.
        primary_name: the primary endpoint's name.
        number: the queue's index.
        index: replaces the index.
    """
    return template.replace("{primary}", primary_name).replace("{index}", str(number) if index is None else index)


@lru_cache
def _backlog_pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"(\{primary\}|\{index\})", template)
    texts = [_PLACEHOLDERS.get(part) or re.escape(part) for part in parts]
    for again in [at for at, part in enumerate(parts) if part == "{primary}"][1:]:
        texts[again] = "(?P=primary)"
    # Some brokers ignore case: another spelling would be the same queue there.
    return re.compile("".join(texts), re.IGNORECASE)


def _bad(name: str, value: object, allowed: str) -> ConfigurationError:
    try:
        shown = repr(value)
    except ValueError:  # a number of thousands of digits
        shown = f"a huge {type(value).__name__}"
    if "://" in shown:  # a URL in the wrong place may hold a password
        shown = "a URL"
    return ConfigurationError(f"{name} is {shown if len(shown) < 80 else shown[:79] + '…'}: it must be {allowed}")


def _duration(name: str, value: Any, low: float, high: float) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not low <= seconds <= high:
        raise _bad(name, value, f"{_readable(low)} to {_readable(high)}, in seconds or as a timedelta")
    return float(seconds)


def _check_count(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _bad(name, value, f"a whole number from {least} to {most}")


def _check_template(template: object) -> None:
    if not isinstance(template, str) or "{index}" not in template:
        raise _bad("backlog_name_template", template, "text with {index} and, optionally, {primary}")
    left = template.replace("{index}", "").replace("{primary}", "")
    if "{" in left or "}" in left or len(template) > 200:
        raise _bad(
            "backlog_name_template", template, "at most 200 characters, with no braces except {index} and {primary}"
        )
    try:
        Entity(template.replace("{primary}", "primary").replace("{index}", "0"))
    except ValueError as error:
        raise _bad("backlog_name_template", template, "a template of entity paths") from error


def _patterns(value: object) -> tuple[str, ...]:
    if not isinstance(value, tuple | list | frozenset | set):  # a lone string would be read letter by letter
        raise _bad("allowed_entities", value, "a sequence of patterns such as ('orders', 'prices/*')")
    if not all(isinstance(pattern, str) and pattern for pattern in value):
        raise _bad("allowed_entities", value, "a sequence of non-empty strings")
    return tuple(sorted(value)) if isinstance(value, frozenset | set) else tuple(value)


def _readable(seconds: float) -> str:
    if seconds >= _HOUR and seconds % _HOUR == 0 and seconds > _HOUR:
        return f"{seconds / _HOUR:g} h"
    if seconds >= _MINUTE and seconds % _MINUTE == 0:
        return f"{seconds / _MINUTE:g} min"
    if 0 < seconds < 1:
        return f"{seconds * 1000:g} ms"
    return f"{seconds:g} s"
