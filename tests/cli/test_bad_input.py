"""Whatever a user gets wrong is one line on stderr that says what to do: no traceback, and no secret."""

import socket
import threading
from pathlib import Path

import pytest

from pairmq.testing.servers import free_port

SECRET = "hunter2-very-secret"

_NEEDS_ENTITY = {
    "send": ["send", "--entity", "orders"],
    "receive": ["receive", "--entity", "orders", "--idle", "1"],
    "ping": ["ping", "--entity", "orders"],
}
_PRIMARY_ONLY = {**_NEEDS_ENTITY, "entity": ["entity", "list"]}
_BOTH = {
    "syphon": ["syphon", "--until-empty"],
    "status": ["status"],
    "backlog": ["backlog", "list"],
    "doctor": ["doctor"],
    "demo": ["demo"],
}
_ALL = {**_PRIMARY_ONLY, **_BOTH}
_URLS = {
    "no scheme": "nonsense",
    "no host": f"redis://:{SECRET}@",
    "unknown scheme": f"zz://user:{SECRET}@host",
    "bad port": f"redis://:{SECRET}@127.0.0.1:99999/0",
    "bad option": f"redis://:{SECRET}@127.0.0.1/0?nope=1",
    "bad database": f"redis://:{SECRET}@127.0.0.1/zero",
    "control character": f"redis://:{SECRET}@127.0.0.1\n/0",
}


def _one_line(ended, status: int) -> None:
    assert ended.status == status, ended
    assert "Traceback" not in ended.out + ended.err
    assert SECRET not in ended.out + ended.err
    assert len(ended.error_lines) == 1, ended.err


@pytest.mark.parametrize("url", _URLS.values(), ids=_URLS)
@pytest.mark.parametrize("command", sorted(set(_ALL) - {"doctor"}))
def test_a_url_that_can_not_work(cli, command: str, url: str) -> None:
    both = ["--secondary", "memory://other"] if command in _BOTH or command == "send" else []
    ended = cli(*_ALL[command], "--primary", url, *both)
    _one_line(ended, 2)
    assert ended.out == ""


@pytest.mark.parametrize("side", ["primary", "secondary"])
@pytest.mark.parametrize("command", [*sorted(set(_BOTH) - {"doctor"}), "send"])
def test_the_error_of_a_url_names_its_side(cli, command: str, side: str) -> None:
    urls = {"primary": "memory://one", "secondary": "memory://other", side: f"redis://:{SECRET}@127.0.0.1/zero"}
    ended = cli(*_ALL[command], "--primary", urls["primary"], "--secondary", urls["secondary"])
    _one_line(ended, 2)
    assert f"error: {side}: the path of the redis:// URL is not a database number" in ended.err


@pytest.mark.parametrize("says", ["names no host", "does not name one database"])
def test_the_advice_of_an_error_is_not_taken_for_a_password(cli, says: str) -> None:
    url = "postgresql://" if says == "names no host" else f"postgresql://user:{SECRET}@host/"
    ended = cli("entity", "list", "--primary", url)
    _one_line(ended, 2)
    assert f"the postgresql:// URL {says}: write it as postgresql://…@host:5432/database" in ended.err


def test_a_url_that_can_not_work_is_a_finding_of_the_doctor(cli) -> None:
    ended = cli("doctor", "--primary", f"zz://u:{SECRET}@h", "--secondary", "memory://other")
    assert ended.status == 1
    assert "FAIL  settings: primary: no transport for zz://" in ended.out
    assert SECRET not in ended.out + ended.err


