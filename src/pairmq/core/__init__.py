"""Decisions without IO: time and randomness come in as values, effects go out as values."""

from pairmq.core.backoff import Backoff
from pairmq.core.envelope import ALIASES, MAYBE_DUPLICATE, Diversion, divert, restore
from pairmq.core.options import (
    OPTION_NAMES,
    OPTION_RANGES,
    OUTBOX_QUEUE,
    RECORD_QUEUE,
    PairOptions,
    backlog_queue_name,
    lane_name,
    lane_path,
)

__all__ = [
    "ALIASES",
    "MAYBE_DUPLICATE",
    "OPTION_NAMES",
    "OPTION_RANGES",
    "OUTBOX_QUEUE",
    "RECORD_QUEUE",
    "Backoff",
    "Diversion",
    "PairOptions",
    "backlog_queue_name",
    "divert",
    "lane_name",
    "lane_path",
    "restore",
]
