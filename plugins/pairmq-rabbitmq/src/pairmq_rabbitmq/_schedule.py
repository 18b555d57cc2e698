"""Messages that wait for their time (placeholder)."""

from __future__ import annotations

from pairmq.model import Entity
from pairmq_rabbitmq._context import Context


class Schedule:
    def __init__(self, context: Context) -> None:
        self._context = context

    async def route(self, entity: Entity, delay: float, doing: str) -> bytes:
        raise NotImplementedError
