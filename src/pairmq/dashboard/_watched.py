"""What a dashboard shows: a pair, or two brokers that this process only looks at.

Names, reasons and error texts come from messages and brokers: they are made fit to be shown here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pairmq.core import PairOptions
from pairmq.model import ConfigurationError, Entity, EntityState, PairClosed, PairFaulted
from pairmq.pair import Pair
from pairmq.runner import outbox_queue
from pairmq.transport import Transactional, Transport


@dataclass(frozen=True, slots=True)
class Brokers:
    """Two brokers to be looked at, without a pair: nothing is made there, sent or moved.

    Args:
        primary: the transport to the primary; closed by its creator.
        secondary: likewise.
        options: how many backlog queues there are, what they are called, and how long an answer may take.

    Raises:
        ConfigurationError: the options give a name that no queue can have.
    """

    primary: Transport
    secondary: Transport
    options: PairOptions = field(default_factory=PairOptions)

    def __post_init__(self) -> None:
        self.queues()

    def queues(self) -> tuple[Entity, ...]:
        """The backlog queues, by their index."""
        try:
            return tuple(Entity(name) for name in self.options.backlog_queue_names(self.primary.endpoint.name))
        except ValueError as error:
            raise ConfigurationError(f"backlog_name_template gives a name that no queue can have: {error}") from error


class Watched:
    """A pair or two brokers, asked in one way."""

    def __init__(self, of: Pair | Brokers) -> None:
        self.pair = of if isinstance(of, Pair) else None
        self.brokers = of if isinstance(of, Brokers) else None
        self.primary = of.primary
        self.secondary = of.secondary
        self.options = of.options

    @property
    def name(self) -> str:
        return f"{self.primary.endpoint.name}>{self.secondary.endpoint.name}"

    @property
    def hosts_syphon(self) -> bool:
        """Whether this process moves messages back to the primary."""
        return self.pair is not None and self.options.enable_syphon

    def queues(self) -> tuple[Entity, ...]:
        """The backlog queues; none while the pair is not open."""
        if self.brokers is not None:
            return self.brokers.queues()
        try:
            return self.pair.backlog_queues if self.pair is not None else ()
        except ConfigurationError:
            return ()

    def outbox(self) -> Entity | None:
        """The queue of the outbox; None if the secondary is not a database."""
        return outbox_queue(self.primary) if isinstance(self.secondary, Transactional) else None

    def states(self) -> Mapping[Entity, EntityState]:
        """The states of the entities that this process uses: see `Pair.states`."""
        try:
            return {} if self.pair is None else self.pair.states()
        except ConfigurationError:
            return {}

    def syphon_holds(self) -> frozenset[Entity]:
        """The entities that an operator keeps this process's syphon from delivering to."""
        try:
            return frozenset() if self.pair is None else self.pair.syphon_holds
        except ConfigurationError:
            return frozenset()

    def moved(self) -> tuple[int, int]:
        """Messages that this process's syphon has moved, of the backlog and of the outbox."""
        try:
            of_outbox = 0 if self.pair is None else self.pair.outbox_moved
            return 0 if self.pair is None else self.pair.moved - of_outbox, of_outbox
        except (ConfigurationError, PairClosed, PairFaulted):
            return 0, 0


LONGEST = 300
"""Characters of a text that are shown."""

_LOGIN = re.compile(r"://\S*@")
_CUT_URL = re.compile(r"://\S*$")
_KEY = re.compile(r"(?i)(SharedAccess(?:Key|Signature)\s*=)\s*[^;\s]+")


def shown(text: str, longest: int = LONGEST) -> str:
    """Make a text fit to be shown to people, and cut it to ``longest`` characters.

    What looks like a login or a key is removed, though no transport reports any; control characters, and those that
    turn the direction of text around, become escapes. Markup needs nothing here: the page never reads a text as markup.
    """
    near = text[: 4 * longest]
    cut = _KEY.sub(r"\1…", _LOGIN.sub("://…@", near))
    if len(text) > len(near):
        cut = _CUT_URL.sub("://…", cut)  # it may have been cut before the sign that ends a login
    if not cut.isprintable():
        cut = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)
    if len(cut) > longest or len(text) > len(near):
        return f"{cut[:longest]}…"
    return cut


def plural(number: int, word: str) -> str:
    """``1 message``, ``2 messages``."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
