"""Observers by name, as settings can't hold objects."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pairmq.model import ConfigurationError
from pairmq.pair._settings import ObserverName, check_directory
from pairmq.plugins import Observer, Registry

if TYPE_CHECKING:
    from pairmq.observe.journal import Journal

OPEN_TELEMETRY = "opentelemetry"
"""The name of the observer that comes with PairMQ, and that needs ``pairmq[otel]``."""


def observers_of(
    given: Iterable[Observer | str],
    named: Sequence[str],
    journal: str | os.PathLike[str] | Journal | None,
    plugins: Registry,
) -> list[Observer]:
    """Put a pair's observers together: those given, some by their names; those named, unless they are there without
    asking; and, with ``plugins``, those that watch every pair. Raises `ConfigurationError`."""
    given = tuple(given)
    watching = [observer for observer in given if not isinstance(observer, str)]
    named = (*(name for name in given if isinstance(name, str)), *named)
    records = {record.name: record for record in plugins.observers()}
    watching += [record.factory() for record in records.values() if record.automatic]
    for name in dict.fromkeys(named):
        if name == OPEN_TELEMETRY:
            watching += _open_telemetry(watching)
        elif name not in records:
            known = ", ".join(sorted({OPEN_TELEMETRY, *records}))
            where = f"{name.where}: " if isinstance(name, ObserverName) else ""
            raise ConfigurationError(f"{where}no observer is named {name!r}: known are {known}")
        elif not records[name].automatic:
            watching.append(records[name].factory())
    if journal is not None:
        watching.append(_journal(journal))
    return watching


def _open_telemetry(watching: Sequence[Observer]) -> list[Observer]:
    try:
        # Not before it is asked for, as it is an extra.
        from pairmq.observe.otel import OpenTelemetryObserver
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error
    # One that the program made itself has its own providers; a second one would count everything twice.
    return [] if any(isinstance(each, OpenTelemetryObserver) for each in watching) else [OpenTelemetryObserver()]


def _journal(journal: str | os.PathLike[str] | Journal) -> Observer:
    if isinstance(journal, str):
        check_directory(journal)
    try:
        # Not before it is asked for: it needs pyarrow, which takes longer to import than all of PairMQ.
        from pairmq.observe.journal import JournalObserver
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error
    return JournalObserver(journal)
