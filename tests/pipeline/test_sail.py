"""Another engine that speaks Spark Connect: Sail makes the same tables.

Sail wants Spark's 4.1 client, which can't be beside the one of these tests: `make test-sail` makes an environment
of its own, whose Python `PAIRMQ_SAIL_PYTHON` names.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pairmq.pipeline import run, schema
from pairmq.pipeline.transforms import FACTS, STEPS
from rich_journal import write_rich_journal
from spark_brokers import SCHEMA
from spark_programs import LIMIT, assert_same_tables

PIPELINE = Path(schema.__file__).parent
PROGRAM = Path(__file__).parents[1] / "support" / "sail_program.py"


def sail_python() -> str | None:
    """A Python that has Sail."""
    python = os.environ.get("PAIRMQ_SAIL_PYTHON", sys.executable)
    asked = "import pysail, pyspark, sys; sys.exit(not pyspark.__version__.startswith('4.1.'))"
    return python if subprocess.run([python, "-c", asked], capture_output=True, check=False).returncode == 0 else None


@pytest.mark.long
@pytest.mark.timeout(3 * LIMIT)
def test_sail_makes_the_same_tables(spark, tmp_path):
    python = sail_python()
    if python is None:
        pytest.skip("needs pysail and Spark's client 4.1: run make test-sail")
    write_rich_journal(tmp_path / "journal")
    made = subprocess.run(
        [python, PROGRAM, tmp_path / "journal", tmp_path / "sail"], capture_output=True, text=True, timeout=LIMIT
    )
    assert made.returncode == 0, made.stderr[-5000:]
    run(tmp_path / "journal", tmp_path / "spark", spark=spark, patience=60.0)
    assert_same_tables(spark, tmp_path / "sail", tmp_path / "spark")


@pytest.mark.parametrize("named", ["pyspark.sql.pandas", "allowMissingColumns"])
def test_nothing_is_used_that_fails_on_sail_or_in_earlier_versions_of_spark(named):
    """PySpark's own parts change with each version, and what fills up columns are nulls without a type."""
    assert [path.name for path in PIPELINE.rglob("*.py") if named in path.read_text("utf-8")] == []


def test_schemas_for_arrow_are_those_that_spark_makes():
    from pyspark.sql.pandas.types import to_arrow_schema

    for each in (*(made.schema for made in (*FACTS, *STEPS)), SCHEMA):
        assert schema.arrow_schema(each).equals(to_arrow_schema(each, timezone="UTC"))