@pytest.mark.parametrize("command", sorted(_ALL))
def test_a_broker_that_is_down(cli, command: str) -> None:
    down = f"redis://:{SECRET}@127.0.0.1:{free_port()}/0"
    also_down = f"redis://:{SECRET}@127.0.0.1:{free_port()}/0"
    quick = [] if command == "demo" else ["--attempt-timeout", "2s"]
    both = ["--secondary", also_down] if command in _BOTH or command == "send" else []
    more = ["--send-timeout", "1500ms"] if command == "send" else []
    ended = cli(*_ALL[command], "--primary", down, *both, *quick, *more, stdin=b"one\n")
    assert ended.status == 1
    assert "Traceback" not in ended.out + ended.err
    assert SECRET not in ended.out + ended.err
    assert "refused" in ended.out + ended.err or "Connect call failed" in ended.out + ended.err


@pytest.mark.parametrize("command", ["entity", "receive", "syphon"])
def test_what_a_broker_that_is_down_ends_says_what_to_do(cli, command: str) -> None:
    down = [f"redis://127.0.0.1:{free_port()}/0" for _ in range(2)]
    both = ["--secondary", down[1]] if command in _BOTH else []
    ended = cli(*_ALL[command], "--primary", down[0], *both, "--attempt-timeout", "2s")
    _one_line(ended, 1)
    assert ended.err.endswith(": start the broker, or correct its URL\n")


def test_a_broker_without_tls_is_not_said_to_be_down(cli) -> None:
    def answer(server: socket.socket) -> None:
        with server.accept()[0] as connection:
            connection.sendall(b"-ERR this is no TLS\r\n")
            connection.recv(4096)

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer, args=(server,))
        answering.start()
        port = server.getsockname()[1]
        ended = cli("entity", "list", "--primary", f"rediss://127.0.0.1:{port}/0", "--attempt-timeout", "5s")
        answering.join()
    _one_line(ended, 1)
    assert ended.err.endswith(": this port takes no TLS: correct the port or the scheme in the URL\n")


