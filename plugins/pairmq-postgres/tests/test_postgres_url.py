"""What a URL of PostgreSQL says, and what it must not."""

from __future__ import annotations

import pytest

from pairmq.model import ConfigurationError
from pairmq.plugins import registry
from pairmq_postgres._url import parse_url

PASSWORD = "se/cr@et?"
LOGIN = "app:se%2Fcr%40et%3F"


def test_url_is_read():
    read = parse_url(f"postgresql://{LOGIN}@db.example:5433/queues?pool_size=3&poll_interval=0.5")
    assert read.hosts == (("db.example", 5433),)
    assert (read.database, read.username, read.password) == ("queues", "app", PASSWORD)
    assert (read.pool_size, read.poll_interval, read.listen) == (3, 0.5, True)


def test_receivers_poll_less_often_where_they_are_notified():
    assert parse_url("postgresql://a/q").poll_interval > parse_url("postgresql://a/q?listen=false").poll_interval


def test_scheme_postgres_is_the_same_broker():
    one, other = parse_url("postgresql://a/q").endpoint, parse_url("postgres://a:5432/q").endpoint
    assert one.identity == other.identity
    assert one.name == other.name


def test_servers_of_a_cluster_are_one_broker_in_any_order():
    one, other = parse_url("postgresql://a,b:5433/q"), parse_url("postgresql://b:5433,a:5432/q")
    assert one.hosts == (("a", 5432), ("b", 5433))
    assert one.parameters()["host"] == "a,b"
    assert one.parameters()["port"] == "5432,5433"
    assert one.endpoint.identity == other.endpoint.identity
    assert one.endpoint.name == other.endpoint.name


def test_a_unix_socket_is_named_as_libpq_has_it():
    read = parse_url(f"postgresql://{LOGIN}@/q?host=/run/Data%20base/&port=5433")
    assert read.hosts == (("/run/Data base", 5433),)
    assert (read.username, read.password) == ("app", PASSWORD)
    assert (read.parameters()["host"], read.parameters()["port"]) == ("/run/Data base", "5433")
    assert read.parameters()["sslmode"] == "prefer"
    assert read.endpoint.url == "postgresql:///q?host=/run/Data%20base&port=5433"
    again = parse_url(read.endpoint.url)
    assert again.endpoint == read.endpoint
    assert parse_url("postgresql:///q?host=/run").endpoint.name != parse_url("postgresql:///q?host=/tmp").endpoint.name


def test_login_that_looks_like_the_hosts_is_kept():
    read = parse_url("postgresql://a,b:a,b@a,b/q")
    assert (read.username, read.password, len(read.hosts)) == ("a,b", "a,b", 2)


def test_only_a_server_that_takes_writes_is_used():
    assert parse_url("postgresql://a,b/q").parameters()["target_session_attrs"] == "read-write"


@pytest.mark.parametrize(
    ("url", "mode"),
    [
        ("postgresql://db.example/q", "verify-full"),
        ("postgresql://127.0.0.1,db.example/q", "verify-full"),
        ("postgresql://localhost,[::1]/q", "prefer"),
        ("postgresql://db.example/q?sslmode=disable", "disable"),
    ],
)
def test_certificate_is_checked_unless_the_server_is_on_this_machine(url, mode):
    parameters = parse_url(url).parameters()
    assert parameters["sslmode"] == mode
    assert ("sslrootcert" in parameters) is (mode == "verify-full")


@pytest.mark.parametrize("name", ["sslrootcert", "sslcert", "sslkey"])
def test_a_tls_file_that_does_not_exist_is_found_at_the_start(name):
    files = {"sslrootcert": "system", "sslcert": __file__, "sslkey": __file__, name: "/nowhere/file.pem"}
    query = "&".join(f"{option}={value}" for option, value in files.items())
    with pytest.raises(ConfigurationError, match=rf"a TLS file can't be used: {name}: .*/nowhere/file\.pem"):
        registry.transport(f"postgresql://{LOGIN}@db.example/q?{query}")


def test_pgbouncer_is_given_no_settings():
    assert "options" not in parse_url("postgresql://127.0.0.1/q?listen=false").parameters()


@pytest.mark.parametrize(
    ("url", "part"),
    [
        (f"postgresql://{LOGIN}@/q", "names no host"),
        (f"postgresql://{LOGIN}@a,/q", "names no host"),
        (f"postgresql://{LOGIN}@a", "does not name one database"),
        (f"postgresql://{LOGIN}@a/q/r", "does not name one database"),
        (f"postgresql://{LOGIN}@a/{'q' * 64}", "more than 63 bytes"),
        (f"postgresql://{LOGIN}@a:0/q", "port"),
        (f"postgresql://{LOGIN}@a:port/q", "port"),
        (f"postgresql://{LOGIN}@a/q?sslmode=maybe", "sslmode"),
        (f"postgresql://{LOGIN}@a/q?sslkey=file", "sslcert"),
        (f"postgresql://{LOGIN}@a/q?listen=no", "listen"),
        (f"postgresql://{LOGIN}@a/q?pool_size=0", "pool_size"),
        (f"postgresql://{LOGIN}@a/q?target_session_attrs=any", "unknown option"),
        ("postgresql://app:se/cr@et?@a/q", "write '@' as %40"),
        (f"postgresql://{LOGIN}@a/q?host=/run", "give one of them"),
        (f"postgresql://{LOGIN}@/q?host=a", "not the absolute path"),
        (f"postgresql://{LOGIN}@/q?host=/run,/tmp", "not the absolute path"),
        (f"postgresql://{LOGIN}@/q?host=/run&port=0", "port"),
        (f"postgresql://{LOGIN}@a/q?port=5433", "write the port behind the host"),
    ],
)
def test_bad_url_is_explained_without_its_password(url, part):
    with pytest.raises(ConfigurationError, match=part) as caught:
        parse_url(url)
    assert "se/cr" not in str(caught.value)
    assert "se%2F" not in str(caught.value)


def test_password_is_in_no_repr():
    assert "secret" not in repr(parse_url("postgresql://app:secret@a/q"))
    assert "app" not in parse_url("postgresql://app:secret@a/q").endpoint.url
