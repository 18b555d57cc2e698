"""``pairmq switch``: an operator's decision for all processes of a pair (SPEC 13.4)."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from typer import Argument, BadParameter, Option

from pairmq.cli._backlog import count_queues
from pairmq.cli._common import (
    BACKLOG,
    SYPHON,
    Json,
    Kind,
    PairArguments,
    backlog_queues,
    entity_of,
    examples,
    failed_at,
    pair_of,
    transport_of,
    transports_of,
    used,
    with_pair,
    within,
)
from pairmq.cli._output import FAIL, cells, note, put_json, say, stdout_console, table, warn
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._syphon import SyphonJob
from pairmq.cli._values import BadUsage, CommandFailed, Duration, duration, grouped, plural, printable, short_duration
from pairmq.model import ConfigurationError, Entity, EntityKind, FailureKind, TransportError
from pairmq.pair import Decision, ProcessReport, Settings, SwitchAction, SwitchReport
from pairmq.runner import SwitchWriter, find_agreement
from pairmq.transport import OwnThreads, Transport

_EPILOG = examples(
    "pairmq switch hold orders prices --config pair.toml",
    "pairmq switch resume orders prices --config pair.toml",
    "pairmq switch upgrade orders --until restart",
    "pairmq switch status --json",
)

group = typer.Typer(
    no_args_is_help=True,
    help="Hold, fail over and resume entities in all processes of the pair, and see which of them follow.",
    epilog=_EPILOG,
)

_SHARED = {name: BACKLOG[name] for name in ("primary", "secondary", "config", "attempt_timeout")}

Entities = Annotated[list[str], Argument(metavar="ENTITY…", help="Queues or topics of the primary.")]
Timeout = Annotated[
    float | None,
    Duration(
        "--timeout", "Wait so long for the processes. Default their longest control_interval and 2s; 0 does not wait."
    ),
]

Unknown = Annotated[
    bool, Option("--unknown", help="Take names that the primary does not know: of entities that are created later.")
]


@group.command()
@with_pair(_SHARED)
def hold(
    pair: PairArguments,
    entities: Entities,
    kind: Kind = EntityKind.QUEUE,
    syphon: Annotated[bool, Option("--syphon", help="Let no syphon deliver to these entities either.")] = False,
    unknown: Unknown = False,
    timeout: Timeout = None,
    json: Json = False,
) -> int:
    """Divert the sends of all processes until 'resume' or 'failover'; no ping ends it.

    The decision is kept on the secondary, so the primary may be stopped; one that responds must know the entities.
    Exit status: 0 when all processes follow, 1 when one does not, or another decision came after it.
    """
    return _switch(pair, SwitchAction.HOLD, entities, kind, syphon, unknown, timeout, json)


@group.command()
@with_pair(_SHARED)
def failover(
    pair: PairArguments,
    entities: Entities,
    kind: Kind = EntityKind.QUEUE,
    unknown: Unknown = False,
    timeout: Timeout = None,
    json: Json = False,
) -> int:
    """Divert the sends of all processes; each process pings, and ends it when the primary responds.

    Exit status as of 'hold'.
    """
    return _switch(pair, SwitchAction.FAILOVER, entities, kind, False, unknown, timeout, json)


@group.command()
@with_pair(_SHARED)
def resume(
    pair: PairArguments,
    entities: Entities,
    kind: Kind = EntityKind.QUEUE,
    unknown: Unknown = False,
    timeout: Timeout = None,
    json: Json = False,
) -> int:
    """Send to the primary again, in all processes; a hold ends, of syphons too.

    Exit status as of 'hold'.
    """
    return _switch(pair, SwitchAction.RESUME, entities, kind, False, unknown, timeout, json)


@group.command()
@with_pair(_SHARED)
def status(pair: PairArguments, json: Json = False) -> int:
    """Show the decisions in force, and the processes of the pair that look for them."""
    settings = pair.settings()
    primary, secondary = transports_of(settings)

    async def run(stop: Stop) -> int:
        async with used(secondary):
            found = await SwitchWriter(primary.endpoint, secondary, settings.options.attempt_timeout).status()
        now = time.time()
        if json:
            put_json(
                {
                    "decisions": [
                        {"entity": entity.path, "kind": entity.kind.value, **_decision_json(decision)}
                        for entity, decision in found.decisions
                    ],
                    "processes": [_process_json(each, now) for each in found.processes],
                    "problems": list(found.problems),
                },
                indent=2,
            )
            return 0
        if not found.decisions:
            say("no decision")
        for entity, decision in found.decisions:
            say(f"{printable(str(entity))}: {_decision_text(decision, now)}")
        for problem in found.problems:
            warn(problem)
        last = [decision.id for _, decision in found.decisions]
        _show_processes([(each, set(last) <= set(each.followed)) for each in found.processes], now)
        return 0

    return run_async(run)


@group.command()
@with_pair(SYPHON)
def upgrade(
    pair: PairArguments,
    entities: Entities,
    kind: Kind = EntityKind.QUEUE,
    until: Annotated[
        str | None,
        Option(
            "--until",
            metavar="enter|restart|DURATION",
            help="When to resume: at a line on stdin (the default on a terminal), when the primary has stopped "
            "responding and responds again, or after so long.",
        ),
    ] = None,
    anyway: Annotated[bool, Option("--anyway", help="Go on although a process does not follow the hold.")] = False,
    unknown: Unknown = False,
    timeout: Timeout = None,
    json: Json = False,
) -> int:
    """Divert all sends while the primary is upgraded: hold, wait, resume, drain, report.

    Holds the entities in all processes, syphons included; waits until the upgrade is done and the primary responds;
    resumes; drains the backlog. Ctrl-C ends the command and leaves the last decision in force. Exit status: 0 when all
    of it was done, 1 when a process does not follow, or a message had to be dead-lettered.
    """
    named = [entity_of(name, kind) for name in entities]
    if until is None:
        if not sys.stdin.isatty():
            raise BadUsage("stdin is not a terminal: add --until restart, --until DURATION, or --until enter")
        until = "enter"
    try:
        wait = None if until in ("enter", "restart") else duration(until)
    except BadParameter as error:
        raise BadUsage(f"--until: {error}, or enter, or restart") from None
    settings = pair.settings(enable_syphon=True)
    job = _Upgrade(settings, named, until, wait, anyway=anyway, unknown=unknown, timeout=timeout, json=json)
    return run_async(job.run, graceful=True)


def _switch(
    pair: PairArguments,
    action: SwitchAction,
    entities: Sequence[str],
    kind: EntityKind,
    syphon: bool,
    unknown: bool,
    timeout: float | None,
    json: bool,
) -> int:
    named = [entity_of(name, kind) for name in entities]
    settings = pair.settings()
    primary, secondary = transports_of(settings)
    limit = settings.options.attempt_timeout

    async def run(stop: Stop) -> int:
        async with primary, secondary:
            turn = _Turn(SwitchWriter(primary.endpoint, secondary, limit), secondary, timeout)
            if not unknown:
                await turn.check_names(stop, primary, named)
            report = None if _asked(stop) else await turn.run(stop, action, named, syphon=syphon)
        if report is None:
            note(f"stopped by {stop.name}: nothing was written")
            return stop.exit_status
        code = stop.exit_status if _asked(stop) else 0 if report.complete else 1
        if json:
            put_json(_report_json(report, stopped=_asked(stop)), indent=2)
        else:
            _show(report)
        if _asked(stop):
            note(f"stopped by {stop.name}: the decision stays in force, and processes go on to follow it")
        return code

    return run_async(run, graceful=True)


@dataclass
class _Turn:
    """Writes one decision and waits for the fleet; without a timeout as long as the processes need."""

    writer: SwitchWriter
    secondary: Transport
    timeout: float | None
    last: SwitchReport | None = field(default=None, init=False)

    async def check_names(self, stop: Stop, primary: Transport, entities: Sequence[Entity]) -> None:
        """A decision for a misspelt name would be followed by no process."""
        try:
            problem = await stop.or_result(self.writer.check_names(primary, entities, force="--unknown"))
        except ConfigurationError as error:
            raise CommandFailed(printable(str(error))) from None
        except TransportError as error:
            raise CommandFailed(f"{failed_at(self.secondary, error)}; nothing changed") from error
        if problem:
            warn(problem)

    async def run(
        self, stop: Stop, action: SwitchAction, entities: Sequence[Entity], *, syphon: bool
    ) -> SwitchReport | None:
        """Return which processes follow, as far as known when a signal comes; None if nothing was written by then."""
        try:
            decision = await stop.or_result(self.writer.write(action, entities, syphon=syphon))
        except TransportError as error:
            failed = failed_at(self.secondary, error)
            doubt = "it may have been written: see 'pairmq switch status'" if error.maybe_applied else "nothing changed"
            raise CommandFailed(f"{failed}; {doubt}") from error
        if decision is None:
            return None
        note(f"{decision.action} of {_names(entities)}: written; waiting for the processes of the pair")
        try:
            report = await stop.or_result(self.writer.watch(decision, self.timeout, self._heard))
        except TransportError as error:
            raise CommandFailed(f"{failed_at(self.secondary, error)}; the decision was written before") from error
        return report or self.last or SwitchReport(decision)

    def _heard(self, report: SwitchReport) -> None:
        if self.last is None or len(self.last.followed) != len(report.followed):
            total = len(report.followed) + len(report.missing)
            note(f"followed by {len(report.followed)} of {plural(total, 'process')}")
        self.last = report


_PROBE = 2.0  # s at most of one question to the primary
_AGAIN = 0.2  # s between two of them: a restart may be over in a second


@dataclass
class _Upgrade:
    """One planned upgrade of the primary: ``until`` is ``enter``, ``restart``, or a text that is a duration."""

    settings: Settings
    entities: Sequence[Entity]
    until: str
    wait: float | None
    anyway: bool
    unknown: bool
    timeout: float | None
    json: bool

    def __post_init__(self) -> None:
        self.limit = self.settings.options.attempt_timeout
        self.report: dict[str, Any] = {"entities": [str(each) for each in self.entities]}

    async def run(self, stop: Stop) -> int:
        began = time.monotonic()
        primary, secondary = transports_of(self.settings)
        async with primary, secondary:
            writer = SwitchWriter(primary.endpoint, secondary, self.limit)
            turn = _Turn(writer, secondary, self.timeout)
            if not self.unknown:
                await turn.check_names(stop, primary, self.entities)
            held = None if _asked(stop) else await turn.run(stop, SwitchAction.HOLD, self.entities, syphon=True)
            if held is None:
                return self._stopped(stop, "nothing was written")
            if _asked(stop):
                return self._stopped(stop, self._still_held())
            self.report["hold"] = _report_json(held, stopped=False)
            if not held.complete and not (self.anyway and not held.overruled):
                _show(held)
                raise CommandFailed(f"not all processes follow the hold: {self._still_held()}; --anyway goes on")
            all_held = time.monotonic()
            await self._until_done(stop, primary)
            if not _asked(stop):
                await self._until_it_responds(stop, primary)
            if _asked(stop):
                return self._stopped(stop, self._still_held())
            diverted = await self._count(primary, secondary)
            resumed = await _Turn(writer, secondary, self.timeout).run(
                stop, SwitchAction.RESUME, self.entities, syphon=False
            )
        if resumed is None:
            return self._stopped(stop, self._still_held())
        all_resumed = time.monotonic()
        self.report["resume"] = _report_json(resumed, stopped=_asked(stop))
        if not resumed.complete:
            _show(resumed)
        drained = await self._drain(stop) if not _asked(stop) else 1
        self.report |= {
            "backlog": diverted,
            "seconds_to_hold": round(all_held - began, 3),
            "seconds_held": round(all_resumed - all_held, 3),
            "seconds_to_drain": round(time.monotonic() - all_resumed, 3),
            "drained": drained == 0,
        }
        if _asked(stop):
            return self._stopped(stop, "the entities are resumed; what is left is drained by 'pairmq syphon'")
        self._end(diverted)
        return 0 if drained == 0 and resumed.complete else 1

    async def _until_done(self, stop: Stop, primary: Transport) -> None:
        if self.wait is not None:
            note(f"held: upgrade the primary now; resuming in {short_duration(self.wait)}")
            await stop.wait(self.wait)
        elif self.until == "restart":
            note("held: restart the primary now; resuming when it has stopped responding and responds again")
            while not _asked(stop) and await self._responds(primary) is None:
                await stop.wait(_AGAIN)
            if not _asked(stop):
                note("the primary has stopped responding")
        else:
            note("held: upgrade the primary now, then press Enter")
            line = await stop.or_result(_line())
            if line is not None and not line:
                raise CommandFailed(f"stdin ended: {self._still_held()}")

    async def _until_it_responds(self, stop: Stop, primary: Transport) -> None:
        said = False
        while not _asked(stop):
            error = await self._responds(primary)
            if error is None:
                return
            if not said:
                said = True
                note(f"waiting for the primary: {printable(str(error))}")
            await stop.wait(_AGAIN)

    async def _responds(self, primary: Transport) -> TransportError | None:
        """Why an entity accepts no writes; None if all do, or refuse in a way that waiting does not change."""
        for entity in self.entities:
            try:
                await within(min(_PROBE, self.limit), primary.admin.probe(entity))
            except TransportError as error:
                if error.kind is not FailureKind.REFUSED:
                    return error
        return None

    async def _count(self, primary: Transport, secondary: Transport) -> int | None:
        options = self.settings.options
        agreement = await find_agreement(primary.endpoint, secondary, options, self.limit)
        queues = (*backlog_queues(primary, options), *agreement.found)
        return (await count_queues(secondary, queues, self.limit)).pending

    async def _drain(self, stop: Stop) -> int:
        settings = self.settings
        opened = pair_of(settings)
        recount = settings.secondary
        job = SyphonJob(opened, lambda: transport_of(recount), until_empty=True, interval=10.0, json=False)
        return await job.run(stop)

    def _end(self, diverted: int | None) -> None:
        if self.json:
            put_json(self.report, indent=2)
            return
        counted = "not known" if diverted is None else plural(diverted, "message")
        say(f"upgraded: {_names(self.entities)}")
        say(f"  all processes held after  {short_duration(self.report['seconds_to_hold'])}")
        say(f"  held for                  {short_duration(self.report['seconds_held'])}")
        say(f"  in the backlog by then    {counted}")
        say(f"  drained in                {short_duration(self.report['seconds_to_drain'])}")

    def _still_held(self) -> str:
        names = " ".join(each.path for each in self.entities)
        kind = "" if self.entities[0].kind is EntityKind.QUEUE else f" --kind {self.entities[0].kind}"
        return f"the entities stay held; 'pairmq switch resume {printable(names)}{kind}' ends that"

    def _stopped(self, stop: Stop, what: str) -> int:
        if self.json:
            put_json({**self.report, "stopped": stop.name}, indent=2)
        note(f"stopped by {stop.name}: {what}")
        return stop.exit_status


def _asked(stop: Stop) -> bool:
    """Whether a signal came; a function, as it may come at any await."""
    return stop.asked


async def _line() -> str:
    """A line of stdin; empty at its end. A thread that reads can't be stopped, so that no exit may wait for it."""
    return await asyncio.wrap_future(OwnThreads().submit(sys.stdin.readline))


