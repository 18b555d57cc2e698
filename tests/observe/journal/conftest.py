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
