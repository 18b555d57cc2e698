"""``pairmq switch``: an operator's decision for all processes of a pair."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from pairmq import Entity, Message
from pairmq.plugins import registry
from pairmq.sync import Pair

pytestmark = pytest.mark.timeout(180)

QUICK = {"control_interval": 0.2, "failover_interval": 0.0, "backlog_queue_count": 2, "syphon_receive_wait": 1.0}

# Processes of the pair, each of which prints the state of "orders" whenever it changes, and when. They are forked: ten
# programs that import everything would take ten times as long to start.
PROCESSES = """
import os, sys, time
from pairmq import Entity
from pairmq.sync import Pair
parent = os.getpid()
for _ in range(int(sys.argv[3])):
    if not os.fork():
        break
else:
    while True:
        os.wait()
with Pair.connect(sys.argv[1], sys.argv[2], control_interval=0.2, backlog_queue_count=2) as pair:
    pair.primary.admin.create(Entity("orders"))
    last = None
    while os.getppid() == parent:
        state = pair.state("orders")
        if state != last:
            os.write(1, f"{os.getpid()} {state.value} {time.monotonic()}\\n".encode())  # whole, also unbuffered
            last = state
        time.sleep(0.05)
"""


@pytest.fixture(params=["memory", "fakeredis"])
def both(request: pytest.FixtureRequest, brokers: list[str]) -> list[str]:
    """The options that name two fresh brokers of each product that needs no server."""
    return [each.replace("memory://", f"{request.param}://") for each in brokers]


@pytest.fixture
def fleet(both: list[str]) -> Iterator[Callable[[int], list[Pair]]]:
    """Opens processes of the pair: here they share a process, as `memory://` does not reach further."""
    with ExitStack() as stack:

        def open_some(count: int) -> list[Pair]:
            pairs = [
                stack.enter_context(Pair.connect(both[1], both[3], enable_syphon=number == 0, **QUICK))
                for number in range(count)
            ]
            pairs[0].primary.admin.create(Entity("orders"))
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                time.sleep(0.1)
                if len(status_of(both)["processes"]) == count:
                    break
            return pairs

        yield open_some


def status_of(brokers: list[str]) -> dict[str, list[dict[str, object]]]:
    """What ``switch status`` reads, without its command line."""
    from pairmq.runner import SwitchWriter

    async def ask() -> dict[str, list[dict[str, object]]]:
        async with registry.transport(brokers[3]) as secondary:
            found = await SwitchWriter(registry.transport(brokers[1]).endpoint, secondary, 10.0).status()
        return {"processes": [{"pid": each.pid} for each in found.processes]}

    return asyncio.run(ask())


def test_hold_and_resume_act_in_all_processes(cli, both, fleet) -> None:
    pairs = fleet(3)
    held = cli("switch", "hold", "orders", *both)
    assert (held.status, {pair.state("orders").value for pair in pairs}) == (0, {"failed-over"})
    assert "followed by 3 of 3 processes" in held.err
    assert "in force: hold of orders" in held.out
    assert held.out.count(f" {os.getpid()} ") == 3
    resumed = cli("switch", "resume", "orders", "--json", *both)
    told = json.loads(resumed.out)
    assert (resumed.status, told["complete"], len(told["followed"]), told["missing"]) == (0, True, 3, [])
    assert {pair.state("orders").value for pair in pairs} <= {"healthy", "draining"}


def test_failover_acts_in_all_processes(cli, both, fleet) -> None:
    pairs = fleet(2)
    assert cli("switch", "failover", "orders", *both).status == 0
    assert {pair.state("orders").value for pair in pairs} == {"failed-over"}


def test_status_shows_the_decision_in_force_and_the_processes(cli, both, fleet) -> None:
    assert "no decision" in cli("switch", "status", *both).out
    fleet(2)[0].primary.admin.create(Entity("prices"))
    cli("switch", "hold", "orders", "prices", "--syphon", *both)
    cli("switch", "resume", "prices", *both)
    shown = cli("switch", "status", *both)
    assert re.search(r"^orders: hold, syphons included, .* ago, by ", shown.out, re.MULTILINE)
    assert re.search(r"^prices: resume .* ago, by ", shown.out, re.MULTILINE)
    told = json.loads(cli("switch", "status", "--json", *both).out)
    assert [(each["entity"], each["action"], each["syphon"]) for each in told["decisions"]] == [
        ("orders", "hold", True),
        ("prices", "resume", False),
    ]
    assert [each["pid"] for each in told["processes"]] == [os.getpid()] * 2


def test_a_decision_without_processes_waits_for_those_that_start(cli, both) -> None:
    ended = cli("switch", "hold", "orders", "--unknown", *both)
    assert (ended.status, "no process of this pair reports; those that start later follow" in ended.err) == (0, True)
    with Pair.connect(both[1], both[3], **QUICK) as pair:
        assert pair.state("orders").value == "failed-over"


def test_a_secondary_that_can_not_be_reached_is_an_error_that_says_that_nothing_changed(cli) -> None:
    ended = cli("switch", "hold", "orders", "--primary", "memory://p", "--secondary", "redis://127.0.0.1:9/0")
    assert ended.status == 1
    assert len(ended.error_lines) == 1
    assert ended.error_lines[0].endswith("; nothing changed")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["hold"], "Missing argument"),
        (["hold", "a//b"], "entity path"),
        (["resume", "orders", "--syphon"], "No such option"),
        (["hold", "orders", "--timeout", "soon"], "soon"),
        (["upgrade", "orders"], "stdin is not a terminal"),
        (["upgrade", "orders", "--until", "later"], "later"),
    ],
)
def test_a_bad_command_line_is_refused(cli, brokers, arguments: list[str], said: str) -> None:
    ended = cli("switch", *arguments, *brokers)
    assert (ended.status, said in ended.err) == (2, True)


@dataclass
class Fleet:
    """Processes that have the pair open.

    Args:
        output: what they print.
        pids: their numbers.
    """

    output: IO[str]
    pids: list[int] = field(default_factory=list)

    def reach(self, state: str, count: int) -> dict[int, float]:
        """Wait until so many have changed to a state; gives when each did."""
        reached: dict[int, float] = {}
        while len(reached) < count:
            pid, changed_to, at = self.output.readline().split()
            if changed_to == state:
                reached[int(pid)] = float(at)
        return reached


@contextmanager
def processes(count: int, urls: list[str]) -> Iterator[Fleet]:
    """Programs that have the pair open."""
    command = [sys.executable, "-c", PROCESSES, *urls, str(count)]
    with ExitStack() as stack:
        parent = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(parent.kill)
        assert parent.stdout is not None
        fleet = Fleet(parent.stdout)
        fleet.pids.extend(fleet.reach("healthy", count))
        for pid in fleet.pids:
            stack.callback(os.kill, pid, signal.SIGKILL)
        yield fleet


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """URLs of two brokers that several programs reach without a server."""
    return [f"sqlite://{tmp_path}/primary.db", f"sqlite://{tmp_path}/secondary.db"]


def stopped(pid: int) -> bool:
    """Whether each thread has stopped; one that is in the kernel, to write for example, goes on until it returns."""
    threads = Path(f"/proc/{pid}/task")
    if not threads.exists():  # another system than Linux shows the whole process
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout
        return state.startswith("T")
    try:
        states = [(each / "stat").read_text("ascii", "replace") for each in threads.iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile
        return False
    return all(state.rpartition(")")[2].split()[0] == "T" for state in states)


def freeze(pid: int, files: list[str]) -> None:
    """Stop a process for a while, at a moment at which it locks neither file, as no other one could write."""
    deadline = time.monotonic() + 60
    while True:
        os.kill(pid, signal.SIGSTOP)
        while not stopped(pid):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            for each in files:
                with closing(sqlite3.connect(each.removeprefix("sqlite://"), timeout=0)) as database:
                    database.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError:
            assert time.monotonic() < deadline
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.01)


def reported(files: list[str], count: int) -> None:
    """Wait until so many programs have reported."""
    deadline = time.monotonic() + 60
    while len(status_of(["", files[0], "", files[1]])["processes"]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_ten_processes_follow_and_a_stopped_one_is_listed(cli, files) -> None:
    options = ["--primary", files[0], "--secondary", files[1]]
    with processes(10, files) as fleet:
        reported(files, 10)
        frozen = fleet.pids[0]
        freeze(frozen, files)
        decided_at = time.monotonic()
        for timeout in (2, 4, 8, 16, 32):  # a busy machine needs more than one
            ended = cli("switch", "hold", "orders", "--timeout", f"{timeout}s", "--json", *options)
            told = json.loads(ended.out)
            if len(told["followed"]) == 9:
                break
        assert ([each["pid"] for each in told["missing"]], ended.status) == ([frozen], 1)
        assert told["missing"][0]["age"] > 1
        followed = fleet.reach("failed-over", 9)
        assert set(followed) == set(fleet.pids[1:])
        ended = cli("switch", "hold", "orders", "--timeout", "1s", *options)
        assert re.search(r"not followed by \d+ process", ended.err)
        (line,) = [each for each in ended.out.splitlines() if f" {frozen} " in each]
        assert re.search(r" no .* ago", line)
        os.kill(frozen, signal.SIGCONT)
        assert cli("switch", "hold", "orders", "--timeout", "60s", *options).status == 0
        assert set(fleet.reach("failed-over", 1)) == {frozen}
        # Shown by -rP; each looks every 0.2 s.
        print(f"MEASURED: nine of ten followed {max(followed.values()) - decided_at:.2f} s after the command began")


def test_ctrl_c_leaves_the_decision_in_force_and_reports_it(files) -> None:
    with processes(1, files) as fleet:
        reported(files, 1)
        freeze(fleet.pids[0], files)
        command = [sys.executable, "-m", "pairmq", "switch", "hold", "orders", "--timeout", "100s"]
        options = ["--primary", files[0], "--secondary", files[1]]
        with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            assert "written" in running.stderr.readline()
            assert "followed by 0 of 1" in running.stderr.readline()
            running.send_signal(signal.SIGINT)
            assert "the decision stays in force" in running.stderr.read()
            assert running.wait(60) == 130
        os.kill(fleet.pids[0], signal.SIGCONT)
        fleet.reach("failed-over", 1)


def test_upgrade_diverts_until_a_line_and_drains(cli, both, fleet) -> None:
    (syphon, sender) = fleet(2)
    stopped = threading.Event()
    routes = []

    def send() -> None:
        with sender.sender("orders") as orders:
            while not stopped.is_set():
                routes.append(orders.send(Message(b"")).route.value)
                time.sleep(0.1)  # the drain may take a minute on a busy machine

    working = threading.Thread(target=send)
    working.start()
    try:
        ended = cli("switch", "upgrade", "orders", "--until", "1s", "--json", *both)
    finally:
        stopped.set()
        working.join()
    told = json.loads(ended.out)
    assert (ended.status, told["drained"], told["hold"]["complete"], told["resume"]["complete"]) == (
        0,
        True,
        True,
        True,
    )
    assert told["backlog"] > 0
    assert routes.count("backlog") >= told["backlog"]
    assert routes[-1] == "primary"
    assert syphon.syphon_holds == frozenset()


def test_upgrade_reads_a_line_and_stays_held_when_there_is_none(cli, both, fleet) -> None:
    (pair,) = fleet(1)
    ended = cli("switch", "upgrade", "orders", "--until", "enter", *both)
    assert ended.status == 1
    assert "stdin ended: the entities stay held; 'pairmq switch resume orders' ends that" in ended.err
    assert pair.state("orders").value == "failed-over"
    ended = cli("switch", "upgrade", "orders", "--until", "enter", *both, stdin=b"\n")
    assert (ended.status, "upgraded: orders" in ended.out) == (0, True)


def test_upgrade_refuses_a_name_that_the_primary_does_not_know(cli, both, fleet) -> None:
    """What it holds would not be what programs send to, and their sends would meet the restart."""
    (pair,) = fleet(1)
    misspelt = cli("switch", "upgrade", "orders", "oders", "--until", "0s", *both)
    assert (misspelt.status, len(misspelt.error_lines)) == (1, 1)
    assert "no queue 'oders', but queue 'orders'" in misspelt.error_lines[0]
    assert misspelt.error_lines[0].endswith("; nothing was written")
    other_kind = cli("switch", "upgrade", "orders", "--kind", "topic", "--until", "0s", *both)
    assert (other_kind.status, "no topic 'orders'" in other_kind.err) == (1, True)
    assert pair.state("orders").value == "healthy"
    assert "no decision" in cli("switch", "status", *both).out


@pytest.mark.parametrize("action", ["hold", "failover", "resume"])
def test_a_misspelt_name_is_refused_unless_it_is_meant(cli, both, fleet, action: str) -> None:
    fleet(1)
    misspelt = cli("switch", action, "orders", "ordres", *both)
    assert (misspelt.status, len(misspelt.error_lines)) == (1, 1)
    assert "no queue 'ordres', but queue 'orders'" in misspelt.error_lines[0]
    assert misspelt.error_lines[0].endswith("or use --unknown for what is created later; nothing was written")
    assert "no decision" in cli("switch", "status", *both).out
    assert cli("switch", action, "orders", "ordres", "--unknown", *both).status == 0


def test_names_are_not_checked_while_the_primary_is_down(cli, brokers) -> None:
    down = ["--primary", "redis://127.0.0.1:9/0", *brokers[2:]]
    ended = cli("switch", "hold", "orders", *down)
    assert (ended.status, "warning: the primary can't say whether it has orders" in ended.err) == (0, True)
