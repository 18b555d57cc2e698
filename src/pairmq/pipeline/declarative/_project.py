"""The folder that ``spark-pipelines`` runs, and what its spec's ``configuration`` says to PairMQ."""

from __future__ import annotations

import importlib.resources
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from pairmq.model import ConfigurationError, Price
from pairmq.pipeline._output import writing

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
            raise ConfigurationError(f"{project.folder / name} exists already: remove it, or name another folder")
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
    """Put values behind their names, each of which is in the text once."""
    for name, value in values.items():
        pattern = rf"^( *{re.escape(name)}{between} *).*$"
        text, found = re.subn(pattern, lambda match, value=value: match[1] + value, text, flags=re.MULTILINE)  # type: ignore[misc]
        if found != 1:
            raise AssertionError(f"{name} occurs {found} times in the shipped file")
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


JOURNAL = "spark.pairmq.journal"
PATIENCE = "spark.pairmq.patience"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_USUAL_PATIENCE = 300.0  # s
_FREE = Price()
_MOST_DIGITS = 15  # before and behind the point: arithmetic with 1e999999 would take forever


def is_url(journal: str) -> bool:
    """Return whether the location of a journal is a URL, not a directory."""
    return _URL.match(journal) is not None


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is asked of a pipeline.

    Args:
        journal: a directory, or a URL that Spark can read.
        patience: seconds by which a message may be overtaken by others of its queue before it counts as lost.
        primary: what the primary charges.
        secondary: what the secondary charges.
    """

    journal: str
    patience: float = _USUAL_PATIENCE
    primary: Price = _FREE
    secondary: Price = _FREE

    def settings(self) -> dict[str, str]:
        """Give the same as names and values of a spec's ``configuration``."""
        return {
            JOURNAL: self.journal,
            PATIENCE: repr(self.patience),
            **{
                _price_name(side, part): f"{getattr(price, part):f}"
                for side, price in (("primary", self.primary), ("secondary", self.secondary))
                for part in ("per_million", "base")
            },
        }


def read_configuration(get: Callable[[str], str | None]) -> Configuration:
    """Read the configuration of a session.

    Args:
        get: gives the value of a name; None where it is not set.
    """
    journal = get(JOURNAL)
    if not journal:
        raise ConfigurationError(f"no journal: set {JOURNAL} under `configuration:` in the pipeline's spec")
    patience = get(PATIENCE)
    return Configuration(
        journal=journal,
        patience=_USUAL_PATIENCE if patience is None else _seconds(patience),
        primary=_price("primary", get),
        secondary=_price("secondary", get),
    )


def _price_name(side: str, part: str) -> str:
    return f"spark.pairmq.{side}.{part}"


def _price(side: str, get: Callable[[str], str | None]) -> Price:
    names = {part: _price_name(side, part) for part in ("per_million", "base")}
    return Price(**{part: _money(name, get(name) or "0") for part, name in names.items()})


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigurationError(f"{PATIENCE} is {text[:50]!r}: it must be a number of seconds of at least 0")
    return seconds


def _money(name: str, text: str) -> Decimal:
    try:
        money = Decimal(text)
    except InvalidOperation:
        money = Decimal("nan")
    if not money.is_finite() or money < 0 or (money and abs(money.adjusted()) > _MOST_DIGITS):
        raise ConfigurationError(f"{name} is {text[:50]!r}: it must be an amount of money of at least 0")
    return money
