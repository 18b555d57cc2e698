"""``pairmq pipeline drain``: empties a backlog by a Spark job, a task for each backlog queue."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from pairmq.cli._common import SYPHON, Json, PairArguments, examples, with_pair
from pairmq.cli._output import Progress, Speed, complain, note, put_json, warn
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import CommandFailed, Duration, grouped, plural, short_duration
from pairmq.model import ConfigurationError
from pairmq.pair import parse_duration

if TYPE_CHECKING:
    from pairmq.pipeline.drain import Report

EPILOG = examples(
    "pairmq pipeline drain --config pair.toml",
    "pairmq pipeline drain --config pair.toml --max-rate 2000 --until 2026-11-22T06:00 --journal journal",
    "pairmq pipeline drain --config pair.toml --queues-at-once 4 --json",
)
_AT_ONCE = 4  # tasks for each processor: they wait for brokers more than they compute
_FEW = 10  # queues whose problems are reported individually


def _instant(text: str) -> float:
    """Read ``2026-11-22T06:00``, of this computer's zone if it names none, or ``2h`` from now; seconds since 1970."""
    try:
        return time.time() + parse_duration(text)
    except ConfigurationError:
        pass
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except (ValueError, OverflowError):
        raise typer.BadParameter("write an instant such as 2026-11-22T06:00, or a duration such as 2h") from None


@with_pair(SYPHON)
def drain(
    pair: PairArguments,
    queues_at_once: Annotated[
        int | None,
        Option("--queues-at-once", metavar="N", min=1, help="Of a local Spark. Default: four per processor."),
    ] = None,
    until: Annotated[
        float | None,
        Option("--until", parser=_instant, metavar="WHEN", help="When to stop: 2026-11-22T06:00, or 2h from now."),
    ] = None,
    patience: Annotated[float, Duration("--patience", "Leave a queue in which nothing moves for this long.")] = "2min",  # type: ignore[assignment]  # the parser reads defaults too
    json: Json = False,
) -> int:
    """Drain the backlog with a Spark job, with a task for each backlog queue.

    Safe beside a syphon and beside another drain. Exit status: 0 when all backlog queues are empty; 1 when messages are
    left or had to be dead-lettered, which are listed; 130 after Ctrl-C, when the tasks have finished their
    locked messages.
    """
    # Other commands don't need Spark.
    from pairmq.pipeline.drain import Drain, make_plan, session_settings
    from pairmq.pipeline.session import check_packages, session, usable_cores

    plan = make_plan(
        primary=pair.primary,
        secondary=pair.secondary,
        config=pair.config,
        journal=pair.journal,
        options=pair.options,
        patience=patience,
        ends_at=until,
    )
    check_packages()
    job = Drain(plan)

    async def look(stop: Stop) -> int:
        await job.look()
        return 0

    # Don't start Spark without work.
    if status := run_async(look):
        return status
    if job.pending == 0:
        if all(depth.missing for depth in job.before):
            warn(f"no backlog queue of this pair exists at {plan.secondary}: are both URLs those of the senders?")
        return _end(job.nothing(), None, json=json)
    if all(depth.error for depth in job.before):
        raise CommandFailed(job.before[0].error or "the secondary can't be queried")
    note(f"drain: {plan.secondary} → {plan.primary}, {_number(job.pending)} to move")
    at_once = queues_at_once or min(len(plan.queues), _AT_ONCE * usable_cores())
    with session(settings=session_settings(at_once)) as spark:

        async def run(stop: Stop) -> int:
            asked = asyncio.Event()

            def on_request() -> None:
                note(f"{stop.name}: the tasks finish their locked messages")
                asked.set()

            stop.on_request(on_request)
            with Progress("moved", "messages") as progress:
                meter = _Meter(progress, job.pending)
                report = await job.run(spark, asked, meter.show)
            return _end(report, stop, json=json)

        return run_async(run, graceful=True)


class _Meter:
    """Shows how far it is, by what the broker counts."""

    def __init__(self, progress: Progress, before: int | None) -> None:
        self._progress = progress
        self._most = before or 0
        self._speed = Speed()

    def show(self, left: int | None) -> None:
        if left is None:
            self._progress.update(0, text="left: not known")
            return
        self._most = max(self._most, left)  # others may put more there
        moved = self._most - left
        speed = self._speed.update(time.monotonic(), moved)
        to_go = f", about {short_duration(left / speed)} to go" if left and speed > 0 else ""
        self._progress.update(moved, text=f"left {grouped(left)}{to_go}")


def _end(report: Report, stop: Stop | None, *, json: bool) -> int:
    status = 0 if report.clean else 1
    if stop is not None and stop.asked:
        status = stop.exit_status
    if json:
        put_json({**report.to_dict(), "exit_status": status}, indent=1)
    _explain(report)
    moved = "moved: not known" if report.moved is None else f"moved {plural(report.moved, 'message')}"
    source = "" if report.moved is None else f", by the {'journal' if report.counted_from == 'journal' else 'brokers'}"
    if report.workers_lost and report.moved != report.gone and report.gone is not None:
        source += f" without the last moments of failed workers ({grouped(report.gone)} left the queues)"
    known = not report.elsewhere and report.unread is None
    empty = "the backlog is empty" if known else "the queues of this pair are empty"
    left = empty if report.emptied else f"left in the backlog: {_number(report.left)}"
    note(f"{moved}{source}; {left}; {short_duration(report.seconds)}")
    return status


def _explain(report: Report) -> None:
    if report.workers_lost:
        warn(
            f"{plural(report.workers_lost, 'worker')} died while working: messages that they had sent but not yet "
            "removed from the backlog may be delivered twice, under one message id"
        )
    for name, why in sorted(report.shut.items()):
        warn(f"{name} takes no messages: {why}")
    left = [queue for queue in report.queues if queue.left != 0]
    for queue in left[:_FEW]:
        reasons = [str(reason) for reason in (queue.ending, queue.problem) if reason and reason != "drained"]
        why = f" ({'; '.join(reasons)})" if reasons else ""
        warn(f"{queue.queue}: {_number(queue.left)} left{why}")
    if len(left) > _FEW:
        warn(f"and {plural(len(left) - _FEW, 'queue')} more")
    if report.dead_lettered:
        hint = "look at them with 'pairmq backlog peek --dead-letter'"
        warn(f"dead-lettered {plural(report.dead_lettered, 'message')}: {hint}")
    for text in report.elsewhere:
        warn(text)
    if report.unread is not None:
        warn(report.unread)
    if report.dead_lettered is None and report.emptied:
        warn("dead-lettered: not known, as a queue could not be counted at the start")
    if report.problem is not None:
        complain(report.problem)


def _number(count: int | None) -> str:
    return "not known" if count is None else grouped(count)
