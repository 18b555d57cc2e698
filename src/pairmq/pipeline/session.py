"""The Spark session that a run works in: a local one of its own, or the one that is there already.

A run's jobs are tagged, so that they can be found again and ended from any thread.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pairmq.model import ConfigurationError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark.sql import SparkSession

OLDEST_JAVA = 17
"""What Spark 4 needs."""

OUR_WAY = {
    # Hours and minutes are in UTC, in any time zone of the session.
    "spark.sql.session.timeZone": "UTC",
    # Spark's own choice, 96 bits of no standard, takes longer to write, and other readers find no range in it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings for the time of the work."""

_JAVA_PROBE_LIMIT = 30.0  # s: a virtual machine on a busy computer
# A file of its own, because Spark says on the terminal which default it takes, and which level it sets.
_LOGGING = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').resolve().as_uri()}"
KEPT = "spark.pairmq.kept"
"""Setting of a local session: where Spark keeps a run's messages, the name of a storage level.

Other sessions lack it: there they are written to files, which the loss of an executor does not take along.
"""

_OURS = "spark.pairmq.ours"  # a setting that local sessions of ours have

LARGE = {
    KEPT: "DISK_ONLY",
    # Java's own takes several times as long for what is kept.
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    "spark.rdd.compress": "true",
}
"""Settings of a local session for more than Java's heap should hold."""

# What Spark generates for a wide table is longer than Java would compile by itself. Some methods of Spark's own are as
# long, and take seconds to compile, of which only the first few lines are ever reached.
_LONG_METHODS = (
    "org.apache.spark.sql.execution.datasources.v2.DataSourceV2Strategy::apply",
    "org.apache.spark.sql.catalyst.analysis.ResolveSessionCatalog*::applyOrElse",
    "org.apache.spark.sql.execution.SparkStrategies*::apply",
)
# A file says what the second compiler leaves alone. The option for it has to be unlocked, its path may need quotes, and
# what Java says of it must not be on the terminal.
_COMPILERS = f'"-XX:CompilerDirectivesFile={Path(__file__).with_name("compilers.json").resolve()}"'
_JAVA = " ".join(
    (
        # Java begins with so little room for classes and young objects that it looks through all of its heap several
        # times while Spark starts.
        "-XX:+UseParallelGC -XX:MetaspaceSize=256m -Xms512m -XX:NewSize=256m",
        "-XX:-DontCompileHugeMethods -XX:CompileCommand=quiet",
        *(f"-XX:CompileCommand=exclude,{name}" for name in _LONG_METHODS),
        f"-XX:+UnlockDiagnosticVMOptions -XX:-DisplayVMOutput {_COMPILERS}",
        _LOGGING,
    )
)

_PLAIN_PLANS = {
    # Filters that follow from others save no work here, and to look for them is a twentieth of the time of all rules.
    "spark.sql.constraintPropagation.enabled": "false",
    # These look through each plan again and again, another tenth, and find next to nothing in ours.
    "spark.sql.optimizer.excludedRules": ",".join(
        f"org.apache.spark.sql.{name}"
        for name in (
            "execution.datasources.SchemaPruning",
            "execution.datasources.PushVariantIntoScan",
            "catalyst.optimizer.InjectRuntimeFilter",
            "catalyst.optimizer.SimplifyBinaryComparison",
            "catalyst.optimizer.UnwrapCastInBinaryComparison",
            "catalyst.optimizer.GenerateOptimization",
            "catalyst.optimizer.OptimizeOneRowRelationSubquery",
            "catalyst.optimizer.RemoveRedundantAliases",
        )
    ),
}

QUICK = {
    **_PLAIN_PLANS,
    KEPT: "MEMORY_AND_DISK_DESER",
    # Each sort and each aggregation begins with a page, of 32 MiB by Spark's own choice, and most of them are small.
    "spark.buffer.pageSize": "2m",
    # To plan the rest anew after each stage takes longer than what it saves.
    "spark.sql.adaptive.enabled": "false",
}
"""Settings of a local session for messages that its heap should hold."""

