"""One pair for each process of a Django project, made of ``settings.PAIRMQ`` at the first call."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from django.conf import settings

from pairmq import ConfigurationError, PairOptions
from pairmq.sync import Pair

_KEYS: Final = ("CONFIG", "JOURNAL", "OPTIONS", "PRIMARY", "READY", "SECONDARY")
_OPTIONS: Final = tuple(option.name for option in fields(PairOptions))

_pair: Pair | None = None
_lock = threading.Lock()


def get_pair() -> Pair:
    """Give the process's pair, open; any number of threads may share it.

    It blocks, and so do the sends of its senders, for as long as a send may take: in an ``async def`` view call both
    by ``asyncio.to_thread``. A process that is forked from one with an open pair opens one of its own. It is closed
    when the process ends.

    Raises:
        ConfigurationError: a setting is wrong, or is missing.
        TransportError: the secondary refuses to let the backlog queues be made. The next call tries again.
    """
    global _pair
    pair = _pair
    if pair is None:
        with _lock:
            pair = _pair
            if pair is None:
                pair = _made().open()
                _pair = pair
    return pair


def close_pair() -> None:
    """Close the process's pair; the next `get_pair` makes a new one. For tests, and before changed settings."""
    global _pair
    with _lock:
        pair, _pair = _pair, None
    if pair is not None:
        pair.close()


def given_settings() -> Mapping[str, Any]:
    """Read ``settings.PAIRMQ``; empty where the project has none, as everything may be in ``PAIRMQ_*`` variables.

    Raises:
        ConfigurationError: it is no dict, has an unknown key, or an option that does not exist or can't have its value.
    """
    given = getattr(settings, "PAIRMQ", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"settings.PAIRMQ is a {type(given).__name__}: it must be a dict")
    unknown = sorted(str(key) for key in given if key not in _KEYS)
    if unknown:
        raise ConfigurationError(f"settings.PAIRMQ has unknown {', '.join(unknown)}: known are {', '.join(_KEYS)}")
    if not isinstance(given.get("READY", ()), list | tuple):
        raise ConfigurationError("settings.PAIRMQ['READY'] must be a list of paths of queues, or of entities")
    options = given.get("OPTIONS", {})
    if not isinstance(options, Mapping):
        raise ConfigurationError("settings.PAIRMQ['OPTIONS'] must be a dict of options by name")
    unknown = sorted(str(name) for name in options if name not in _OPTIONS)
    if unknown:
        raise ConfigurationError(
            f"settings.PAIRMQ['OPTIONS'] has unknown {', '.join(unknown)}: known are {', '.join(_OPTIONS)}"
        )
    try:
        PairOptions(**{name: value for name, value in options.items() if value is not None})
    except ConfigurationError as error:
        raise ConfigurationError(f"settings.PAIRMQ['OPTIONS']: {error}") from None
    return given


def _made() -> Pair:
    given = given_settings()
    return Pair.connect(
        given.get("PRIMARY"),
        given.get("SECONDARY"),
        config=given.get("CONFIG"),
        journal=given.get("JOURNAL"),
        **given.get("OPTIONS", {}),
    )


def _in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_in_child)
