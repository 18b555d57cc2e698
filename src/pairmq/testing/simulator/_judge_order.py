"""What the judge asks of pairs that keep order (SPEC 8), beside what it asks of all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pairmq.model import Entity
from pairmq.testing.simulator._facts import Facts
from pairmq.testing.simulator._history import Sent
from pairmq.testing.simulator._scenario import SECONDARY
from pairmq.testing.simulator._verdict import Verdict, Violation

Key = tuple[Entity, str, str]


def order_judged(facts: Facts) -> Iterator[Violation]:
    """All that is wrong with the order of keys."""
    yield from _first_copies(facts)
    yield from _one_queue(facts)


def _key(sent: Sent) -> Key:
    """Sessions outlive processes, senders do not."""
    session = sent.message.session_id
    return (sent.entity, f"{sent.life} {sent.sender}", "") if session is None else (sent.entity, "", session)


def _first_copies(facts: Facts) -> Iterator[Violation]:
    """The order of a key's receipts is the order of its first copies in the primary (SPEC 8.1)."""
    keys: dict[Key, list[tuple[int, int, Sent]]] = defaultdict(list)
    for sent in facts.history.sent.values():
        home = facts.at_primary[sent.number]
        if not home or sent.result is None or not sent.result.accepted or sent.end_tick is None:
            continue
        if any(copy.gone in ("deleted", "dead-lettered") for copy in facts.at_secondary[sent.number]):
            continue  # it was not moved from there; a copy in the primary was written late
        # Where a scheduled message stands is a matter of its time.
        if sent.message.scheduled_enqueue_at is None:
            keys[_key(sent)].append((sent.end_tick, home[0].number, sent))
    for key, sends in keys.items():
        sends.sort(key=lambda each: each[0])
        last = None
        for _, place, sent in sends:
            if last is not None and place < last[0]:
                name = key[2] or key[1]
                text = (
                    f"{sent.number} of {name} got its receipt after {last[1].number} and stands before it "
                    f"in {sent.entity}"
                )
                yield Violation(Verdict.ORDER, facts.at_primary[last[1].number][0].at, text, last[1].number)
            else:
                last = place, sent


def _one_queue(facts: Facts) -> Iterator[Violation]:
    """All diverted sends of a key go to one backlog queue, in every process (SPEC 8.2)."""
    queues: dict[Key, str] = {}
    for attempt in facts.history.attempts:
        if attempt.broker != SECONDARY or attempt.syphon:
            continue
        for number in attempt.messages:
            if number is None:
                continue
            key, path = _key(facts.history.sent[number]), attempt.entity.path
            if queues.setdefault(key, path) != path:
                text = f"{key[2] or key[1]} was diverted to {queues[key]}, and then to {path}"
                yield Violation(Verdict.ORDER, attempt.at, text, number)
