"""Entities and their paths, and options of a pair, within their ranges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from pairmq.core import OPTION_NAMES, PairOptions
from pairmq.core.options import _CHOICES, _COUNTS, _DURATIONS, _SWITCHES
from pairmq.model import MAX_PATH_LENGTH, Entity, EntityKind

# Seconds and counts that let a test see each option at work soon: (lowest, highest).
_SHORT: dict[str, tuple[float, float]] = {
    "failover_interval": (0.0, 3.0),
    "ping_primary_interval": (0.1, 5.0),
    "send_timeout": (1.0, 20.0),
    "attempt_timeout": (0.1, 2.0),
    "close_grace": (0.0, 2.0),
    "syphon_receive_wait": (1.0, 10.0),
    "ping_timeout": (0.1, 2.0),
    "flap_window": (0.0, 10.0),
    "backlog_retry_interval": (0.1, 5.0),
    "control_interval": (1.0, 15.0),
    "lane_patience": (0.0, 5.0),
}
_FEW: dict[str, tuple[int, int]] = {
    "backlog_queue_count": (1, 4),
    "syphon_batch": (1, 20),
    "max_pending_sends": (1, 1000),
}
_TEMPLATES = ("{primary}/x-servicebus-transfer/{index}", "backlog.{index}", "{index}-of-{primary}")


def options(*, small: bool = True, **fixed: Any) -> st.SearchStrategy[PairOptions]:
    """Options that a pair takes; the simplest has short durations, and the first choice of everything.

        @given(options(enable_syphon=True, failover_interval=st.sampled_from([0, 1])))
        def test_my_service_starts_with_any_options(options): ...

    Args:
        small: short durations and few queues, so that tests are fast; else the whole range of each option.
        fixed: options by name: a value, or a strategy of values.

    Raises:
        TypeError: ``fixed`` names no option.
    """
    unknown = sorted(set(fixed) - set(OPTION_NAMES))
    if unknown:
        raise TypeError(f"no option {', '.join(unknown)}: known are {', '.join(OPTION_NAMES)}")
    drawn = {name: _drawn(name, small) for name in OPTION_NAMES}
    drawn |= {name: value if isinstance(value, st.SearchStrategy) else st.just(value) for name, value in fixed.items()}
    return st.builds(PairOptions, **drawn)


def _drawn(name: str, small: bool) -> st.SearchStrategy[Any]:
    if name in _DURATIONS:
        low, high = _SHORT[name] if small else _DURATIONS[name]
        # Whole milliseconds shrink to something that a person can read.
        return st.integers(round(low * 1000), round(high * 1000)).map(lambda milliseconds: milliseconds / 1000)
    if name in _COUNTS:
        return st.integers(*(_FEW if small else _COUNTS)[name])
    if name in _SWITCHES:
        return st.booleans()
    if name in _CHOICES:
        # Not every secondary can keep order, and a pair rejects those: pass it explicitly for one that can.
        return st.just("none") if name == "ordering" else st.sampled_from(_CHOICES[name])
    if name == "syphon_max_rate":
        return st.none() | st.integers(1, 10_000).map(float)
    if name == "backlog_name_template":
        return st.sampled_from(_TEMPLATES) | entity_paths(max_length=20).map(_template)
    if name == "allowed_entities":
        patterns = st.sampled_from(("*", "orders", "prices/*", "queue-?")) | entity_paths(max_length=20)
        # A pair rejects entities that don't match: pass them explicitly if only some are used.
        return st.just(()) | st.lists(patterns, max_size=3).map(lambda drawn: (*drawn, "*"))
    if name == "continuity":
        # It excludes topics and ordering="session": pass it explicitly.
        return st.just(())
    raise AssertionError(f"the option {name} is new: say here what it may be")


def _template(path: str) -> str:
    return path.replace("{", "(").replace("}", ")") + "-{index}"


# What a path takes is what Python calls printable: nothing of the categories C and Z, but the space.
_LETTERS = st.characters(exclude_categories=("C", "Z"), include_characters=" ", exclude_characters="*?[]\\/")


def entity_paths(*, max_length: int = 60) -> st.SearchStrategy[str]:
    """Paths that `pairmq.Entity` takes: segments of any printable letters, separated by ``/``.

        @given(entity_paths())
        def test_a_path_becomes_a_file_name(path): ...

    Args:
        max_length: characters, 1 to 260; a broker's lower limit is in its transport's capabilities.

    Raises:
        ValueError: ``max_length`` is out of its range.
    """
    if not 1 <= max_length <= MAX_PATH_LENGTH:
        raise ValueError(f"max_length is {max_length}: 1 to {MAX_PATH_LENGTH} are allowed")
    segments = st.text(_LETTERS, min_size=1, max_size=max_length).filter(lambda segment: segment not in (".", ".."))
    joined = st.lists(segments, min_size=1, max_size=5).map("/".join)
    return joined.filter(lambda path: len(path) <= max_length)


def entities(
    *, kinds: Iterable[EntityKind] = EntityKind, paths: st.SearchStrategy[str] | None = None
) -> st.SearchStrategy[Entity]:
    """Queues and topics.

        @given(entities(kinds=[EntityKind.QUEUE]))
        def test_every_queue_has_a_line_in_my_report(queue): ...

    Args:
        kinds: of which shapes; both when left out.
        paths: their paths, `entity_paths` when left out.
    """
    return st.builds(Entity, entity_paths() if paths is None else paths, st.sampled_from(tuple(kinds)))
