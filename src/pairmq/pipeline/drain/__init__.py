"""A backlog emptied by Spark: the pair's own syphon in every task, one backlog queue each.

For a backlog that is too large for one process. Safe beside any syphon, at-least-once regardless of failures of
workers: see ``docs/how-to/drain-with-spark.md``. Needs PySpark and Java 17: ``pip install 'pairmq[spark]'``.
"""

from pairmq.pipeline.drain._handover import Ending
from pairmq.pipeline.drain._plan import PATIENCE, Plan, make_plan
from pairmq.pipeline.drain._report import QueueReport, Report
from pairmq.pipeline.drain._run import Drain
from pairmq.pipeline.drain._spark import session_settings

__all__ = ["PATIENCE", "Drain", "Ending", "Plan", "QueueReport", "Report", "make_plan", "session_settings"]
