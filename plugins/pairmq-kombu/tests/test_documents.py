"""What the how-to shows is so: its application runs, and the primary is killed in the midst of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer

EXAMPLES = Path(__file__).parents[3] / "docs/how-to/examples"
SCRIPTS = Path(sys.executable).parent
DOCUMENT = EXAMPLES.parent / "use-with-celery.md"


@pytest.fixture
def environment(rabbit: RabbitServer, redis: RedisServer, tmp_path: Path) -> dict[str, str]:
    (tmp_path / "orders").touch()
    return {
        **os.environ,
        "PAIRMQ_PRIMARY": rabbit.url,
        "PAIRMQ_SECONDARY": redis.url,
        "ORDERS": str(tmp_path / "orders"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:  # how it ends is not what is tested here
        process.kill()
        process.wait()


QUORUM = """
import sys

from celery_app import app, place_order

app.conf.update(task_default_queue_type="quorum", task_default_exchange_type="topic")
if __name__ == "__main__":
    for number in sys.argv[1:]:
        place_order.apply_async((int(number),), countdown=1 if number != "0" else None)
"""
"""The example with the settings that the page names for quorum queues; tasks but for number 0 are delayed."""


@pytest.fixture(params=["celery_app", "quorum_app"])
def module(request: pytest.FixtureRequest, environment: dict[str, str], tmp_path: Path) -> str:
    """The application's module, which is found where the programs of the test run."""
    (tmp_path / "quorum_app.py").write_text(QUORUM)
    folders = (str(EXAMPLES), str(tmp_path), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    return str(request.param)


@pytest.fixture
def programs(module: str, environment: dict[str, str], tmp_path: Path) -> Iterator[None]:
    """The worker and the syphon, as the example's first lines say."""
    with ExitStack() as ended:
        for name, command in {
            "worker": ["celery", "-A", module, "worker", "--concurrency", "2"],
            "syphon": ["pairmq", "syphon", "--ping-interval", "1s"],
        }.items():
            log = ended.enter_context((tmp_path / f"{name}.log").open("w"))
            process = subprocess.Popen(
                [SCRIPTS / command[0], *command[1:]],
                cwd=EXAMPLES,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            ended.callback(end, process)
        yield


@pytest.mark.real_server
def test_the_example_outlives_its_broker(
    rabbit: RabbitServer, module: str, environment: dict[str, str], tmp_path: Path, programs: None
) -> None:
    def send(*numbers: int) -> None:
        command = [sys.executable, "-m", module, *map(str, numbers)]
        run = subprocess.run(
            command, cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert run.returncode == 0, run.stderr

    def wait_for(*numbers: int) -> None:
        until = time.monotonic() + 120
        while not set(numbers) <= set(map(int, (tmp_path / "orders").read_text().split())):
            assert time.monotonic() < until, (tmp_path / "worker.log").read_text()[-2000:]
            time.sleep(0.1)

    send(0)
    wait_for(0)  # so that the worker has made what delayed tasks go by
    send(1, 2)
    wait_for(1, 2)
    rabbit.kill()
    send(3, 4)
    rabbit.start()
    wait_for(3, 4)


def test_the_settings_that_the_page_shows_are_those_of_the_example() -> None:
    shown = re.search(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert shown is not None
    example = (EXAMPLES / "celery_app.py").read_text()
    missing = [line for line in shown[1].splitlines() if line.strip() and line not in example]
    assert missing == []
