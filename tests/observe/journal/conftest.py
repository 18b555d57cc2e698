"""Journals in a test's own directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pairmq.observe.journal import Journal, JournalOptions

MakeJournal = Callable[..., Journal]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[MakeJournal]:
    """Make journals in the test's directory; they are closed at its end."""
    made: list[Journal] = []

    def make(**options: Any) -> Journal:
        made.append(Journal(tmp_path, JournalOptions(**{"flush_interval": 0.01, **options})))
        return made[-1]

    yield make
    for one in made:
        assert one.close(30)


@pytest.fixture
def without_pandas(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs find no pandas, as where only what a journal needs is installed.

    Where it is, Arrow imports it: half of the processor time until a program writes its first row.
    """
    folder = tmp_path_factory.mktemp("packages")
    (folder / "pandas.py").write_text("raise ImportError('it is left out')\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
