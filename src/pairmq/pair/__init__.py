"""The front door: a pair of brokers, its senders and its receivers."""

from pairmq.core.switch import Decision, ProcessReport, SwitchAction, SwitchReport
from pairmq.memory import MemoryClaims
from pairmq.pair._consumer import PairConsumer
from pairmq.pair._deduplicator import Deduplicator, FirstDelivery
from pairmq.pair._outbox import PairOutbox
from pairmq.pair._pair import Pair
from pairmq.pair._readiness import EntityReadiness, Readiness
from pairmq.pair._receiver import PairDelivery, PairReceiver
from pairmq.pair._sender import PairSender
from pairmq.pair._settings import (
    Settings,
    check_available,
    check_distinct,
    load_settings,
    misspelt_variables,
    parse_duration,
    transports_at,
)
from pairmq.runner import Agreement, Stray

__all__ = [
    "Agreement",
    "Decision",
    "Deduplicator",
    "EntityReadiness",
    "FirstDelivery",
    "MemoryClaims",
    "Pair",
    "PairConsumer",
    "PairDelivery",
    "PairOutbox",
    "PairReceiver",
    "PairSender",
    "ProcessReport",
    "Readiness",
    "Settings",
    "Stray",
    "SwitchAction",
    "SwitchReport",
    "check_available",
    "check_distinct",
    "load_settings",
    "misspelt_variables",
    "parse_duration",
    "transports_at",
]
