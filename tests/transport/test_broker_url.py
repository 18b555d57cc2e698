"""The parts and options of a broker's URL, read strictly; no error repeats a secret."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pairmq.model import ConfigurationError
from pairmq.transport import TLS_OPTIONS, BrokerUrl, TlsOptions, UrlOptions, bracketed


def read(rest: str, *, scheme: str = "nats") -> BrokerUrl:
    return BrokerUrl(f"{scheme}://{rest}", "nats://host:port", "nats", "natss")


def options(query: str, *known: str) -> UrlOptions:
    return read(f"h?{query}").options(*known)


def test_a_url_is_split_into_its_parts() -> None:
    url = read("user:p%40ss@[2001:DB8::1]:4222/a?limit=2.5&retries=3", scheme="NATSS")
    assert (url.scheme, url.where) == ("natss", "the natss:// URL")
    assert (url.host(), url.port(1)) == ("2001:db8::1", 4222)
    assert url.decoded(url.parts.password, "password") == "p@ss"
    found = url.options("limit", "retries", "pace")
    assert (found.number("limit", 1, 0, 9), found.number("retries", 1, 0, 9, whole=True)) == (2.5, 3)
    assert found.number("pace", 7, 0, 9) == 7


def test_a_part_that_is_not_given_has_its_default() -> None:
    url = read("h.example.")
    assert (url.host(), url.port(4222), url.port(None)) == ("h.example", 4222, None)
    assert url.decoded(url.parts.username, "user name") == ""
    assert read("h").options() == {}


def test_an_address_is_written_as_it_is_in_a_url() -> None:
    assert (bracketed("::1"), bracketed("h")) == ("[::1]", "h")


def test_an_ipv6_zone_is_decoded() -> None:
    host = read("u:p@[FE80:0:0::1%25eth0]:5").host()
    assert (host, bracketed(host)) == ("fe80::1%eth0", "[fe80::1%25eth0]")


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("[2001:DB8:0:0::0:1]", "2001:db8::1"),
        ("[0:0:0:0:0:0:0:1]", "::1"),
        ("[::FFFF:127.0.0.1]", "127.0.0.1"),
        ("0177.0.0.1", "0177.0.0.1"),
    ],
)
def test_spellings_of_one_ipv6_address_are_one_host(written, host):
    assert read(f"u:p@{written}:5").host() == host


@pytest.mark.parametrize("text", ["1_0", "%205", "5%0A", "%D9%A3", "inf"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_number_is_refused_unless_it_is_plain_ascii(text: str, whole: bool) -> None:
    with pytest.raises(ConfigurationError, match="option limit is no"):
        options(f"limit={text}", "limit").number("limit", 1, 0, float("inf"), whole=whole)


def test_dashes_may_be_written_as_underscores() -> None:
    assert read("h?a_b=1").options("a-b", dashes=True) == {"a-b": "1"}


def test_tls_options_are_read() -> None:
    assert options("ssl_ca_certs=a&ssl_cert_reqs=none", *TLS_OPTIONS).tls() == TlsOptions("a", verify=False)
    assert options("", *TLS_OPTIONS).tls() == TlsOptions()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: read("SECRET h"), "the broker URL holds a space"),
        (lambda: read("SECRET\ud800"), "lone surrogate"),
        (lambda: read("SECRET@[::1"), "bracket"),
        (lambda: read("SECRET@h", scheme="http"), "begin with nats:// or natss://: write it as nats://host:port"),
        (
            lambda: BrokerUrl("nats:SECRET", "nats://host:port", "nats"),
            "begin with nats://: write it as nats://host:port",
        ),
        (lambda: BrokerUrl("nats:/SECRET", "nats://host:port", "nats"), "does not begin with nats://"),
        (lambda: read("SECRET@h#"), "'#'"),
        (lambda: read("SECRET@").host(), "the nats:// URL names no host: write it as nats://host:port"),
        (lambda: read("SECRET@a,b").host(), "the host of the nats:// URL is not a name or address"),
        (lambda: read("SECRET@[::1]x:5"), "is an IPv6 address in brackets"),
        (lambda: read("SECRET@x[::1]:5"), "is an IPv6 address in brackets"),
        (
            lambda: read("SECRET@[fe80::1%25a%25b]").host(),
            "the host of the nats:// URL is not a name or address|bracket",
        ),
        (lambda: read("SECRET@h%25eth0").host(), "the host of the nats:// URL is not a name or address"),
        (lambda: read("SECRET@h:0").port(1), "the port of the nats:// URL is invalid"),
        (lambda: read("SECRET@h:x").port(1), "the port of the nats:// URL is invalid"),
        (lambda: read("u:SECRET/x@h:1").port(1), "the port .*, and write '/' and .* in a user name or password as %2F"),
        (lambda: read("u:SECRET?x@h:1").port(1), "the port .*, and write '/' and .* in a user name or password as %2F"),
        (lambda: read("SECRET@a:1,b:2").port(1), "names several hosts: write it as nats://host:port"),
        (lambda: read("h").decoded("SECRET%FF", "password"), "the password of the nats:// URL is not percent-encoded"),
        (lambda: read("h").decoded("SECRET%00", "password"), "the password of the nats:// URL holds a control"),
        (lambda: read("h").decoded("SECRET", "password", most_bytes=5), "has more than 5 bytes"),
        (lambda: options("pace=1", "limit"), "an unknown option 'pace': known are limit"),
        (lambda: options("SECRET=1", "limit"), "an unknown option: known are limit"),
        (lambda: options("limit=1&limit=2", "limit"), "the option 'limit' twice"),
        (lambda: options("limit=%FF", "limit"), "the options of the nats:// URL are not percent-encoded"),
        (lambda: read("h?x=SECRET@h").options("x", url_option="admin"), "'@' in an option"),
        (lambda: options("limit=SECRET", "limit").number("limit", 1, 0, 9), "option limit is not a number from 0 to 9"),
        (lambda: options("limit=nan", "limit").number("limit", 1, 0, 9), "option limit is not a number from 0 to 9"),
        (lambda: options("limit=1.5", "limit").number("limit", 1, 0, 9, whole=True), "not a whole number from 0 to 9"),
        (lambda: options("mode=SECRET", "mode").choice("mode", "a", "b"), "option mode is neither 'a' nor 'b'"),
        (lambda: options("ssl_keyfile=k", *TLS_OPTIONS).tls(), "ssl_keyfile without ssl_certfile"),
        (
            lambda: TlsOptions("missing.pem").context(for_url="nats://h"),
            "a TLS file can't be used: ssl_ca_certs, missing.pem: ",
        ),
        (
            lambda: TlsOptions(certfile="missing.pem").context(for_url="nats://h"),
            "nats://h: .*: ssl_certfile, missing.pem: ",
        ),
    ],
)
def test_what_is_wrong_is_named_without_a_secret(call: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        call()
    assert "SECRET" not in str(caught.value)


def test_several_hosts_are_read_with_their_ports() -> None:
    url = BrokerUrl("x://u:p%2C@A:1,[::1],b.:2,b:2/v?o=1,2", "x://host", "x", several=True)
    assert url.hosts(9) == (("a", 1), ("::1", 9), ("b", 2))
    assert (url.parts.password, url.parts.path, url.parts.query) == ("p%2C", "/v", "o=1,2")


@pytest.mark.parametrize("url", ["x://a,", "x://a,b:0", "x://a,[::1", "x://a,b;c"])
def test_one_invalid_host_of_several_is_reported(url: str) -> None:
    with pytest.raises(ConfigurationError):
        BrokerUrl(url, "x://host", "x", several=True).hosts(9)
