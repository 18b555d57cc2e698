"""The administration over HTTP: paths and entries, who may ask, what is answered, and in which form; and what tests
control.

Below ``/$control/`` tests set faults, drop connections and read counters. Only clients on this machine are heard there,
and only with the namespace's key: a page in a browser could call it otherwise.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlencode
from xml.etree.ElementTree import Element  # the type

from aiohttp import web

from servicebus_local.atom._entries import (
    MAX_BYTES,
    Entry,
    XmlError,
    child,
    child_text,
    entity_entry,
    entry_document,
    error_document,
    feed_document,
    local_name,
    namespace_entry,
    parse,
    read_rule,
    rule_entry,
)
from servicebus_local.broker import (
    Broker,
    BrokerError,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    status_of,
)
from servicebus_local.descriptions import Description, PropertyError, read_properties
from servicebus_local.faults import FaultPlan

NOT_FOUND = "amqp:not-found"

T = TypeVar("T")

_SUBSCRIPTIONS = re.compile(
    r"(?P<topic>.+?)/subscriptions(?:/(?P<name>[^/]+)(?:/(?P<rules>rules)(?:/(?P<rule>[^/]+))?)?)?", re.IGNORECASE
)


_log = logging.getLogger(__name__)
_LARGEST_PAGE = 100
_MOST_SKIPPED = 10**9
PREFIX = "$control/"
_MAX_BYTES = 64 * 1024


class Path(NamedTuple):
    """What a request is about: one thing of a kind, or all of them within what the names say.

    Service Bus documentation: reference of the REST API, "Entities". Names of queues and topics may hold slashes, and
    case does not matter anywhere.
    """

    kind: Literal["namespace", "entity", "subscription", "rule", "entities", "subscriptions", "rules"]
    names: tuple[str, ...] = ()

    @property
    def is_list(self) -> bool:
        return self.kind in ("entities", "subscriptions", "rules")


def decoded(raw: str) -> str:
    """Decode a path as it came, without its outer slashes; raises `ValueError` for what is no UTF-8."""
    return unquote(raw.partition("?")[0], errors="strict").strip("/")


def parse_path(path: str) -> Path:
    """Read a decoded path without outer slashes; the broker decides whether it can exist, and does."""
    lowered = path.lower()
    if lowered == "$namespaceinfo":
        return Path("namespace")
    if lowered.startswith("$resources/"):
        return Path("entities", (lowered.removeprefix("$resources/"),))
    found = _SUBSCRIPTIONS.fullmatch(path)
    if found is None:
        return Path("entity", (path,))
    topic, name, rule = found["topic"], found["name"], found["rule"]
    if name is None:
        return Path("subscriptions", (topic,))
    if found["rules"] is None:
        return Path("subscription", (topic, name))
    return Path("rules", (topic, name)) if rule is None else Path("rule", (topic, name, rule))


class Namespace:
    """Reads and changes a broker as the administration asks.

    Its methods raise `BrokerError` for what the broker refuses, `XmlError` for a body that can't be read, and
    `PropertyError` for a property that can't be. ``since`` is the Unix time of the server's start.
    """

    def __init__(self, broker: Broker, name: str, since: float) -> None:
        self._broker = broker
        self._about = namespace_entry(name, since)

    def get(self, path: Path) -> Entry | None:
        """Show one thing; None when it is not there."""
        broker = self._broker
        match path:
            case "namespace", _:
                return self._about
            case "entity", (name,):
                entity = _found(lambda: broker.get_queue(name)) or _found(lambda: broker.get_topic(name))
                return entity_entry(entity) if entity else None
            case "subscription", (topic, name):
                broker.get_topic(topic)
                subscription = _found(lambda: broker.get_subscription(topic, name))
                return entity_entry(subscription) if subscription else None
            case "rule", (topic, subscription_name, name):
                broker.get_subscription(topic, subscription_name)
                rule = _found(lambda: broker.get_rule(topic, subscription_name, name))
                return rule_entry(topic, subscription_name, rule) if rule else None
        raise _nothing(path)

    def list(self, path: Path) -> tuple[str, list[Entry]]:
        """Show everything of a kind, with a title; in the order of names."""
        match path:
            case "entities", ("queues",):
                return "Queues", [entity_entry(info) for info in self._broker.queues()]
            case "entities", ("topics",):
                return "Topics", [entity_entry(info) for info in self._broker.topics()]
            case "subscriptions", (topic,):
                return "Subscriptions", [entity_entry(info) for info in self._broker.subscriptions(topic)]
            case "rules", (topic, subscription):
                rules = self._broker.rules(topic, subscription)
                return "Rules", [rule_entry(topic, subscription, rule) for rule in rules]
        raise _nothing(path)

    def put(self, path: Path, body: bytes, *, update: bool) -> Entry:
        """Create one thing, or update one that must exist: what its description leaves out then stays as it is."""
        if path.kind not in ("entity", "subscription", "rule"):
            raise _nothing(path)
        description, broker = _described(body), self._broker
        kind = local_name(description)
        match path.kind, path.names, kind:
            case "entity", (name,), "QueueDescription":
                queue = broker.get_queue(name).description if update else QueueDescription()
                (broker.update_queue if update else broker.create_queue)(name, _changed(queue, description))
            case "entity", (name,), "TopicDescription":
                made = broker.get_topic(name).description if update else TopicDescription()
                (broker.update_topic if update else broker.create_topic)(name, _changed(made, description))
            case "subscription", (topic, name), "SubscriptionDescription":
                self._put_subscription(topic, name, description, update)
            case "rule", (topic, subscription, name), "RuleDescription":
                rule = read_rule(description, name)
                if rule.name.lower() != name.lower():
                    raise XmlError(f"The rule is called {rule.name!r} in the body and {name!r} in the URL.")
                (broker.update_rule if update else broker.add_rule)(topic, subscription, rule)
            case _:
                raise XmlError(f"A {kind} can't be put there.")
        entry = self.get(path)
        if entry is None:
            raise BrokerError(NOT_FOUND, "It was deleted at once.")
        return entry

    def delete(self, path: Path) -> None:
        broker = self._broker
        match path:
            case "entity", (name,):
                is_queue = _found(lambda: broker.get_queue(name)) is not None
                (broker.delete_queue if is_queue else broker.delete_topic)(name)
            case "subscription", (topic, name):
                broker.delete_subscription(topic, name)
            case "rule", (topic, subscription, name):
                broker.remove_rule(topic, subscription, name)
            case _:
                raise _nothing(path)

    def _put_subscription(self, topic: str, name: str, given: Element, update: bool) -> None:
        if update:
            base = self._broker.get_subscription(topic, name).description
            self._broker.update_subscription(topic, name, _changed(base, given))
            return
        first = child(given, "DefaultRuleDescription")
        rule = None if first is None else read_rule(first, "$Default")
        self._broker.create_subscription(topic, name, _changed(SubscriptionDescription(), given), rule)


def _found(get: Callable[[], T]) -> T | None:
    try:
        return get()
    except BrokerError as error:
        if error.condition != NOT_FOUND:
            raise
        return None


def _nothing(path: Path) -> BrokerError:
    return BrokerError(NOT_FOUND, f"The administration has nothing of this kind: {path}.")


def _described(body: bytes) -> Element:
    root = parse(body)
    content = child(root, "content") if local_name(root) == "entry" else None
    if content is None or not len(content):
        raise XmlError("The body is no Atom entry with a description as its content.")
    return content[0]


def _changed(base: Description, given: Element) -> Description:
    return read_properties(base, _texts(given))


def _texts(given: Element) -> Mapping[str, str]:
    texts = {local_name(element): child_text(given, local_name(element)) for element in given}
    return {name: value.strip() for name, value in texts.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Control:
    """What tests may do besides: set and end faults, and reset the clients' connections, whose number is returned."""

    faults: FaultPlan
    drop_connections: Callable[[], int]


