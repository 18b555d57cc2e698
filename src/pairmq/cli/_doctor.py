"""``pairmq doctor``: finds what would go wrong, before it does; reads only."""

from __future__ import annotations

import typer

from pairmq.cli._common import BACKLOG, Json, PairArguments, examples, with_pair
from pairmq.cli._doctor_checks import Finding, Grade, all_checks
from pairmq.cli._errors import printable
from pairmq.cli._output import FAIL, OK, WARN, put_json, say
from pairmq.cli._signals import Stop, run_async

_STYLES = {Grade.OK: OK, Grade.WARN: WARN, Grade.FAIL: FAIL}


def add(app: typer.Typer) -> None:
    """Enter the command into the application."""
    app.command(epilog=examples("pairmq doctor --config pair.toml", "pairmq doctor --json"))(doctor)


@with_pair(BACKLOG)
def doctor(pair: PairArguments, json: Json = False) -> int:
    """Check installation, settings, both brokers and the backlog queues, and say what to do about each problem.

    Exit status: 0 when nothing fails (warnings are allowed), 1 when something does.
    """

    async def run(stop: Stop) -> int:
        findings: list[Finding] = []
        async for finding in all_checks(pair):
            findings.append(finding)
            if not json:
                _show(finding)
        failed = [finding for finding in findings if finding.grade is Grade.FAIL]
        if json:
            put_json({"ok": not failed, "findings": [finding.as_json() for finding in findings]}, indent=2)
        elif failed:
            say(f"{len(failed)} of {len(findings)} checks failed", style=FAIL)
        return 1 if failed else 0

    return run_async(run)


def _show(finding: Finding) -> None:
    say(f"{finding.grade.value:<5} {finding.subject}: {printable(finding.text)}", style=_STYLES[finding.grade])
    if finding.advice:
        say(f"      → {printable(finding.advice)}")
