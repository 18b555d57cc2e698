"""Spark's own programs as a user starts them: `spark-submit`, a master with a worker, a server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.testing import assertDataFrameEqual

from pairmq.pipeline.journal_io import spark_path
from pairmq.pipeline.transforms import TABLES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = 600.0
"""Seconds that any of them may take on a computer that has much else to do; no test says that they are fast."""

SMALL = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    # For data this small: what would make a large job fast only makes these start slowly.
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def configured(folder: Path, **more: str) -> Path:
    """Write a folder for ``SPARK_CONF_DIR``, or add to the settings in it."""
    folder.mkdir(exist_ok=True)
    settings = {**SMALL, "spark.local.dir": str(folder / "local"), **more}
    with (folder / "spark-defaults.conf").open("a") as file:
        file.writelines(f"{name} {value}\n" for name, value in settings.items())
    return folder


def environment(settings: Path, **more: str) -> dict[str, str]:
    """What a shell with this Python's environment activated has, and nothing of Spark besides."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {
        **own,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "SPARK_CONF_DIR": str(settings),
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Every Java that Spark starts, also those that take no setting of ours.
        "JDK_JAVA_OPTIONS": _QUICK_JAVA,
        **more,
    }


def ended(command: Sequence[str | Path], env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; all that it started ends with it."""
    process = subprocess.Popen(
        [str(word) for word in command],
        env=dict(env),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        _end_group(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@contextmanager
def daemon(command: Sequence[str | Path], env: Mapping[str, str], log: Path, says: str) -> Iterator[str]:
    """Start a program, and give the first group of what it says once it works."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=dict(env),
            cwd=log.parent,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _told(process, log, says)
    finally:
        _end_group(process)


def _told(process: subprocess.Popen[bytes], log: Path, says: str) -> str:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        found = re.search(says, log.read_text(errors="replace"))
        if found:
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"{process.args} did not say {says!r}: {log.read_text(errors='replace')[-3000:]}")


def _end_group(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Spark's shell scripts start Java in their own group, and Python in Java's."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
        except ProcessLookupError:
            break
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def spark_program(name: str) -> Path:
    """Where PySpark has a script."""
    import pyspark

    root = Path(pyspark.__file__).parent
    (found,) = (root / folder / name for folder in ("bin", "sbin") if (root / folder / name).exists())
    return found


def assert_same_tables(spark: SparkSession, one: Path, other: Path) -> None:
    """Every table of two directories has the same rows and columns."""
    for table in TABLES:
        sides = [spark.read.parquet(spark_path(folder / table.name)) for folder in (one, other)]
        assert sides[0].columns == sides[1].columns, table.name
        assertDataFrameEqual(*sides)
