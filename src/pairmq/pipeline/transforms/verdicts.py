"""The rules of the reconciliation, as one table: the first rule that fits a message gives its verdict.

Theory. A journal proves what it records, and little about what it does not. That a message was delivered is proven by
one row. That it was *not* is proven by no row: it needs a reason to believe that a row would be there. So *lost* is
said only of a message that was accepted, in an entity whose deliveries are journalled, and that later messages have
overtaken by more than the patience, or that has left the backlog without a trace; and in both cases only if the journal
has no hole for the missing row. Everything else that was not seen has a milder verdict.

Likewise for the other faults: a second copy, or the delivery of a refused message, counts as unexplained only if the
journal can't lack the row that would explain it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """What became of a message."""

    DELIVERED = "delivered"
    DUPLICATED = "duplicated, explained"
    DUPLICATED_UNPROVEN = "duplicated, unproven"
    DUPLICATED_UNEXPLAINED = "duplicated, unexplained"
    OUT_OF_ORDER = "out of order"
    UNSETTLED = "unsettled"
    IN_FLIGHT = "in flight"
    DIVERTED = "diverted"
    EXPIRED = "expired"
    DEAD_LETTERED = "dead-lettered"
    NOT_OBSERVED = "delivery not observed"
    UNPROVEN = "unproven"
    LOST = "lost"
    REFUSED = "refused"
    PHANTOM = "phantom"
    UNKNOWN = "unknown"
    UNKNOWN_DELIVERED = "unknown, delivered"
    NOT_JOURNALLED = "not journalled"


FAULTS = (Verdict.LOST, Verdict.PHANTOM, Verdict.DUPLICATED_UNEXPLAINED, Verdict.OUT_OF_ORDER)
"""Verdicts that break one of PairMQ's promises."""


_LANE = "/x-pairmq-lane/"  # in the name of each (SPEC 11.2)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    verdict: Verdict  # given where the rule fits and none before it does
    when: str  # in words, for the documents
    holds: str  # the same in SQL


RULES: tuple[Rule, ...] = (
    Rule(
        Verdict.PHANTOM,
        "no send of it was accepted or unknown, at least one was refused, and it was delivered or moved nevertheless",
        "NOT accepted AND unknown = 0 AND refused > 0 AND there AND NOT untold",
    ),
    Rule(
        Verdict.NOT_JOURNALLED,
        "the same, and the journal may lack another send of it: it has a hole then, or a process keeps only samples",
        "NOT accepted AND unknown = 0 AND refused > 0 AND there",
    ),
    Rule(
        Verdict.REFUSED,
        "no send of it was accepted or unknown, at least one was refused",
        "NOT accepted AND unknown = 0 AND refused > 0",
    ),
    Rule(
        Verdict.UNKNOWN_DELIVERED,
        "no send of it was accepted, one ended as unknown, or left only failed attempts; and it was delivered",
        "NOT accepted AND (unknown > 0 OR failures > 0) AND seen",
    ),
    Rule(
        Verdict.UNKNOWN,
        "the same, and no delivery is in the journal",
        "NOT accepted AND (unknown > 0 OR failures > 0)",
    ),
    Rule(
        Verdict.DEAD_LETTERED,
        "the journal has no send of it, and it was dead-lettered and not delivered",
        "NOT accepted AND (set_aside > 0 OR dead_lettered > 0) AND completed = 0",
    ),
    Rule(
        Verdict.NOT_JOURNALLED,
        "the journal has no send of it: its sender keeps no journal or only samples, was killed, or began earlier",
        "NOT accepted",
    ),
    Rule(
        Verdict.DUPLICATED_UNPROVEN,
        "accepted, completed more often than there are reasons for second copies, and the journal may lack a reason",
        "surplus > reasons AND untold",
    ),
    Rule(
        Verdict.DUPLICATED_UNEXPLAINED,
        "accepted, and completed more often than there are reasons for second copies",
        "surplus > reasons",
    ),
    Rule(
        Verdict.DUPLICATED,
        "accepted, and completed more than once, with a reason for every copy after the first",
        "surplus > 0",
    ),
    Rule(
        Verdict.OUT_OF_ORDER,
        "accepted and delivered, behind a message that was sent later, which the options don't allow for",
        "deliveries > 0 AND late = 'fault'",
    ),
    Rule(Verdict.DELIVERED, "accepted, and completed once", "completed > 0"),
    Rule(
        Verdict.DEAD_LETTERED,
        "accepted, and its consumer dead-lettered it, or it was read from a dead-letter queue",
        "dead_lettered > 0",
    ),
    Rule(Verdict.UNSETTLED, "accepted, and delivered but never completed", "deliveries > 0"),
    Rule(
        Verdict.EXPIRED,
        "diverted, never moved, and dead-lettered by the syphon because its time to live had expired",
        "NOT arrived AND set_aside > 0 AND reason = 'TTLExpiredException'",
    ),
    Rule(
        Verdict.DEAD_LETTERED,
        "diverted, never moved, and dead-lettered by the syphon for another reason",
        "NOT arrived AND set_aside > 0",
    ),
    Rule(
        Verdict.UNPROVEN,
        "diverted, never moved, its backlog queue was seen empty or recreated later, and the journal has a hole since, "
        "or a clock that was set may deceive",
        "NOT arrived AND left_unseen AND hole",
    ),
    Rule(
        Verdict.UNPROVEN,
        "diverted to a lane, never moved, the lane was seen empty later, and the journal of the consumer that may have "
        "emptied it is missing, or shows no delivery of the queue",
        f"NOT arrived AND left_unseen AND backlog_queue LIKE '%{_LANE}%' AND (lacking OR NOT consumed)",
    ),
    Rule(
        Verdict.LOST,
        "diverted, never moved or dead-lettered, and its backlog queue was seen empty or recreated later",
        "NOT arrived AND left_unseen",
    ),
    Rule(Verdict.DIVERTED, "diverted, and not yet moved", "NOT arrived"),
    Rule(
        Verdict.UNPROVEN,
        "at the primary of a queue, and the journal of the consumer that would have had it is missing: its first rows, "
        "or, as far as those of the pair's other queues show, all of them",
        "NOT within_sight AND NOT of_topic AND (absent OR (lacking AND hole))",
    ),
    Rule(
        Verdict.NOT_OBSERVED,
        "at the primary, and no delivery would be seen: a topic, or a queue whose consumers keep no journal, or kept "
        "none yet when it arrived",
        "NOT within_sight",
    ),
    Rule(
        Verdict.EXPIRED,
        "at the primary, not delivered, and its time to live ran out before the journal ended",
        "arrived_at + doubt + time_to_live <= journal_end",
    ),
    Rule(
        Verdict.UNPROVEN,
        "at the primary, not delivered, overtaken as a lost one is, and the journal has a hole since, or a clock that "
        "was set may deceive",
        "overdue AND hole",
    ),
    Rule(
        Verdict.LOST,
        "at the primary, not delivered, though messages that arrived later by more than the patience were",
        "overdue",
    ),
    Rule(Verdict.IN_FLIGHT, "at the primary, and not delivered yet", "true"),
)
"""In this order; the last one fits everything."""

