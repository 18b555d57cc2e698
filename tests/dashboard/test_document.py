"""The programs of docs/how-to/watch-with-the-dashboard.md run, and stand there as they are."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pairmq import Entity
from pairmq.testing import memory_broker
from shown_dashboard import client_of

FOLDER = Path(__file__).parents[2] / "docs/how-to"
PAGE = (FOLDER / "watch-with-the-dashboard.md").read_text("utf-8")
QUOTED = dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


@pytest.mark.parametrize("name", sorted(QUOTED))
def test_the_page_quotes_its_examples_as_they_are(name):
    assert QUOTED[name] == (FOLDER / name).read_text("utf-8")


def test_every_example_is_quoted():
    assert set(QUOTED) == {f"examples/{path.name}" for path in (FOLDER / "examples").glob("dashboard_*.py")}


@pytest.mark.parametrize("name", ["dashboard_beside_a_program.py", "dashboard_without_asyncio.py"])
def test_a_program_serves_it_beside_its_work(name):
    environment = {**os.environ, "PAIRMQ_PRIMARY": "memory://east", "PAIRMQ_SECONDARY": "memory://west"}
    program = FOLDER / "examples" / name
    run = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, timeout=500, check=True
    )
    address, *routes = run.stdout.splitlines()
    assert re.fullmatch(r"dashboard: http://127\.0\.0\.1:\d+/#token=\S{32}", address)
    assert routes == ["primary"] * 3
    assert run.stderr == ""


async def test_a_web_application_mounts_it(monkeypatch):
    token = "a-token-of-these-tests"
    async with memory_broker() as east, memory_broker() as west:
        for name, value in (("PRIMARY", east.url), ("SECONDARY", west.url)):
            monkeypatch.setenv(f"PAIRMQ_{name}", value)
        monkeypatch.setenv("DASHBOARD_TOKEN", token)
        file = FOLDER / "examples/dashboard_in_an_application.py"
        spec = importlib.util.spec_from_file_location("dashboard_in_an_application", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        async with module.lifespan(module.app), client_of(module.app, "http://ops.example.com") as client:
            await module.pair.primary.admin.create(Entity("orders"))
            assert (await client.post("/orders", content=b"1")).text == "primary\n"
            assert (await client.get("/ops/pairmq/api/status")).status_code == 401
            headers = {"authorization": f"Bearer {token}"}
            told = (await client.get("/ops/pairmq/api/status", headers=headers)).json()
            assert [row["path"] for row in told["entities"]["rows"]] == ["orders"]
