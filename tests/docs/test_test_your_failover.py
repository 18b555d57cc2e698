"""The examples of docs/how-to/test-your-failover.md, run as a reader runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

DOCUMENT = (Path(__file__).parents[2] / "docs/how-to/test-your-failover.md").read_text("utf-8")
FILES = dict(re.findall(r"```python\n# (\S+\.py)\n(.*?)```", DOCUMENT, re.DOTALL))
TESTS = sorted(name for name in FILES if name.startswith("test_"))
REAL = [name for name in TESTS if "real" in name]
ALONE = [name for name in TESTS if name not in REAL]  # in one run: each start of pytest costs a second


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    """Runs the document's files, perhaps with something changed, beside their code under test and their settings."""

    # With it hypothesis draws the same examples in every run, and asks of none of them to be quick.
    monkeypatch.setenv("CI", "true")

    def run(*names: str, shop: str = FILES["shop.py"], more: str = "") -> pytest.RunResult:
        (settings,) = re.findall(r"```toml\n(.*?)```", DOCUMENT, re.DOTALL)
        (pytester.path / "pyproject.toml").write_text(settings)
        (pytester.path / "shop.py").write_text(shop)
        (pytester.path / "conftest.py").write_text(QUICK)
        for name in names:
            (pytester.path / name).write_text(FILES[name].replace("max_examples=50", "max_examples=10") + more)
        return pytester.runpytest_subprocess("-v", "-W", "error", "-p", "no:cacheprovider", *names, timeout=240)

    return run


# Whether PairMQ stands what is drawn is asked by other tests.
QUICK = """
from hypothesis import settings

settings.register_profile("quick", settings.get_profile("ci"), max_examples=10)
settings.load_profile("quick")
"""


def test_every_example_is_in_a_file():
    assert len(re.findall("```python", DOCUMENT)) == len(FILES)
    assert len(TESTS) == 6


@pytest.mark.real_server  # it starts pytest
@pytest.mark.parametrize("names", [ALONE, REAL], ids=["alone", "real"])
def test_the_examples_pass(run, names: list[str]):
    result = run(*names)
    assert result.ret == 0
    assert set(result.parseoutcomes()) == {"passed"}
    assert {name for name in names if f"\n{name}::" in result.stdout.str()} == set(names)


@pytest.mark.real_server
def test_the_machine_says_what_the_document_says_of_an_order_without_an_id(run):
    nameless = FILES["shop.py"].replace(', message_id=f"order-{number}"', "")
    result = run("test_shop_machine.py", shop=nameless, more=SEARCH)
    result.assert_outcomes(failed=1)
    told = r"BrokenPromise: b'tea \d+' came to orders under \d message ids \('process .*?\): who drops"
    assert re.search(told, DOCUMENT)
    assert re.search(told, result.stdout.str())


# The same examples in every run, and no time spent on cutting them down.
SEARCH = """
from hypothesis import HealthCheck, Phase

TestShop.settings = settings(
    TestShop.settings,
    max_examples=1000,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""
