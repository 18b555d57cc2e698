import importlib.util
import json
import re
import signal
import socket
import time

import httpx
import pytest

from pairmq_redis.testing import RedisServer

MARK = {"x-pairmq-dashboard": "1"}


def address_in(err: bytes) -> tuple[str, str | None]:
    found = re.search(rb"dashboard: (http://\S+/)(?:#token=(\S+))?", err)
    assert found is not None, err
    return found[1].decode(), found[2].decode() if found[2] else None


def status_when(url: str, holds, seconds: float = 30.0):
    """Ask for the status until something holds of it."""
    ends_at = time.monotonic() + seconds
    while not holds(told := httpx.get(f"{url}api/status", timeout=20).json()):
        assert time.monotonic() < ends_at, told
        time.sleep(0.1)
    return told


@pytest.fixture
def backlog(cli, servers) -> list[str]:
    """Three messages for 'orders' in the backlog; the primary is there. Gives the pair's options."""
    first, second = servers
    pair = ["--primary", first.url, "--secondary", second.url]
    assert cli("entity", "create", "orders", "--primary", first.url).status == 0
    first.kill()
    cli("send", "-e", "orders", "--failover-interval", "0", *pair, stdin=b"a\nb\nc\n")
    first.start()
    return pair


@pytest.mark.real_server
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_it_looks_and_changes_nothing_and_ends_cleanly(program, cli, backlog, number: int, status: int) -> None:
    page = program("dashboard", "--port", "0", "--entity", "orders", "--json", *backlog)
    page.wait_for(b"}\n")
    line = json.loads(page.out)
    assert len(line["token"]) >= 32
    told = status_when(line["url"], lambda told: told["backlog"]["pending"] is not None)
    assert (told["sends"], told["backlog"]["pending"], told["backlog"]["in_use"]) == (False, 3, None)
    assert [row["path"] for row in told["entities"]["rows"]] == ["orders"]
    headers = {**MARK, "authorization": f"Bearer {line['token']}"}
    body = {"word": "hold", "entity": "orders", "kind": "queue"}
    assert httpx.post(f"{line['url']}api/operate", json=body, headers=headers, timeout=20).status_code == 403
    page.signal(number)
    ended = page.end()
    assert (ended.status, ended.err) == (status, "")
    assert json.loads(cli("status", "--json", *backlog).out)["backlog"]["pending"] == 3


@pytest.mark.real_server
def test_nothing_is_made_at_the_brokers(program, cli, servers) -> None:
    first, second = servers
    page = program("dashboard", "--port", "0", "--primary", first.url, "--secondary", second.url)
    page.wait_for(b"#token=")
    url, _ = address_in(page.err)
    told = status_when(url, lambda told: told["backlog"]["rows"])
    assert [row["missing"] for row in told["backlog"]["rows"]] == [True] * 10
    page.signal(signal.SIGTERM)
    assert page.end().status == 0
    assert cli("entity", "list", "--primary", second.url).out == ""


@pytest.mark.real_server
def test_with_a_syphon_it_moves_messages_back_and_shows_how_far_it_is(program, backlog) -> None:
    page = program("syphon", "--dashboard", "0", *backlog)
    page.wait_for(b"#token=")
    url, token = address_in(page.err)

    status_when(url, lambda told: told["drain"]["moved"] == 3 and told["backlog"]["pending"] == 0)
    headers = {**MARK, "authorization": f"Bearer {token}"}
    body = {"word": "hold", "entity": "orders", "kind": "queue"}
    answer = httpx.post(f"{url}api/operate", json=body, headers=headers, timeout=20)
    assert answer.json()["state"] == "failed-over"
    page.signal(signal.SIGTERM)
    ended = page.end()
    assert ended.status == 0
    assert "moved 3 messages" in ended.err


