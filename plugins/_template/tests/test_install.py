"""Plugins as a user installs them, and the template as an author copies it.

What is fresh: a virtual environment without anything in it, into which PairMQ and the plugins are installed from wheels
that are built of this checkout. What is not: the third-party packages that the command line needs are links to those of
the environment that runs the tests, and so is hatchling, which builds the wheels. There is no network in it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pairmq.testing.conformance import suites

TEMPLATE = Path(__file__).parents[1]
ROOT = TEMPLATE.parents[1]
SQLITE = ROOT / "plugins" / "pairmq-sqlite"
HOW_TO = ROOT / "docs" / "how-to" / "write-a-transport.md"
SECONDS = 120

pytestmark = [
    pytest.mark.real_server,
    pytest.mark.skipif(not HOW_TO.exists(), reason="this is a copy of the template, and not PairMQ's checkout"),
]


class Environment:
    """A virtual environment.

    Args:
        directory: where to make it.
    """

    def __init__(self, directory: Path) -> None:
        venv.create(directory, symlinks=True)
        self._bin = directory / "bin"
        (self._packages,) = directory.glob("lib/python*/site-packages")
        for needed in closure(distribution("pairmq"), {"cli"}):
            for top in {Path(file).parts[0] for file in needed.files or ()} - {"..", "__pycache__"}:
                (self._packages / top).symlink_to(Path(str(needed.locate_file(top))))

    def install(self, *wheels: Path) -> None:
        """Install wheels and nothing else."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(self._bin / "python")]
        run([*pip, "install", "--quiet", "--no-index", "--no-deps", *map(str, wheels)])

    def pairmq(self, *words: str, **settings: str) -> str:
        """Run ``pairmq``, with settings of the environment, and give what it prints."""
        return run([str(self._bin / "pairmq"), *words], **settings)


def run(command: list[str], *, cwd: Path | None = None, **settings: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PAIRMQ_", "PYTHON"))}
    ended = subprocess.run(
        command, cwd=cwd, env=inherited | settings, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def closure(root: Distribution, extras: Iterable[str]) -> Iterator[Distribution]:
    """The installed packages that a distribution needs, and those that these need."""
    seen: set[str] = set()
    wanted: list[tuple[Distribution, set[str]]] = [(root, set(extras))]
    while wanted:
        needing, chosen = wanted.pop()
        for text in needing.requires or ():
            needed = Requirement(text)
            applies = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in {"", *chosen})
            name = canonicalize_name(needed.name)
            if applies and name not in seen:
                seen.add(name)
                wanted.append((distribution(name), set(needed.extras)))
                yield wanted[-1][0]


def wheel(project: Path, into: Path) -> Path:
    """Build a project's wheel with the hatchling that is installed here."""
    into.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(into), str(project)])
    (built,) = into.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    """The wheels of PairMQ, the template and the plugin for SQLite, by their projects."""
    folder = tmp_path_factory.mktemp("wheels")
    return {project: wheel(project, folder / str(number)) for number, project in enumerate((ROOT, TEMPLATE, SQLITE))}


@pytest.fixture(scope="module")
def environment(wheels: dict[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """All of them, installed."""
    environment = Environment(tmp_path_factory.mktemp("fresh") / "venv")
    environment.install(*wheels.values())
    return environment


OWN = {"memory": ["memory"], "sqlite": ["sqlite"], "template": ["template"]}
"""The transports of PairMQ itself and of the two plugins that are installed."""


def transports(environment: Environment) -> dict[str, list[str]]:
    found = json.loads(environment.pairmq("plugins", "--json"))["plugins"]
    assert [plugin["error"] for plugin in found] == [None] * len(found)
    return {transport["name"]: transport["schemes"] for plugin in found for transport in plugin["transports"]}


def test_installed_plugins_are_found(environment):
    assert transports(environment) == OWN


@pytest.mark.parametrize("scheme", ["sqlite", "template"])
def test_an_installed_plugin_carries_messages(environment, tmp_path, scheme):
    (tmp_path / "orders.txt").write_text("one\ntwo\nthree\n")
    brokers = {
        "PAIRMQ_PRIMARY": f"{scheme}://{tmp_path}/primary.db",
        "PAIRMQ_SECONDARY": f"{scheme}://{tmp_path}/secondary.db",
    }
    environment.pairmq("send", "--entity", "orders", "--create", "--input", str(tmp_path / "orders.txt"), **brokers)
    assert environment.pairmq("receive", "--entity", "orders", "--max", "3", **brokers) == "one\ntwo\nthree\n"


def test_the_wheel_holds_the_package_its_types_and_its_license(wheels):
    names = run([sys.executable, "-m", "zipfile", "-l", str(wheels[TEMPLATE])])
    assert "pairmq_template/py.typed" in names
    assert "dist-info/licenses/LICENSE" in names
    assert "tests/" not in names


def test_the_how_to_leads_through_every_suite():
    text = HOW_TO.read_text()
    assert [suite.__name__ for suite in suites.ALL if f"`Test{suite.__name__}`" not in text] == []


def test_a_copy_under_another_name_is_found_beside_the_template(environment, tmp_path):
    """The commands are the how-to's own, run as they are printed there."""
    checkout = tmp_path / "pairmq"
    generated = shutil.ignore_patterns("__pycache__", ".*", "dist")
    shutil.copytree(TEMPLATE, checkout / "plugins" / "_template", ignore=generated)
    (script,) = re.findall(r"```sh\n(cp -r plugins/_template .*?)```", HOW_TO.read_text(), re.DOTALL)
    run(["sh", "-e", "-c", script], cwd=checkout)

    copy = tmp_path / "pairmq-nats"
    left = [
        f"{file.relative_to(copy)}: {line.strip()}"
        for file in sorted(copy.rglob("*"))
        if file.suffix in (".py", ".toml")
        for line in file.read_text().splitlines()
        if re.search(r"pairmq.template|template://|\"template\"|Template[A-Z]", line)
    ]
    assert left == [], "names of the template are left"
    built = wheel(copy, tmp_path / "wheel")
    environment.install(built)
    assert transports(environment) == OWN | {"nats": ["nats"]}
    broker = {"PAIRMQ_PRIMARY": f"nats://{tmp_path}/primary.db"}
    environment.pairmq("entity", "create", "orders", **broker)

    # Before anything is changed it passes the suites; here one of them, by the pytest of this environment.
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    run([*pip, "--target", str(site), str(built)])
    suite = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_conformance.py", "-k", "TestSend"]
    assert " passed" in run([sys.executable, *suite], cwd=copy, PYTHONPATH=f"{site}{os.pathsep}{ROOT / 'src'}")
