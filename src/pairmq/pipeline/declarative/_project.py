"""Writes the folder that ``spark-pipelines`` runs, with somebody's own places in it."""

from __future__ import annotations

import importlib.resources
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pairmq.model import ConfigurationError
from pairmq.pipeline._writing import writing
from pairmq.pipeline.declarative._configuration import Configuration

SPEC, SPARK_SETTINGS, DEFINITIONS = "spark-pipeline.yml", "spark-defaults.conf", "definitions.py"


@dataclass(frozen=True, slots=True)
class Project:
    """A folder that ``spark-pipelines`` can run.

    Args:
        folder: it.
        tables: where its tables are put.
    """

    folder: Path
    tables: Path

    @property
    def command(self) -> tuple[str, ...]:
        """What runs it, given that ``SPARK_CONF_DIR`` names the folder."""
        return ("spark-pipelines", "run", "--spec", str(self.folder / SPEC))


def write_project(
    folder: str | os.PathLike[str], configuration: Configuration, tables: str | os.PathLike[str]
) -> Project:
    """Write a pipeline's folder.

    Args:
        folder: made where it is missing; the catalog is kept in it as well.
        configuration: of the pipeline.
        tables: the directory of the tables.

    Returns:
        What was written.

    Raises:
        ConfigurationError: the folder has files of these names, can't be written, or a path has characters that
            Spark's files of settings can't hold.
    """
    project = Project(Path(folder).resolve(), Path(tables).resolve())
    values = {**configuration.settings(), "storage": (project.folder / "storage").as_uri()}
    catalog = project.folder / "catalog"
    texts = {
        SPEC: _filled(_shipped(SPEC), {name: _yaml(value) for name, value in values.items()}, ": "),
        SPARK_SETTINGS: _filled(
            _shipped(SPARK_SETTINGS),
            {
                "spark.sql.warehouse.dir": _plain(project.tables),
                "spark.driver.extraJavaOptions": f'"-Dderby.system.home={_plain(catalog)}"',
            },
            "  ",
        ),
        DEFINITIONS: _shipped(DEFINITIONS),
    }
    for name in texts:
        if (project.folder / name).exists():
            raise ConfigurationError(f"{project.folder / name} is there already: remove it, or name another folder")
    try:
        project.folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with writing(project.folder / name):
                (project.folder / name).write_text(text, "utf-8")
    except OSError as error:
        raise ConfigurationError(f"can't write {error.filename}: {error.strerror or error}") from None
    return project


def _shipped(name: str) -> str:
    return (importlib.resources.files(__package__) / "project" / name).read_text("utf-8")


def _filled(text: str, values: Mapping[str, str], between: str) -> str:
    """Put values behind their names, each of which stands in the text once."""
    for name, value in values.items():
        pattern = rf"^( *{re.escape(name)}{between} *).*$"
        text, found = re.subn(pattern, lambda match, value=value: match[1] + value, text, flags=re.MULTILINE)  # type: ignore[misc]
        if found != 1:
            raise AssertionError(f"{name} stands {found} times in the file that ships")
    return text


def _yaml(value: str) -> str:
    """Quote a text, so that YAML takes it as it is."""
    if not value.isprintable():
        raise ConfigurationError(f"{value!r} has characters that a spec can't hold")
    return "'" + value.replace("'", "''") + "'"


def _plain(path: Path) -> str:
    """Give a path for Spark's file of settings, which has escapes of its own."""
    text = str(path)
    if not text.isprintable() or set(text) & set("\"'\\"):
        raise ConfigurationError(f"{text!r} has quotes or other characters that Spark's settings can't hold")
    return text