# What is printed.


def _show(report: SwitchReport) -> None:
    now = time.time()
    for entity, later in report.overruled:
        note(f"{printable(str(entity))}: overruled by {_decision_text(later, now)}", style=FAIL)
    rows = [(each, True) for each in report.followed] + [(each, False) for each in report.missing]
    if not rows:
        note("no process of this pair reports; those that start later follow")
    _show_processes(rows, now)
    if report.problem:
        note(printable(report.problem), style=FAIL)
    if report.missing:
        text = "has crashed, or is stopped or cut off"
        note(f"not followed by {plural(len(report.missing), 'process')}, which {text}", style=FAIL)
    elif report.complete:
        say(f"in force: {report.decision.action} of {_names(report.decision.entities)}")


def _show_processes(rows: Sequence[tuple[ProcessReport, bool]], now: float) -> None:
    if not rows:
        return
    made = table("process", "host", ("pid", "right"), "syphon", "follows", "last report")
    for each, follows in rows:
        age = f"{short_duration(_age(each, now))} ago"
        values = (each.process[:12], each.host, each.pid, "yes" if each.syphon else "", "yes" if follows else "no", age)
        made.add_row(*cells(values, None if follows else FAIL))
    stdout_console().print(made)


def _names(entities: Sequence[Entity]) -> str:
    shown = ", ".join(printable(str(each)) for each in entities[:5])
    return shown if len(entities) <= 5 else f"{shown} and {grouped(len(entities) - 5)} more"