class Administration:
    """The administration of a namespace, as an application for a server of aiohttp: ``app``."""

    def __init__(
        self,
        broker: Broker,
        *,
        authorize: Callable[[str, str], bool],
        namespace: str,
        on_change: Callable[[], None],
        control: Control | None,
    ) -> None:
        # One byte more than is read, so that the error for a longer body is ours.
        self.app = web.Application(client_max_size=MAX_BYTES + 1, middlewares=[_in_our_words])
        self.app.router.add_route("*", "/{path:.*}", self._answer)
        self._broker = broker
        self._authorize = authorize
        self._name = namespace
        self._on_change = on_change
        self._control_of = control
        self._namespace = Namespace(broker, namespace, time.time())

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            path = decoded(request.rel_url.raw_path)
        except ValueError:
            return _error(400, "The path is no UTF-8.")
        # Not the request's host, which is the client's word.
        resource = f"sb://{self._name}/{quote(path, safe='/$')}"
        if not self._authorize(request.headers.get("Authorization", ""), resource):
            return _error(401, "The authorization is missing, wrong or expired, or is for something else.")
        if path.startswith(PREFIX):
            return await self._control(request, path.removeprefix(PREFIX))
        if request.method == "GET":
            return self._get(request, path)
        if request.method == "PUT":
            return self._put(path, await request.read(), update=bool(request.headers.get("If-Match")), request=request)
        if request.method == "DELETE":
            self._namespace.delete(parse_path(path))
            self._changed()
            return web.Response()
        return _error(405, f"{request.method} is not known here.")

    def _get(self, request: web.Request, text: str) -> web.Response:
        path = parse_path(text)
        if path.is_list:
            title, entries = self._namespace.list(path)
            return self._feed(request, title, entries)
        entry = self._namespace.get(path)
        if entry is None:
            # So does the service: what is not there is a list of nothing.
            return self._feed(request, "Publicly Listed Services", ())
        return _xml(200, entry_document(entry, _base(request)))

    def _put(self, text: str, body: bytes, *, update: bool, request: web.Request) -> web.Response:
        entry = self._namespace.put(parse_path(text), body, update=update)
        self._changed()
        return _xml(200 if update else 201, entry_document(entry, _base(request)))

    def _feed(self, request: web.Request, title: str, entries: Sequence[Entry]) -> web.Response:
        skip = _number(request, "$skip", 0, _MOST_SKIPPED)
        top = min(_number(request, "$top", _LARGEST_PAGE, _MOST_SKIPPED), _LARGEST_PAGE)
        address = _base(request) + request.rel_url.raw_path.lstrip("/")
        following = None
        if top and skip + top < len(entries):
            rest = {name: value for name, value in request.query.items() if name not in ("$skip", "$top")}
            query = urlencode({"$skip": str(skip + top), "$top": str(top), **rest}, safe="$")
            following = f"{address}?{query}"
        page = entries[skip : skip + top]
        return _xml(200, feed_document(title, page, _base(request), address, following, time.time()))

    def _changed(self) -> None:
        # A change is reported when it is durable.
        self._broker.flush()
        self._on_change()

    async def _control(self, request: web.Request, what: str) -> web.Response:
        if self._control_of is None:
            return _error(404, "This server was not started with its control endpoint.")
        if not _is_local(request):
            return _error(403, "The control endpoint is for clients on the server's machine.")
        broker, faults = self._broker, self._control_of.faults
        path = what.strip("/")
        answer: Mapping[str, object] = {}
        match request.method, path.lower().split("/", 1):
            case "POST", ["faults"]:
                rules = await _json(request)
                try:
                    faults.set_json(rules)
                except ValueError as error:
                    raise ControlError(400, str(error)) from None
            case "DELETE", ["faults"]:
                faults.clear()
            case "GET", ["operations"]:
                answer = dict(broker.operations)
            case "POST", ["connections", "drop"]:
                answer = {"dropped": self._control_of.drop_connections()}
            case "GET", ["queues"]:
                answer = {queue.path: asdict(queue.counts) for queue in broker.queues()}
            case ("PUT" | "DELETE") as method, ["queues", _]:
                try:
                    (broker.create_queue if method == "PUT" else broker.delete_queue)(path.partition("/")[2])
                except BrokerError as error:
                    raise ControlError(409, str(error)) from None
                self._changed()
            case "DELETE", ["entities"]:
                for queue in broker.queues():
                    broker.delete_queue(queue.path)
                for topic in broker.topics():
                    broker.delete_topic(topic.path)
                self._changed()
            case _:
                raise ControlError(404, f"The control endpoint has no {request.method} {what}.")
        return web.json_response(answer)


