"""Topics, rules and forwarding."""

from __future__ import annotations

import pytest

from servicebus_local.broker import (
    BrokerError,
    CorrelationFilter,
    EntityStatus,
    FalseFilter,
    Incoming,
    QueueDescription,
    Rule,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)


def text(body: str, **more) -> Incoming:
    return Incoming(body.encode(), 10, **more)


def bodies(messages) -> list[str]:
    return [message.content.decode() for message in messages]


def refused(condition: str):
    return pytest.raises(BrokerError, match=condition)


@pytest.fixture
def topic(broker):
    broker.create_topic("news")
    broker.create_subscription("news", "all")
    return broker


def taken(broker, name: str, **more) -> list[str]:
    return bodies(broker.resolve_receive(f"news/Subscriptions/{name}").take(99, delete=True))


def test_every_subscription_gets_its_own_copy_and_numbers(topic):
    topic.create_subscription("news", "late")
    topic.send("news", [text("a"), text("b")])
    topic.create_subscription("news", "later")
    copy = topic.resolve_receive("news/subscriptions/LATE").take(2)[1]
    assert (copy.sequence_number, copy.enqueued_sequence_number) == (2, 2)
    topic.resolve_receive("news/subscriptions/late").complete(copy.lock_token)
    assert taken(topic, "all") == ["a", "b"]
    assert taken(topic, "later") == []
    with refused("not-allowed"):
        topic.resolve_receive("news")
    with refused("not-allowed"):
        topic.send("news/Subscriptions/all", [text("x")])


def test_rules_choose_and_are_or_ed_into_one_copy(topic):
    topic.create_subscription("news", "some", rule=Rule("r", SqlFilter("n > 1")))
    topic.add_rule("news", "some", Rule("c", CorrelationFilter(label="x", properties={"n": 3})))
    topic.send("news", [text(str(n), subject="x", properties={"n": n}) for n in range(4)])
    assert taken(topic, "some") == ["2", "3"]
    topic.remove_rule("news", "some", "R")
    topic.send("news", [text(str(n), subject="x", properties={"n": n}) for n in range(4)])
    assert taken(topic, "some") == ["3"]
    assert [rule.name for rule in topic.rules("news", "some")] == ["c"]
    topic.update_rule("news", "some", Rule("c", FalseFilter()))
    topic.send("news", [text("z")])
    assert taken(topic, "some") == []
    with refused("not-found"):
        topic.remove_rule("news", "some", "r")
    with refused("entity-already-exists"):
        topic.add_rule("news", "some", Rule("C", FalseFilter()))


def test_a_rule_with_an_action_makes_a_copy_of_its_own(topic):
    topic.add_rule("news", "all", Rule("tag", SqlFilter("n = 1"), "SET twice = n * 2; REMOVE n"))
    topic.send("news", [text("a", properties={"n": 1})])
    first, second = topic.resolve_receive("news/Subscriptions/all").take(9)
    added = [each.added_properties for each in (first, second)]
    assert sorted(added, key=len) == [{}, {"twice": 2, "n": None, "RuleName": "tag"}]


@pytest.mark.parametrize("kept", [True, False])
def test_a_filter_that_fails_dead_letters_if_asked_for(broker, kept):
    broker.create_topic("news")
    description = SubscriptionDescription(dead_lettering_on_filter_evaluation_exceptions=kept)
    broker.create_subscription("news", "s", description, Rule("r", SqlFilter("1 / n = 1")))
    broker.send("news", [text("a", properties={"n": 0}), text("b", properties={"n": 1})])
    counts = broker.get_subscription("news", "s").counts
    assert (counts.active, counts.dead_letter) == (1, int(kept))


def test_a_rule_that_cannot_be_read_makes_no_subscription(topic):
    with refused("argument-error"):
        topic.create_subscription("news", "bad", rule=Rule("r", SqlFilter("n >")))
    with refused("argument-error"):
        topic.add_rule("news", "all", Rule("empty", CorrelationFilter()))
    assert [each.name for each in topic.subscriptions("news")] == ["all"]