ONE_COMPILER = {
    # Without the second compiler Java keeps 48 MiB of compiled code, less than what a run needs: it would compile again
    # and again.
    "spark.driver.extraJavaOptions": f"{_JAVA} -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m",
}
"""Settings of a local session for a run in which Java's second compiler would take longer than what it speeds up."""

ONE_PART = {
    **_PLAIN_PLANS,
    "spark.sql.shuffle.partitions": "1",
    # What is joined there needs no stage of its own that sends a table around.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.disableHints": "true",
    # Spark takes the size of a join for the product of both sides', and cuts anew what seems large by that.
    "spark.sql.sources.fileCompressionFactor": "1e-12",
    # To plan the rest anew after each stage takes longer than what it saves.
    "spark.sql.adaptive.enabled": "false",
}
"""Settings for queries whose rows are all in one partition."""

FEW_ROWS = {
    **ONE_PART,
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Without generated code it is a look-up in a cache for each value.
    "spark.sql.subexpressionElimination.enabled": "false",
}
"""Settings for queries of little data: to compile for speed takes longer than the work."""

SMALL = {**FEW_ROWS, "spark.default.parallelism": "1", **QUICK, **ONE_COMPILER}
"""Settings of a local session for a small journal."""

_LARGEST_HEAP = 3072  # MiB, so that all of the virtual machine stays below 4 GiB
_SMALLEST_HEAP = 512  # MiB: Spark does not start with less than 450


class PipelineUnavailable(ConfigurationError):
    """The pipeline can't work on this computer: Spark or Java is missing. The text says what to install."""


@contextmanager
def session(
    given: SparkSession | None = None,
    *,
    cores: int | None = None,
    settings: Mapping[str, str] | None = None,
    errors: IO[bytes] | None = None,
) -> Iterator[SparkSession]:
    """Give a session to work in.

    In this order: the one given; one that is active in this process; the one that ``spark-submit`` or ``SPARK_REMOTE``
    describes; else a local one, which is stopped at the end. Sessions that others made are left running, and their
    settings are left alone but for `OUR_WAY`, which is restored. Of a local one, the settings come above
    `local_settings`, and what Java says on its own goes to the file of errors, if there is one.
    """
    check_packages()
    from pyspark.sql import SparkSession

    theirs = given or SparkSession.getActiveSession()
    if theirs is None and _is_described():
        theirs = SparkSession.builder.getOrCreate()
    if theirs is not None:
        with _our_way(theirs):
            yield theirs
        return
    check_java()
    loggers = [logging.getLogger(name) for name in (None, "py4j.clientserver")]
    for logger in loggers:
        logger.addFilter(_is_no_interruption)
    try:
        mine = _local({**local_settings(cores or usable_cores()), **(settings or {})}, errors)
        try:
            yield mine
        finally:
            mine.stop()
    finally:
        for logger in loggers:
            logger.removeFilter(_is_no_interruption)


def _is_no_interruption(record: logging.LogRecord) -> bool:
    """Leave out what py4j logs, with a traceback, of Ctrl-C in a call of Java: it raises the interruption as well."""
    error = record.exc_info[1] if record.exc_info else None
    return not any(isinstance(each, KeyboardInterrupt) for each in (error, error and error.__context__))


