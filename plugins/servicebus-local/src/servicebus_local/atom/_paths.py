"""Paths of the administration: what a request is about.

Service Bus documentation: reference of the REST API, "Entities". Names of queues and topics may hold slashes, and case
does not matter anywhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

_SUBSCRIPTIONS = re.compile(
    r"(?P<topic>.+?)/subscriptions(?:/(?P<name>[^/]+)(?:/(?P<rules>rules)(?:/(?P<rule>[^/]+))?)?)?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class EntityPath:
    """A queue or a topic."""

    name: str


@dataclass(frozen=True, slots=True)
class SubscriptionsPath:
    """All subscriptions of a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class SubscriptionPath:
    """A subscription."""

    topic: str
    name: str


@dataclass(frozen=True, slots=True)
class RulesPath:
    """All rules of a subscription."""

    topic: str
    subscription: str


@dataclass(frozen=True, slots=True)
class RulePath:
    """A rule."""

    topic: str
    subscription: str
    name: str


@dataclass(frozen=True, slots=True)
class ResourcePath:
    """All queues (``queues``) or topics (``topics``); other names are nothing."""

    name: str


@dataclass(frozen=True, slots=True)
class NamespacePath:
    """The namespace itself."""


AdministrationPath = (
    EntityPath | SubscriptionsPath | SubscriptionPath | RulesPath | RulePath | ResourcePath | NamespacePath
)


def decoded(raw: str) -> str:
    """Decode a path as it came, without its outer slashes.

    Raises:
        ValueError: its percent-encoded bytes are not UTF-8.
    """
    return unquote(raw.partition("?")[0], errors="strict").strip("/")


def parse_path(path: str) -> AdministrationPath:
    """Read a decoded path without outer slashes; the broker decides whether it can exist, and does."""
    lowered = path.lower()
    if lowered == "$namespaceinfo":
        return NamespacePath()
    if lowered.startswith("$resources/"):
        return ResourcePath(lowered.removeprefix("$resources/"))
    found = _SUBSCRIPTIONS.fullmatch(path)
    if found is None:
        return EntityPath(path)
    topic, name, rule = found["topic"], found["name"], found["rule"]
    if name is None:
        return SubscriptionsPath(topic)
    if found["rules"] is None:
        return SubscriptionPath(topic, name)
    return RulesPath(topic, name) if rule is None else RulePath(topic, name, rule)
