"""Hours of failures with consumers that go on through them: queues with continuity (SPEC 11).

The judge of messages knows the primary as the only place where a message may arrive. Here it arrives where a consumer
handles it, and the rules of SPEC 11.5 are asked of the brokers' copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pairmq.core import lane_path
from pairmq.model.events import MessageDelivered, Settlement
from pairmq.testing.history import PRIMARY, SECONDARY, Copy, Result
from pairmq.testing.judge import Verdict
from pairmq.testing.simulator import Settings, scenario_of
from pairmq.testing.simulator._facts import Facts
from pairmq.testing.simulator._history import History
from pairmq.testing.simulator._judge_pair import pair_judged
from pairmq.testing.simulator._scenario import Scenario
from pairmq.testing.simulator._world import World

SEEDS = (*range(880, 885), 927)
HOURS = 0.5
QUEUES = ("orders", "pri*", "stock")


def continued(scenario: Scenario) -> Scenario:
    """The same hours with continuity for all queues, and a consumer in the first process."""
    setup = scenario.setup
    options = {**setup.options, "continuity": QUEUES, "lane_patience": 2.0 if scenario.seed % 2 else 0.0}
    first, *rest = setup.processes
    return replace(scenario, setup=replace(setup, options=options, processes=(replace(first, consumer=True), *rest)))


def handled(history: History) -> set[str | None]:
    """The ids of what consumers have completed in lanes: such a delivery has no position at the primary."""
    return {
        note.event.message_id
        for note in history.notes
        if isinstance(note.event, MessageDelivered)
        and note.event.settlement is Settlement.COMPLETED
        and not note.event.sequence_number
    }


def by_consumers(history: History, copies: list[Copy], seen: set[str | None]) -> list[Copy]:
    """The copies that consumers have taken from a lane; one who was killed may have reported nothing."""
    killed = {life.name for life in history.lives if life.killed}
    moved = {copy.message_number for copy in history.copies if copy.broker == PRIMARY}
    return [
        copy
        for copy in copies
        if copy.gone == "completed"
        and lane_path(copy.entity.path) is not None
        and (copy.message.message_id in seen or (copy.gone_by in killed and copy.message_number not in moved))
    ]


def redelivered(facts: Facts, copy: Copy) -> bool:
    """Whether something had ended a lock of a copy that a syphon, or a consumer, held."""
    return any(facts.redelivery_explained(copy, index) for index in range(1, len(copy.handovers)))


def problems(history: History) -> Iterator[str]:
    facts, seen = Facts(history), handled(history)
    for number, sent in history.sent.items():
        home, backlog = facts.at_primary[number], facts.at_secondary[number]
        taken = by_consumers(history, backlog, seen)
        waits = any(copy.gone in ("", "dead-lettered", "deleted") for copy in backlog)
        if sent.result is not None and sent.result.accepted and not home and not taken and not waits:
            yield f"{number} is lost: it was {sent.result}, and is missing"
        told = [told for _, told in (*facts.attempts[number], *facts.by_syphon[number])]
        in_doubt = sent.maybe_duplicate or sent.result in (None, Result.UNKNOWN, Result.CANCELLED)
        doubled = taken and home and not in_doubt and not any(each.doubtful for each in told)
        if doubled and not any(copy.ran_out or redelivered(facts, copy) for copy in taken):
            yield f"{number} was handled from a lane, and is at the primary too, for no reason"
        if len(taken) > 1 and not any(each.doubtful for each in told):
            yield f"{number} was stored {len(taken)} times in lanes for no reason"
    for life in history.lives:  # a consumer's own close may last as long as a transport's
        life.left = tuple(name for name in life.left if not name.startswith("close "))
    for violation in pair_judged(facts):
        if violation.verdict in (Verdict.NOT_DRAINED, Verdict.CLOSE, Verdict.CRASH, Verdict.STATE):
            yield str(violation)


def test_consumers_with_continuity_lose_and_double_nothing():
    found, diverted, from_lanes = [], 0, 0
    for seed in SEEDS:
        history = World(continued(scenario_of(Settings(seed=seed, hours=HOURS, mode="liveness")))).run()
        found += [f"seed {seed}: {problem}" for problem in problems(history)]
        seen = handled(history)
        copies = [copy for copy in history.copies if copy.broker == SECONDARY and copy.message_number is not None]
        diverted += sum(lane_path(copy.entity.path) is not None for copy in copies)
        from_lanes += len(by_consumers(history, copies, seen))
        assert any(copy.broker == PRIMARY for copy in history.copies)
    assert not found, "\n".join(found[:20])
    assert diverted > 300
    assert from_lanes > 50
