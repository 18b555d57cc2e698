"""The tables as a Spark Declarative Pipeline, for ``spark-pipelines run``.

A pipeline is a folder: a spec, the settings of Spark, and a file of Python that calls `define`. ``project`` beside this
file is such a folder, and `write_project` makes one with somebody's own places in it.
"""

from pairmq.pipeline.declarative._configuration import Configuration, is_url
from pairmq.pipeline.declarative._door import define
from pairmq.pipeline.declarative._project import Project, write_project

__all__ = ["Configuration", "Project", "define", "is_url", "write_project"]
