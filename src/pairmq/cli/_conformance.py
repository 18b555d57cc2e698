"""``pairmq conformance``: a transport's suite without a test module, and with defects planted into the transport."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from pairmq.cli._common import Json, examples
from pairmq.cli._output import FAIL, OK, WARN, Progress, cells, note, put_json, say, stdout_console, table
from pairmq.cli._signals import interrupts
from pairmq.cli._values import BadUsage, CommandFailed, plural, printable, shortened

if TYPE_CHECKING:
    from pairmq.testing.conformance.harness import Harness
    from pairmq.testing.conformance.mutation import Finding, Outcome
    from pairmq.testing.defects import Defect

EPILOG = examples(
    "pairmq conformance redis://",
    "pairmq conformance sqlite:// --mutate",
    "pairmq conformance nats:// --harness pairmq_nats.testing:NatsHarness --mutate --only SendsTwice",
)


def conformance(
    url: Annotated[
        str,
        Argument(metavar="URL", help="The transport's scheme, as redis://; a query sets options.", show_default=False),
    ],
    mutate: Annotated[
        bool, Option("--mutate", help="Then plant defects, and find out which the suite misses.")
    ] = False,
    only: Annotated[
        list[str] | None, Option("--only", metavar="NAME", help="With --mutate: only this defect; repeatable.")
    ] = None,
    harness: Annotated[
        str | None, Option("--harness", metavar="MODULE:CLASS", help="Default: that of the plugin's module testing.")
    ] = None,
    json: Json = False,
) -> int:
    """Run the conformance suite against a transport; its harness starts and stops the broker.

    With --mutate each defect of the table that the transport can have is planted into it, one at a time, and the tests
    that can find it run until one fails. A defect that is not found shows what is left untested with this harness.

    Exit status: 0 when all tests passed and every defect was found, 1 when not, 130 after Ctrl-C, 143 after SIGTERM.
    """
    try:
        # Other commands don't need the test kit, nor pytest.
        from pairmq.testing.conformance import mutation
    except ModuleNotFoundError as error:
        raise CommandFailed(str(error)) from None
    if only and not mutate:
        raise BadUsage("--only is for --mutate")
    defects = _chosen(only)
    made = mutation.harness_for(url, harness)
    report = _Report(url, json)
    known = {test for defect in defects for test in defect.found_by}
    tests = [test for test in mutation.TESTS if not only or test in known]
    with _quiet(), made:
        try:
            _run_sound(made, tests, report)
            if mutate and not report.failed:
                _plant(made, defects, report)
            if only and report.missed:
                # Another test than those that should have found it may.
                _run_sound(made, [test for test in mutation.TESTS if test not in known], report)
                defects = [each.defect for each in report.missed]
                report.findings = [each for each in report.findings if each not in report.missed]
                _plant(made, defects, report)
        except KeyboardInterrupt:
            report.show(interrupted=True)
            return interrupts.exit_status
    report.show()
    return report.exit_status


def _chosen(only: list[str] | None) -> list[Defect]:
    from pairmq.testing.defects import DEFECTS

    known = {defect.name: defect for defect in DEFECTS}
    for name in only or ():
        if name not in known:
            raise BadUsage(f"no defect {shortened(name)}: known are {', '.join(known)}")
    return [known[name] for name in only] if only else list(DEFECTS)


def _run_sound(harness: Harness, tests: Sequence[str], report: _Report) -> None:
    from pairmq.testing.conformance.mutation import run_tests

    with Progress("ran", "tests", len(tests)) as progress:
        for count, outcome in enumerate(run_tests(harness, tests), 1):
            report.outcomes.append(outcome)
            progress.update(count, position=count, text=outcome.test)


def _plant(harness: Harness, defects: Sequence[Defect], report: _Report) -> None:
    from pairmq.testing.conformance.mutation import find

    with Progress("planted", "defects", len(defects)) as progress:
        for count, finding in enumerate(find(harness, defects, report.outcomes), 1):
            report.findings.append(finding)
            progress.update(count, position=count, text=finding.defect.name)


class _Report:
    def __init__(self, url: str, json: bool) -> None:
        self._url = url
        self._json = json
        self._began = time.monotonic()
        self.outcomes: list[Outcome] = []
        self.findings: list[Finding] = []

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.error]

    @property
    def missed(self) -> list[Finding]:
        return [each for each in self.findings if not (each.found_by or each.not_applicable)]

    @property
    def exit_status(self) -> int:
        return 1 if self.failed or self.missed else 0

    def show(self, *, interrupted: bool = False) -> None:
        if self._json:
            put_json(self._record(interrupted), indent=2)
            return
        skipped = [outcome for outcome in self.outcomes if outcome.skipped]
        if self.findings:
            rows = table("defect", "clause", "found by")
            for each in self.findings:
                rows.add_row(*cells((each.defect.name, each.defect.clause, _found(each)), _style(each)))
            stdout_console().print(rows)
        for outcome in self.failed:
            say(f"{outcome.test}: {_failure_in_words(outcome.error)}", style=FAIL)
        for reason in sorted({str(outcome.skipped) for outcome in skipped}):
            note(printable(reason), style=WARN)
        seconds = f"{time.monotonic() - self._began:.0f} s"
        passed = len(self.outcomes) - len(self.failed) - len(skipped)
        parts = [f"{plural(passed, 'test')} passed", f"{len(self.failed)} failed", f"{len(skipped)} skipped"]
        if self.findings:
            inapplicable = sum(1 for each in self.findings if each.not_applicable)
            parts.append(f"{plural(len(self.findings) - inapplicable - len(self.missed), 'defect')} found")
            parts += [f"{len(self.missed)} not found", f"{inapplicable} not applicable"]
        ended = " (interrupted)" if interrupted else ""
        say(f"{printable(self._url)}: {', '.join(parts)}, in {seconds}{ended}", style=FAIL if self.exit_status else OK)

    def _record(self, interrupted: bool) -> dict[str, Any]:
        return {
            "url": self._url,
            "seconds": round(time.monotonic() - self._began, 3),
            "interrupted": interrupted,
            "tests": [
                {
                    "test": each.test,
                    "seconds": round(each.seconds, 3),
                    "state": "failed" if each.error else "skipped" if each.skipped else "passed",
                    "reason": each.skipped if each.error is None else _failure_in_words(each.error),
                }
                for each in self.outcomes
            ],
            "defects": [
                {
                    "name": each.defect.name,
                    "clause": each.defect.clause,
                    "seconds": round(each.seconds, 3),
                    "state": "found" if each.found_by else "not-applicable" if each.not_applicable else "not-found",
                    "found_by": each.found_by,
                    "reason": each.not_applicable or "; ".join(each.skipped) or None,
                }
                for each in self.findings
            ],
        }


def _found(finding: Finding) -> str:
    if finding.not_applicable:
        return f"– ({finding.not_applicable})"
    return finding.found_by or "; ".join(("NOT FOUND", *finding.skipped))


def _style(finding: Finding) -> str | None:
    return None if finding.found_by else WARN if finding.not_applicable else FAIL


def _failure_in_words(error: BaseException | None) -> str:
    """The failure in one line, with the clause that it stands for."""
    lines = [f"{type(error).__name__}: {error}".rstrip(": "), *getattr(error, "__notes__", ())]
    return printable("; ".join(line.strip() for line in lines))


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide warnings of what the tests break deliberately, unless they were asked for."""
    logger = logging.getLogger("pairmq")
    level = logger.level
    if level == logging.WARNING:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
