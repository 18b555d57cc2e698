"""What can't be known: every reason for which the report may say too little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pairmq.pipeline.reporting._values import Told
from pairmq.pipeline.reporting._words import grouped, plural, visible

MOST_NAMED = 10
"""Files, programs and entities that one caveat names."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """One reason.

    Args:
        kind: a word for programs.
        count: of what the text counts.
        text: a sentence.
        names: what it is about, the first few.
    """

    kind: str
    count: int
    text: str
    names: Sequence[str] = ()


def caveats(told: Told) -> Sequence[Caveat]:
    """Find them all, the weightiest first."""
    return tuple(each for each in (*_of_the_journal(told), *_of_the_messages(told), *_of_the_rest(told)) if each.count)


def _of_the_journal(told: Told) -> Iterator[Caveat]:
    bad = told.run["journal"].get("bad_segments") or []
    yield Caveat(
        "bad-segments",
        len(bad),
        f"{plural(len(bad), 'file')} of the journal could not be read.",
        tuple(f"{visible(each['path'])}: {visible(each['problem'])}" for each in bad[:MOST_NAMED]),
    )
    programs = told.programs
    names = tuple(visible(each.process) for each in programs.incomplete if each.missing or each.dropped)
    yield Caveat(
        "missing-rows", programs.missing, f"{plural(programs.missing, 'row')} of the journal are missing.", names
    )
    yield Caveat(
        "dropped-events", programs.dropped, f"Programs could not write {plural(programs.dropped, 'event')}.", names
    )
    yield Caveat(
        "misdated-rows",
        programs.misdated,
        f"{plural(programs.misdated, 'row')} of the journal count for nothing, by whose clock it was before 2020 or "
        "after 2100.",
    )
    parts = told.run["journal"].get("unfinished_parts") or []
    yield Caveat(
        "unfinished-parts",
        len(parts),
        f"{plural(len(parts), 'part')} of the journal not finished, whose rows are not read: programs that run finish "
        "theirs, pairmq journal recover finishes what killed ones left.",
        tuple(visible(each["path"]) for each in parts[:MOST_NAMED]),
    )
    killed = programs.ended.get("killed", 0)
    yield Caveat(
        "killed",
        killed,
        f"{plural(killed, 'program')} ended without a word; what {'it' if killed == 1 else 'they'} did last may be "
        "missing.",
        tuple(visible(each.process) for each in programs.incomplete if each.ended == "killed"),
    )
    running = programs.ended.get("open", 0)
    yield Caveat(
        "running",
        running,
        f"{plural(running, 'program')} may be running still, or the latest rows of their machines have not come: what "
        "happened since is not in the journal.",
    )
    yield Caveat(
        "sampled",
        programs.sampled,
        f"{plural(programs.sampled, 'program')} kept only a part of the healthy sends: availability counts for the "
        "rest, single messages are not known.",
    )


def _of_the_messages(told: Told) -> Iterator[Caveat]:
    verdicts = told.messages.verdicts
    unseen = sorted(
        (key for key, each in told.messages.by_entity.items() if each.get("delivery not observed")),
        key=lambda key: -told.messages.by_entity[key]["delivery not observed"],
    )
    many = verdicts.get("delivery not observed", 0)
    yield Caveat(
        "not-observed",
        many,
        f"{plural(many, 'message')} at the primary: no journal tells of {'its' if many == 1 else 'their'} delivery. "
        f"{'It concerns' if len(unseen) == 1 else 'They concern'} {plural(len(unseen), 'entity')}.",
        tuple(visible(key.entity) for key in unseen[:MOST_NAMED]),
    )
    for kind, verdict, text in (
        ("unproven", "unproven", "may be lost or not: what would tell is in a hole of the journal."),
        (
            "unproven-copies",
            "duplicated, unproven",
            "completed more than once: what would tell why may be in a hole of the journal, or was not kept.",
        ),
        ("unknown", "unknown", "had a sender that never learnt the outcome, and no delivery is in the journal."),
        ("not-journalled", "not journalled", "turned up of which no accepted send is in the journal."),
    ):
        many = verdicts.get(verdict, 0)
        yield Caveat(kind, many, f"{plural(many, 'message')} {text}")


def _of_the_rest(told: Told) -> Iterator[Caveat]:
    if told.cost.source in ("estimated", "mixed"):
        yield Caveat(
            "estimated-cost",
            1,
            "Operations are estimated from the journal's rows, which tell of no empty polls and of no batches.",
        )
    if dict(told.messages.verdicts) != {name: count for name, count in told.run["messages"].items() if count}:
        yield Caveat(
            "changed-tables",
            1,
            f"The tables have {plural(told.messages.count, 'message')}, the run told of "
            f"{grouped(sum(told.run['messages'].values()))}: another run may have been writing. Make the report again.",
        )
