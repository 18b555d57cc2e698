"""One Spark session for all tests of the pipeline, and journals that are written by hand."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest

from pairmq.pipeline.session import SMALL, local_settings

_started = []  # the session, once a test has asked for it


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or workers would run another Python
    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder
    settings = {
        **local_settings(2),
        **SMALL,
        # The second number: a task whose worker died is tried again, as on a cluster.
        "spark.master": "local[2,4]",
        "spark.driver.memory": "2g",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    _started.append(session)
    yield session
    _started.clear()
    session.stop()


@pytest.fixture
def verdicts_alone(spark, monkeypatch):
    """Leave all tables empty but those that tell what became of messages: to plan the others takes half of a run."""
    from pairmq.pipeline import _making
    from pairmq.pipeline.transforms import RECONCILIATION, STEPS

    needed = {RECONCILIATION.name}
    for step in reversed(STEPS):
        if step.name in needed:
            needed.update(step.needs)

    def without_rows(step):
        return replace(step, made=lambda *_, **__: spark.createDataFrame([], step.schema))

    steps = tuple(step if step.name in needed else without_rows(step) for step in STEPS)
    monkeypatch.setattr(_making, "STEPS", steps)


@pytest.fixture(scope="module", autouse=True)
def nothing_stays_cached():
    """Forget what a module's tests had cached: every query is compared with all of it, and it fills the heap."""
    yield
    for session in _started:
        session.catalog.clearCache()
