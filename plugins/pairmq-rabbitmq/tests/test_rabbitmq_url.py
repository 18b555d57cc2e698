"""Broker URLs: what they mean, and that an invalid one is reported in a sentence without secrets."""

from __future__ import annotations

import contextlib
import random
import re
import ssl
import subprocess
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq.model import ConfigurationError
from pairmq.transport import TlsOptions
from pairmq_rabbitmq._link import Nodes
from pairmq_rabbitmq._url import ManagementUrl, RabbitUrl, parse_rabbitmq_url


def test_a_full_url_is_read() -> None:
    url = parse_rabbitmq_url(
        "amqp://us%40er:p%3Aw@Host.Example:5673/prod?name=contoso&connect_timeout=2&heartbeat=30"
        "&queue_type=classic&lock_duration=0.5&management=https://m.example/api/"
    )
    assert (url.nodes, url.vhost, url.username, url.password) == (
        (("host.example", 5673),),
        "prod",
        "us@er",
        "p:w",
    )
    assert (url.connect_timeout, url.heartbeat, url.queue_type, url.lock_duration) == (2.0, 30, "classic", 0.5)
    assert url.management == ManagementUrl("https://m.example:15671/api", "us@er", "p:w")
    assert url.endpoint.name == "contoso"
    assert url.endpoint.identity == ("rabbitmq", "host.example", "5673", "prod")
    assert url.endpoint.url == "amqp://host.example:5673/prod"


def test_defaults() -> None:
    url = parse_rabbitmq_url("amqp://example")
    assert url == RabbitUrl(url.endpoint, (("example", 5672),))
    assert (url.vhost, url.username, url.password, url.tls, url.management) == (
        "/",
        "guest",
        "guest",
        None,
        None,
    )
    assert (url.connect_timeout, url.heartbeat, url.queue_type, url.lock_duration) == (5.0, 10, None, 60.0)
    assert url.endpoint.name == "example-5672"
    assert url.endpoint.url == "amqp://example:5672/"
    assert parse_rabbitmq_url("amqps://example").nodes == (("example", 5671),)


@pytest.mark.parametrize(
    ("path", "vhost", "shown", "name"),
    [
        ("", "/", "", "h-5672"),
        ("/", "/", "", "h-5672"),
        ("/%2F", "/", "", "h-5672"),
        ("/%2f", "/", "", "h-5672"),
        ("/prod", "prod", "prod", "h-5672-prod"),
        ("/a-b", "a-b", "a-b", "h-5672-a-b"),
        ("/a%2fb", "a/b", "a%2Fb", "h-5672-a-b--159e68d06896"),
        ("/%252F", "%2F", "%252F", "h-5672-2F--3dcd463ec11b"),
        ("/a%20b", "a b", "a%20b", "h-5672-a-b--783717572ef5"),
        ("/a+b", "a+b", "a%2Bb", "h-5672-a-b--2f59a839b2d0"),
        ("/%C3%A4", "ä", "%C3%A4", "h-5672--5e7b863cc913"),
    ],
)
def test_the_path_is_the_virtual_host(path: str, vhost: str, shown: str, name: str) -> None:
    url = parse_rabbitmq_url(f"amqp://h{path}")
    assert url.vhost == vhost
    assert url.endpoint.identity == ("rabbitmq", "h", "5672", vhost)
    assert url.endpoint.url == f"amqp://h:5672/{shown}"
    assert url.endpoint.name == name


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["h", "h-1", "h-5672", "h-5673", "fe80::1", "fe80-1", "h.example"]),
            st.sampled_from([1, 5671, 5672, 5673]),
            st.one_of(
                st.sampled_from(["/", "a/b", "a-b", "a b", "-", "日本", "1", "5672", "5673-/", "x--0123456789ab"]),
                st.text(st.sampled_from("a-5672/é "), min_size=1, max_size=8),
            ),
        ),
        min_size=2,
        max_size=8,
        unique=True,
    )
)
def test_brokers_have_different_names(brokers: list[tuple[str, int, str]]) -> None:
    urls = [
        f"amqp://{f'[{host}]' if ':' in host else host}:{port}/{quote(vhost, safe='')}" for host, port, vhost in brokers
    ]
    endpoints = {parse_rabbitmq_url(url).endpoint for url in urls}
    assert len({endpoint.name for endpoint in endpoints}) == len({endpoint.identity for endpoint in endpoints})


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "LOCALHOST."])
def test_names_of_this_machine_are_one_broker(host: str) -> None:
    url = parse_rabbitmq_url(f"amqp://{host}/v")
    assert url.endpoint.identity == ("rabbitmq", "127.0.0.1", "5672", "v")
    assert url.endpoint.name == parse_rabbitmq_url("amqp://localhost/v").endpoint.name