_HASHES = 2.0**64


def _gone(margin: str) -> str:
    """Whether the backlog queues were empty, or its queue made anew, after it was diverted, and the patience is over.

    Brokers don't report what other syphons have locked: one may hold it, or have moved it without a row yet.
    """

    def after(since: str, instant: str) -> str:
        later = f"{since} > last_diverted_at + slack {margin} doubt"
        return f"coalesce({later} AND {instant} {margin} doubt + patience <= journal_end, false)"

    sure = margin == "+"  # no hole since, in which the row of its leaving may have been

    def whole(hole: str) -> str:
        return f" AND coalesce({hole} < last_diverted_at, true)" if sure else ""

    emptied = f"exists(emptied, each -> {after('each.since', 'each.drained_at')}{whole('each.hole')})"
    return f"(coalesce({emptied}, false) OR ({after('remade_at', 'remade_at')}{whole('remade_hole')}))"


FLAGS: tuple[dict[str, str], ...] = (
    {
        "accepted": "accepted_primary > 0 OR accepted_backlog > 0",
        "seen": "deliveries > 0 OR dead_lettered > 0",
        "there": "deliveries > 0 OR dead_lettered > 0 OR moves > 0",
        "arrived": "accepted_primary > 0 OR moves > 0",
        # A delivery would be in the journal: it is a queue's, and none before it was delivered unseen.
        "within_sight": "NOT of_topic AND coalesce(arrived_at + doubt >= observed_from, false)",
        "overdue": "coalesce(arrived_at - doubt + patience < observed_until, false)",
        # Not so, if the clocks concerned are as wrong as they were seen to be.
        "surely_overdue": "coalesce(arrived_at + doubt + patience < observed_until "
        "AND arrived_at - doubt >= observed_from "
        "AND NOT coalesce(arrived_at - doubt + time_to_live <= journal_end, false), false)",
        "left_unseen": _gone("-"),
        # All processes leave healthy sends out by the id's hash: those are kept that are less than their part of all
        # hashes. So another send of the same id may have been. A number with a fraction has 53 bits, a hash 64.
        "left_out": "coalesce(least_kept < 1 AND message_key + CASE WHEN message_key < 0 THEN "
        f"{_HASHES}D ELSE 0D END >= least_kept * {_HASHES}D - 4096, false)",
    },
    {
        # The row that explains its fate may have been in a hole of the journal. What was accepted by a backlog queue
        # and delivered was moved back somehow: a row of it is missing.
        "hole": "CASE WHEN accepted_at IS NULL OR deliveries > 0 "
        "THEN coalesce(untold, false) OR (arrived_at IS NULL AND accepted_at IS NOT NULL) "
        f"WHEN arrived_at IS NULL THEN left_unseen AND NOT {_gone('+')} "
        "ELSE coalesce(unseen, false) OR (doubt > 0 AND overdue AND NOT surely_overdue) END",
    },
    {
        "untold": "hole OR left_out",
        "late": "CASE WHEN late = 'fault' AND (hole OR coalesce(doubt > 0 AND (late_by <= doubt OR placed = 0), false))"
        " THEN 'unproven' ELSE late END",
        # How many second copies the journal explains: each further send of the same id that was accepted, each send or
        # attempt in doubt, each message that a syphon got again or could not complete, and each delivery that the
        # broker repeated or whose completion it did not confirm. A syphon says that a write of its own was in doubt,
        # but not how many were: all copies are explained then.
        "reasons": "greatest(greatest(accepted_primary + accepted_backlog - 1, 0) + unknown + greatest(doubts, marked) "
        "+ moves_again + moves_unfinished + redelivered + unconfirmed, CASE WHEN moves_marked > 0 THEN surplus END)",
        "plain": "plain AND NOT hole",
    },
)
"""What the rules ask for, in SQL; each part may name what those before it give."""


def verdict() -> str:
    """The verdict of the first rule that fits; for nearly every message two of them can be asked at once."""
    rules = " ".join(f"WHEN {rule.holds} THEN '{rule.verdict}'" for rule in RULES)
    return f"CASE WHEN plain AND completed = 1 AND late IS DISTINCT FROM 'fault' THEN '{Verdict.DELIVERED}' {rules} END"