@pytest.mark.real_server
def test_the_syphon_as_a_service_shows_itself(program, backlog, tmp_path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token-of-these-tests\n")
    options = ("--dashboard", "127.0.0.1:0", "--dashboard-token-file", str(file))
    service = program("syphon", *options, *backlog)
    service.wait_for(b"dashboard: ")
    url, token = address_in(service.err)
    assert token is None
    assert b"a-token-of-these-tests" not in service.err

    assert status_when(url, lambda told: told["drain"]["moved"] == 3)["syphon"] is True
    body = {"token": "a-token-of-these-tests"}
    assert httpx.post(f"{url}api/session", json=body, headers=MARK, timeout=20).status_code == 204
    service.signal(signal.SIGTERM)
    assert service.end().status == 0


def test_a_port_that_is_taken_names_the_option(cli, brokers) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ended = cli("dashboard", "--port", port, *brokers)
        assert ended.status == 2
        assert ended.error_lines == [
            f"error: --port: port {port} of 127.0.0.1 is in use: choose another one, or 0 for any free port"
        ]
        ended = cli("syphon", "--dashboard", port, *brokers)
        assert (ended.status, "error: --dashboard: port" in ended.err) == (2, True)


@pytest.mark.parametrize("place", ["", "x", "1:2:x", "127.0.0.1:", "70000", "-1", "http://127.0.0.1:80", "²"])
def test_an_invalid_place_is_refused(cli, brokers, place: str) -> None:
    ended = cli("syphon", f"--dashboard={place}", *brokers)
    assert ended.status == 2
    assert ended.error_lines == [
        "error: --dashboard: write it as PORT or HOST:PORT, like 127.0.0.1:8765; the port is 0 to 65535"
    ]


def test_an_invalid_token_is_refused_and_not_repeated(cli, brokers, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PAIRMQ_DASHBOARD_TOKEN", "short-one")
    ended = cli("dashboard", "--port", "0", *brokers)
    assert (ended.status, len(ended.error_lines), "short-one" in ended.err) == (2, 1, False)
    assert "PAIRMQ_DASHBOARD_TOKEN" in ended.err
    (tmp_path / "binary").write_bytes(b"\xff\xfe" * 20)
    (tmp_path / "short").write_text("short-one")
    for name in ("missing", "binary", "short"):
        ended = cli("dashboard", "--port", "0", "--token-file", str(tmp_path / name), *brokers)
        assert (ended.status, ended.err.startswith("error: --token-file: "), "short-one" in ended.err) == (
            2,
            True,
            False,
        )
        ended = cli("syphon", "--dashboard", "0", "--dashboard-token-file", str(tmp_path / name), *brokers)
        assert (ended.status, ended.err.startswith("error: --dashboard-token-file: ")) == (2, True)


@pytest.mark.real_server  # a program
def test_beyond_loopback_it_warns_and_asks_everyone_for_the_token(program, brokers) -> None:
    page = program("dashboard", "--host", "0.0.0.0", "--port", "0", *brokers)
    page.wait_for(b"not encrypted")
    url, _ = address_in(page.err)
    assert httpx.get(f"{url}api/status", timeout=20).status_code == 401
    page.signal(signal.SIGTERM)
    assert page.end().status == 0


def test_it_says_what_to_install(cli, brokers, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for command in (("dashboard",), ("syphon", "--dashboard", "0")):
        ended = cli(*command, *brokers)
        assert ended.status == 2
        assert "pip install 'pairmq[dashboard]'" in ended.err


@pytest.mark.real_server
def test_no_password_is_on_the_page_or_in_the_output(program) -> None:
    with RedisServer(appendfsync="no", password="hunter2-planted") as server:
        good = server.url
        wrong = good.replace("hunter2-planted", "hunter3-planted")
        assert good != wrong
        page = program("dashboard", "--port", "0", "-e", "orders", "--primary", wrong, "--secondary", f"{good[:-1]}1")
        page.wait_for(b"#token=")
        url, _ = address_in(page.err)
        told = status_when(url, lambda told: all(side["answer"] for side in told["brokers"].values()))
        assert told["brokers"]["primary"]["answer"]["ok"] is False
        assert told["brokers"]["secondary"]["answer"]["ok"] is True
        page.signal(signal.SIGTERM)
        ended = page.end()
    assert "-planted" not in json.dumps(told) + ended.out + ended.err
