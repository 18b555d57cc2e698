"""What a URL may say, and that nothing else is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairmq.model import ConfigurationError, Entity
from pairmq.plugins import registry
from pairmq.transport import Endpoint

make = registry.transport_record("sqlite:///x.db").factory


def endpoint_of(url: str) -> Endpoint:
    return make(url).endpoint


def path_of(url: str) -> Path:
    return Path(endpoint_of(url).identity[1])


def test_an_absolute_path_follows_two_slashes_and_its_own():
    assert path_of("sqlite:///var/lib/pairmq/backlog.db") == Path("/var/lib/pairmq/backlog.db")


def test_a_dot_for_the_host_means_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    transport = make("sqlite://./data/backlog.db")
    monkeypatch.chdir("/")
    assert Path(transport.endpoint.identity[1]) == tmp_path.resolve() / "data" / "backlog.db"


def test_a_path_is_percent_decoded():
    assert path_of("sqlite:///tmp/a%20b%23c%3Fd.db") == Path("/tmp/a b#c?d.db")


def test_two_urls_of_one_file_are_one_broker(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    urls = (
        f"sqlite://{tmp_path}/real/x.db",
        f"sqlite://{tmp_path}/link/x.db?name=other",
        f"SQLITE://{tmp_path}/real//./x.db",
    )
    assert len({endpoint_of(url).identity for url in urls}) == 1


def test_a_name_is_short_and_differs_between_two_files():
    east, west = (endpoint_of(f"sqlite:///{where}/my back-log!.db".replace(" ", "%20")) for where in ("east", "west"))
    assert "-my-back-log--" in east.name
    assert east.name != west.name
    Entity(f"{east.name}/x-servicebus-transfer/0")


def test_a_stated_name_is_the_broker_s():
    assert (
        endpoint_of("sqlite:///x.db?name=contoso&busy_timeout=0.5&poll_interval=2&max_megabytes=100").name == "contoso"
    )


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
        make(url)
    assert "hunter2" not in str(caught.value)
