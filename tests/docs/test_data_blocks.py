"""Every block of data in the documents can be read by what it is for."""

from __future__ import annotations

import configparser
import json
import tomllib

import duckdb
import pytest

from command_line import run
from doc_blocks import PAGES, ROOT, Block, blocks, in_languages
from pairmq.pair import load_settings

RUN = {"python", "sh", "console", "sql"}
READ = {"toml", "json", "ini", "yaml"}
SHOWN = {"text", "mermaid", "csharp"}
"""What programs print, what is drawn, and what a reader comes from."""


def each(*languages: str) -> pytest.MarkDecorator:
    found = in_languages(*languages)
    return pytest.mark.parametrize("block", found, ids=[block.place for block in found])


@each("toml")
def test_a_toml_block_is_what_it_stands_for(block: Block, tmp_path) -> None:
    table = tomllib.loads(block.text)
    file = tmp_path / "file.toml"
    file.write_text(block.text)
    if "pair" in table:
        urls = {side: table["pair"].get(side, f"memory://{side}") for side in ("primary", "secondary")}
        load_settings(config=file, environ={}, **urls)
    elif "prices.toml" in block.text:
        assert run(["cost", "--prices", str(file)]) == 0
    else:
        assert set(table) <= {"project", "tool"}


@each("json")
def test_a_json_block_is_json(block: Block) -> None:
    text = block.text.strip()
    json.loads(text if text.startswith(("{", "[")) else f"{{{text}}}")


@each("ini")
def test_an_ini_block_is_a_unit_of_systemd(block: Block) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.read_string(block.text)
    assert set(unit.sections()) == {"Unit", "Service", "Install"}


@each("sql")
def test_an_sql_block_is_sql(block: Block) -> None:
    if block.run_by is not None:
        assert (ROOT / block.run_by).is_file()
        return
    assert duckdb.extract_statements(block.text)


def test_every_block_says_what_it_is() -> None:
    unknown = [
        block.place for page in PAGES for block in blocks(page) if block.language not in RUN | READ | SHOWN | {"promql"}
    ]
    assert unknown == []
