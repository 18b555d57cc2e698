"""The administration's XML: documents under limits, entries and feeds of Atom, and rules of subscriptions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any
from xml.etree.ElementTree import Element, ParseError  # the types; defusedxml parses

from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

from servicebus_local.amqp import Timestamp
from servicebus_local.broker import (
    CorrelationFilter,
    EntityInfo,
    FalseFilter,
    Filter,
    MessageCounts,
    Rule,
    SqlFilter,
    TrueFilter,
)
from servicebus_local.descriptions import CORRELATION, read_flag, write_properties

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

MAX_BYTES = 256 * 1024
"""The largest document that is read; a description or rule of the largest sizes is well below."""

_MAX_DEPTH = 32

# What XML 1.0 has no way to write, not even escaped.
_UNWRITABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class XmlError(ValueError):
    """A document is no XML, or none that is wanted here; the text says so in a sentence."""


def parse(document: bytes) -> Element:
    """Read a document that came from outside: without entities, without a document type, of bounded size and depth."""
    if len(document) > MAX_BYTES:
        raise XmlError(f"The body has {len(document)} bytes; at most {MAX_BYTES} are read.")
    try:
        root: Element = fromstring(document, forbid_dtd=True)
    except ParseError as error:
        raise XmlError(f"The body is not well-formed XML: {error}.") from None
    except DefusedXmlException:
        raise XmlError("The body has a document type or entities, which are not allowed here.") from None
    except (LookupError, ValueError):
        # An unknown encoding, or bytes that are invalid in it.
        raise XmlError("The body's encoding can't be read.") from None
    level = [root]
    for _ in range(_MAX_DEPTH):
        level = [child for parent in level for child in parent]
        if not level:
            return root
    raise XmlError(f"The body's elements are nested more than {_MAX_DEPTH} deep.")


def local_name(element: Element) -> str:
    """The name of an element without its namespace: clients differ in the prefixes and defaults that they write."""
    return element.tag.rpartition("}")[2]


def child(parent: Element, name: str) -> Element | None:
    return next((found for found in parent if local_name(found) == name), None)


def child_text(parent: Element, name: str) -> str | None:
    """The text of the first child of a name; None if it is missing or nil."""
    found = child(parent, name)
    if found is None or found.get(f"{{{INSTANCE}}}nil", "").strip() in ("true", "1"):
        return None
    return found.text or ""


def schema_type(element: Element) -> str:
    """The name in an element's ``xsi:type``, without its prefix; empty when it has none."""
    return element.get(f"{{{INSTANCE}}}type", "").rpartition(":")[2]


def text(value: object) -> str:
    """Write a value as the text of an element or attribute; what XML can't hold becomes U+FFFD."""
    # A carriage return as it is would be read as a line feed.
    return escape(_UNWRITABLE.sub("\ufffd", str(value))).replace("\r", "&#13;")


def tag(name: str, value: object) -> str:
    return f"<{name}>{text(value)}</{name}>"


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

_LEVEL = "<CompatibilityLevel>20</CompatibilityLevel>"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT_32 = 2**31


@dataclass(frozen=True, slots=True)
class Entry:
    title: str
    path: str
    content: str
    created_at: float
    updated_at: float


def entity_entry(info: EntityInfo[Any]) -> Entry:
    path = f"{info.topic}/subscriptions/{info.name}" if info.topic else info.path
    return Entry(info.name, path, _description(info), info.created_at, info.updated_at)


def rule_entry(topic: str, subscription: str, rule: Rule) -> Entry:
    path = f"{topic}/subscriptions/{subscription}/rules/{rule.name}"
    return Entry(rule.name, path, write_rule(rule), rule.created_at, rule.created_at)


