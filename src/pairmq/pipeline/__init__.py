"""The journal made into tables by Spark: what was lost, how available each entity was, what an outage cost.

Needs PySpark and Java 17: ``pip install 'pairmq[spark]'``. Nothing else of PairMQ imports this package.
"""

from pairmq.pipeline._run import run
from pairmq.pipeline.session import PipelineUnavailable

__all__ = ["PipelineUnavailable", "run"]
