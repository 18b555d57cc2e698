"""The options of a pair, with their defaults and ranges (SPEC 2)."""

from __future__ import annotations

import fnmatch
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from pairmq.model import MAX_PATH_LENGTH, ConfigurationError, Entity

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
    "lane_patience": (0.0, 60 * _MINUTE),
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

LANE_QUEUE = "x-pairmq-lane"
"""Part of the name of a lane, between the primary's name and the queue's path (SPEC 11.2)."""

_LANES = f"/{LANE_QUEUE}/"
_PATTERN_LETTERS = re.compile(r"[*?\[\]]")
_LANE_LETTERS = re.compile(r"[^a-z0-9._/-]")
_LANE_ESCAPE = re.compile(r"~([0-9a-f]{2})")
_LONGEST_CONTINUITY = 8000  # characters of all patterns: they are part of one small message of the record

_CHOICES: dict[str, tuple[str, ...]] = {
    "while_failing": get_args(WhileFailing),
    "ordering": get_args(Ordering),
    "ttl_policy": get_args(TtlPolicy),
}
_PLACEHOLDERS = {"{primary}": "(?P<primary>.+)", "{index}": "(?P<index>[0-9]+)"}
_SWITCHES = ("enable_syphon", "failover_on_busy")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """The options of a pair; durations are seconds as a number or a timedelta, kept as float seconds.

    Args:
        backlog_queue_count: backlog queues on the secondary, 1 to 1000.
        failover_interval: seconds that an entity may fail before failover, 0 to 60 min; 0 diverts at the first failure.
        ping_primary_interval: seconds between pings of a failed-over entity, 100 ms to 30 min. The syphon waits three
            times as long for a destination that does not exist.
        enable_syphon: drain the backlog in this process; one long-lived process per pair is enough.
        while_failing: ``"wait"`` retries a failing send until it succeeds, failover engages or its deadline passes,
            also while neither broker accepts messages; ``"raise"`` raises the failure immediately.
        send_timeout: seconds that one send may take, including retries, 10 ms to 24 h.
        attempt_timeout: seconds that one operation at a broker may take, 10 ms to 10 min; an unresponsive broker is
            noticed after this long.
        ordering: ``"none"``; ``"session"`` keeps the order of each session through an outage (SPEC 8), with a secondary
            that can.
        ttl_policy: ``"restore"`` restarts a message's time-to-live when it is moved to the primary; ``"elapse"`` counts
            the time in the backlog, by the clocks of the sender's machine and the syphon's.
        failover_on_busy: let throttling count toward failover.
        close_grace: seconds that closing waits for sends in flight, 0 to 10 min.
        syphon_receive_wait: seconds of one long poll at a backlog queue, 1 s to 60 min.
        syphon_batch: messages per receive, 1 to 10 000; fewer where they have more than 16 MiB together, twice
            as many while small ones flow.
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
        continuity: patterns (``*``, ``?``) of queues whose consumers continue on the secondary while the primary is
            unavailable (SPEC 11): each has a lane there, a backlog queue of its own. Not of topics, and not with
            ``ordering="session"``. All processes of a pair must agree.
        lane_patience: seconds without progress by consumers after which the syphon moves what a lane holds, 0 to 60
            min; 0 moves it at once.

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
    continuity: tuple[str, ...] = ()
    lane_patience: float = 5.0

    if TYPE_CHECKING:  # what the generated constructor accepts, by way of `__post_init__`

        def __init__(
            self,
            *,
            backlog_queue_count: int = 10,
            failover_interval: float | timedelta = 10.0,
            ping_primary_interval: float | timedelta = 60.0,
            enable_syphon: bool = False,
            while_failing: WhileFailing = "wait",
            send_timeout: float | timedelta = 60.0,
            attempt_timeout: float | timedelta = 10.0,
            ordering: Ordering = "none",
            ttl_policy: TtlPolicy = "restore",
            failover_on_busy: bool = False,
            close_grace: float | timedelta = 5.0,
            syphon_receive_wait: float | timedelta = 900.0,
            syphon_batch: int = 100,
            syphon_max_rate: float | None = None,
            ping_timeout: float | timedelta = 10.0,
            flap_window: float | timedelta = 300.0,
            backlog_retry_interval: float | timedelta = 30.0,
            backlog_name_template: str = "{primary}/x-servicebus-transfer/{index}",
            allowed_entities: tuple[str, ...] | list[str] | set[str] | frozenset[str] = (),
            max_pending_sends: int = 10_000,
            control_interval: float | timedelta = 15.0,
            continuity: tuple[str, ...] | list[str] | set[str] | frozenset[str] = (),
            lane_patience: float | timedelta = 5.0,
        ) -> None: ...

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
        put(self, "allowed_entities", _patterns("allowed_entities", self.allowed_entities))
        # Sorted, each once: processes that name the same queues agree.
        put(self, "continuity", tuple(sorted(set(_patterns("continuity", self.continuity)))))
        self._check_continuity()

    def _check_continuity(self) -> None:
        if self.continuity and self.ordering == "session":
            raise ConfigurationError(
                "continuity can't be combined with ordering='session': what the unavailable primary still holds of a "
                "session must be handled before what a lane holds of it"
            )
        try:
            for path in self.literal_lanes:
                Entity(path)
        except ValueError as error:
            raise ConfigurationError(f"continuity is invalid, as no queue can have such a path: {error}") from error
        if not all(pattern.isprintable() and len(pattern) <= MAX_PATH_LENGTH for pattern in self.continuity):
            raise _bad("continuity", self.continuity, f"printable patterns of at most {MAX_PATH_LENGTH} characters")
        if len(json.dumps(self.continuity)) > _LONGEST_CONTINUITY:
            raise _bad("continuity", self.continuity, f"at most {_LONGEST_CONTINUITY} characters together: use * and ?")

    def backlog_queue_names(self, primary_name: str) -> tuple[str, ...]:
        """Name the backlog queues of a primary, in order of their index (SPEC 5.1)."""
        template = self.backlog_name_template
        return tuple(backlog_queue_name(template, primary_name, index) for index in range(self.backlog_queue_count))

    def is_backlog_queue(self, path: str) -> bool:
        """Return whether a path is the name of a backlog queue of any primary, also one out of this pair's count.

        So are lanes, and the queues of a pair's record and outbox.
        """
        is_own = path.lower().endswith((RECORD_QUEUE, OUTBOX_QUEUE)) or _LANES in path.lower()
        return is_own or _backlog_pattern(self.backlog_name_template).fullmatch(path) is not None

    def primary_of_backlog_queue(self, path: str) -> str | None:
        """Read the primary's name out of the name of a backlog queue.

        Args:
            path: any queue of the secondary.

        Returns:
            None where it is not named by the template, where its index is one that no pair has, as of the queues that
            `pairmq doctor` makes and deletes, or where the template does not name the primary.
        """
        if lane_path(path) is not None:
            return path.partition(_LANES)[0]
        found = _backlog_pattern(self.backlog_name_template).fullmatch(path)
        # The length first: a path is untrusted input, and a number of thousands of digits none that Python reads.
        if found is None or len(found["index"]) > 9 or int(found["index"]) >= OPTION_RANGES["backlog_queue_count"][1]:
            return None
        return found.groupdict().get("primary")

    def allows(self, path: str) -> bool:
        """Return whether the patterns of ``allowed_entities`` match an entity's path (SPEC 5.8)."""
        return not self.allowed_entities or any(fnmatch.fnmatchcase(path, p) for p in self.allowed_entities)

    def continues(self, path: str) -> bool:
        """Return whether the patterns of ``continuity`` match a path (SPEC 11.1)."""
        return any(fnmatch.fnmatchcase(path, p) for p in self.continuity)

    @property
    def literal_lanes(self) -> tuple[str, ...]:
        """The entries of ``continuity`` that name one queue: their lanes are created at pairing (SPEC 11.2)."""
        return literal(self.continuity)