def test_ipv6_is_shown_in_brackets() -> None:
    url = parse_rabbitmq_url("amqp://[2001:db8::1]?management=http://[2001:db8::2]")
    assert (url.nodes, url.endpoint.url) == ((("2001:db8::1", 5672),), "amqp://[2001:db8::1]:5672/")
    assert url.management is not None
    assert url.management.url == "http://[2001:db8::2]:15672"


def test_several_hosts_are_the_nodes_of_a_cluster() -> None:
    url = parse_rabbitmq_url("amqp://us%40er:p%2Cw@B.example,a.example:5673,[2001:db8::1]/v?connect_timeout=2")
    assert url.nodes == (("b.example", 5672), ("a.example", 5673), ("2001:db8::1", 5672))
    assert (url.username, url.password, url.vhost, url.connect_timeout) == ("us@er", "p,w", "v", 2.0)
    assert url.endpoint.url == "amqp://b.example:5672,a.example:5673,[2001:db8::1]:5672/v"
    assert parse_rabbitmq_url("amqp://a,A:5672").nodes == (("a", 5672),)
    assert parse_rabbitmq_url("amqps://a,b").nodes == (("a", 5671), ("b", 5671))


def test_a_cluster_has_one_name_in_whatever_order_its_nodes_are_written() -> None:
    one, other = (parse_rabbitmq_url(f"amqp://{hosts}/v").endpoint for hosts in ("a,b:5672,c", "c,a,b"))
    assert (one.name, one.identity) == (other.name, other.identity)
    assert one.identity == ("rabbitmq", "a,b,c", "5672,5672,5672", "v")
    assert one.name.startswith("a-b-c--")
    assert one.name != parse_rabbitmq_url("amqp://a,b,c").endpoint.name
    # What processes with the URL of one node have diverted is found.
    assert one.former_names == ("a-5672-v", "b-5672-v", "c-5672-v")


def test_two_urls_with_a_node_in_common_are_one_broker() -> None:
    cluster, one, other, vhost, stated = (
        parse_rabbitmq_url(f"amqp://{rest}").endpoint
        for rest in ("a,b,c/v", "c/v", "b:5673,d/v", "c/w", "a,b?identity=x")
    )
    assert cluster.is_same_broker(one)
    assert one.is_same_broker(cluster)
    assert not cluster.is_same_broker(other)
    assert not cluster.is_same_broker(vhost)
    assert stated.is_same_broker(parse_rabbitmq_url("amqp://e,f?identity=x").endpoint)
    assert stated.is_same_broker(parse_rabbitmq_url("amqp://b").endpoint)


def test_each_process_tries_the_nodes_in_an_order_of_its_own() -> None:
    url = parse_rabbitmq_url("amqp://a,b,c")
    first = set()
    for _ in range(60):
        random.seed(1)  # as a program may, and those that are forked from one
        order = Nodes(url.nodes).order
        assert sorted(order) == sorted(url.nodes)
        first.add(order[0])
    assert first == set(url.nodes)


def test_heartbeats_of_a_cluster_are_more_frequent() -> None:
    heartbeats = [parse_rabbitmq_url(f"amqp://{rest}").heartbeat for rest in ("a", "a,b", "a,b?heartbeat=20")]
    assert heartbeats == [10, 5, 20]


def test_empty_password_is_a_password() -> None:
    assert parse_rabbitmq_url("amqp://u:@h").password == ""
    assert parse_rabbitmq_url("amqp://u@h").password == "guest"
    assert parse_rabbitmq_url("amqp://:p@h").username == "guest"


def test_the_management_login_is_the_brokers_unless_it_has_its_own() -> None:
    def login(management: str) -> tuple[str, str]:
        url = parse_rabbitmq_url(f"amqp://u:p@h?management={quote(management, safe='')}")
        assert url.management is not None
        return url.management.username, url.management.password

    assert login("http://m") == ("u", "p")
    assert login("http://a:b%40@m") == ("a", "b@")
    assert login("http://:b@m") == ("u", "b")
    # Never the broker's password for somebody else.
    assert login("http://a@m") == ("a", "")


