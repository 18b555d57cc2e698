"""The asyncio engine: carries out what `pairmq.core` decides, against two transports."""

from pairmq.runner._attempt import TimeLimits
from pairmq.runner._backlog import backlog_properties
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._engine import Engine
from pairmq.runner._job import SenderState

__all__ = ["Clock", "Emitter", "Engine", "SenderState", "TimeLimits", "backlog_properties"]