@pytest.mark.parametrize("name", ["", "x" * 300, "a\x07b", "a//b", "what?", "../up"], ids=range(6))
@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "--entity"],
        ["receive", "--entity"],
        ["ping", "--entity"],
        ["status", "--entity"],
        ["demo", "--entity"],
        ["entity", "create"],
        ["entity", "delete", "--yes"],
    ],
    ids=" ".join,
)
def test_an_entity_that_can_not_be(cli, brokers: list[str], arguments: list[str], name: str) -> None:
    primary_only = arguments[0] in ("receive", "ping", "entity")
    ended = cli(*arguments, name, *(brokers[:2] if primary_only else brokers))
    _one_line(ended, 2)
    assert "\x07" not in ended.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["send", "-e", "q", "--failover-interval", "soon"], "use e.g. 10, 10s, 500ms, 5min, 1h or 2d"),
        (["send", "-e", "q", "--failover-interval", "2h"], "failover_interval"),
        (["send", "-e", "q", "--backlog-retry-interval", "2h"], "backlog_retry_interval"),
        (["send", "-e", "q", "--first-line", "0"], "--first-line"),
        (["send", "-e", "q", "--while-failing", "hope"], "'wait' or 'raise'"),
        (["send", "-e", "q", "--backlog-queues", "0"], "1 to 1000"),
        (["send", "-e", "q", "--backlog-queues", "many"], "--backlog-queues"),
        (["send", "-e", "q", "--backlog-name-template", "x"], "{index}"),
        (["send", "-e", "q", "--ttl", "0"], "time_to_live"),
        (["send", "-e", "q", "--session-id", "s" * 200], "session_id"),
        (["send", "-e", "q", "--id-prefix", "p" * 101], "--id-prefix"),
        (["send", "-e", "q", "--kind", "exchange"], "'--kind': 'exchange' is not one of"),
        (["send", "-e", "q", "--window", "0"], "--window"),
        (["send", "-e", "q", "--input", "/nowhere/at/all"], "No such file"),
        (["send", "-e", "q", "--input", "/"], "Is a directory"),
        (["send", "-e", "q", "--receipts", "/nowhere/at/all"], "No such file"),
        (["send", "-e", "q", "--failed", "/nowhere/at/all"], "No such file"),
        (["send", "-e", "q", "--config", "/nowhere/at/all"], "No such file"),
        (["send"], "--entity"),
        *((["syphon", f"--max-rate={each}"], "above 0") for each in ("0", "-1", "nan", "inf", "x")),
        (["syphon", "--ttl-policy", "guess"], "'restore' or 'elapse'"),
        (["syphon", "--dashboard-token-file", "/nowhere/at/all"], "for the page of --dashboard"),
        (["switch", "upgrade", "q", "--until", "never"], "--until: invalid duration 'never'"),
        (["switch", "upgrade", "q", "--until", "never"], "or 2d, or enter, or restart"),
        (["backlog", "peek", "--index", "10"], "0 to 9"),
        (["backlog", "purge"], "add --yes"),
        (["demo", "--messages", "0"], "--messages"),
        (["demo", "--input", "/nowhere/at/all"], "No such file"),
        (["demo", "--input", "x", "--messages", "3"], "exclude each other"),
        (["demo", "--entity", "a", "--entity", "a"], "twice"),
        (["status", "--nope"], "No such option: --nope (see 'pairmq status --help')"),
        (["entity", "nope"], "No such command 'nope' (see 'pairmq entity --help')"),
        (["nope"], "No such command 'nope' (see 'pairmq --help')"),
        (["stauts"], "No such command 'stauts'. Did you mean 'status'? (see 'pairmq --help')"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_a_value_that_can_not_work(cli, brokers: list[str], arguments: list[str], says: str) -> None:
    named = [] if "nope" in arguments else brokers
    ended = cli(*arguments, *named)
    _one_line(ended, 2)
    assert says in ended.err


@pytest.mark.parametrize(
    "command", [["send", "-e", "q"], ["status"], ["backlog", "list"], ["dashboard"]], ids=lambda command: command[0]
)
@pytest.mark.parametrize("secondary", ["memory://one", "memory://one?identity=another"])
def test_the_same_broker_twice(cli, command: list[str], secondary: str) -> None:
    ended = cli(*command, "--primary", "memory://one", "--secondary", secondary)
    _one_line(ended, 2)
    assert "same broker" in ended.err


def test_no_broker_at_all(cli) -> None:
    ended = cli("send", "-e", "q")
    _one_line(ended, 2)
    assert "PAIRMQ_PRIMARY" in ended.err


def test_settings_come_from_the_environment_and_a_file(cli, monkeypatch, tmp_path: Path, brokers: list[str]) -> None:
    file = tmp_path / "pair.toml"
    file.write_text(f"[pair]\nsecondary = '{brokers[3]}'\nbacklog_queue_count = 2\n")
    monkeypatch.setenv("PAIRMQ_PRIMARY", brokers[1])
    monkeypatch.setenv("PAIRMQ_CONFIG", str(file))
    ended = cli("status", "--json")
    assert ended.status == 0
    assert ended.out.count('"queue":') == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [("[pair]\nnope = 1\n", "unknown nope"), ("[", "is not valid TOML"), ("pair = 1\n", "must be a table")],
)
def test_a_settings_file_that_can_not_work(cli, tmp_path: Path, brokers: list[str], text: str, says: str) -> None:
    file = tmp_path / "pair.toml"
    file.write_text(text)
    ended = cli("status", *brokers, "--config", str(file))
    _one_line(ended, 2)
    assert says in ended.err


def test_a_password_is_in_no_output_even_with_all_logging(cli) -> None:
    down = [f"redis://me:{SECRET}@127.0.0.1:{free_port()}/0" for _ in range(2)]
    ended = cli(
        "-v",
        "-v",
        "send",
        "-e",
        "q",
        "--primary",
        down[0],
        "--secondary",
        down[1],
        "--send-timeout",
        "1500ms",
        stdin=b"x",
    )
    assert ended.status == 1
    assert "127.0.0.1" in ended.err
    assert SECRET not in ended.out + ended.err
