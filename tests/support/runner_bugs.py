"""Bugs to plant in the runner, which the simulator and the failover machine have to find; they end with the test."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from pairmq.model import SendError
from pairmq.runner._job import MessageLimits, Results
from pairmq.runner._limits import Limit
from pairmq.runner._send import SendProcedure


def accept_failed_attempts(patch: pytest.MonkeyPatch) -> None:
    attempt = SendProcedure._attempt

    async def hopeful(self: Any, *arguments: Any) -> Any:
        return [None] * len(await attempt(self, *arguments))

    patch.setattr(SendProcedure, "_attempt", hopeful)


def send_to_the_backlog_by(patch: pytest.MonkeyPatch, broken: Callable[..., Awaitable[Any]]) -> None:
    patch.setattr(SendProcedure, "_at_backlog", broken)


def refuse_what_is_in_doubt(patch: pytest.MonkeyPatch, error: type[SendError] | None = None) -> None:
    """Raise the error of a refusal, or the one given, for a message that may have been stored."""
    refuse = Results.refuse

    def lying(self: Any, state: Any, job: Any, kind: Any, text: str) -> None:
        job.unknown = False
        refuse(self, state, job, error or kind, text)

    patch.setattr(Results, "refuse", lying)


def mark_no_receipt(patch: pytest.MonkeyPatch) -> None:
    """No receipt says that a second copy may exist."""
    accept = Results.accept

    def forgetful(state: Any, job: Any, *confirmed: Any) -> Any:
        job.result = replace(accept(state, job, *confirmed), maybe_duplicate=False)
        return job.result

    patch.setattr(Results, "accept", staticmethod(forgetful))


def report_no_second_copy(patch: pytest.MonkeyPatch) -> None:
    """Neither a receipt nor an event says that a second copy may exist."""
    report = Results.report

    def silent(self: Any, state: Any, jobs: Any, started: float) -> None:
        for job in jobs:
            job.unknown = False
        report(self, state, jobs, started)

    patch.setattr(Results, "report", silent)


def divert_what_the_primary_can_not_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageLimits, "problem", lambda *arguments: None)


def limit_no_attempt(patch: pytest.MonkeyPatch) -> None:
    begin = Limit.__init__

    def unlimited(self: Any, limits: Any, at: float) -> None:
        begin(self, limits, at + 1e9)

    patch.setattr(Limit, "__init__", unlimited)
