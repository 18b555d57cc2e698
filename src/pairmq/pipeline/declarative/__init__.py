"""The tables as a Spark Declarative Pipeline, for ``spark-pipelines run``.

A pipeline is a folder: a spec, the settings of Spark, and a file of Python that calls `define`. ``project`` beside this
file is such a folder, and `write_project` makes one with the user's own paths.
"""

from __future__ import annotations

from pairmq.pipeline.declarative._project import Configuration, Project, is_url, write_project
from pairmq.pipeline.session import PipelineUnavailable, check_packages

__all__ = ["Configuration", "Project", "define", "is_url", "write_project"]


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
