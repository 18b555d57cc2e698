"""The asyncio engine: carries out what `pairmq.core` decides, against two transports."""

from pairmq.runner._attempt import TimeLimits
from pairmq.runner._backlog import BACKLOG_PROPERTIES
from pairmq.runner._clock import Clock
from pairmq.runner._emitter import Emitter
from pairmq.runner._engine import Engine
from pairmq.runner._job import SenderState

__all__ = ["BACKLOG_PROPERTIES", "Clock", "Emitter", "Engine", "SenderState", "TimeLimits"]