def test_certificate_and_host_name_are_checked_unless_switched_off() -> None:
    tls = parse_rabbitmq_url("amqps://example").tls
    assert tls == TlsOptions()
    context = tls.context(for_url="amqps://example")
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    off = parse_rabbitmq_url("amqps://example?ssl_cert_reqs=none").tls
    assert off is not None
    context = off.context(for_url="amqps://example")
    assert context.verify_mode is ssl.CERT_NONE
    assert not context.check_hostname


def test_tls_files_are_loaded() -> None:
    url = parse_rabbitmq_url("amqps://h?ssl_ca_certs=/a%20b&ssl_certfile=c&ssl_keyfile=k")
    assert url.tls == TlsOptions("/a b", "c", "k")


@pytest.mark.parametrize("options", [TlsOptions("missing.pem"), TlsOptions(certfile="missing"), TlsOptions("a\0b")])
def test_unusable_tls_file_is_reported(options: TlsOptions) -> None:
    with pytest.raises(ConfigurationError, match="amqps://h: a TLS file"):
        options.context(for_url="amqps://h")


def test_encrypted_key_is_reported_and_its_password_not_prompted_for(tmp_path: Path) -> None:
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-passout", "pass:secret", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    with pytest.raises(ConfigurationError, match="encrypted"):
        TlsOptions(certfile=str(cert), keyfile=str(key)).context(for_url="amqps://h")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("redis://h", "does not begin with amqp:// or amqps://"),
        ("h", "does not begin with amqp:// or amqps://"),
        ("amqp://", "host"),
        ("amqp:///v", "host"),
        ("amqp://:5672", "host"),
        ("amqp://a,", "names no host"),
        ("amqp://a,,b", "names no host"),
        ("amqp://a,b:x", "the port of the amqp:// URL is invalid"),
        ("amqp://a,[::1", "IPv6"),
        ("amqp://a,b%41", "host"),
        ("amqp://h%41", "host"),
        ("amqp://h:0", "port"),
        ("amqp://h:70000", "port"),
        ("amqp://h:abc", "port"),
        ("amqp://h/a/b", "%2F"),
        ("amqp://h//", "%2F"),
        ("amqp://h/a/", "%2F"),
        ("amqp://h/%ff", "UTF-8"),
        ("amqp://h/%0a", "control"),
        (f"amqp://h/{'x' * 256}", "255 bytes"),
        (f"amqp://h/{'x' * 128}", "has more than 127 characters"),
        ("amqp://h/v#x", "#"),
        ("amqp://h/v#", "#"),
        ("amqp://h\n/", "control"),
        ("amqp://h /", "space"),
        ("amqp://\ud800", "surrogate"),
        ("amqp://[::1", "IPv6"),
        ("amqp://u%0ax:y@h", "user name"),
        ("amqp://u:%00y@h", "password"),
        ("amqp://u:%ffy@h", "password"),
        (f"amqp://u:{'x' * 256}@h", "password"),
        ("amqp://h?nonsense=1", "'nonsense': known are connect_timeout, heartbeat, identity, lock_duration"),
        ("amqp://h?ssl_ca_certs=x", "ssl_ca_certs"),
        ("amqp://h?name=a&name=b", "twice"),
        ("amqp://h?name=a/b", "name"),
        ("amqp://h?name=..", "name"),
        ("amqp://h?name=a{b", "name"),
        ("amqp://h?name=%ff", "UTF-8"),
        ("amqp://h?connect_timeout=x", "connect_timeout"),
        ("amqp://h?connect_timeout=0", "connect_timeout"),
        ("amqp://h?heartbeat=0", "heartbeat"),
        ("amqp://h?heartbeat=601", "heartbeat"),
        ("amqp://h?heartbeat=1.5", "heartbeat is not a whole number from 1 to 600"),
        ("amqp://h?queue_type=stream", "queue_type"),
        ("amqp://h?lock_duration=0", "lock_duration"),
        ("amqp://h?lock_duration=nan", "lock_duration"),
        ("amqp://h?lock_duration=1501", "lock_duration"),
        ("amqp://h?management=", "management"),
        ("amqp://h?management=ftp://m", "management"),
        ("amqp://h?management=m:15672", "management"),
        ("amqp://h?management=http://m?x", "management"),
        ("amqp://h?management=http://m%23x", "management"),
        ("amqp://h?management=http://", "management"),
        ("amqp://h?management=http://m:x", "management"),
        ("amqp://h?management=http://[m", "management"),
        ("amqp://h?management=http://m/%0a", "management"),
        ("amqp://h?management=http://m/%C3%A4", "management"),
        ("amqps://h?ssl_cert_reqs=maybe", "ssl_cert_reqs"),
        ("amqps://h?ssl_keyfile=k", "ssl_certfile"),
    ],
)
def test_invalid_url_is_reported(url: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(word)) as caught:
        parse_rabbitmq_url(url)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "rest",
    [
        "h:abc",
        "h,a:abc",
        "h,[::1",
        "h/a/b",
        "h/%ff",
        "h?nonsense=1",
        "[::1",
        "h:1/v#x",
        "h?heartbeat=0",
        " h",
        "\u2100",
        "h?management=http://a:hunter2@[m",
        "h?management=http://a:hunter2@m:x",
        "h?management=http://a:hunter2@m%20",
        "h?management=http://a:hunter2@m/?x",
        "h?management=ftp://a:hunter2@m",
        "h?management=http://a:hunter2%2500@m",
        "h?management=http://a:hunter2%ff@m",
    ],
)
def test_url_error_does_not_contain_the_password(rest: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_rabbitmq_url(f"amqp://alice:hunter2@{rest}")
    assert "hunter2" not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "password",
    [
        "hun?ter2",
        "h?hunter2&x",
        "x?HUNTER=2",
        "pa?hunter",
        "hunter/ter2",
        "#hunter2",
        "12/hunter2",
        "12?name=hunter2",
        "12/?hunter2",
        "12?heartbeat=10&name=hunter2",
        "12,hunter2/",
    ],
)
def test_url_error_does_not_contain_an_unencoded_part_of_the_password(password: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_rabbitmq_url(f"amqp://alice:{password}@h:1/v")
    assert not re.search("(?i)hunter|ter2", f"{caught.value!r} {caught.value} {caught.value.__cause__!r}")


def test_secrets_appear_in_no_text() -> None:
    for management in ("http://m", "http://bob:hunter2@m"):
        url = parse_rabbitmq_url(f"amqp://alice:hunter2@h:1/v?name=n&management={management}")
        shown = f"{url!r} {url} {url.endpoint!r} {url.endpoint} {url.management!r}"
        assert "hunter2" not in shown
        assert "alice" not in shown
        assert "bob" not in shown


def check(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        url = parse_rabbitmq_url(text)
        assert all(host and 1 <= port <= 65535 for host, port in url.nodes)
        assert url.vhost
        # What is shown is a URL again, of the same broker.
        assert parse_rabbitmq_url(url.endpoint.url).endpoint.identity == url.endpoint.identity


@given(st.text())
def test_arbitrary_text_raises_nothing_but_a_configuration_error(text: str) -> None:
    check(text)
    check(f"amqp://{text}")
    check(f"amqps://h/{text}")
    check(f"amqp://h?name={text}")
    check(f"amqp://h?management={text}")


PIECES = [
    *["amqp://", "amqps://", "http://", "h", "[::1]", "[", "]", ":", "@", "/", "?", "#", "&", "=", "%", "%2F", "%ff"],
    *["%00", "5672", "0", "management=", "heartbeat=", "name=", "ä", "℀", "\ud800", "\t", "1e5", "guest", ".", ","],
]


@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_pieces_of_urls_raise_nothing_but_a_configuration_error(pieces: list[str]) -> None:
    check("".join(pieces))
    check("amqp://" + "".join(pieces))


@given(st.text(max_size=30), st.text(max_size=30), st.text(min_size=1, max_size=30))
def test_percent_encoded_parts_are_decoded(user: str, password: str, vhost: str) -> None:
    with contextlib.suppress(ConfigurationError, UnicodeEncodeError):
        url = parse_rabbitmq_url(f"amqp://{quote(user, safe='')}:{quote(password, safe='')}@h/{quote(vhost, safe='')}")
        assert (url.username, url.password, url.vhost) == (user or "guest", password, vhost)
