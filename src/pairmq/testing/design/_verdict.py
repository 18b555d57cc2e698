"""What a search can find wrong with a design."""

from __future__ import annotations

import enum


class Verdict(enum.StrEnum):
    """A promise that a design breaks."""

    LOST = "lost"
    PHANTOM = "phantom"
    DUPLICATE = "unexplained duplicate"
    ORDER = "wrong order"
    FALSE_DRAINED = "false drained"
    STATE = "wrong state"
    FALSE_REPORT = "false report"
    DROPPED = "delivery budget spent"
    STRANDED = "stranded"
    HANG = "hang"
    LIVELOCK = "livelock"


MEANING: dict[Verdict, str] = {
    Verdict.LOST: "an accepted message is nowhere",
    Verdict.PHANTOM: "a message was delivered that was refused, or never sent",
    Verdict.DUPLICATE: "a second copy that neither a mark nor the death of a syphon explains",
    Verdict.ORDER: "first copies stand in another order than the receipts were given in",
    Verdict.FALSE_DRAINED: "the backlog is called empty over a message that the process answers for",
    Verdict.STATE: "the result of an attempt from before the last change moved the state",
    Verdict.FALSE_REPORT: "a caller was told that a message was not sent, and it was",
    Verdict.DROPPED: "the broker dropped a message whose deliveries were used up by an outage",
    Verdict.STRANDED: "no way leads from here to everything delivered, even once all faults have ceased",
    Verdict.HANG: "a send or a close can't end unless a broker mends itself first",
    Verdict.LIVELOCK: "a circle of recoveries and failovers in which nothing is ever diverted",
}
