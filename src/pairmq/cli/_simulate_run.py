"""Runs simulations for ``pairmq simulate``: one, many, or one from a file."""

from __future__ import annotations

import hashlib
import json as json_
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pairmq
from pairmq.cli._output import FAIL, OK, Progress, note, put_json, say
from pairmq.cli._signals import interrupts
from pairmq.cli._values import BadUsage, CommandFailed, file_problem, grouped, plural, short_duration
from pairmq.testing.simulator import (
    FAULT_KINDS,
    Counts,
    Outcome,
    Report,
    Scenario,
    Settings,
    Waits,
    campaign,
    handled_text,
    interrupts_noted,
    scenario_of,
)
from pairmq.testing.simulator import replay as replay_scenario
from pairmq.testing.simulator import shrink as shrink_scenario


def settings(
    seeds: Iterable[int], hours: float, faults: str, mode: str | None, ordering: str, continuity: str
) -> list[Settings]:
    """What to simulate. Raises `BadUsage`."""
    kinds = {"all": FAULT_KINDS, "none": ()}.get(faults)
    if kinds is None:
        kinds = tuple(part.strip() for part in faults.split(",") if part.strip())
    try:
        first = Settings(
            hours=hours,
            faults=kinds,
            mode="liveness" if mode == "liveness" else "safety",
            ordering=ordering,  # type: ignore[arg-type]  # it rejects invalid values
            continuity=continuity,  # type: ignore[arg-type]  # likewise
        )
    except ValueError as error:
        raise BadUsage(str(error)) from None
    # In turn: faults to the very end and into the close, and all healed and drained.
    modes = (first.mode, first.mode) if mode else ("safety", "liveness")
    return [replace(first, seed=seed, mode=modes[seed % 2]) for seed in seeds]


def one(what: Settings, *, trace: str | None, shrink: bool, json: bool) -> int:
    return _one(scenario_of(what), trace=trace, shrink=shrink, json=json)


def replay_file(path: str, *, trace: str | None, shrink: bool, json: bool) -> int:
    try:
        scenario = Scenario.from_json(Path(path).read_text("utf-8"))
    except OSError as error:
        raise BadUsage(f"can't read {file_problem(path, error)}") from None
    except ValueError as error:
        raise BadUsage(f"{path}: {error}") from None
    return _one(scenario, trace=trace, shrink=shrink, json=json)


@interrupts_noted()
def many(runs: Sequence[Settings], *, jobs: int, state: str | None, json: bool) -> int:
    """Simulate many seeds; the exit status: 1 with a violation, 130 when Ctrl-C came first, or another signal's."""
    book = _Book(state, runs)
    began = time.monotonic()
    interrupted = False
    try:
        with Progress("simulated", "seeds") as progress:
            for outcome in campaign(book.left, jobs=jobs):
                book.enter(outcome)
                if not outcome.ok and not json:
                    say(f"{outcome.text}\n\n{_again(outcome.settings)}\n", style=FAIL)
                text = f"{grouped(book.hours)} h, {plural(len(book.failed), 'failure')}"
                progress.update(book.done, text=text)
    except KeyboardInterrupt:
        interrupted = True
    book.close()
    seconds = time.monotonic() - began
    if json:
        put_json({**book.summary(), "seconds": round(seconds, 3), "interrupted": interrupted}, indent=1)
    else:
        _report(book, seconds)
    if interrupted:
        resume = "" if state is None else f"; the same command continues from {state}"
        note(f"stopped after {book.done} of {plural(len(runs), 'seed')}{resume}")
        return interrupts.exit_status
    return 1 if book.failed else 0


@interrupts_noted()
def _one(scenario: Scenario, *, trace: str | None, shrink: bool, json: bool) -> int:
    report = replay_scenario(scenario, trace=trace is not None)
    if trace is not None:
        _write(trace, "".join(f"{line}\n" for line in report.trace))
    if shrink and not report.ok:
        report = _smaller(scenario)
    if json:
        put_json(report.to_dict(), indent=1)
    else:
        say(report.text(), style=OK if report.ok else FAIL)
    return 0 if report.ok else 1


def _smaller(scenario: Scenario) -> Report:
    with Progress("tried", "scenarios") as progress:

        def show_progress(runs: int, best: Scenario) -> None:
            left = f"{plural(len(best.faults), 'fault')} and {plural(len(best.traffic), 'shipment')} left"
            progress.update(runs, text=left)

        small = shrink_scenario(scenario, progress=show_progress)
    path = f"simulation-{scenario.seed}.json"
    _write(path, small.to_json())
    note(
        f"{plural(len(small.faults), 'fault')} and {plural(len(small.traffic), 'shipment')} are enough: "
        f"pairmq simulate --replay {path}"
    )
    return replay_scenario(small)


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, "utf-8")
    except OSError as error:
        raise CommandFailed(f"can't write {file_problem(path, error)}") from None


