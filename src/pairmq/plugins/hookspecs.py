"""The two hooks: both synchronous, both yield records, neither is on the path of a message."""

from __future__ import annotations

from collections.abc import Iterable

import pluggy

from pairmq.plugins._records import ObserverRecord, TransportRecord

PROJECT = "pairmq"
"""The name of the pluggy project and of the entry point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
"""Marks a hook's specification: PairMQ's own use."""

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's function as the implementation of the hook that it is named like."""


@hookspec
def pairmq_transports() -> Iterable[TransportRecord]:  # type: ignore[empty-body]  # a specification has no body
    """Yield the transports that the plugin brings.

    Example::

        @hookimpl
        def pairmq_transports():
            yield TransportRecord(
                name="rabbitmq", schemes=("amqp", "amqps"), factory=RabbitMQTransport, capabilities=CAPABILITIES
            )
    """


@hookspec
def pairmq_observers() -> Iterable[ObserverRecord]:  # type: ignore[empty-body]  # a specification has no body
    """Yield the observers that the plugin brings.

    Example::

        @hookimpl
        def pairmq_observers():
            yield ObserverRecord(name="audit", factory=AuditObserver)
    """
