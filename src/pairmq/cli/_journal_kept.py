"""The journal that a command keeps, and the package that it needs for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from pairmq.model import ConfigurationError

if TYPE_CHECKING:
    from pairmq.observe.journal import Journal

_LONGEST = 10.0  # s that the end of a command waits for its journal


def journal_package() -> ModuleType:
    """Import the journal's package, which takes longer than a command that needs none of it should.

    Raises:
        ConfigurationError: pyarrow is not installed; says how to install it.
    """
    try:
        from pairmq.observe import journal
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error
    return journal


@contextmanager
def kept_journal(directory: str | None) -> Iterator[Journal | None]:
    """Give a command the journal in a directory, and close it in the end; None for none.

    Raises:
        ConfigurationError: it can't be kept there.
    """
    if directory is None:
        yield None
        return
    journal = journal_package().Journal(directory)
    try:
        yield journal
    finally:
        journal.close(_LONGEST)
