"""What really became of the messages of a chaos run: what callers were told, and what the brokers held in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from pairmq.testing.chaos._ledger import lines

ACCEPTED = ("accepted by the primary", "accepted by a backlog queue")
REFUSED = "refused"


@dataclass(slots=True)
class World:
    """The world of one run, by message id."""

    # What the caller was told; a message that is missing here was cut off.
    told: dict[str, str] = field(default_factory=dict)
    copies: Counter[str] = field(default_factory=Counter)  # how many copies the primary ever had


def world_of(ledgers: Path) -> World:
    """Read the ledgers of a run; the pair's events play no part."""
    world = World()
    for _, line in lines(ledgers):
        if line["k"] == "told":
            world.told |= {f"id-{each['number']}": each["result"] for each in line["results"]}
        elif line["k"] == "home":
            world.copies.update(f"id-{number}" for number in line["messages"])
    return world


def contradiction(world: World, id_: str, verdict: str, repeated: bool) -> str | None:
    """Why a verdict can't be true; None if it can.

    Args:
        world: what happened.
        id_: the message's.
        verdict: of the pipeline.
        repeated: a completion of one copy was not confirmed, or a copy was delivered again.
    """
    told, copies = world.told.get(id_), world.copies[id_]
    accepted = told in ACCEPTED
    match verdict:
        case "delivered" | "unknown, delivered" | "out of order" | "unsettled":
            return None if copies else f"it is {verdict}, and the primary never had it"
        case "duplicated, explained" | "duplicated, unproven" | "duplicated, unexplained":
            return None if copies > 1 or repeated else "it is doubled, and the primary had one copy"
        case "refused":
            return (
                None if told == REFUSED and not copies else f"it is refused, was {told}, and was there {copies} times"
            )
        case "unknown":
            return None if not accepted else f"it is unknown, and its caller was told: {told}"
        case "lost" | "phantom" | "expired" | "dead-lettered":
            return f"it is {verdict}, and this run had none"
    return None
