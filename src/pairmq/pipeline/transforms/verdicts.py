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
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F


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


_HASHES = 2.0**64
_LANE = "/x-pairmq-lane/"  # in the name of each (SPEC 11.2)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Args:
        verdict: given where the rule fits and none before it does.
        when: the rule in words, for the documents.
        holds: the same as a column.
    """

    verdict: Verdict
    when: str
    holds: Callable[[], Column]


def _c(name: str) -> Column:
    return F.col(name)


def _any(name: str) -> Column:
    return F.col(name) > 0


def _accepted() -> Column:
    return _any("accepted_primary") | _any("accepted_backlog")


def _seen() -> Column:
    return _any("deliveries") | _any("dead_lettered")


def _there() -> Column:
    return _seen() | _any("moves")


def _home() -> Column:
    return _any("accepted_primary") | _any("moves")


def _within_sight() -> Column:
    """Whether a delivery would be in the journal: it is a queue's, and none before it was delivered unseen."""
    return ~_c("of_topic") & F.coalesce(_c("home_at") + _c("doubt") >= _c("observed_from"), F.lit(False))


def _overdue() -> Column:
    return F.coalesce(_c("home_at") - _c("doubt") + _c("patience") < _c("observed_until"), F.lit(False))


def clock_may_deceive() -> Column:
    """Whether it looks overdue, but not if the clocks concerned are as wrong as they were seen to be."""
    overdue = _c("home_at") + _c("doubt") + _c("patience") < _c("observed_until")
    within_sight = _c("home_at") - _c("doubt") >= _c("observed_from")
    expired = F.coalesce(_c("home_at") - _c("doubt") + _c("time_to_live") <= _c("journal_end"), F.lit(False))
    return (_c("doubt") > 0) & _overdue() & ~F.coalesce(overdue & within_sight & ~expired, F.lit(False))


def _left_unseen() -> Column:
    """Whether the backlog queues were empty, or its queue made anew, after it was diverted, and the patience is over.

    Brokers don't report what other syphons have locked: one may hold it, or have moved it without a row yet.
    """
    emptied = F.exists("emptied", lambda each: _emptied_after(each, -_c("doubt")))
    return F.coalesce(emptied, F.lit(False)) | _remade_after(-_c("doubt"))


def move_may_be_missing() -> Column:
    """Whether it left the backlog unseen, and the row of that may have been in a hole of the journal."""

    surely = _c("doubt")

    def before_any_hole(each: Column) -> Column:
        return _emptied_after(each, surely) & F.coalesce(each["hole"] < _c("last_diverted_at"), F.lit(True))

    emptied = F.coalesce(F.exists("emptied", before_any_hole), F.lit(False))
    remade = _remade_after(surely) & F.coalesce(_c("remade_hole") < _c("last_diverted_at"), F.lit(True))
    return _left_unseen() & ~emptied & ~remade


def _emptied_after(each: Column, margin: Column) -> Column:
    after = each["since"] > _c("last_diverted_at") + _c("slack") + margin
    return F.coalesce(after & _long_ago(each["drained_at"] + margin), F.lit(False))


def _remade_after(margin: Column) -> Column:
    after = _c("remade_at") > _c("last_diverted_at") + _c("slack") + margin
    return F.coalesce(after & _long_ago(_c("remade_at") + margin), F.lit(False))


def _long_ago(instant: Column) -> Column:
    return instant + _c("patience") <= _c("journal_end")


def send_may_be_left_out() -> Column:
    """Whether a process that keeps a part of the healthy sends may have left out another send of the same id.

    All processes leave out by the id's hash: those are kept that are less than their part of all hashes.
    """
    key, least = _c("message_key").cast("double"), _c("least_kept")
    hashed = F.when(key < 0, key + _HASHES).otherwise(key)
    # A number with a fraction has 53 bits, a hash 64.
    return F.coalesce((least < 1) & (hashed >= least * _HASHES - 2.0**12), F.lit(False))


def _in_lane() -> Column:
    """Whether consumers may have had it without a syphon (SPEC 11.2)."""
    return F.coalesce(_c("backlog_queue").contains(_LANE), F.lit(False))


def _lived_out() -> Column:
    return F.coalesce(_c("home_at") + _c("doubt") + _c("time_to_live") <= _c("journal_end"), F.lit(False))