OPTION_NAMES = tuple(entry.name for entry in fields(PairOptions))
"""The names of all options, in their order."""


def backlog_queue_name(template: str, primary_name: str, number: int, *, index: str | None = None) -> str:
    """Name one backlog queue by the ``backlog_name_template`` (SPEC 5.1)."""
    return template.replace("{primary}", primary_name).replace("{index}", str(number) if index is None else index)


def lane_name(primary_name: str, path: str) -> str:
    """Name the lane of a queue (SPEC 11.2); `lane_path` is the inverse.

    Every broker can have the name, also one that ignores case: other letters are escaped.
    """
    escaped = _LANE_LETTERS.sub(lambda found: "".join(f"~{byte:02x}" for byte in found[0].encode()), path)
    return f"{primary_name}{_LANES}{escaped}"


def lane_path(name: str) -> str | None:
    """Read the path of the queue on the primary out of the name of a lane; None for any other name."""
    primary, lanes, escaped = name.partition(_LANES)
    if not (primary and lanes and escaped):
        return None
    raw = _LANE_ESCAPE.sub(lambda found: chr(int(found[1], 16)), escaped)
    try:
        path = raw.encode("latin-1").decode()
    except UnicodeError:
        return None
    return path if lane_name(primary, path) == name else None


def literal(patterns: Iterable[str]) -> tuple[str, ...]:
    """Those of some patterns that name one queue."""
    return tuple(pattern for pattern in patterns if not _PATTERN_LETTERS.search(pattern))


@lru_cache
def _backlog_pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"(\{primary\}|\{index\})", template)
    texts = [_PLACEHOLDERS.get(part) or re.escape(part) for part in parts]
    for placeholder in _PLACEHOLDERS:
        for again in [at for at, part in enumerate(parts) if part == placeholder][1:]:
            texts[again] = f"(?P={placeholder[1:-1]})"
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


def _patterns(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, tuple | list | frozenset | set):  # a lone string would be read letter by letter
        raise _bad(name, value, "a sequence of patterns such as ('orders', 'prices/*')")
    if not all(isinstance(pattern, str) and pattern for pattern in value):
        raise _bad(name, value, "a sequence of non-empty strings")
    if any(pattern.rfind("[") > pattern.rfind("]") for pattern in value):  # no path has a bracket: it would match none
        raise _bad(name, value, "a sequence of patterns that close each '[' by a ']'")
    return tuple(sorted(value)) if isinstance(value, frozenset | set) else tuple(value)


def _readable(seconds: float) -> str:
    if seconds >= _HOUR and seconds % _HOUR == 0 and seconds > _HOUR:
        return f"{seconds / _HOUR:g} h"
    if seconds >= _MINUTE and seconds % _MINUTE == 0:
        return f"{seconds / _MINUTE:g} min"
    if 0 < seconds < 1:
        return f"{seconds * 1000:g} ms"
    return f"{seconds:g} s"
