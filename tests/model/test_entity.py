"""Entities and sources: which paths there are."""

from __future__ import annotations

import pickle
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pairmq.model import MAX_PATH_LENGTH, Entity, EntityKind, Source

GOOD_PATHS = [
    "orders",
    "a/b/c",
    "a" * MAX_PATH_LENGTH,
    "contoso/x-servicebus-transfer/0",
    "Ünï",
    "a b",
    "$x",
    "...",
    "-.-",
]
BAD_PATHS: dict[Any, str] = {
    "": "is empty",
    "a" * (MAX_PATH_LENGTH + 1): "has 261 characters: at most 260",
    "a" * 300: "has 300 characters",
    "a\x00": "control or unprintable",
    "a\nb": "control or unprintable",
    "a\x7f": "control or unprintable",
    "a\u200b": "control or unprintable",
    "a\u202eb": "control or unprintable",
    "a\ud800": "control or unprintable",
    "a*": "reserved for patterns",
    "a?": "reserved for patterns",
    "[a": "reserved for patterns",
    "a]": "reserved for patterns",
    "a\\b": "reserved for patterns",
    "/a": "empty, '.' or '..' segment",
    "a/": "empty, '.' or '..' segment",
    "a//b": "empty, '.' or '..' segment",
    "/": "empty, '.' or '..' segment",
    ".": "empty, '.' or '..' segment",
    "..": "empty, '.' or '..' segment",
    "../a": "empty, '.' or '..' segment",
    "a/../b": "empty, '.' or '..' segment",
    "a/.": "empty, '.' or '..' segment",
    None: "is a NoneType: give a string",
    7: "is a int: give a string",
    b"a": "is a bytes: give a string",
}


@pytest.mark.parametrize("path", GOOD_PATHS, ids=lambda path: path[:20])
def test_a_path_of_proper_segments_is_allowed(path: str):
    assert Entity(path).path == path


@pytest.mark.parametrize(("path", "rule"), BAD_PATHS.items(), ids=lambda value: ascii(value)[:25])
def test_a_path_that_breaks_a_rule_is_refused_and_the_rule_named(path: Any, rule: str):
    with pytest.raises(ValueError, match=r"^entity path .*: ") as caught:
        Entity(path)
    assert rule in str(caught.value)


@given(st.text(max_size=300))
def test_any_text_is_a_path_or_refused(text: str):
    try:
        path = Entity(text).path
    except ValueError:
        return
    assert path.isprintable()
    assert ".." not in path.split("/")


def test_a_long_path_is_cut_in_the_error():
    with pytest.raises(ValueError, match="entity path") as caught:
        Entity("a" * 10_000)
    assert "'aaaa" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_an_error_shows_control_characters_escaped():
    with pytest.raises(ValueError, match="entity path") as caught:
        Entity("a\x1b[31m")
    assert str(caught.value).isprintable()


def test_an_entity_is_a_queue_by_default():
    assert Entity("a").kind is EntityKind.QUEUE


@pytest.mark.parametrize("kind", EntityKind)
def test_a_kind_may_be_given_as_text(kind: EntityKind):
    assert Entity("a", kind.value).kind is kind  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["Queue", "", None, 1, [], "subscription"], ids=repr)
def test_another_kind_is_refused(kind: Any):
    with pytest.raises(ValueError, match=r"entity kind .*: use 'queue' or 'topic'"):
        Entity("a", kind)


def test_a_queue_and_a_topic_of_one_path_are_two_entities():
    assert Entity("a") != Entity("a", EntityKind.TOPIC)


@pytest.mark.parametrize("kind", EntityKind)
def test_equal_entities_are_one_key(kind: EntityKind):
    assert len({Entity("a", kind), Entity("a", kind), pickle.loads(pickle.dumps(Entity("a", kind)))}) == 1


@pytest.mark.parametrize(("entity", "text"), [(Entity("a/b"), "a/b"), (Entity("a", EntityKind.TOPIC), "topic:a")])
def test_an_entity_reads_as_its_path(entity: Entity, text: str):
    assert str(entity) == text


# ---------------------------------------------------------------------------------------------------------- sources

QUEUE, TOPIC = Entity("q"), Entity("t", EntityKind.TOPIC)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (Source(QUEUE), "q"),
        (Source(QUEUE, dead_letter=True), "q (dead-letter)"),
        (Source(TOPIC, "s"), "t/s"),
        (Source(TOPIC, "s", dead_letter=True), "t/s (dead-letter)"),
    ],
)
def test_a_source_reads_as_what_is_read(source: Source, text: str):
    assert str(source) == text


@pytest.mark.parametrize("name", [None, ""])
def test_a_topic_is_read_through_a_subscription(name: str | None):
    with pytest.raises(ValueError, match="topic 't' is read through a subscription: name one"):
        Source(TOPIC, name)


@pytest.mark.parametrize("name", ["s", ""])
def test_a_queue_has_no_subscriptions(name: str):
    with pytest.raises(ValueError, match="queue 'q' has no subscriptions"):
        Source(QUEUE, name)


@pytest.mark.parametrize("name", ["*", "..", "a\n", "a" * 261, 7], ids=lambda value: ascii(value)[:10])
def test_a_subscription_keeps_the_rules_of_paths(name: Any):
    with pytest.raises(ValueError, match=r"^subscription "):
        Source(TOPIC, name)
