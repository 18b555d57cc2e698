"""Broker URLs: what they mean, and that a bad one is told in a sentence without secrets."""

from __future__ import annotations

import re
import ssl
import subprocess
from pathlib import Path

import pytest

from pairmq.model import ConfigurationError
from pairmq.plugins import registry
from pairmq_redis._url import parse_fakeredis_url, parse_redis_url


def test_a_full_url_is_read() -> None:
    url = parse_redis_url(
        "redis://us%40er:p%3Aw@Host.Example:6380/3?name=contoso&poll_interval=0.5&connect_timeout=2"
        "&wait_replicas=1&wait_timeout=250"
    )
    assert (url.host, url.port, url.db, url.username, url.password) == ("host.example", 6380, 3, "us@er", "p:w")
    assert (url.poll_interval, url.connect_timeout, url.wait_replicas, url.wait_timeout) == (0.5, 2.0, 1, 0.25)
    assert url.endpoint.name == "contoso"
    assert url.endpoint.identity == ("redis", "host.example", "6380", "3")
    assert url.endpoint.url == "redis://host.example:6380/3"


def test_defaults() -> None:
    url = parse_redis_url("redis://example")
    assert (url.port, url.db, url.username, url.password, url.tls) == (6379, 0, None, None, None)
    assert url.endpoint.name == "example-6379-0"


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST."])
def test_names_of_this_machine_are_one_broker(host: str) -> None:
    endpoint = parse_redis_url(f"redis://{host}/1").endpoint
    assert endpoint.identity == ("redis", "127.0.0.1", "6379", "1")
    assert endpoint.name == parse_redis_url("redis://localhost/1").endpoint.name


def test_hosts_have_different_names() -> None:
    hosts = ("[fe80::1]", "fe80-1", "fe80--1", "h", "h-6379", "127.0.0.2", "localhost", "é", "è")
    endpoints = [parse_redis_url(f"redis://{host}").endpoint for host in hosts]
    assert len({endpoint.name for endpoint in endpoints}) == len(hosts)


def test_tls_or_not_is_the_same_broker() -> None:
    assert parse_redis_url("rediss://h:1").endpoint.identity == parse_redis_url("redis://h:1").endpoint.identity


def test_certificate_and_host_name_are_checked_unless_switched_off() -> None:
    tls = parse_redis_url("rediss://example").tls
    assert tls is not None
    assert tls.verify
    off = parse_redis_url("rediss://example?ssl_cert_reqs=none").tls
    assert off is not None
    assert not off.verify


def test_the_connection_verifies_too() -> None:
    from pairmq_redis._transport import _connection_factory

    url = parse_redis_url("rediss://example")
    assert url.tls is not None
    connection = _connection_factory(url, url.tls.context(for_url=""))()
    context = connection._connection_arguments()["ssl"]
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("redis://", "host"),
        ("redis:///0", "host"),
        ("redis://:6379", "host"),
        ("redis://h:0", "port"),
        ("redis://h:70000", "port"),
        ("redis://h:abc", "port"),
        ("redis://h/x", "database"),
        ("redis://h/-1", "database"),
        ("redis://h/0/1", "database"),
        ("redis://h/0#x", "#"),
        ("redis://h\n/0", "control"),
        ("redis://h /0", "space"),
        ("redis://[::1", "IPv6"),
        ("redis://h?nonsense=1", "nonsense"),
        ("redis://h?password=1", "known are connect_timeout, identity, name"),
        ("redis://h?ssl_ca_certs=x", "ssl_ca_certs"),
        ("redis://h?name=a&name=b", "twice"),
        ("redis://h?name=a/b", "name"),
        ("redis://h?name=..", "name"),
        ("redis://h?name=a{b", "name"),
        ("redis://h?poll_interval=0", "poll_interval"),
        ("redis://h?poll_interval=nan", "poll_interval"),
        ("redis://h?wait_replicas=1.5", "wait_replicas"),
        ("redis://h?connect_timeout=x", "connect_timeout"),
        ("redis://h?wait_timeout=0", "wait_timeout"),
        ("rediss://h?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("rediss://h?ssl_keyfile=k", "ssl_certfile"),
        ("rediss://h?ssl_ca_certs=missing.pem", "TLS file"),
        ("rediss://h?ssl_ca_certs=a%00b", "TLS file"),
        ("rediss://h?ssl_certfile=a%00b", "TLS file"),
        ("redis://u%0ax:y@h", "user name"),
        ("fakeredis://", "broker"),
        ("fakeredis://a/b", "broker"),
        ("fakeredis://%ff", "UTF-8"),
        ("redis://[::1]x:5", "bracket"),
        ("redis://h?wait_replicas=1_0", "wait_replicas"),
        ("fakeredis://a?wait_replicas=1", "wait_replicas"),
        ("fakeredis://a{", "name"),
    ],
)
def test_a_url_that_cannot_work_is_reported(url: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word) as caught:
        registry.transport(url)
    assert "\n" not in str(caught.value)