def _age(report: ProcessReport, now: float) -> float:
    return max(0.0, now - report.at)


def _decision_text(decision: Decision, now: float) -> str:
    syphon = ", syphons included," if decision.syphon else ""
    author = f"{decision.host}, process {decision.pid}"
    return printable(f"{decision.action}{syphon} {short_duration(max(0.0, now - decision.at))} ago, by {author}")


def _decision_json(decision: Decision) -> dict[str, Any]:
    return {name: getattr(decision, name) for name in ("id", "action", "syphon", "at", "host", "pid")}


def _process_json(report: ProcessReport, now: float) -> dict[str, Any]:
    return {
        "process": report.process,
        "host": report.host,
        "pid": report.pid,
        "syphon": report.syphon,
        "control_interval": report.interval,
        "started_at": report.started_at,
        "age": round(_age(report, now), 3),
    }


def _report_json(report: SwitchReport, *, stopped: bool) -> dict[str, Any]:
    now = time.time()
    return {
        "decision": _decision_json(report.decision),
        "entities": [{"path": each.path, "kind": each.kind.value} for each in report.decision.entities],
        "complete": report.complete,
        "followed": [_process_json(each, now) for each in report.followed],
        "missing": [_process_json(each, now) for each in report.missing],
        "overruled": [
            {"path": entity.path, "kind": entity.kind.value, "by": _decision_json(later)}
            for entity, later in report.overruled
        ],
        "problem": report.problem,
        "stopped": stopped,
    }
