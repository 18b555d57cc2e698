"""What a URL may say, and that nothing else is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairmq.model import ConfigurationError, Entity
from pairmq_sqlite._url import parse_url


def test_an_absolute_path_follows_two_slashes_and_its_own():
    assert parse_url("sqlite:///var/lib/pairmq/backlog.db").path == Path("/var/lib/pairmq/backlog.db")


def test_a_dot_for_the_host_means_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = parse_url("sqlite://./data/backlog.db")
    monkeypatch.chdir("/")
    assert url.path == tmp_path.resolve() / "data" / "backlog.db"


def test_a_path_is_percent_decoded():
    assert parse_url("sqlite:///tmp/a%20b%23c%3Fd.db").path == Path("/tmp/a b#c?d.db")


def test_two_urls_of_one_file_are_one_broker(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    urls = (
        f"sqlite://{tmp_path}/real/x.db",
        f"sqlite://{tmp_path}/link/x.db?name=other",
        f"SQLITE://{tmp_path}/real//./x.db",
    )
    assert len({parse_url(url).endpoint.identity for url in urls}) == 1


def test_a_name_is_short_and_differs_between_two_files():
    east, west = (parse_url(f"sqlite:///{where}/my back-log!.db".replace(" ", "%20")) for where in ("east", "west"))
    assert "-my-back-log--" in east.endpoint.name
    assert east.endpoint.name != west.endpoint.name
    Entity(f"{east.endpoint.name}/x-servicebus-transfer/0")


def test_options_are_read():
    url = parse_url("sqlite:///x.db?name=contoso&busy_timeout=0.5&poll_interval=2&max_megabytes=100")
    assert (url.endpoint.name, url.busy_timeout, url.poll_interval, url.max_megabytes) == ("contoso", 0.5, 2.0, 100)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:file.db", "write it as sqlite:///"),
        ("sqlite:/file.db", "write it as sqlite:///"),
        ("sqlite://", "no file"),
        ("sqlite:///", "no file"),
        ("sqlite:///folder/", "no file"),
        ("sqlite://relative.db", "names a host"),
        ("sqlite://server/file.db", "names a host"),
        ("sqlite://../file.db", "names a host"),
        ("sqlite://user@/file.db", "user or password"),
        ("sqlite://user:hunter2@./file.db", "user or password"),
        ("sqlite:///file.db#part", "#"),
        ("sqlite:///a b.db", "space"),
        ("sqlite:///a\x00.db", "control"),
        ("sqlite:///a%00.db", "NUL"),
        ("sqlite://[/file.db", "can't be read"),
        ("redis:///file.db", "does not begin with sqlite://"),
        ("sqlite:///x.db?synchronous=off", "'synchronous'"),
        ("sqlite:///x.db?name=a&name=b", "twice"),
        ("sqlite:///x.db?name=a/b", "name"),
        ("sqlite:///x.db?name=..", "name"),
        ("sqlite:///x.db?busy_timeout=-1", "busy_timeout"),
        ("sqlite:///x.db?busy_timeout=nan", "busy_timeout"),
        ("sqlite:///x.db?poll_interval=0", "poll_interval"),
        ("sqlite:///x.db?poll_interval=fast", "poll_interval"),
        ("sqlite:///x.db?max_megabytes=0", "max_megabytes"),
    ],
)
def test_what_can_not_work_is_refused_by_name(url, says):
    with pytest.raises(ConfigurationError, match=says) as caught:
        parse_url(url)
    assert "hunter2" not in str(caught.value)
