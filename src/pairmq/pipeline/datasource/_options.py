"""Options of the connectors, as Spark hands them over: text by name, read once, on the driver.

They travel to the workers and are shown in plans, so that no broker's URL should be among them. The environment
(``PAIRMQ_PRIMARY``, ``PAIRMQ_SECONDARY``) or a file that the option ``config`` names is read where a broker is called.
The two options that may hold a URL have names that Spark's own redaction knows (``spark.sql.redaction.options.regex``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pairmq.core import OPTION_NAMES
from pairmq.model import ConfigurationError, Entity, EntityKind, Source
from pairmq.pair import Settings, load_settings, parse_duration
from pairmq.plugins import registry
from pairmq.transport import Transport

_PREFIX: Final = "PAIRMQ_"
_UNUSED: Final = "unused://"
_SIDES: Final = ("primary", "secondary")
_SPARKS_OWN: Final = frozenset(("checkpointlocation", "path", "queryname"))

_BROKERS = frozenset(("config", "primary_url", "secondary_url", *OPTION_NAMES))
_SOURCE = frozenset(("entity", "side", "subscription", "dead_letter"))
BROWSE: Final = _BROKERS | _SOURCE | {"backlog", "limit"}
"""Options of ``spark.read``."""
STREAM: Final = _BROKERS | _SOURCE | {"spool", "spool_wait", "max_rows", "receive_wait"}
"""Options of ``spark.readStream``."""
WRITE: Final = _BROKERS | {"entity", "kind", "journal", "window"}
"""Options of ``df.write`` and ``writeStream``."""


@dataclass(frozen=True, slots=True)
class Brokers:
    """How to find the brokers; read anew in each process that calls them. Picklable."""

    config: str | None = None  # a settings file, on every computer that works
    # It may hold a password; None where the environment or the file has it.
    primary_url: str | None = field(default=None, repr=False)
    secondary_url: str | None = field(default=None, repr=False)
    journal: str | None = None  # a directory that takes the events of writers
    pair: tuple[tuple[str, str], ...] = ()  # options of the pair, as text

    def settings(self, side: str | None = None) -> Settings:
        """Both URLs, or that of one side alone, and the options of the pair."""
        given = dict(self.pair)
        environment = {**os.environ, **{_variable(name): text for name, text in given.items()}}
        # The environment of a program that runs a syphon must not start one in every task.
        forced = {} if "enable_syphon" in given else {"enable_syphon": False}
        try:
            return load_settings(
                primary=self.primary_url or (_UNUSED if side == "secondary" else None),
                secondary=self.secondary_url or (_UNUSED if side == "primary" else None),
                journal=self.journal,
                config=self.config,
                environ=environment,
                overrides=forced,
            )
        except ConfigurationError as error:
            text = str(error)
            for name in given:
                text = text.replace(_variable(name), f"option {name}")
            raise ConfigurationError(text) from None

    def transport(self, side: str) -> tuple[Transport, Settings]:
        """The transport of one side, without IO. Raises as `settings`, and where no plugin serves the URL."""
        settings = self.settings(side)
        return registry.transport(settings.primary if side == "primary" else settings.secondary), settings


class Options:
    """The options of one read or write."""

    def __init__(self, given: Mapping[str, str], known: frozenset[str]) -> None:
        self._given = {name.lower(): text for name, text in given.items()}
        unknown = sorted(self._given.keys() - known - _SPARKS_OWN)
        if unknown:
            own = sorted(known - frozenset(OPTION_NAMES))
            raise ConfigurationError(
                f"unknown option {', '.join(unknown)}: known are {', '.join(own)}, and the options of a pair"
            )

    def text(self, name: str) -> str | None:
        """An option's text; None where it is left out or empty."""
        return self._given.get(name) or None

    def choice(self, name: str, *choices: str) -> str:
        """One of several words; the first one where it is left out."""
        text = self.text(name) or choices[0]
        if text not in choices:
            raise _bad(name, text, " or ".join(choices))
        return text

    def switch(self, name: str) -> bool:
        """True or false; false where it is left out."""
        return self.choice(name, "false", "true") == "true"

    def count(self, name: str, default: int, most: int) -> int:
        """A whole number of at least 1."""
        text = self.text(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) <= 18 and 1 <= int(text) <= most):
            raise _bad(name, text, f"a whole number from 1 to {most}")
        return int(text)

    def seconds(self, name: str, default: float, least: float, most: float) -> float:
        text = self.text(name)
        if text is None:
            return default
        try:
            seconds = parse_duration(text)
        except ConfigurationError as error:
            raise ConfigurationError(f"option {name}: {error}") from None
        if not least <= seconds <= most:
            raise _bad(name, text, f"from {least:g} s to {most:g} s")
        return seconds

    def brokers(self) -> Brokers:
        pair = tuple((name, self._given[name]) for name in OPTION_NAMES if name in self._given)
        return Brokers(
            self.text("config"), self.text("primary_url"), self.text("secondary_url"), self.text("journal"), pair
        )

    def entity(self) -> str | None:
        """The entity's path, from the option ``entity`` or from ``load(…)`` and ``save(…)``."""
        named, path = self.text("entity"), self.text("path")
        if named and path and named != path:
            raise ConfigurationError("both entity and a path are given: omit one")
        return named or path

    def required_entity(self) -> str:
        """The same. Raises `ConfigurationError` if it is missing."""
        path = self.entity()
        if path is None:
            raise ConfigurationError("no entity is given: name a queue or topic in the option entity")
        return path

    def source(self) -> Source:
        """What is to be read. Raises `ConfigurationError` where it can't be."""
        subscription = self.text("subscription")
        kind = EntityKind.QUEUE if subscription is None else EntityKind.TOPIC
        try:
            return Source(Entity(self.required_entity(), kind), subscription, self.switch("dead_letter"))
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    def side(self) -> str:
        return self.choice("side", *_SIDES)

    def spool(self) -> Path:
        text = self.text("spool")
        if text is None:
            raise ConfigurationError(
                "no spool is given: name a directory in the option spool. It keeps what was taken from the broker and "
                "is not yet committed by Spark: it must outlive the query, be visible to the driver and all executors "
                "under this name, and belong to this query alone"
            )
        text = text.removeprefix("file://")
        if "://" in text:
            raise ConfigurationError("spool is a URL: it must be a directory of a mounted file system")
        path = Path(text)
        if not path.is_absolute():
            raise ConfigurationError("spool is a relative path: driver and executors may run in different directories")
        return path


def _variable(name: str) -> str:
    return _PREFIX + name.upper()


def _bad(name: str, text: str, allowed: str) -> ConfigurationError:
    shown = "a URL" if "://" in text else repr(text if len(text) <= 40 else text[:39] + "…")
    return ConfigurationError(f"option {name} is {shown}: it must be {allowed}")
