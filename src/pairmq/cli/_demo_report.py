"""The end of ``pairmq demo --pipeline``: tables of its journal, and the report of what just happened."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pairmq.cli._errors import BadUsage, CommandFailed, printable
from pairmq.cli._output import note, say
from pairmq.cli._pipeline_report import STYLES, show
from pairmq.cli._progress import Progress

if TYPE_CHECKING:
    from pairmq.pipeline.reporting import Written

_PATIENCE = 1.0  # s: the demo's consumer holds nothing, and the demo waits until it has seen everything
_SIGNALLED = 128  # exit statuses above this are those of signals


class DemoReport:
    """What a demo keeps for its report, and how that is made.

    Args:
        journal: the directory of the journal that was asked for; None for one of its own.
        aside: the result on stdout is JSON, so that people are told on stderr.
        open: show the page in a browser.

    Raises:
        PipelineUnavailable: PySpark, Java or another package is missing: it is said before the demo begins.
        BadUsage: the directory holds a journal already, which the report would judge as well.
        CommandFailed: there is no place for the tables.
    """

    def __init__(self, journal: str | None, *, aside: bool, open: bool) -> None:
        # Spark is no part of what other commands need.
        from pairmq.pipeline import session
        from pairmq.pipeline.reporting import check_reporting

        session.check_packages()
        session.check_java()
        check_reporting()
        if journal is not None and _holds_a_journal(Path(journal)):
            raise BadUsage(
                f"{journal} holds a journal already, and the report of --pipeline is of this demo alone: give "
                "--journal a new directory, or leave it out"
            )
        try:
            # Kept: it is what the page is made of, and the page itself.
            self._folder = Path(tempfile.mkdtemp(prefix="pairmq-demo-"))
        except OSError as error:
            raise CommandFailed(f"can't make a directory for the report: {error.strerror or error}") from None
        self.journal = str(self._folder / "journal") if journal is None else journal
        self._say = note if aside else say
        self._open = open

    def make(self, status: int) -> int:
        """Make the tables and the report.

        Args:
            status: the demo's; one that was stopped is not reported on.

        Returns:
            The exit status: 1 where the report says that something is lost, else the demo's.

        Raises:
            PairMQError: as `pairmq.pipeline.run` and `pairmq.pipeline.reporting.report`.
        """
        if status > _SIGNALLED:
            shutil.rmtree(self._folder, ignore_errors=True)
            return status
        written = self._written()
        content = written.content
        self._say("")
        self._say(f"the journal says: {printable(content['headline'])}", style=STYLES.get(content["verdict"]))
        self._say(f"report: {printable(str(written.page))}")
        if self._open:
            show(written.page)
        return 1 if written.lost else status

    def _written(self) -> Written:
        from pairmq.pipeline import run
        from pairmq.pipeline.reporting import report

        tables = self._folder / "tables"
        note("making the report with Spark: this takes a minute")
        with Progress("made", "tables") as progress:

            def tell(name: str, number: int, total: int) -> None:
                progress.update(number, text=f"of {total}; now {name}")

            run(self.journal, tables, patience=_PATIENCE, progress=tell)
        return report(tables, self._folder / "report.html")


def _holds_a_journal(folder: Path) -> bool:
    """Whether a run would find rows there; what a killed process has left becomes segments when a journal begins."""
    from pairmq.pipeline.journal_io import segment_files

    return bool(segment_files(folder)) or any(folder.glob("_open/*.part"))
