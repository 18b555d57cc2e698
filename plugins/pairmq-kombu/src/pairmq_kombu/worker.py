"""A worker that hosts the syphon: for Celery applications without a process of their own for it."""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from pairmq import ConfigurationError
from pairmq.sync import Pair
from pairmq_kombu.transport import Transport


class Syphon(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """Moves the backlog to the primary in the worker's main process, from its start to its end.

    ``app.steps["worker"].add(Syphon)`` switches it on. Several workers may have one: two syphons on one pair are safe.
    """

    # After the pool: what is forked needs no syphon.
    requires = ("celery.worker.components:Pool",)

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        self._pair: Pair | None = None

    def start(self, worker: Any) -> None:
        """Open a pair with a syphon. Raises `ConfigurationError`, `TransportError`."""
        with worker.app.connection_for_write() as connection:
            transport = connection.transport
            if not isinstance(transport, Transport):
                raise ConfigurationError("the syphon needs a pair: let broker_write_url begin with pairmq://")
            self._pair = transport.settings().connect(enable_syphon=True)
        self._pair.open()

    def stop(self, worker: Any) -> None:
        """Close it; what it holds goes back to the backlog."""
        if self._pair is not None:
            self._pair.close()

    def terminate(self, worker: Any) -> None:
        self.stop(worker)
