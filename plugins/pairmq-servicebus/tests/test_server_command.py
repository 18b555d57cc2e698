"""``pairmq servicebus-server`` is servicebus-local's command, with a URL for PairMQ."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit

import pytest

import pairmq_servicebus.server
from command_line import run


def _run(*arguments: str) -> int:
    return run(list(arguments), application=pairmq_servicebus.server.app, name="servicebus-server")


def test_help_names_the_program_and_its_key_variable(capfd: pytest.CaptureFixture[str]) -> None:
    assert _run("--help") == 0
    shown = capfd.readouterr().out
    assert shown.startswith("usage: servicebus-server ")
    assert "better in PAIRMQ_SERVICEBUS_KEY" in re.sub(r"\s+", " ", shown)


def test_an_error_is_one_line_with_its_status(capfd: pytest.CaptureFixture[str]) -> None:
    assert _run("--host", "example.org") == 2
    assert capfd.readouterr().err == (
        "error: example.org can be reached from other machines: add --allow-remote to listen there\n"
    )


def test_a_missing_server_is_an_error_that_names_the_extra(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "servicebus_local"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert _run("--help") == 1
    assert "pip install 'pairmq-servicebus[server]'" in capfd.readouterr().err


@pytest.mark.real_server
@pytest.mark.parametrize("tls", [False, True])
def test_the_server_announces_a_url_for_pairmq(tls: bool) -> None:
    command = [sys.executable, "-m", "pairmq", "servicebus-server", "--json", "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(
        [*command, *(["--self-signed"] if tls else [])], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        announced = json.loads(process.stdout.readline())
        process.terminate()
        assert process.wait(60) == 143
    url = urlsplit(announced["url"])
    assert (url.scheme, url.hostname) == ("sb", "127.0.0.1")
    assert url.port == announced["tls_port" if tls else "port"]
    assert parse_qs(url.query) == (
        {"tls-ca": [announced["ca_file"]], "admin": [f"https://127.0.0.1:{announced['admin_tls_port']}"]}
        if tls
        else {"emulator": ["true"], "admin": [f"http://127.0.0.1:{announced['admin_port']}"]}
    )
