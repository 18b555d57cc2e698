"""The report: what the tables of a run tell, as one page for people and one document for programs.

The page is one file without scripts: its plots are SVG that is made here, so that it needs no network, opens anywhere
years later, and nothing that a journal says can ever run in it.
"""

from typing import TYPE_CHECKING

from pairmq.pipeline.reporting._door import check_reporting, report

if TYPE_CHECKING:
    from pairmq.pipeline.reporting._report import Written as Written

__all__ = ["check_reporting", "report"]