def beside(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession | None:
    """Give a session beside a local one of ours, with `FEW_ROWS` or `ONE_PART`; None beside others."""
    if spark.conf.get(_OURS, None) is None:
        return None
    made = spark.newSession()
    for name, value in settings.items():
        made.conf.set(name, value)
    return made


def local_settings(cores: int) -> dict[str, str]:
    """Return the settings of a local session with so many threads that compute."""
    return {
        _OURS: "true",
        "spark.app.name": "pairmq pipeline",
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": f"{heap()}m",
        # Faster than G1 for batches on few cores; pauses don't matter here.
        "spark.driver.extraJavaOptions": _JAVA,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark keeps the plans of ended queries for a page that is not served here: of a follower's thousands, and of
        # these sizes, more than its heap.
        "spark.sql.ui.retainedExecutions": "5",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        # Help for those who write queries by hand: Spark notes where in the program each column is named, formats each
        # plan for that page, and checks it after each rule.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        "spark.sql.dataFrameQueryContext.enabled": "false",
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.lightweightPlanChangeValidation": "false",
        **OUR_WAY,
        # More partitions than this bring empty tasks; adaptive execution joins small ones and splits skewed ones.
        "spark.sql.shuffle.partitions": str(4 * cores),
        # The first of two tables that Spark aggregates in hashes texts byte by byte.
        "spark.sql.codegen.aggregate.map.twolevel.enabled": "false",
        # Rows that are where their group is need no sum of sums: one pass instead of two.
        "spark.sql.execution.combineAdjacentAggregation": "true",
        # A run has more generated classes than Spark keeps by itself: it would compile them anew with each run.
        "spark.sql.codegen.cache.maxEntries": "1000",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }


def check_java(environment: Mapping[str, str] = os.environ) -> int:
    """Find the Java that Spark would start, by ``JAVA_HOME`` and then ``PATH``, and return its major version."""
    how = f"install a Java {OLDEST_JAVA} runtime (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
    java = _java(environment)
    if java is None:
        home = environment.get("JAVA_HOME")
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "no java is on PATH"
        raise PipelineUnavailable(f"Spark needs Java: {where}; {how}")
    try:
        answer = _answer(java).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PipelineUnavailable(f"Spark needs Java: {java} does not start ({error}); {how}") from None
    version = re.search(r'version "(?:1\.)?([0-9]+)', answer)
    if version is None or int(version[1]) < OLDEST_JAVA:
        found = "does not report its version" if version is None else f"is version {version[1]}"
        raise PipelineUnavailable(f"Spark needs Java {OLDEST_JAVA} or later: {java} {found}; {how}")
    return int(version[1])


def heap(environment: Mapping[str, str] = os.environ) -> int:
    """Return the size of Java's heap in MiB: half of the memory, as Java and Python need some beside it.

    Java itself knows how much memory there is, less where a container or another control group limits it.
    """
    java = _java(environment)
    try:
        found = None if java is None else re.search(r"MaxHeapSize += ([0-9]+)", _answer(java).stdout)
    except (OSError, subprocess.TimeoutExpired):
        found = None
    return _LARGEST_HEAP if found is None else max(_SMALLEST_HEAP, min(_LARGEST_HEAP, int(found[1]) // 2**20))


def _java(environment: Mapping[str, str]) -> str | None:
    home = environment.get("JAVA_HOME")
    return shutil.which(str(Path(home, "bin", "java")) if home else "java", path=environment.get("PATH"))


@cache
def _answer(java: str) -> subprocess.CompletedProcess[str]:
    """Have the Java that Spark would start report its version, and on the other stream its settings."""
    command = [java, "-XX:MaxRAMPercentage=50", "-XX:+PrintFlagsFinal", "-version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=_JAVA_PROBE_LIMIT, check=False)  # noqa: S603


def check_packages() -> None:
    """Raise `PipelineUnavailable` where PySpark is missing or too old."""
    try:
        import pyarrow  # noqa: F401  # only whether it is there
        import pyspark
    except ImportError as error:
        raise PipelineUnavailable(f"the pipeline needs PySpark: pip install 'pairmq[spark]' ({error})") from None
    if int(pyspark.__version__.partition(".")[0]) < 4:
        raise PipelineUnavailable(f"PySpark is {pyspark.__version__}: the pipeline needs 4.0 or later")


def is_given() -> bool:
    """Whether a call of this thread would work in a session that others made."""
    from pyspark.sql import SparkSession

    return _is_described() or SparkSession.getActiveSession() is not None


def _is_described() -> bool:
    """Whether the environment selects the Spark to use."""
    return bool(os.environ.get("SPARK_REMOTE") or os.environ.get("PYSPARK_GATEWAY_PORT"))


_ASKED = {
    "api.python.PythonUtils": ("toSeq",),
    "sql.functions": ("col", "expr"),
}


class _Start(dict[str, Any]):
    """How PySpark starts Java, and as which process.

    Java ignores, beside Ctrl-C, what else a closed terminal or a service manager sends to all processes: the command
    ends it in order, and it ends by itself when the pipe to it is closed. PySpark would put its own function here, for
    Ctrl-C alone.
    """

    def __init__(self, errors: IO[bytes] | None) -> None:
        super().__init__(stderr=errors)
        self._reading, self._writing = os.pipe()

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, self._begin if name == "preexec_fn" else value)

    def _begin(self) -> None:
        os.write(self._writing, str(os.getpid()).encode())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def undo(self) -> None:
        """Kill what was started: PySpark leaves it behind where it is interrupted, and it would wait forever."""
        os.close(self._writing)
        with os.fdopen(self._reading) as file, suppress(ValueError, ProcessLookupError):
            os.kill(int(file.read()), signal.SIGKILL)

    def close(self) -> None:
        os.close(self._writing)
        os.close(self._reading)


def _launched(settings: Mapping[str, str], errors: IO[bytes] | None) -> JavaGateway:
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    start = _Start(errors)
    try:
        gateway = launch_gateway(SparkConf().setAll([*settings.items()]), start)  # type: ignore[no-untyped-call]
    except BaseException:
        start.undo()
        raise
    start.close()
    return gateway


def _local(settings: Mapping[str, str], errors: IO[bytes] | None = None) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # Workers of an environment that is not activated would run another Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is None:
        SparkContext._ensure_initialized(gateway=_launched(settings, errors))
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    handler = signal.getsignal(signal.SIGINT)
    made = builder.getOrCreate()
    # PySpark's calls Java in the midst of another call, which fails, and it stays when the session has ended. Those who
    # wait for jobs cancel them.
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
    if hasattr(made, "_jsparkSession"):
        # PySpark names these for every column, and would ask Java each time, which looks for a class in all archives.
        for name, members in _ASKED.items():
            known, full = getattr(made._jvm, f"org.apache.spark.{name}"), f"org.apache.spark.{name}"
            for called in (full, name.rpartition(".")[2]):
                setattr(made._jvm, called, known)
            for member in members:
                setattr(known, member, getattr(known, member))
    return made


@contextmanager
def _our_way(spark: SparkSession) -> Iterator[None]:
    """Settings of the caller's session that the tables depend on."""
    before = {name: spark.conf.get(name) for name in OUR_WAY}
    for name, value in OUR_WAY.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, kept in before.items():
            if kept is not None:
                spark.conf.set(name, kept)


def usable_cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_WHERE = ("callSite.short", "callSite.long")


class Tag:
    """Tags jobs, to distinguish them from others of the session, which may be the caller's."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._text = f"{name}-{secrets.token_hex(4)}"
        self._cancel: Callable[[str], object]
        self._context = spark.sparkContext if hasattr(spark, "_jsparkSession") else None
        if self._context is not None:
            context = self._context
            self._add, self._remove, self._cancel = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
        else:
            self._add, self._remove, self._cancel = spark.addTag, spark.removeTag, spark.interruptTag

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Mark what this thread begins meanwhile."""
        self._add(self._text)
        # Spark would look through the stack for where each of its data sets was made, a tenth of what planning takes.
        before = {name: self._context.getLocalProperty(name) for name in _WHERE} if self._context is not None else {}
        self._say_where(dict.fromkeys(before, self._text))
        try:
            yield
        finally:
            self._say_where(before)
            self._remove(self._text)

    def _say_where(self, texts: Mapping[str, str | None]) -> None:
        for name, text in texts.items():
            self._context.setLocalProperty(name, text)  # type: ignore[union-attr,arg-type]  # None removes it

    def interrupt(self) -> None:
        """End the marked jobs that have begun."""
        self._cancel(self._text)
