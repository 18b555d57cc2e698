"""``pairmq simulate``: hours of failures in virtual time, from a seed."""

from __future__ import annotations

import os
import re
from typing import Annotated

from typer import Option

from pairmq.cli._common import Json, examples
from pairmq.cli._values import BadUsage, positive, shortened

EPILOG = examples(
    "pairmq simulate --seed 7",
    "pairmq simulate --seeds 0..299 --hours 1 --jobs 2",
    "pairmq simulate --seed 7 --faults refuse,hang,kill --trace trace.txt",
    "pairmq simulate --seed 7 --shrink",
    "pairmq simulate --replay simulation-7.json",
)
_MOST_SEEDS = 10_000_000


def simulate(
    seed: Annotated[int | None, Option("--seed", metavar="N", min=0, help="Seed of all random choices.")] = None,
    seeds: Annotated[
        str | None, Option("--seeds", metavar="N..M", help="Several seeds, N to M inclusive, in turn.")
    ] = None,
    hours: Annotated[float, Option("--hours", parser=positive, metavar="H", help="Virtual time per seed.")] = "1",  # type: ignore[assignment]  # the parser reads defaults too
    faults: Annotated[
        str, Option("--faults", metavar="all|none|LIST", help="Kinds of faults, separated by commas.")
    ] = "all",
    mode: Annotated[
        str | None,
        Option(
            "--mode", metavar="safety|liveness", help="Faults to the end, or heal and drain. Default: in turn, by seed."
        ),
    ] = None,
    ordering: Annotated[
        str, Option("--ordering", metavar="none|session", help="Of the pairs; with session, order is judged too.")
    ] = "none",
    continuity: Annotated[
        str,
        Option(
            "--continuity",
            metavar="drawn|on|off",
            help="Queues with lanes, and consumers that read them; drawn: with a quarter of the seeds.",
        ),
    ] = "drawn",
    trace: Annotated[str | None, Option("--trace", metavar="FILE", help="Write every event of one seed.")] = None,
    replay: Annotated[
        str | None, Option("--replay", metavar="FILE", help="Simulate a scenario written by --shrink.")
    ] = None,
    shrink: Annotated[
        bool, Option("--shrink", help="Shrink a failing scenario to few faults and sends, into a file.")
    ] = False,
    jobs: Annotated[
        int | None, Option("--jobs", "-j", metavar="J", min=1, help="Seeds at a time. Default: the processors.")
    ] = None,
    state: Annotated[
        str | None, Option("--state", metavar="FILE", help="Keep progress in this file, and continue from it.")
    ] = None,
    json: Json = False,
) -> int:
    """Run real pairs against brokers, networks and processes that fail, in virtual time, and judge the outcome.

    Nothing may be lost, nothing may arrive that was not sent, every second copy must be explained, no send may outlive
    its deadline, and consumers must handle what was accepted. The same seed gives the same run everywhere. Exit status:
    1 with a violation, 130 after Ctrl-C.
    """
    # Other commands don't need the test kit.
    from pairmq.cli import _simulate_run as run

    given = [name for name, value in (("--seed", seed), ("--seeds", seeds), ("--replay", replay)) if value is not None]
    if len(given) > 1:
        raise BadUsage(f"{' and '.join(given)} exclude each other")
    if mode not in (None, "safety", "liveness"):
        raise BadUsage(f"--mode is {mode!r}: it must be safety or liveness")
    if replay is not None:
        return run.replay_file(replay, trace=trace, shrink=shrink, json=json)
    chosen = range(seed or 0, (seed or 0) + 1) if seeds is None else _range(seeds)
    runs = run.settings(chosen, hours, faults, mode, ordering, continuity)
    if len(runs) == 1 and state is None:
        return run.one(runs[0], trace=trace, shrink=shrink, json=json)
    if trace is not None or shrink:
        raise BadUsage("--trace and --shrink are for one seed, without --state")
    return run.many(runs, jobs=jobs or os.cpu_count() or 1, state=state, json=json)


def _range(text: str) -> range:
    match = re.fullmatch(r"([0-9]{1,12})\.\.([0-9]{1,12})", text.strip())
    if match is None or int(match[1]) > int(match[2]):
        raise BadUsage(f"--seeds is {shortened(text)}: write it as 0..99")
    if int(match[2]) - int(match[1]) >= _MOST_SEEDS:
        raise BadUsage(f"--seeds names more than {_MOST_SEEDS} seeds")
    return range(int(match[1]), int(match[2]) + 1)
