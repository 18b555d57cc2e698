"""Where Spark comes from, and what is said where it is missing."""

from __future__ import annotations

import builtins
import signal
import stat
import subprocess
import sys

import pytest

from pairmq.pipeline import PipelineUnavailable
from pairmq.pipeline.session import OUR_WAY, check_java, check_packages, heap, session


def java(folder, version="17.0.1", settings=""):
    """A program that says what a Java of that version says."""
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\necho '{settings}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"JAVA_HOME": str(folder)}


def test_java_is_found_by_the_variable_java_home(tmp_path):
    assert check_java(java(tmp_path, "21.0.2")) == 21


@pytest.mark.parametrize(("version", "told"), [("11.0.2", "version 11"), ("1.8.0_400", "version 8"), ("x", "does not")])
def test_a_java_that_is_too_old_is_named_with_what_to_install(tmp_path, version, told):
    with pytest.raises(PipelineUnavailable, match=rf"Java 17 or later.*{told}.*install a Java 17"):
        check_java(java(tmp_path, version))


def test_a_missing_java_is_reported_with_what_to_install(tmp_path):
    with pytest.raises(PipelineUnavailable, match="no java is on PATH; install a Java 17"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(PipelineUnavailable, match="which has no bin/java"):
        check_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(("half", "mebibytes"), [(32 << 30, 3072), (2 << 30, 2048), (1, 512)])
def test_the_heap_is_half_of_the_memory_that_java_sees_within_bounds(tmp_path, half, mebibytes):
    line = f"   size_t MaxHeapSize                              = {half}            {{product}} {{ergonomic}}"
    assert heap(java(tmp_path, settings=line)) == mebibytes


def test_the_heap_has_a_size_where_java_does_not_report_the_memory(tmp_path):
    assert heap(java(tmp_path)) == heap({"PATH": str(tmp_path)}) == 3072


@pytest.fixture
def started(monkeypatch):
    """Starts a program in Java's place, as PySpark does for a session, which is interrupted; gives the process."""

    def start(*command):
        def launch(conf, options):
            options["preexec_fn"] = None  # as PySpark puts its own there
            processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options))
            if command[0] == "cat":
                processes[0].wait()
            raise KeyboardInterrupt

        processes = []
        monkeypatch.setenv("PYSPARK_PYTHON", "python")  # is set where it is missing
        monkeypatch.setattr("pairmq.pipeline.session.check_java", lambda: 17)
        monkeypatch.setattr("pyspark.SparkContext._gateway", None)  # other tests may have started Java
        monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
        monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
        with pytest.raises(KeyboardInterrupt), session():
            pytest.fail("it has a session")
        return processes[0]

    return start


def test_java_ignores_the_signals_that_all_processes_of_a_terminal_or_a_service_get(started):
    """The command that started it gets them too, and has to end its work first."""
    with started("cat", "/proc/self/status") as java:
        (ignored,) = (int(line.split()[1], 16) for line in java.stdout if line.startswith("SigIgn:"))
    assert all(ignored & 1 << number - 1 for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def test_java_is_not_left_behind_when_its_start_is_interrupted(started):
    with started("sleep", "1000") as java:
        assert java.wait() == -signal.SIGKILL


def test_a_missing_pyspark_is_reported_with_the_extra_that_brings_it(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.partition(".")[0] == "pyspark":
            raise ImportError("No module named 'pyspark'")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(PipelineUnavailable, match=r"pip install 'pairmq\[spark\]'"):
        check_packages()


def test_a_session_that_is_given_is_left_running_with_its_own_settings(spark):
    theirs = {"spark.sql.session.timeZone": "America/New_York", "spark.sql.parquet.outputTimestampType": "INT96"}
    assert theirs.keys() == OUR_WAY.keys()
    for name, value in theirs.items():
        spark.conf.set(name, value)
    try:
        with session(spark) as mine:
            assert mine is spark
            assert {name: spark.conf.get(name) for name in OUR_WAY} == OUR_WAY
        assert {name: spark.conf.get(name) for name in theirs} == theirs
        assert spark.range(3).count() == 3
    finally:
        for name, value in OUR_WAY.items():
            spark.conf.set(name, value)


_INTERRUPTED = """
import os, signal, threading
from pairmq.pipeline.session import SMALL, session

before = signal.getsignal(signal.SIGINT)
try:
    with session(settings=SMALL) as spark:
        assert signal.getsignal(signal.SIGINT) is before
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        spark._jvm.java.lang.Thread.sleep(60_000)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.spark
def test_an_interruption_in_a_call_of_java_leaves_no_traceback():
    made = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=300)
    assert (made.returncode, made.stdout) == (0, "interrupted\n")
    assert "Traceback" not in made.stderr
