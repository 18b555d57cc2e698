"""The door to the graph, which says clearly what is missing before anything that needs it is imported."""

from __future__ import annotations

from pairmq.pipeline.session import PipelineUnavailable, check_packages


def define() -> None:
    """Enter all facts and tables into the pipeline that ``spark-pipelines`` is reading.

    The journal, the patience and the prices are taken from the session's configuration, where the spec has put them.

    Raises:
        PipelineUnavailable: this PySpark has no declarative pipelines.
        ConfigurationError: the configuration names no journal, or has a value that can't be.
    """
    check_packages()
    try:
        import pyspark.pipelines  # noqa: F401  # only whether it is there
    except ImportError as error:
        raise PipelineUnavailable(
            f"declarative pipelines need more of PySpark: pip install 'pairmq[spark-connect]' ({error})"
        ) from None
    from pairmq.pipeline.declarative import _graph

    _graph.define()
