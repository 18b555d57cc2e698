"""The verdicts in words for people, and what kind of answer each is. The rules are in the pipeline's transforms."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Tone: TypeAlias = Literal["arrived", "waiting", "ended", "unseen", "fault"]
"""It arrived; it is on its way; it ended otherwise, as it was told; nobody can tell; a promise was broken."""


class Meaning(NamedTuple):
    """What a verdict says, and how it is drawn."""

    tone: Tone
    text: str


VERDICTS: dict[str, Meaning] = {
    "lost": Meaning("fault", "accepted, and gone: the journal shows that it would be there"),
    "phantom": Meaning("fault", "refused, and delivered all the same"),
    "duplicated, unexplained": Meaning("fault", "delivered more often than anything in the journal explains"),
    "out of order": Meaning("fault", "delivered behind a later one, which the options do not allow"),
    "delivered": Meaning("arrived", "accepted, and completed once by a consumer"),
    "duplicated, explained": Meaning("arrived", "completed more than once; each further copy has its reason"),
    "duplicated, unproven": Meaning("arrived", "completed more than once; the journal may lack the row that tells why"),
    "unknown, delivered": Meaning("arrived", "its sender never learnt the outcome; it was delivered"),
    "in flight": Meaning("waiting", "at the primary, and not delivered yet"),
    "diverted": Meaning("waiting", "in the backlog, and not brought home yet"),
    "unsettled": Meaning("waiting", "a consumer got it, and has not completed it"),
    "expired": Meaning("ended", "its own time to live ran out"),
    "dead-lettered": Meaning("ended", "set aside, with a reason"),
    "refused": Meaning("ended", "never accepted; its sender was told so"),
    "delivery not observed": Meaning("unseen", "at the primary; no journal tells of its deliveries"),
    "unproven": Meaning("unseen", "not seen again, and the journal has a hole where that would be told"),
    "unknown": Meaning("unseen", "its sender never learnt the outcome, and no delivery is in the journal"),
    "not journalled": Meaning("unseen", "nothing tells of a send of it that was accepted"),
}
"""In the order in which they are told."""

FAULTS = tuple(name for name, meaning in VERDICTS.items() if meaning.tone == "fault")


def meaning_of(verdict: str) -> Meaning:
    """A verdict of a later version is not known here."""
    return VERDICTS.get(verdict, Meaning("unseen", "a verdict that this version does not know"))
