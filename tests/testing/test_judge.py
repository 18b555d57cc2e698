"""The judge of all histories, by what is known of one message in the end."""

from __future__ import annotations

import pytest

from pairmq.testing.history import Result
from pairmq.testing.judge import Account, Verdict

ACCEPTED, DIVERTED, REFUSED, UNKNOWN = ((r,) for r in (Result.PRIMARY, Result.BACKLOG, Result.REFUSED, Result.UNKNOWN))


@pytest.mark.parametrize(
    ("account", "verdicts"),
    [
        (Account(ACCEPTED, 1, "orders"), []),
        (Account(ACCEPTED), [Verdict.LOST]),
        (Account(DIVERTED), [Verdict.LOST]),
        (Account(DIVERTED, excused=True), []),
        (Account(DIVERTED, waiting_in="queue"), [Verdict.NOT_DRAINED]),
        (Account(UNKNOWN), []),
        (Account((None,)), []),
        (Account(REFUSED), []),
        (Account(REFUSED, 0, "queue"), [Verdict.PHANTOM]),
        (Account(REFUSED * 2 + ACCEPTED, 1, "orders"), []),
        (Account((), 1, "orders"), [Verdict.PHANTOM]),
        (Account(ACCEPTED, 2, "orders"), [Verdict.DUPLICATE]),
        (Account(ACCEPTED, 2, "orders", announced=True), []),
        (Account(ACCEPTED * 2, 2, "orders", reasons=(2, 0, 0)), []),
        (Account(ACCEPTED, 2, "orders", announced=True, reasons=(1, 1, 0)), []),
        (Account(ACCEPTED, 2, "orders", announced=True, reasons=(1, 0, 0)), [Verdict.DUPLICATE]),
    ],
)
def test_an_account_gives_its_verdicts(account, verdicts):
    found = list(account.judged("m1"))
    assert [verdict for verdict, _ in found] == verdicts
    assert all(text.startswith("m1 ") for _, text in found)


def test_every_verdict_names_the_promise_that_was_broken():
    assert len({verdict.promise for verdict in Verdict}) == len(Verdict)