def _again(what: Settings) -> str:
    faults = "" if what.faults == FAULT_KINDS else f" --faults {','.join(what.faults) or 'none'}"
    ordering = "" if what.ordering == "none" else f" --ordering {what.ordering}"
    continuity = "" if what.continuity == "drawn" else f" --continuity {what.continuity}"
    given = f"--hours {what.hours:g} --mode {what.mode}{faults}{ordering}{continuity}"
    return f"again: pairmq simulate --seed {what.seed} {given}"


def _report(book: _Book, seconds: float) -> None:
    counts = book.counts
    speed = f" ({book.fresh_hours / seconds:.2f} h a second)" if seconds > 1 and book.fresh_hours else ""
    done = f"{plural(book.done, 'seed')}, {grouped(book.hours)} h of virtual time in {short_duration(seconds)}{speed}"
    if not book.failed:
        done += f": {plural(counts.messages, 'message')}, {plural(counts.faults, 'fault')}, "
        done += f"{grouped(counts.duplicates)} second copies, each explained"
    say(done)
    for line in handled_text(counts, book.waits):
        say(line)
    if book.failed:
        say(f"violations with seeds {', '.join(map(str, sorted(book.failed)))}", style=FAIL)
    else:
        say("no violation", style=OK)


class _Book:
    """What was done so far, in a file where one is given: a line of settings, then a line a seed."""

    def __init__(self, path: str | None, runs: Sequence[Settings]) -> None:
        self.failed: dict[int, dict[str, Any]] = {}
        self.counts = Counts()
        self.waits: dict[str, Waits] = {}
        self.hours = self.fresh_hours = 0.0
        self.done = 0
        self._path = path
        self._file = None
        self.left: Sequence[Settings] = runs
        if path is None:
            return
        head = _head(runs[0])
        try:
            kept = _whole_lines(Path(path).read_bytes() if Path(path).exists() else b"")
            entries = [json_.loads(line) for line in kept.decode("utf-8").splitlines()]
            if entries and entries[0] != head:
                same = {**entries[0], "source": head["source"]} == head
                other = "another version of the code" if same else "other settings"
                raise BadUsage(f"{path} is of {other}: name another file, or remove it")
            known = {(entry["seed"], entry["mode"]): entry for entry in entries[1:]}
        except (json_.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError):
            raise BadUsage(f"{path} is not a state file of simulations: name another file") from None
        except OSError as error:
            raise CommandFailed(f"can't read {file_problem(path, error)}") from None
        for each in runs:
            if (each.seed, each.mode) in known:
                self._count(known[each.seed, each.mode])
        self.left = [each for each in runs if (each.seed, each.mode) not in known]
        try:
            self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115  # closed by close
            self._file.truncate(len(kept))
            if not entries:
                self._put(head)
        except OSError as error:
            raise CommandFailed(f"can't write {file_problem(path, error)}") from None

    def enter(self, outcome: Outcome) -> None:
        self._count(outcome.result)
        self.fresh_hours += outcome.hours
        if self._file is not None:
            try:
                self._put(outcome.result)
            except OSError as error:
                raise CommandFailed(f"can't write {file_problem(self._path or '', error)}") from None

    def summary(self) -> dict[str, Any]:
        return {
            "seeds": self.done,
            "hours": round(self.hours, 3),
            **asdict(self.counts),
            "waits": {by: each.to_dict() for by, each in self.waits.items()},
            "failures": [self.failed[seed] for seed in sorted(self.failed)],
        }

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _count(self, result: dict[str, Any]) -> None:
        self.done += 1
        self.hours += result["hours"]
        self.counts += Counts(**{name: result[name] for name in Counts.__slots__})
        for by, each in result["waits"].items():
            self.waits[by] = self.waits.get(by, Waits()) + Waits.from_dict(each)
        if not result["ok"]:
            self.failed[result["seed"]] = result

    def _put(self, value: dict[str, Any]) -> None:
        assert self._file is not None  # noqa: S101  # only called with one
        self._file.write(json_.dumps(value) + "\n")
        self._file.flush()


def _whole_lines(text: bytes) -> bytes:
    """All but what a killed run left of a last line; a text without any whole line stays as it is."""
    return text[: text.rfind(b"\n") + 1] or text


def _head(first: Settings) -> dict[str, Any]:
    """What must agree for two runs to share a file: all but seed and mode, which stand with each outcome."""
    return {
        "simulations": 1,
        "source": _source(),
        "hours": first.hours,
        "faults": list(first.faults),
        "ordering": first.ordering,
        "continuity": first.continuity,
    }


def _source() -> str:
    """A fingerprint of the simulated code: results of other code are not valid for it."""
    root = Path(pairmq.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        # The commands are not simulated.
        if "cli" not in path.relative_to(root).parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
