"""XML that comes from outside, and how its rules and paths are read."""

import contextlib
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebus_local.amqp import Timestamp
from servicebus_local.atom._app import Namespace, Path, decoded, parse_path
from servicebus_local.atom._entries import MAX_BYTES, XmlError, parse, read_rule, tag, write_rule
from servicebus_local.broker import (
    Broker,
    BrokerError,
    CorrelationFilter,
    FalseFilter,
    QueueDescription,
    Rule,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from servicebus_local.descriptions import UNLIMITED, PropertyError, xml_name

_BOMB = b"""<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "0123456789"><!ENTITY y "&x;&x;&x;&x;&x;&x;">]><a>&y;</a>"""


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"", "not well-formed"),
        (b"<a>", "not well-formed"),
        (b"\xff\xfe\x00", "not well-formed"),
        (b"<a>&nbsp;</a>", "not well-formed"),
        (_BOMB, "document type or entities"),
        (b"<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>", "document type or entities"),
        (b"<?xml version='1.0' encoding='no-such-thing'?><a/>", "can't be read|not well-formed"),
        (b"<a>" * 40 + b"</a>" * 40, "nested"),
        (b"<a>" * 30_000 + b"</a>" * 30_000, "nested"),
        (b"<a>" + b" " * MAX_BYTES + b"</a>", "bytes"),
    ],
)
def test_xml_that_is_no_good_is_refused_in_a_sentence(document: bytes, says: str) -> None:
    with pytest.raises(XmlError, match=says):
        parse(document)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(document: bytes) -> None:
    with contextlib.suppress(XmlError):
        parse(b"<a>" + document)


@given(st.text())
def test_every_text_can_be_written(value: str) -> None:
    read = parse(tag("a", value).encode()).text or ""
    kept = "".join(letter if letter >= " " or letter in "\t\n\r" else "\ufffd" for letter in value)
    assert read == kept.replace("\ufffe", "\ufffd").replace("\uffff", "\ufffd")


_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn")), min_size=1, max_size=20)
_VALUES = st.dictionaries(
    _TEXT,
    st.one_of(
        _TEXT,
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.integers(0, 4 * 10**12).map(Timestamp),
    ),
    max_size=4,
)
_FILTERS = st.one_of(
    st.just(TrueFilter()),
    st.just(FalseFilter()),
    st.builds(SqlFilter, _TEXT, _VALUES),
    st.builds(CorrelationFilter, label=st.none() | _TEXT, message_id=st.none() | _TEXT, properties=_VALUES),
)


@given(_FILTERS, st.none() | _TEXT)
def test_a_rule_comes_back_as_it_was(kept, action: str | None) -> None:
    rule = Rule("r", kept, action)
    read = read_rule(parse(write_rule(rule).encode()), "r")
    assert (read.name, read.filter, read.action) == (rule.name, rule.filter, rule.action)
    for name in ("properties", "parameters"):
        before = getattr(kept, name, {})
        assert [type(value) for value in getattr(read.filter, name, {}).values()] == [type(v) for v in before.values()]


@pytest.mark.parametrize(
    ("xml", "says"),
    [
        ("<Filter/>", "type is ''"),
        ("<Filter i:type='Strange'/>", "type is 'Strange'"),
        ("<Filter i:type='SqlFilter'/>", "no SqlExpression"),
        ("<Filter i:type='TrueFilter'/><Action i:type='Strange'/>", "type is 'Strange'"),
        (
            "<Filter i:type='CorrelationFilter'><Properties><E><Key>k</Key></E></Properties></Filter>",
            "Key or its Value",
        ),
        (
            "<Filter i:type='CorrelationFilter'><Properties><E><Key>k</Key><Value i:type='x:int'>1.5</Value></E>"
            "</Properties></Filter>",
            "'k' is no int",
        ),
        (
            "<Filter i:type='CorrelationFilter'><Properties><E><Key>k</Key><Value i:type='x:duration'>PT1S</Value></E>"
            "</Properties></Filter>",
            "'duration', which this local server does not know",
        ),
    ],
)
def test_a_rule_that_can_t_be_read_is_refused_in_a_sentence(xml: str, says: str) -> None:
    document = f"<R xmlns:i='http://www.w3.org/2001/XMLSchema-instance'>{xml}</R>"
    with pytest.raises(XmlError, match=says):
        read_rule(parse(document.encode()), "r")


_DESCRIPTIONS = (QueueDescription, TopicDescription, SubscriptionDescription)
_NAMES = sorted({xml_name(f.name) for each in _DESCRIPTIONS for f in fields(each)} | {"Name", "Filter", "Unknown"})
_SAID = st.one_of(
    st.sampled_from(
        ["", "true", "5", "-1", "1e9", "PT30S", "PT0S", "Active", UNLIMITED, "9" * 30, "sb://h/q", "q", "\0"]
    ),
    _TEXT,
)


@given(
    st.sampled_from(["QueueDescription", "TopicDescription", "SubscriptionDescription", "RuleDescription", "Other"]),
    st.lists(st.tuples(st.sampled_from(_NAMES), _SAID), max_size=5),
    st.sampled_from(["q", "t", "new", "t/subscriptions/s", "t/subscriptions/new/rules/r", "t/subscriptions/s/rules/r"]),
    st.booleans(),
)
def test_whatever_a_description_says_it_is_taken_or_refused_in_a_sentence(
    kind: str, said: list[tuple[str, str]], path: str, update: bool
) -> None:
    broker = Broker(lambda: 1000.0)
    broker.create_queue("q")
    broker.create_topic("t")
    broker.create_subscription("t", "s")
    namespace = Namespace(broker, "n", 1000.0)
    content = "".join(tag(name, value) for name, value in said)
    body = f"<entry><content><{kind}>{content}</{kind}></content></entry>".encode()
    try:
        entry = namespace.put(parse_path(path), body, update=update)
    except (XmlError, PropertyError, BrokerError) as error:
        refusal: str | None = str(error)
    else:
        refusal = None
        # What was taken is written as XML that the same reader takes back, changing nothing.
        again = namespace.put(
            parse_path(path), f"<entry><content>{entry.content}</content></entry>".encode(), update=True
        )
        assert again.content == entry.content
    assert refusal is None or len(refusal) > 5


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/orders", Path("entity", ("orders",))),
        ("/a/b/c", Path("entity", ("a/b/c",))),
        ("/a%2Fb", Path("entity", ("a/b",))),
        ("/$Resources/queues", Path("entities", ("queues",))),
        ("/t/subscriptions", Path("subscriptions", ("t",))),
        ("/t/Subscriptions/", Path("subscriptions", ("t",))),
        ("/a/b/subscriptions/s", Path("subscription", ("a/b", "s"))),
        ("/t/subscriptions/s/rules", Path("rules", ("t", "s"))),
        ("/t/subscriptions/s/Rules/%24Default", Path("rule", ("t", "s", "$Default"))),
    ],
)
def test_a_path_says_what_it_is_about(raw: str, path: object) -> None:
    assert parse_path(decoded(raw)) == path