def namespace_entry(name: str, since: float) -> Entry:
    """Show the namespace of a server that started at the Unix time `since`."""
    values = {
        "CreatedTime": instant(since),
        "MessagingSKU": "Standard",
        "ModifiedTime": instant(since),
        "Name": name,
        "NamespaceType": "Messaging",
    }
    parts = "".join(tag(element, value) for element, value in values.items())
    content = f'<NamespaceInfo xmlns="{SERVICE_BUS}">{parts}</NamespaceInfo>'
    return Entry(name, "$namespaceinfo", content, since, since)


def entry_document(entry: Entry, base: str) -> bytes:
    return f"{_HEAD}{_entry(entry, base)}".encode()


def feed_document(
    title: str, entries: Iterable[Entry], base: str, link: str, following: str | None, now: float
) -> bytes:
    """Write a feed; `following` is the URL of its next page, if any, and `now` is in Unix seconds."""
    links = f'<link rel="self" href="{text(link)}"/>'
    if following is not None:
        # Clients go by the number of links, not by their relation.
        links += f'<link rel="next" href="{text(following)}"/>'
    body = "".join(_entry(entry, base) for entry in entries)
    head = f'<title type="text">{text(title)}</title>{tag("id", link)}{tag("updated", instant(now))}'
    return f'{_HEAD}<feed xmlns="{ATOM}">{head}{links}{body}</feed>'.encode()


def error_document(status: int, detail: str) -> bytes:
    return f"<Error>{tag('Code', status)}{tag('Detail', detail)}</Error>".encode()


def _entry(entry: Entry, base: str) -> str:
    url = base + entry.path
    return (
        f'<entry xmlns="{ATOM}">{tag("id", url)}<title type="text">{text(entry.title)}</title>'
        f"{tag('published', instant(entry.created_at))}{tag('updated', instant(entry.updated_at))}"
        f'<link rel="self" href="{text(url)}"/><content type="application/xml">{entry.content}</content></entry>'
    )


