"""The administration, driven by Microsoft's own client."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)
from azure.servicebus.management import ServiceBusAdministrationClient as SyncClient

from servicebus_local.broker import Incoming

# -------------------------------------------------------------------------------------------------------- entities


async def test_a_queue_is_made_with_the_service_s_defaults(client: ServiceBusAdministrationClient, front: Any) -> None:
    made = await client.create_queue("orders")
    got = await client.get_queue("orders")
    assert made == got
    assert got.name == "orders"
    assert got.lock_duration == timedelta(minutes=1)
    assert got.max_delivery_count == 10
    assert got.default_message_time_to_live > timedelta(days=10_000_000)
    assert got.status == "Active"
    assert not got.requires_session
    assert front.broker.get_queue("orders").description.default_message_time_to_live is None
    assert front.changes == 1


async def test_every_property_of_a_queue_comes_back(client: ServiceBusAdministrationClient) -> None:
    await client.create_queue("dead")
    await client.create_queue("next")
    wanted = {
        "auto_delete_on_idle": timedelta(hours=1),
        "dead_lettering_on_message_expiration": True,
        "default_message_time_to_live": timedelta(days=1, milliseconds=1),
        "duplicate_detection_history_time_window": timedelta(minutes=3),
        "enable_batched_operations": False,
        "enable_express": True,
        "enable_partitioning": True,
        "lock_duration": timedelta(seconds=17),
        "max_delivery_count": 77,
        "max_size_in_megabytes": 5120,
        "requires_duplicate_detection": True,
        "user_metadata": "a < b & 'c' \"d\" \u00e9\U0001f600",
        "forward_dead_lettered_messages_to": "dead",
        "forward_to": "next",
        "status": "SendDisabled",
        "max_message_size_in_kilobytes": 2048,
    }
    await client.create_queue("a/b", **wanted)
    got = await client.get_queue("a/b")
    for name in ("forward_to", "forward_dead_lettered_messages_to"):
        assert str(getattr(got, name)).endswith(f"/{wanted.pop(name)}")
    assert {name: getattr(got, name) for name in wanted} == wanted


async def test_an_update_changes_what_it_says_and_nothing_else(client: ServiceBusAdministrationClient) -> None:
    queue = await client.create_queue("q", max_delivery_count=3, requires_session=True, user_metadata="before")
    queue.lock_duration = timedelta(seconds=30)
    queue.user_metadata = "after"
    await client.update_queue(queue)
    got = await client.get_queue("q")
    assert (got.lock_duration, got.user_metadata) == (timedelta(seconds=30), "after")
    assert (got.max_delivery_count, got.requires_session) == (3, True)
    # What the client reads as the largest time span and rounds is still no limit.
    assert got.default_message_time_to_live > timedelta(days=10_000_000)


async def test_what_is_fixed_at_creation_can_t_be_updated(client: ServiceBusAdministrationClient) -> None:
    queue = await client.create_queue("q")
    queue.requires_session = True
    with pytest.raises(HttpResponseError) as raised:
        await client.update_queue(queue)
    assert raised.value.status_code == 400
    assert "requires_session" in raised.value.message


async def test_counts_are_returned(client: ServiceBusAdministrationClient, front: Any) -> None:
    before = datetime.now(UTC)
    await client.create_queue("q")
    after = datetime.now(UTC)
    later = time.time() + 3600
    front.broker.send("q", [Incoming(b"x", 1), Incoming(b"y", 1), Incoming(b"z", 1, scheduled_at=later)])
    source = front.broker.resolve_receive("q")
    token = source.take(1)[0].lock_token
    assert token is not None
    source.dead_letter(token)
    got = await client.get_queue_runtime_properties("q")
    assert got.total_message_count == 3
    assert got.active_message_count == 1
    assert got.dead_letter_message_count == 1
    assert got.scheduled_message_count == 1
    assert got.transfer_message_count == got.transfer_dead_letter_message_count == 0
    assert got.size_in_bytes > 0
    # It counts in whole milliseconds, or coarser.
    assert before - timedelta(seconds=1) < got.created_at_utc < after + timedelta(seconds=1)
    assert got.updated_at_utc >= got.created_at_utc


async def test_topics_subscriptions_and_rules_are_made_read_changed_and_deleted(
    client: ServiceBusAdministrationClient,
) -> None:
    topic = await client.create_topic("t", support_ordering=False, max_size_in_megabytes=2048)
    assert (await client.get_topic("t")).max_size_in_megabytes == 2048
    topic.user_metadata = "m"
    await client.update_topic(topic)
    assert (await client.get_topic("t")).user_metadata == "m"
    subscription = await client.create_subscription("t", "s", requires_session=True, lock_duration="PT10S")
    assert subscription.lock_duration == timedelta(seconds=10)
    assert (await client.get_topic_runtime_properties("t")).subscription_count == 1
    subscription.max_delivery_count = 5
    await client.update_subscription("t", subscription)
    got = await client.get_subscription("t", "s")
    assert (got.name, got.max_delivery_count, got.requires_session) == ("s", 5, True)
    assert (await client.get_subscription_runtime_properties("t", "s")).active_message_count == 0
    assert [rule.name async for rule in client.list_rules("t", "s")] == ["$Default"]
    await client.delete_rule("t", "s", "$Default")
    assert [rule.name async for rule in client.list_rules("t", "s")] == []
    await client.delete_subscription("t", "s")
    assert [one.name async for one in client.list_subscriptions("t")] == []
    await client.delete_topic("t")
    assert [one.name async for one in client.list_topics()] == []


async def test_every_filter_and_action_comes_back(client: ServiceBusAdministrationClient) -> None:
    await client.create_topic("t")
    await client.create_subscription("t", "s")
    when = datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)
    properties = {"text": "a<b", "whole": 5, "large": 2**40, "real": 1.5, "flag": True, "when": when}
    filters = {
        "correlation": CorrelationRuleFilter(
            correlation_id="c", message_id="m", to="t", reply_to="r", label="l", session_id="s",
            reply_to_session_id="rs", content_type="text/plain", properties=properties,
        ),
        "sql": SqlRuleFilter("amount > @least AND name = 'a''b'", parameters={"@least": 5}),
        "yes": TrueRuleFilter(),
        "no": FalseRuleFilter(),
    }  # fmt: skip
    for name, one in filters.items():
        await client.create_rule("t", "s", name, filter=one)
    await client.create_rule("t", "s", "act", filter=SqlRuleFilter("1=1"), action=SqlRuleAction("SET a = 1"))
    listed = {rule.name: rule async for rule in client.list_rules("t", "s")}
    assert set(listed) == {*filters, "act", "$Default"}
    for name in filters:
        got = await client.get_rule("t", "s", name)
        assert type(got.filter) is type(filters[name])
        assert listed[name].filter.__dict__ == got.filter.__dict__
        assert got.action is None
    correlation = (await client.get_rule("t", "s", "correlation")).filter
    assert correlation.__dict__ == filters["correlation"].__dict__
    sql = (await client.get_rule("t", "s", "sql")).filter
    assert (sql.sql_expression, sql.parameters) == ("amount > @least AND name = 'a''b'", {"@least": 5})
    acting = await client.get_rule("t", "s", "act")
    assert acting.action.sql_expression == "SET a = 1"
    acting.action = SqlRuleAction("SET a = 2")
    await client.update_rule("t", "s", acting)
    assert (await client.get_rule("t", "s", "act")).action.sql_expression == "SET a = 2"


async def test_the_namespace_has_its_name(client: ServiceBusAdministrationClient) -> None:
    got = await client.get_namespace_properties()
    assert (got.name, got.messaging_sku, got.namespace_type) == ("testing", "Standard", "Messaging")


# ---------------------------------------------------------------------------------------------------------- lists


async def test_lists_come_in_pages(client: ServiceBusAdministrationClient, front: Any) -> None:
    names = [f"q{number:03}" for number in range(205)]
    for name in names:
        front.broker.create_queue(name)
    assert [queue.name async for queue in client.list_queues()] == names
    assert [queue.name async for queue in client.list_queues(start_index=200, max_page_size=2)] == names[200:]
    pages = client.list_queues_runtime_properties(max_page_size=90).by_page()
    assert [len([one async for one in page]) async for page in pages] == [90, 90, 25]


async def test_subscriptions_and_rules_come_in_pages(client: ServiceBusAdministrationClient, front: Any) -> None:
    front.broker.create_topic("a/t")
    names = [f"s{number}" for number in range(7)]
    for name in names:
        front.broker.create_subscription("a/t", name)
        await client.create_rule("a/t", "s0", f"r{name}", filter=TrueRuleFilter())
    assert [one.name async for one in client.list_subscriptions("a/t", max_page_size=3)] == names
    listed = [one.name async for one in client.list_rules("a/t", "s0", max_page_size=3)]
    assert listed == ["$Default", *(f"r{name}" for name in names)]


async def test_an_empty_namespace_has_empty_lists(client: ServiceBusAdministrationClient) -> None:
    assert [one async for one in client.list_queues()] == []
    assert [one async for one in client.list_topics()] == []


# --------------------------------------------------------------------------------------------------------- errors


async def test_an_existing_entity_can_t_be_created_again(client: ServiceBusAdministrationClient) -> None:
    await client.create_queue("q")
    await client.create_topic("t")
    await client.create_subscription("t", "s")
    await client.create_rule("t", "s", "r", filter=TrueRuleFilter())
    for again in (
        client.create_queue("Q"),
        client.create_topic("q"),
        client.create_queue("t"),
        client.create_subscription("t", "s"),
        client.create_rule("t", "s", "r", filter=TrueRuleFilter()),
    ):
        with pytest.raises(ResourceExistsError):
            await again


async def test_a_missing_entity_is_not_found(client: ServiceBusAdministrationClient, front: Any) -> None:
    await client.create_topic("t")
    await client.create_subscription("t", "s")
    await client.create_queue("gone")
    gone = await client.get_queue("gone")
    await client.delete_queue("gone")
    changes = front.changes
    for missing in (
        client.get_queue("none"),
        client.get_topic("none"),
        client.get_queue_runtime_properties("none"),
        client.get_subscription("t", "none"),
        client.get_subscription("none", "s"),
        client.get_rule("t", "s", "none"),
        client.delete_queue("none"),
        client.delete_topic("none"),
        client.delete_subscription("t", "none"),
        client.delete_rule("t", "s", "none"),
        client.update_queue(gone),
        client.create_subscription("none", "s"),
    ):
        with pytest.raises(ResourceNotFoundError):
            await missing
    assert front.changes == changes


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"lock_duration": timedelta(hours=1)}, "lock_duration"),
        ({"lock_duration": "P1Y"}, "LockDuration: invalid duration 'P1Y'"),
        ({"max_delivery_count": 0}, "max_delivery_count"),
        ({"status": "Sleepy"}, "Status: invalid value 'Sleepy'; use Active"),
    ],
)
async def test_a_property_that_can_t_be_is_refused_in_a_sentence(
    client: ServiceBusAdministrationClient, front: Any, properties: dict[str, object], says: str
) -> None:
    with pytest.raises(HttpResponseError) as raised:
        await client.create_queue("q", **properties)
    assert raised.value.status_code == 400
    assert says in raised.value.message
    assert front.broker.queues() == []
    assert front.changes == 0


# ------------------------------------------------------------------------------------------------ the other client


async def test_the_blocking_client_works_too(front: Any) -> None:
    def use() -> None:
        with SyncClient.from_connection_string(
            front.connection_string, connection_verify=str(front.ca_file), retry_total=0
        ) as client:
            queue = client.create_queue("q", max_delivery_count=4)
            queue.max_delivery_count = 6
            client.update_queue(queue)
            assert client.get_queue("q").max_delivery_count == 6
            client.create_topic("t")
            client.create_subscription("t", "s")
            client.create_rule("t", "s", "r", filter=CorrelationRuleFilter(properties={"a": "b"}))
            assert client.get_rule("t", "s", "r").filter.properties == {"a": "b"}
            assert [one.name for one in client.list_queues()] == ["q"]
            assert [one.name for one in client.list_subscriptions("t")] == ["s"]
            assert client.get_queue_runtime_properties("q").total_message_count == 0
            with pytest.raises(ResourceNotFoundError):
                client.get_topic("none")
            with pytest.raises(ResourceExistsError):
                client.create_queue("q")
            client.delete_queue("q")
            assert client.get_namespace_properties().name == "testing"

    await asyncio.to_thread(use)