@web.middleware
async def _in_our_words(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Make an answer of everything that is raised."""
    try:
        return await handler(request)
    except BrokerError as error:
        return _error(status_of(error.condition), error.description)
    except (XmlError, PropertyError, _BadQuery) as error:
        return _error(400, str(error))
    except ControlError as error:
        return web.json_response({"error": error.detail}, status=error.status)
    except web.HTTPRequestEntityTooLarge:
        return _error(413, f"The body is too long; at most {MAX_BYTES} bytes are read.")
    except web.HTTPException as error:
        return _error(error.status, error.reason)
    except Exception:
        _log.exception("%s %s", request.method, request.rel_url.raw_path)
        return _error(500, "The server failed; its log says how.")


class _BadQuery(ValueError):
    """A query that can't be."""


def _number(request: web.Request, name: str, default: int, largest: int) -> int:
    given = request.query.get(name)
    if given is None:
        return default
    if not given.isascii() or not given.isdecimal() or len(given) > 12:
        raise _BadQuery(f"{name} is {given[:40]!r}; it must be a number.")
    return min(int(given), largest)


def _base(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}/"


def _is_local(request: web.Request) -> bool:
    try:
        return request.remote is not None and ip_address(request.remote.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _xml(status: int, document: bytes) -> web.Response:
    return web.Response(
        status=status, body=document, headers={"Content-Type": "application/atom+xml;type=entry;charset=utf-8"}
    )


def _error(status: int, detail: str) -> web.Response:
    return web.Response(
        status=status,
        body=error_document(status, detail),
        headers={"Content-Type": "application/xml; charset=utf-8"},
    )


class ControlError(Exception):
    """A request that the control endpoint refuses."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


async def _json(request: web.Request) -> object:
    body = await request.read()
    if len(body) > _MAX_BYTES:
        raise ControlError(413, f"The body has {len(body)} bytes; at most {_MAX_BYTES} are read.")
    try:
        content: object = json.loads(body)
    except (ValueError, RecursionError):
        raise ControlError(400, "The body is no JSON.") from None
    return content
