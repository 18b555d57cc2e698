"""The asyncio engine: carries out what `pairmq.core` decides, against two transports."""

from pairmq.runner._backlog import backlog_properties, named_queues
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import FAILURES, Emitter
from pairmq.runner._engine import Engine
from pairmq.runner._job import SenderState
from pairmq.runner._limits import TimeLimits
from pairmq.runner._outbox import Outbox, OutboxSend, outbox_queue
from pairmq.runner._record import LOOK_INTERVAL, Agreement, Stray, find_agreement, write_anew
from pairmq.runner._switch import SwitchWriter

__all__ = [
    "FAILURES",
    "LOOK_INTERVAL",
    "Agreement",
    "Clock",
    "Emitter",
    "Engine",
    "Outbox",
    "OutboxSend",
    "SenderState",
    "Stray",
    "SwitchWriter",
    "TimeLimits",
    "backlog_properties",
    "find_agreement",
    "named_queues",
    "outbox_queue",
    "write_anew",
]