RULES: tuple[Rule, ...] = (
    Rule(
        Verdict.PHANTOM,
        "no send of it was accepted or unknown, at least one was refused, and it was delivered or moved nevertheless",
        lambda: ~_accepted() & ~_any("unknown") & _any("refused") & _there() & ~_c("untold"),
    ),
    Rule(
        Verdict.NOT_JOURNALLED,
        "the same, and the journal may lack another send of it: it has a hole then, or a process keeps only samples",
        lambda: ~_accepted() & ~_any("unknown") & _any("refused") & _there(),
    ),
    Rule(
        Verdict.REFUSED,
        "no send of it was accepted or unknown, at least one was refused",
        lambda: ~_accepted() & ~_any("unknown") & _any("refused"),
    ),
    Rule(
        Verdict.UNKNOWN_DELIVERED,
        "no send of it was accepted, one ended as unknown, or left only failed attempts; and it was delivered",
        lambda: ~_accepted() & (_any("unknown") | _any("failures")) & _seen(),
    ),
    Rule(
        Verdict.UNKNOWN,
        "the same, and no delivery is in the journal",
        lambda: ~_accepted() & (_any("unknown") | _any("failures")),
    ),
    Rule(
        Verdict.DEAD_LETTERED,
        "the journal has no send of it, and it was dead-lettered and not delivered",
        lambda: ~_accepted() & (_any("set_aside") | _any("dead_lettered")) & ~_any("completed"),
    ),
    Rule(
        Verdict.NOT_JOURNALLED,
        "the journal has no send of it: its sender keeps no journal or only samples, was killed, or began earlier",
        lambda: ~_accepted(),
    ),
    Rule(
        Verdict.DUPLICATED_UNPROVEN,
        "accepted, completed more often than there are reasons for second copies, and the journal may lack a reason",
        lambda: (_c("surplus") > _c("reasons")) & _c("untold"),
    ),
    Rule(
        Verdict.DUPLICATED_UNEXPLAINED,
        "accepted, and completed more often than there are reasons for second copies",
        lambda: _c("surplus") > _c("reasons"),
    ),
    Rule(
        Verdict.DUPLICATED,
        "accepted, and completed more than once, with a reason for every copy after the first",
        lambda: _any("surplus"),
    ),
    Rule(
        Verdict.OUT_OF_ORDER,
        "accepted and delivered, behind a message that was sent later, which the options don't allow for",
        lambda: _any("deliveries") & (_c("late") == "fault"),
    ),
    Rule(Verdict.DELIVERED, "accepted, and completed once", lambda: _any("completed")),
    Rule(
        Verdict.DEAD_LETTERED,
        "accepted, and its consumer dead-lettered it, or it was read from a dead-letter queue",
        lambda: _any("dead_lettered"),
    ),
    Rule(Verdict.UNSETTLED, "accepted, and delivered but never completed", lambda: _any("deliveries")),
    Rule(
        Verdict.EXPIRED,
        "diverted, never moved, and dead-lettered by the syphon because its time to live had expired",
        lambda: ~_home() & _any("set_aside") & (_c("reason") == "TTLExpiredException"),
    ),
    Rule(
        Verdict.DEAD_LETTERED,
        "diverted, never moved, and dead-lettered by the syphon for another reason",
        lambda: ~_home() & _any("set_aside"),
    ),
    Rule(
        Verdict.UNPROVEN,
        "diverted, never moved, its backlog queue was seen empty or recreated later, and the journal has a hole since, "
        "or a clock that was set may deceive",
        lambda: ~_home() & _left_unseen() & _c("hole"),
    ),
    Rule(
        Verdict.UNPROVEN,
        "diverted to a lane, never moved, the lane was seen empty later, and the journal of the consumer that may have "
        "emptied it is missing, or shows no delivery of the queue",
        lambda: ~_home() & _left_unseen() & _in_lane() & (_c("lacking") | ~_c("consumed")),
    ),
    Rule(
        Verdict.LOST,
        "diverted, never moved or dead-lettered, and its backlog queue was seen empty or recreated later",
        lambda: ~_home() & _left_unseen(),
    ),
    Rule(Verdict.DIVERTED, "diverted, and not yet moved", lambda: ~_home()),
    Rule(
        Verdict.UNPROVEN,
        "at the primary of a queue, and the journal of the consumer that would have had it is missing: its first rows, "
        "or, as far as those of the pair's other queues show, all of them",
        lambda: ~_within_sight() & ~_c("of_topic") & (_c("absent") | (_c("lacking") & _c("hole"))),
    ),
    Rule(
        Verdict.NOT_OBSERVED,
        "at the primary, and no delivery would be seen: a topic, or a queue whose consumers keep no journal, or kept "
        "none yet when it arrived",
        lambda: ~_within_sight(),
    ),
    Rule(
        Verdict.EXPIRED,
        "at the primary, not delivered, and its time to live ran out before the journal ended",
        _lived_out,
    ),
    Rule(
        Verdict.UNPROVEN,
        "at the primary, not delivered, overtaken as a lost one is, and the journal has a hole since, or a clock that "
        "was set may deceive",
        lambda: _overdue() & _c("hole"),
    ),
    Rule(
        Verdict.LOST,
        "at the primary, not delivered, though messages that arrived later by more than the patience were",
        _overdue,
    ),
    Rule(Verdict.IN_FLIGHT, "at the primary, and not delivered yet", lambda: F.lit(True)),
)
"""In this order; the last one fits everything."""


def reasons() -> Column:
    """How many second copies of a message the journal explains.

    Each further send of the same id that was accepted, each send or attempt in doubt, each message that a syphon got
    again or could not complete, and each delivery that the broker repeated or whose completion it did not confirm. A
    syphon says that a write of its own was in doubt, but not how many were: all copies are explained then.
    """
    again = F.greatest(_c("accepted_primary") + _c("accepted_backlog") - 1, F.lit(0))
    in_doubt = _c("unknown") + F.greatest(_c("doubts"), _c("marked"))
    by_syphon = _c("moves_again") + _c("moves_unfinished")
    counted = again + in_doubt + by_syphon + _c("redelivered") + _c("unconfirmed")
    return F.greatest(counted, F.when(_any("moves_marked"), _c("surplus")))


def verdict() -> Column:
    """The verdict of the first rule that fits."""
    chosen = F.when(RULES[0].holds(), RULES[0].verdict.value)
    for rule in RULES[1:]:
        chosen = chosen.when(rule.holds(), rule.verdict.value)
    return chosen
