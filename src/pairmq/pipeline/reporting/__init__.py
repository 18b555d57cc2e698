"""The report: the results in a run's tables, as one page for people and one document for programs.

The page is one file without scripts: its plots are SVG that is made here, so that it needs no network, opens anywhere
years later, and nothing that a journal says can ever run in it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pairmq.pipeline._storage import is_url, local, reached
from pairmq.pipeline.session import PipelineUnavailable, session

if TYPE_CHECKING:
    from pairmq.pipeline.reporting._report import Written as Written

__all__ = ["check_reporting", "report"]


def check_reporting() -> None:
    """Raise `PipelineUnavailable` where a package is missing that the report needs."""
    try:
        import jinja2  # noqa: F401  # only whether they are there
        import numpy  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise PipelineUnavailable(f"the report needs more packages: pip install 'pairmq[spark]' ({error})") from None


def report(tables: str | os.PathLike[str], to: str | os.PathLike[str] | None = None) -> Written:
    """Write the report of what a run found; the page is ``report.html`` beside the tables when left out.

    The document stands beside the page, and is called the same but for ``.json`` at the end. It needs no Spark, but for
    places at URLs. Each file is put in its place whole.
    """
    check_reporting()
    from pairmq.pipeline.reporting import _report

    if not is_url(tables) and (to is None or not is_url(to)):
        return _report.report(local(tables), None if to is None else local(to))
    with session() as spark:  # only by it they are reached
        return _report.report(reached(tables, spark), None if to is None else reached(to, spark))