def test_a_topic_keeps_scheduled_messages_until_their_time(topic, clock):
    first, _ = topic.schedule("news", [text(each, scheduled_at=clock.now + 60) for each in "ab"])
    topic.cancel("news", [first])
    assert topic.get_topic("news").counts.scheduled == 1
    called = []
    topic.resolve_receive("news/Subscriptions/all").on_ready(lambda: called.append(1))
    clock.now += 60
    topic.advance()
    assert called == [1]
    assert taken(topic, "all") == ["b"]


def test_a_message_without_a_session_is_dead_in_a_subscription_that_needs_one(topic):
    topic.create_subscription("news", "ordered", SubscriptionDescription(requires_session=True))
    topic.send("news", [text("a")])
    dead = topic.resolve_receive("news/Subscriptions/ordered/$DeadLetterQueue").take(1)[0]
    assert dead.dead_letter_reason == "Session ID is null"


def test_duplicates_are_dropped_before_copies_are_made(broker):
    broker.create_topic("news", TopicDescription(requires_duplicate_detection=True))
    broker.create_subscription("news", "all")
    broker.send("news", [text("a", message_id="1"), text("b", message_id="1")])
    assert taken(broker, "all") == ["a"]


def test_forwarding_moves_messages_on_and_closes_the_entity_to_receivers(broker):
    broker.create_queue("end")
    broker.create_topic("news")
    broker.create_subscription("news", "s", SubscriptionDescription(forward_to="sb://host.example/end"))
    broker.send("news", [text("a")])
    message = broker.resolve_receive("end").take(1)[0]
    assert (message.content, message.enqueued_sequence_number) == (b"a", 1)
    with refused("not-allowed"):
        broker.resolve_receive("news/Subscriptions/s")
    with refused("argument-error"):
        broker.create_queue("x", QueueDescription(forward_to="nowhere"))


def test_a_message_is_forwarded_four_times_at_most(broker):
    broker.create_queue("q0")
    for number in range(1, 7):
        broker.create_queue(f"q{number}", QueueDescription(forward_to=f"q{number - 1}"))
    broker.send("q4", [text("near")])
    broker.send("q5", [text("far")])
    assert bodies(broker.resolve_receive("q0").take(9)) == ["near"]
    dead = broker.resolve_receive("q1/$DeadLetterQueue").take(1)[0]
    assert (dead.content, dead.dead_letter_reason) == (b"far", "MaxTransferHopCountExceeded")


def test_dead_letters_are_forwarded_with_their_reason(broker, clock):
    broker.create_queue("graves")
    broker.create_queue(
        "q", QueueDescription(forward_dead_lettered_messages_to="graves", dead_lettering_on_message_expiration=True)
    )
    broker.send("q", [text("a", time_to_live=1)])
    clock.now += 1
    broker.advance()
    message = broker.resolve_receive("graves").take(1)[0]
    assert (message.dead_letter_reason, message.dead_letter_source) == ("TTLExpiredException", "q")


def test_what_the_target_does_not_take_waits_at_the_source(broker, clock):
    broker.create_queue("end", QueueDescription(status=EntityStatus.DISABLED))
    broker.create_queue("q", QueueDescription(forward_to="end"))
    broker.send("q", [text("a"), text("b")])
    assert broker.get_queue("q").counts.active == 2
    broker.update_queue("end", QueueDescription())
    clock.now += 10
    broker.advance()
    assert bodies(broker.resolve_receive("end").take(9)) == ["a", "b"]
    broker.delete_queue("end")
    broker.send("q", [text("c")])
    assert broker.get_queue("q").counts.dead_letter == 1


def test_administration_refuses_what_the_service_refuses(broker):
    broker.create_queue("a/b", QueueDescription(user_metadata="x"))
    with refused("entity-already-exists"):
        broker.create_topic("A/B")
    for path in ("", "/a", "a b", "a/subscriptions/b", "x" * 261, "$management", "a//b"):
        with refused("argument-error"):
            broker.create_queue(path)
    for wrong in ({"lock_duration": 301.0}, {"max_delivery_count": 0}, {"auto_delete_on_idle": 299.0}):
        with refused("argument-out-of-range"):
            broker.create_queue("q", QueueDescription(**wrong))
    with refused("not-allowed"):
        broker.update_queue("a/b", QueueDescription(requires_session=True))
    with refused("not-found"):
        broker.get_topic("a/b")
    with refused("not-found"):
        broker.create_subscription("a/b", "s")
    assert [each.path for each in broker.queues()] == ["a/b"]
