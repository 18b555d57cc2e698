"""The documents of the pipeline say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

from pairmq.pipeline.transforms import FAULTS, RULES, TABLES
from rich_journal import LOST, write_rich_journal

DOCS = Path(__file__).parents[2] / "docs"


def lines(head, rows):
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in cells)


def test_the_reference_has_every_table_with_its_columns():
    text = (DOCS / "reference" / "pipeline.md").read_text()
    sections = dict(re.findall(r"^## `(\w+)`\n\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == [table.name for table in TABLES]
    for table in TABLES:
        rows = [(f"`{field.column}`", field.type, field.described) for field in table.fields]
        assert sections[table.name].startswith(f"One row: {table.row}.\n"), table.name
        assert lines(("column", "type", "meaning"), rows) in sections[table.name], table.name


def test_the_rules_are_written_down_in_their_order():
    text = (DOCS / "explanation" / "reconciliation.md").read_text()
    rows = [(str(number), f"**{rule.verdict}**", rule.when) for number, rule in enumerate(RULES, start=1)]
    assert lines(("", "verdict", "when"), rows) in text


def test_the_faults_are_named():
    text = (DOCS / "explanation" / "reconciliation.md").read_text()
    (sentence,) = re.findall(r"Faults are (.*?)\.", text, re.DOTALL)
    assert re.findall(r"\*([^*]+)\*", sentence) == [fault.value for fault in FAULTS]


@pytest.mark.long
def test_the_program_of_the_how_to_shows_what_is_lost_and_its_queries_find_it(spark, tmp_path, monkeypatch, capsys):
    page = (DOCS / "how-to" / "run-the-pipeline.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (queries,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    write_rich_journal(tmp_path / "journal")
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "run-the-pipeline.md", "exec"), {})  # what it says is ours
    assert LOST in capsys.readouterr().out
    verdicts = dict(duckdb.sql(queries.split(";")[1]).fetchall())
    assert verdicts["lost"] == 1
    assert duckdb.sql(queries.split(";")[0]).fetchall()
