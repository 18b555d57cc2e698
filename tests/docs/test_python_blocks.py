"""Every block of Python in the documents is run, as it stands there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from doc_blocks import ROOT, Block, example_of, in_languages
from pairmq_rabbitmq.testing import RabbitServer, pool
from pairmq_redis.testing import RedisServer
from pairmq_servicebus.testing import ServiceBusServer

GIVEN = Path(__file__).parent / "given"
"""What a page's reader has already, one file for each page that takes something for granted."""

BLOCKS = in_languages("python")
HERE = [block for block in BLOCKS if not block.not_run and not block.run_by and example_of(block) is None]
TESTS = [block for block in HERE if re.search(r"^(async )?def test_", block.text, re.MULTILINE)]
PROGRAMS = sorted({block.page for block in HERE if block not in TESTS})

CONTOSO = "sb://RootManageSharedAccessKey:KEY@contoso.servicebus.windows.net/"
FABRIKAM = "sb://RootManageSharedAccessKey:KEY@fabrikam.servicebus.windows.net/"
RABBIT = ("amqp://guest:guest@127.0.0.1:5672/", "amqp://guest:guest@127.0.0.1/", "amqp://…")
EAST = ("redis://127.0.0.1:6379/0", "redis://…")
WEST = ("redis://127.0.0.1:6380/0",)


def starts_servers(page: str) -> bool:
    """Whether a page's programs, or what is given to them, name the URL of a server, or simulate for seconds."""
    given = given_to(page)
    texts = [block.text for block in HERE if block.page == page and block not in TESTS]
    texts += [given.read_text("utf-8")] if given.exists() else []
    words = (CONTOSO, FABRIKAM, *RABBIT, *EAST, *WEST, "Server", "simulate(")
    return any(printed in text for text in texts for printed in words)


def given_to(page: str) -> Path:
    """The file of a page: its own name, or for a README the folder's that it stands in."""
    path = Path(page)
    return GIVEN / f"{path.parent.name if path.stem == 'README' and path.parent.name else path.stem}.py"


@pytest.fixture(scope="session")
def rabbit_servers() -> Iterator[Callable[[int], list[RabbitServer]]]:
    """Gives any number of servers that run and hold nothing, the same ones each time: ask once in a test."""
    yield pool.take
    pool.close()


@pytest.fixture
def settled(rabbit_servers: Callable[[int], list[RabbitServer]]) -> Iterator[Callable[[str], str]]:
    """Starts the servers whose URLs a text names, and puts the real URLs in."""
    with ExitStack() as stack:
        makers = {
            (CONTOSO,): lambda: stack.enter_context(ServiceBusServer(queues=["orders"])).url,
            (FABRIKAM,): lambda: stack.enter_context(ServiceBusServer()).url,
            RABBIT: lambda: rabbit_servers(1)[0].url,
            EAST: lambda: stack.enter_context(RedisServer()).url,
            WEST: lambda: stack.enter_context(RedisServer()).url,
        }
        urls: dict[tuple[str, ...], str] = {}

        def settle(text: str) -> str:
            for spellings, make in makers.items():
                for printed in spellings:
                    if printed in text:
                        urls[spellings] = urls.get(spellings) or make()
                        text = text.replace(printed, urls[spellings])
            return text

        yield settle


def ended(command: list[str], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PAIRMQ_")}
    run = subprocess.run(
        [sys.executable, "-W", "error", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.real_server] if starts_servers(page) else []) for page in PROGRAMS]
)
def test_the_blocks_of_a_page_run_one_after_the_other(page: str, settled: Callable[[str], str], tmp_path: Path) -> None:
    parts = []
    given = given_to(page)
    if given.exists():
        parts.append({"place": f"{given.relative_to(ROOT)}:1", "text": settled(given.read_text("utf-8"))})
    parts += [
        {"place": block.place, "text": settled(block.text)}
        for block in HERE
        if block.page == page and block not in TESTS
    ]
    (tmp_path / "blocks.json").write_text(json.dumps(parts))
    ended([str(ROOT / "tests/support/doc_program.py"), "blocks.json"], tmp_path)


@pytest.mark.parametrize("block", TESTS, ids=[block.place for block in TESTS])
def test_a_block_that_is_a_test_passes(block: Block, tmp_path: Path) -> None:
    (tmp_path / "test_block.py").write_text(block.text)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    assert " passed" in ended(["-m", "pytest", "-q", "-p", "no:cacheprovider", "test_block.py"], tmp_path)


def test_a_test_that_is_said_to_run_a_block_names_its_page() -> None:
    wrong = [
        f"{block.place}: {block.run_by}"
        for block in BLOCKS
        if block.run_by
        and not ((ROOT / block.run_by).exists() and Path(block.page).name in (ROOT / block.run_by).read_text("utf-8"))
    ]
    assert wrong == []


def test_an_example_that_is_quoted_is_run_by_a_test() -> None:
    tests = "\n".join(
        path.read_text("utf-8") for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("plugins/*/tests/**/*.py"))
    )
    quoted = {example for block in BLOCKS if (example := example_of(block))}
    assert [example for example in sorted(quoted) if Path(example).name not in tests] == []


def test_next_to_nothing_is_not_run() -> None:
    left_out = [f"{block.place}: {block.not_run}" for block in BLOCKS if block.not_run]
    assert len(left_out) <= 3, left_out
    assert all(len(block.not_run.split()) >= 4 for block in BLOCKS if block.not_run), "each says why"


def test_what_is_not_run_is_python_all_the_same() -> None:
    for block in BLOCKS:
        if block.not_run:
            compile(block.text, block.place, "exec", flags=0x2000, dont_inherit=True)


def test_no_page_is_given_what_it_does_not_need() -> None:
    assert set(GIVEN.glob("*.py")) <= {given_to(page) for page in PROGRAMS}