def _description(info: EntityInfo[Any]) -> str:
    element = type(info.description).__name__
    instants = {"CreatedAt": info.created_at, "UpdatedAt": info.updated_at, "AccessedAt": info.accessed_at}
    values: dict[str, object] = {
        **_NOT_KEPT,
        **write_properties(info.description),
        "SizeInBytes": info.size_in_bytes,
        "MessageCount": info.counts.total,
        "SubscriptionCount": info.subscription_count,
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


def instant(seconds: float) -> str:
    """Write an instant, given in Unix seconds, as the service does: in UTC."""
    return (_EPOCH + timedelta(seconds=seconds)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def read_rule(description: Element, name: str) -> Rule:
    """Read a ``RuleDescription``; without a filter it takes every message. Raises `XmlError` for what is not known."""
    filter_element, action = child(description, "Filter"), child(description, "Action")
    expression = None
    if action is not None and schema_type(action) != "EmptyRuleAction":
        if schema_type(action) != "SqlRuleAction":
            raise XmlError(f"The action's type is {schema_type(action)!r}; it must be SqlRuleAction.")
        if child(action, "Parameters") is not None and len(_values(action, "Parameters")):
            raise XmlError("This local server knows no parameters of actions.")
        expression = child_text(action, "SqlExpression") or None
    kept = TrueFilter() if filter_element is None else _read_filter(filter_element)
    return Rule(child_text(description, "Name") or name, kept, expression)


def write_rule(rule: Rule) -> str:
    """Write a ``RuleDescription``."""
    if rule.action is None:
        action = '<Action i:type="EmptyRuleAction"/>'
    else:
        action = f'<Action i:type="SqlRuleAction">{tag("SqlExpression", rule.action)}{_LEVEL}</Action>'
    parts = (
        _write_filter(rule.filter),
        action,
        tag("CreatedAt", instant(rule.created_at)),
        tag("Name", rule.name),
    )
    return f'<RuleDescription xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">{"".join(parts)}</RuleDescription>'


def _read_filter(element: Element) -> Filter:
    kind = schema_type(element)
    if kind == "TrueFilter":
        return TrueFilter()
    if kind == "FalseFilter":
        return FalseFilter()
    if kind == "SqlFilter":
        expression = child_text(element, "SqlExpression")
        if not expression:
            raise XmlError("The SqlFilter has no SqlExpression.")
        return SqlFilter(expression, _values(element, "Parameters"))
    if kind == "CorrelationFilter":
        fields = {field: child_text(element, name) for name, field in CORRELATION.items()}
        return CorrelationFilter(**fields, properties=_values(element, "Properties"))
    raise XmlError(
        f"The filter's type is {kind!r}; it must be SqlFilter, CorrelationFilter, TrueFilter or FalseFilter."
    )


def _write_filter(kept: Filter) -> str:
    if isinstance(kept, CorrelationFilter):
        fields = ((name, getattr(kept, field)) for name, field in CORRELATION.items())
        parts = "".join(tag(name, value) for name, value in fields if value is not None)
        properties = _write_values("Properties", kept.properties)
        return f'<Filter i:type="CorrelationFilter">{parts}{properties}</Filter>'
    if isinstance(kept, SqlFilter):
        parameters = _write_values("Parameters", kept.parameters)
        return f'<Filter i:type="SqlFilter">{tag("SqlExpression", kept.expression)}{_LEVEL}{parameters}</Filter>'
    kind, expression = ("TrueFilter", "1=1") if isinstance(kept, TrueFilter) else ("FalseFilter", "1=0")
    return f'<Filter i:type="{kind}">{tag("SqlExpression", expression)}{_LEVEL}</Filter>'


def _values(parent: Element, name: str) -> dict[str, object]:
    listed = child(parent, name)
    found: dict[str, object] = {}
    for entry in () if listed is None else listed:
        key, value = child_text(entry, "Key"), child(entry, "Value")
        if key is None or value is None:
            raise XmlError(f"An entry of {name} lacks its Key or its Value.")
        kind = schema_type(value)
        reader = _READERS.get(kind)
        if reader is None:
            raise XmlError(f"The value of {key!r} is of type {kind!r}, which this local server does not know.")
        try:
            found[key] = reader(value.text or "")
        except (ValueError, OverflowError):
            raise XmlError(f"The value of {key!r} is no {kind}.") from None
    return found


def _write_values(name: str, values: Mapping[str, object]) -> str:
    if not values:
        return f"<{name}/>"
    entries = []
    for key, value in values.items():
        kind, content = _typed(value)
        entries.append(
            f"<KeyValueOfstringanyType>{tag('Key', key)}"
            f'<Value xmlns:d6p1="{SCHEMA}" i:type="d6p1:{kind}">{text(content)}</Value></KeyValueOfstringanyType>'
        )
    return f"<{name}>{''.join(entries)}</{name}>"


def _typed(value: object) -> tuple[str, str]:
    if isinstance(value, bool):
        return "boolean", str(value).lower()
    if isinstance(value, Timestamp):
        return "dateTime", (_EPOCH + timedelta(milliseconds=value)).isoformat().replace("+00:00", "Z")
    if isinstance(value, int):
        return ("int" if -_INT_32 <= value < _INT_32 else "long"), str(int(value))
    if isinstance(value, float):
        return "double", repr(float(value)).replace("inf", "INF").replace("nan", "NaN")
    return "string", str(value)


def _whole(content: str) -> int:
    number = int(content)
    if not -(2**63) <= number < 2**63:
        raise ValueError(content)
    return number


def _timestamp(content: str) -> Timestamp:
    # The wire knows instants in milliseconds; one without a zone is in UTC.
    moment = datetime.fromisoformat(content.strip())
    return Timestamp(((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH) // timedelta(milliseconds=1))


_READERS: Mapping[str, Callable[[str], object]] = {
    **dict.fromkeys(("int", "long", "short", "byte", "unsignedInt", "unsignedShort", "unsignedByte"), _whole),
    **dict.fromkeys(("double", "float"), float),
    "boolean": read_flag,
    "string": str,
    "guid": str,
    "dateTime": _timestamp,
}