def test_an_encrypted_key_is_reported_and_not_asked_for(tmp_path: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:secret", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    with pytest.raises(ConfigurationError, match="encrypted"):
        registry.transport(f"rediss://h?ssl_certfile={tmp_path / 'cert.pem'}&ssl_keyfile={tmp_path / 'key.pem'}")


@pytest.mark.parametrize("rest", ["h:abc", "h/x", "h?nonsense=1", "[::1", "h:1/0#x", "h?poll_interval=0", " h"])
def test_an_error_about_a_url_never_shows_its_password(rest: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        registry.transport(f"redis://alice:hunter2@{rest}")
    assert "hunter2" not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"


@pytest.mark.parametrize("password", ["hun?ter2", "h?hunter2&x", "x?HUNTER=2", "pa?hunter"])
def test_an_unknown_option_that_may_be_a_piece_of_a_password_is_not_reported(password: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        registry.transport(f"redis://alice:{password}@h:1/0")
    assert not re.search("(?i)hunter|ter2", f"{caught.value!r} {caught.value} {caught.value.__cause__!r}")


def test_secrets_stand_nowhere() -> None:
    transport = registry.transport("redis://alice:hunter2@h:1/0?name=n")
    parsed = parse_redis_url("redis://alice:hunter2@h:1/0?name=n")
    shown = f"{transport!r} {transport} {transport.endpoint!r} {transport.endpoint} {parsed!r}"
    assert "hunter2" not in shown
    assert "alice" not in shown


def test_a_fakeredis_url_with_a_password_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="write it as fakeredis://name") as caught:
        parse_fakeredis_url("fakeredis://alice:hunter2@name")
    assert "hunter2" not in str(caught.value)


def test_an_ipv6_zone_is_part_of_the_host() -> None:
    url = parse_redis_url("redis://[fe80::1%25eth0]:6380")
    assert (url.host, url.endpoint.url) == ("fe80::1%eth0", "redis://[fe80::1%25eth0]:6380/0")


def test_a_fakeredis_url_names_its_broker() -> None:
    url = parse_fakeredis_url("fakeredis://Primary-1?poll_interval=0.1&name=contoso")
    assert (url.host, url.poll_interval) == ("Primary-1", 0.1)
    assert url.endpoint.name == "contoso"
    assert url.endpoint.identity == ("fakeredis", "Primary-1")
    assert (
        parse_fakeredis_url("fakeredis://a").endpoint.identity != parse_fakeredis_url("fakeredis://A").endpoint.identity
    )


def test_both_transports_are_registered() -> None:
    records = {record.name: record for record in registry.transports()}
    forms = ("", "+sentinel", "+cluster")
    assert records["redis"].schemes == tuple(f"{scheme}{form}" for form in forms for scheme in ("redis", "rediss"))
    assert records["redis"].broker_control is None
    assert records["fakeredis"].schemes == ("fakeredis",)
    assert records["fakeredis"].broker_control is not None
    assert records["redis"].capabilities.durable
    assert not records["fakeredis"].capabilities.durable


def test_without_fakeredis_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fakeredis", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'pairmq-redis\[fakeredis\]'"):
        registry.transport("fakeredis://without")


def test_a_url_of_sentinels_is_read() -> None:
    url = parse_redis_url("redis+sentinel://us%40er:p%3Aw@B.example,a.example:26380/orders-1/3?wait_replicas=1")
    assert url.sentinels == (("b.example", 26379), ("a.example", 26380))
    assert (url.host, url.db, url.username, url.password, url.wait_replicas) == ("orders-1", 3, "us@er", "p:w", 1)
    assert (url.tls, url.sentinel_login) == (None, False)
    assert url.endpoint.url == "redis+sentinel://b.example:26379,a.example:26380/orders-1/3"
    assert url.endpoint.identity == ("redis", "a.example,b.example", "26380,26379", "orders-1/3")
    other = parse_redis_url("redis+sentinel://a.example:26380,b.example/orders-1/3").endpoint
    assert (other.name, other.identity) == (url.endpoint.name, url.endpoint.identity)
    assert parse_redis_url("rediss+sentinel://a/m?sentinel_login=same").tls is not None


def test_a_url_of_a_cluster_is_read() -> None:
    url = parse_redis_url("redis+cluster://us%40er:p%3Aw@B.example,a.example:6380/?wait_replicas=1")
    assert url.cluster == (("b.example", 6379), ("a.example", 6380))
    assert (url.username, url.password, url.db, url.tls, url.wait_replicas) == ("us@er", "p:w", 0, None, 1)
    assert url.endpoint.url == "redis+cluster://b.example:6379,a.example:6380"
    other = parse_redis_url("redis+cluster://a.example:6380,b.example/0").endpoint
    assert other.identity == url.endpoint.identity
    assert parse_redis_url("rediss+cluster://a").tls is not None


def test_two_urls_with_a_sentinel_and_the_master_in_common_are_one_broker() -> None:
    one, other, another = (
        parse_redis_url(f"redis+sentinel://{rest}").endpoint for rest in ("a,b/m", "b,c/m/0", "b,c/n")
    )
    assert one.is_same_broker(other)
    assert not one.is_same_broker(another)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("redis+sentinel://a,b", "does not name the master of its sentinels"),
        ("redis+sentinel://a,b/", "does not name the master of its sentinels"),
        ("redis+sentinel://a,b/m%20n", "does not name the master of its sentinels"),
        ("redis+sentinel://a,b/m/x", "database number"),
        ("redis+sentinel://a,/m", "names no host"),
        ("redis+sentinel://a:x,b/m", "port"),
        ("redis+sentinel://u:12/hunter2@a,b/m", "'@' behind its hosts"),
        ("redis+cluster://a,b/1", "names a database"),
        ("redis+cluster://u:12/hunter2@a,b", "'@' behind its hosts"),
        ("redis+cluster://a,/", "names no host"),
        ("redis+cluster://a?sentinel_login=same", "unknown option"),
        ("redis+sentinel://a/m?sentinel_login=yes", "sentinel_login"),
        ("redis://a?sentinel_login=same", "unknown option"),
        ("redis://a,b", "name one host"),
    ],
)
def test_an_invalid_url_of_sentinels_is_reported(url: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(word)) as caught:
        parse_redis_url(url)
    assert "hunter" not in str(caught.value)
