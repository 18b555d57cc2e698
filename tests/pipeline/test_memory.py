"""How much memory Spark takes, on computers and in containers that limit it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pairmq.pipeline import _memory
from pairmq.pipeline._memory import usable_memory
from pairmq.pipeline.session import heap_of, local_settings

GIB = 2**30
COMPUTER = 64 * GIB
UNLIMITED = 9_223_372_036_854_771_712  # what version 1 says for none


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A file system of a computer with 64 GiB."""
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": COMPUTER // 4096}
    monkeypatch.setattr(_memory.os, "sysconf", pages.__getitem__)
    return tmp_path


def write(root: Path, name: str, text: object) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def version_2(root, group, *, shown="/", place="/sys/fs/cgroup"):
    write(root, "proc/self/cgroup", f"0::{group}")
    write(root, "proc/self/mountinfo", f"30 23 0:26 {shown} {place} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate")


def version_1(root, group, *, shown="/"):
    write(root, "proc/self/cgroup", f"9:name=systemd:/x\n4:memory:{group}\n2:cpu,cpuacct:/y\n0::/")
    lines = [
        "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct",
        f"31 23 0:27 {shown} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
    ]
    write(root, "proc/self/mountinfo", "\n".join(lines))


def test_without_control_groups_the_computer_s_memory_counts(root):
    assert usable_memory(root) == COMPUTER


def test_a_container_s_limit_counts(root):
    version_2(root, "/")
    write(root, "sys/fs/cgroup/memory.max", 2 * GIB)
    assert usable_memory(root) == 2 * GIB


def test_a_limit_above_what_the_computer_has_does_not_count(root):
    version_2(root, "/")
    write(root, "sys/fs/cgroup/memory.max", 2 * COMPUTER)
    assert usable_memory(root) == COMPUTER


def test_a_group_without_a_limit_has_none(root):
    version_2(root, "/user.slice")
    write(root, "sys/fs/cgroup/user.slice/memory.max", "max")
    assert usable_memory(root) == COMPUTER


@pytest.mark.parametrize("lowest", ["a", "a/b", "a/b/c"])
def test_the_lowest_limit_from_the_own_group_to_the_outermost_counts(root, lowest):
    version_2(root, "/a/b/c")
    for each in ("a", "a/b", "a/b/c"):
        write(root, f"sys/fs/cgroup/{each}/memory.max", 3 * GIB if each == lowest else "max")
    assert usable_memory(root) == 3 * GIB


def test_a_limit_of_version_1_counts(root):
    version_1(root, "/docker/abc")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED)
    write(root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", GIB)
    assert usable_memory(root) == GIB


def test_version_1_without_a_limit_has_none(root):
    version_1(root, "/")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", UNLIMITED)
    assert usable_memory(root) == COMPUTER


@pytest.mark.parametrize("shown", ["/docker/abc", "/"])
def test_a_group_that_is_named_as_it_is_outside_is_found_inside(root, shown):
    version_1(root, "/docker/abc", shown=shown)
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", GIB)
    assert usable_memory(root) == GIB


def test_a_group_below_the_one_that_is_shown_is_found(root):
    version_1(root, "/docker/abc/worker", shown="/docker/abc")
    write(root, "sys/fs/cgroup/memory/worker/memory.limit_in_bytes", GIB)
    assert usable_memory(root) == GIB


def test_a_place_with_a_blank_in_its_name_is_found(root):
    version_2(root, "/", place="/my\\040groups")
    write(root, "my groups/memory.max", GIB)
    assert usable_memory(root) == GIB


@pytest.mark.parametrize("text", ["", "x", "0", "0::", "4:memory:/../../..", "\x00"])
def test_odd_files_are_passed_over(root, text):
    version_2(root, "/")
    write(root, "proc/self/cgroup", text)
    write(root, "proc/self/mountinfo", f"{text}\n30 23 - cgroup2\n - ")
    assert usable_memory(root) == COMPUTER


def test_a_system_that_does_not_report_its_memory_is_known_by_its_limits_alone(root, monkeypatch):
    monkeypatch.delattr(_memory.os, "sysconf")
    assert usable_memory(root) is None
    version_2(root, "/")
    write(root, "sys/fs/cgroup/memory.max", GIB)
    assert usable_memory(root) == GIB


@pytest.mark.parametrize(("memory", "heap"), [(None, 3072), (COMPUTER, 3072), (4 * GIB, 2048), (GIB, 512), (1, 512)])
def test_the_heap_is_half_of_the_memory_within_bounds(memory, heap):
    assert heap_of(memory) == heap


def test_a_local_session_s_heap_goes_by_what_this_process_may_use():
    known = usable_memory()
    assert known is not None
    assert known <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert local_settings(1)["spark.driver.memory"] == f"{heap_of(known)}m"
