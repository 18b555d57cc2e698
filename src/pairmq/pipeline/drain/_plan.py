"""What a drain is about: the pair's settings, its backlog queues, and when to give up."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pairmq.core import OPTION_RANGES, backlog_queue_name
from pairmq.model import ConfigurationError, Entity
from pairmq.pair import Settings, check_distinct, load_settings, transports_at
from pairmq.plugins import registry
from pairmq.transport import Transport

_MOST = OPTION_RANGES["backlog_queue_count"][1]

PATIENCE = 120.0
"""Seconds without progress after which a queue is left: longer than the minute that a dead worker's locks last."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One drain.

    Args:
        settings: both URLs, which may hold passwords, and all options.
        queues: the backlog queues, by their index.
        primary: the primary's URL without its password, by which a worker knows that it has found the same broker.
        secondary: likewise.
        config: absolute path of the settings file, None for none.
        handed_over: the URLs were given by the caller: no environment and no file has them for the workers.
        patience: seconds without progress after which a queue is left as it is.
        ends_at: seconds since 1970 UTC at which all end; None for no such instant.
    """

    settings: Settings = field(repr=False)
    queues: tuple[Entity, ...]
    primary: str
    secondary: str
    config: str | None = None
    handed_over: bool = False
    patience: float = PATIENCE
    ends_at: float | None = None

    def with_queues(self, name: str, found: Iterable[Entity]) -> Plan:
        """This plan with those of the found queues that a larger number of backlog queues would give it.

        Args:
            name: the primary's.
            found: further backlog queues of the primary.
        """
        options = self.settings.options
        names = [backlog_queue_name(options.backlog_name_template, name, index) for index in range(_MOST)]
        last = max((names.index(queue.path) for queue in found if queue.path in names), default=-1)
        if last < options.backlog_queue_count:
            return self
        settings = replace(self.settings, options=replace(options, backlog_queue_count=last + 1))
        return replace(self, settings=settings, queues=tuple(map(Entity, names[: last + 1])))

    def secondary_transport(self) -> Transport:
        """Make a connection to the secondary; no IO."""
        return registry.transport(self.settings.secondary)


def make_plan(
    *,
    primary: str | None = None,
    secondary: str | None = None,
    config: str | os.PathLike[str] | None = None,
    journal: str | os.PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    patience: float = PATIENCE,
    ends_at: float | None = None,
) -> Plan:
    """Put a drain together; no IO but the settings file's.

    Args:
        primary: the primary's URL; else from the environment or the settings file, which is where workers look too.
        secondary: likewise.
        config: the settings file; else the one that ``PAIRMQ_CONFIG`` names.
        journal: directory for the journals of the tasks; else as the settings say.
        options: pair options by name; None values count as left out.
        patience: seconds without progress after which a queue is left as it is.
        ends_at: seconds since 1970 UTC at which all end.

    Raises:
        ConfigurationError: a setting is wrong or missing, or the pair has queues with continuity.
    """
    if not patience > 0:
        raise ConfigurationError(f"patience is {patience!r}: it must be more than 0 seconds")
    settings = load_settings(
        primary=primary,
        secondary=secondary,
        journal=None if journal is None else os.path.abspath(journal),
        config=config,
        overrides={**(options or {}), "enable_syphon": True},
    )
    if settings.options.continuity:
        raise ConfigurationError(
            f"continuity is {', '.join(settings.options.continuity)}: a drain by Spark does not read the lanes of "
            "these queues, and would call a backlog empty over them; use `pairmq syphon --until-empty`"
        )
    transports = transports_at(settings.primary, settings.secondary)
    check_distinct(*transports)
    first, second = (transport.endpoint for transport in transports)
    file = config or os.environ.get("PAIRMQ_CONFIG") or None
    return Plan(
        settings=settings,
        queues=tuple(Entity(name) for name in settings.options.backlog_queue_names(first.name)),
        primary=first.url,
        secondary=second.url,
        config=None if file is None else str(Path(file).absolute()),
        handed_over=primary is not None or secondary is not None,
        patience=patience,
        ends_at=ends_at,
    )
