"""The unit of `docs/how-to/run-the-syphon-as-a-service.md` works when it is copied."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from doc_blocks import Block, in_languages

PROGRAM = "/opt/pairmq/bin/pairmq"
VERIFIER = shutil.which("systemd-analyze")


@pytest.fixture
def block() -> Block:
    (found,) = in_languages("ini")
    return found


@pytest.fixture
def service(block: Block) -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # as the parser's documents say
    unit.read_string(block.text)
    return unit["Service"]


def test_settings_that_can_not_work_are_not_tried_again(service: configparser.SectionProxy) -> None:
    assert service["Restart"] == "on-failure"
    assert "2" in service["RestartPreventExitStatus"].split()


def test_the_journal_is_where_the_service_may_write(service: configparser.SectionProxy) -> None:
    words = service["ExecStart"].split()
    journal = words[words.index("--journal") + 1]
    assert service["ProtectSystem"] == "strict"
    assert journal.startswith(f"%S/{service['StateDirectory']}/")


def test_the_page_makes_the_user_and_the_program_of_the_unit(block: Block, service: configparser.SectionProxy) -> None:
    page = Path(__file__).parents[2].joinpath(block.page).read_text("utf-8")
    assert f"nologin {service['User']}\n" in page
    assert service["ExecStart"].startswith(f"{PROGRAM} ")
    assert f"python3 -m venv {Path(PROGRAM).parents[1]}\n" in page
    assert "[cli,journal]" in page


@pytest.mark.skipif(VERIFIER is None, reason="systemd-analyze is not installed: apt-get install systemd")
def test_systemd_finds_nothing_wrong_with_the_unit(block: Block, tmp_path: Path) -> None:
    program = tmp_path / "pairmq"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "pairmq-syphon@.service"
    unit.write_text(block.text.replace(PROGRAM, str(program)))
    command = [str(VERIFIER), "verify", "--man=no", "--recursive-errors=no", str(unit)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "LC_ALL": "C"})
    assert (ended.returncode, ended.stderr) == (0, "")
