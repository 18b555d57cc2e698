"""The asyncio engine: carries out what `pairmq.core` decides, against two transports."""

from pairmq.runner._backlog import backlog_properties
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import FAILURES, Emitter
from pairmq.runner._engine import Engine
from pairmq.runner._job import SenderState
from pairmq.runner._limits import TimeLimits

__all__ = ["FAILURES", "Clock", "Emitter", "Engine", "SenderState", "TimeLimits", "backlog_properties"]
