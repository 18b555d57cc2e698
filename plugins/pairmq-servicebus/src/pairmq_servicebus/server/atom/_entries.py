"""Answers of the administration: entries and feeds of Atom.

Elements stand in the order of the service's data contracts, as some clients read them in that order only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pairmq_servicebus.server.atom._rules import instant, write_rule
from pairmq_servicebus.server.atom._xml import ATOM, COUNTS, INSTANCE, SERVICE_BUS, tag, text
from pairmq_servicebus.server.broker import MessageCounts, QueueInfo, Rule, SubscriptionInfo, TopicInfo
from pairmq_servicebus.server.descriptions import write_properties

_ORDER = {
    "QueueDescription": (
        "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive"
        " DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations"
        " SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status CreatedAt UpdatedAt AccessedAt"
        " SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus EnableExpress"
        " ForwardTo UserMetadata ForwardDeadLetteredMessagesTo MaxMessageSizeInKilobytes"
    ),
    "TopicDescription": (
        "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow"
        " EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible"
        " AuthorizationRules Status CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails SubscriptionCount"
        " AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus EnableSubscriptionPartitioning EnableExpress"
        " UserMetadata MaxMessageSizeInKilobytes"
    ),
    "SubscriptionDescription": (
        "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration"
        " DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status"
        " ForwardTo CreatedAt UpdatedAt AccessedAt CountDetails ForwardDeadLetteredMessagesTo AutoDeleteOnIdle"
        " EntityAvailabilityStatus UserMetadata"
    ),
}

_NOT_KEPT = {
    "IsAnonymousAccessible": "false",
    "EntityAvailabilityStatus": "Available",
    "EnableSubscriptionPartitioning": "false",
}

_HEAD = '<?xml version="1.0" encoding="utf-8"?>'


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that the administration shows.

    Args:
        title: its name, as lists give it.
        path: below the namespace.
        content: its description in XML.
        created_at: Unix seconds.
        updated_at: Unix seconds.
    """

    title: str
    path: str
    content: str
    created_at: float
    updated_at: float


def queue_entry(info: QueueInfo) -> Entry:
    """Show a queue."""
    runtime = {"SizeInBytes": info.size_in_bytes, "MessageCount": info.counts.total}
    return Entry(
        info.path, info.path, _description("QueueDescription", info, runtime), info.created_at, info.updated_at
    )


def topic_entry(info: TopicInfo) -> Entry:
    """Show a topic."""
    runtime = {"SizeInBytes": info.size_in_bytes, "SubscriptionCount": info.subscription_count}
    return Entry(
        info.path, info.path, _description("TopicDescription", info, runtime), info.created_at, info.updated_at
    )


def subscription_entry(info: SubscriptionInfo) -> Entry:
    """Show a subscription."""
    content = _description("SubscriptionDescription", info, {"MessageCount": info.counts.total})
    return Entry(info.name, f"{info.topic}/subscriptions/{info.name}", content, info.created_at, info.updated_at)


def rule_entry(topic: str, subscription: str, rule: Rule) -> Entry:
    """Show a rule."""
    path = f"{topic}/subscriptions/{subscription}/rules/{rule.name}"
    return Entry(rule.name, path, write_rule(rule), rule.created_at, rule.created_at)


def namespace_entry(name: str, sku: str, since: float) -> Entry:
    """Show the namespace.

    Args:
        name: its name.
        sku: the tier.
        since: Unix seconds of the server's start.
    """
    values = {
        "CreatedTime": instant(since),
        "MessagingSKU": sku,
        "ModifiedTime": instant(since),
        "Name": name,
        "NamespaceType": "Messaging",
    }
    parts = "".join(tag(element, value) for element, value in values.items())
    content = f'<NamespaceInfo xmlns="{SERVICE_BUS}">{parts}</NamespaceInfo>'
    return Entry(name, "$namespaceinfo", content, since, since)


def entry_document(entry: Entry, base: str) -> bytes:
    """Write one entry as a document.

    Args:
        entry: what is shown.
        base: the namespace's URL, with a slash at its end.
    """
    return f"{_HEAD}{_entry(entry, base)}".encode()


def feed_document(
    title: str, entries: Iterable[Entry], base: str, link: str, following: str | None, now: float
) -> bytes:
    """Write a feed.

    Args:
        title: for people.
        entries: what is shown.
        base: the namespace's URL, with a slash at its end.
        link: the feed's own URL.
        following: the URL of its next page; None for the last one.
        now: Unix seconds.
    """
    links = f'<link rel="self" href="{text(link)}"/>'
    if following is not None:
        # Clients go by the number of links, not by their relation.
        links += f'<link rel="next" href="{text(following)}"/>'
    body = "".join(_entry(entry, base) for entry in entries)
    head = f'<title type="text">{text(title)}</title>{tag("id", link)}{tag("updated", instant(now))}'
    return f'{_HEAD}<feed xmlns="{ATOM}">{head}{links}{body}</feed>'.encode()


def error_document(status: int, detail: str) -> bytes:
    """Write an error as the service does.

    Args:
        status: of HTTP.
        detail: a sentence.
    """
    return f"<Error>{tag('Code', status)}{tag('Detail', detail)}</Error>".encode()


def _entry(entry: Entry, base: str) -> str:
    url = base + entry.path
    return (
        f'<entry xmlns="{ATOM}">{tag("id", url)}<title type="text">{text(entry.title)}</title>'
        f"{tag('published', instant(entry.created_at))}{tag('updated', instant(entry.updated_at))}"
        f'<link rel="self" href="{text(url)}"/><content type="application/xml">{entry.content}</content></entry>'
    )


def _description(element: str, info: QueueInfo | TopicInfo | SubscriptionInfo, runtime: Mapping[str, int]) -> str:
    instants = {"CreatedAt": info.created_at, "UpdatedAt": info.updated_at, "AccessedAt": info.accessed_at}
    values: dict[str, object] = {
        **_NOT_KEPT,
        **write_properties(info.description),
        **runtime,
        **{name: instant(moment) for name, moment in instants.items()},
    }
    written = {name: tag(name, value) for name, value in values.items()}
    written["CountDetails"] = _counts(info.counts)
    written["AuthorizationRules"] = "<AuthorizationRules/>"
    parts = (written[name] for name in _ORDER[element].split() if name in written)
    return f'<{element} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{"".join(parts)}</{element}>'


def _counts(counts: MessageCounts) -> str:
    numbers = {
        "ActiveMessageCount": counts.active,
        "DeadLetterMessageCount": counts.dead_letter,
        "ScheduledMessageCount": counts.scheduled,
        "TransferMessageCount": counts.transfer,
        "TransferDeadLetterMessageCount": counts.transfer_dead_letter,
    }
    parts = "".join(f"<d:{name}>{number}</d:{name}>" for name, number in numbers.items())
    return f'<CountDetails xmlns:d="{COUNTS}">{parts}</CountDetails>'
