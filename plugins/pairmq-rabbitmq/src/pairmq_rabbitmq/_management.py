"""The management plugin's HTTP API, for what AMQP 0-9-1 can't query: lists, and queues' arguments.

Used only when the URL names it. One request at a time per call, in a thread, with time limits and a bound on the
response; a redirect is never followed, as it would pass the password to the host that it names.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport import TlsOptions
from pairmq_rabbitmq import _errors
from pairmq_rabbitmq._inspection import Found
from pairmq_rabbitmq._properties import EXPIRES, NUMBERS, OVERFLOW, QUEUE_TYPE
from pairmq_rabbitmq._url import ManagementUrl, RabbitUrl

_MOST_BYTES = 32 * 1024 * 1024  # of one response
_PAGE = 500  # the largest page of RabbitMQ
_MOST_PAGES = 1000
_READ = 64 * 1024
_TIMEOUT = 30.0  # s for one request as a whole; the caller's own limit ends the wait sooner
_ERRORS = {
    401: (FailureKind.REFUSED, FailureReason.UNAUTHORIZED, "it does not let this user in: check user and password"),
    403: (FailureKind.REFUSED, FailureReason.UNAUTHORIZED, "it does not let this user do this: check its tags"),
    404: (FailureKind.REFUSED, FailureReason.NOT_FOUND, "there is no such thing"),
}


class Management:
    def __init__(self, url: RabbitUrl, where: ManagementUrl) -> None:
        self._where = where
        self._vhost = quote(url.vhost, safe="")
        self._connect_timeout = url.connect_timeout
        self._tls_options = url.tls or TlsOptions()
        self._tls: ssl.SSLContext | None = None

    async def queue(self, name: str, doing: str) -> Found:
        """Read the arguments of one queue, with what policies add.

        The plugin learns of a queue's policy every few seconds. A user who may read policies (with the tag
        ``policymaker``) sees them at once.
        """
        path = f"/api/queues/{self._vhost}/{quote(name, safe='')}"
        columns = "arguments,auto_delete,durable,effective_policy_definition"
        found = await asyncio.to_thread(self._get, f"{path}?columns={columns}", doing)
        if not isinstance(found, dict):
            raise self._unexpected(doing)
        arguments = _table(found.get("arguments"))
        policies = await asyncio.to_thread(self._policies, name, arguments.get(QUEUE_TYPE, "classic"), doing)
        if policies is None:
            policies = [_table(found.get("effective_policy_definition"))]
        auto_delete, durable = found.get("auto_delete") is True, found.get("durable") is not False
        return Found(effective(arguments, *policies), auto_delete, durable, complete=True)

    def _policies(self, queue: str, queue_type: str, doing: str) -> list[dict[str, Any]] | None:
        """Find the policy and the operator policy of a queue; None where this user may not read them."""
        definitions: list[dict[str, Any]] = []
        try:
            for kind in ("policies", "operator-policies"):
                found = self._get(f"/api/{kind}/{self._vhost}", doing)
                if not isinstance(found, list):
                    raise self._unexpected(doing)
                definitions.append(policy_for(queue, queue_type, found))
        except TransportError as error:
            if error.kind is not FailureKind.REFUSED:
                raise
            return None
        except re.error:
            return None  # an expression that is valid in Erlang but not in Python
        return definitions

    async def queues(self, prefix: str, doing: str) -> list[str]:
        return await asyncio.to_thread(self._names, "queues", prefix, doing)

    async def exchanges(self, prefix: str, doing: str) -> list[str]:
        """List the names of all exchanges with this prefix, except the default one."""
        return [name for name in await asyncio.to_thread(self._names, "exchanges", prefix, doing) if name]

    def _names(self, kind: str, prefix: str, doing: str) -> list[str]:
        names = set[str]()
        for page in range(1, _MOST_PAGES + 1):
            # The plugin searches for the text anywhere in a name; it reduces the response.
            query = f"page={page}&page_size={_PAGE}&name={quote(prefix, safe='')}&use_regex=false&columns=name"
            found = self._get(f"/api/{kind}/{self._vhost}?{query}", doing)
            if not isinstance(found, dict) or not isinstance(found.get("items"), list):
                raise self._unexpected(doing)
            names.update(_names_of(found["items"]))
            if page >= int(found.get("page_count") or 0):
                break
        return sorted(name for name in names if name.startswith(prefix))

    def _get(self, target: str, doing: str) -> Any:
        parts = urlsplit(self._where.url)
        connection: http.client.HTTPConnection
        deadline = time.monotonic() + _TIMEOUT
        try:
            if parts.scheme == "https":
                self._tls = self._tls or self._tls_options.context(for_url=self._where.url)
                connection = http.client.HTTPSConnection(
                    parts.hostname or "", parts.port, timeout=self._connect_timeout, context=self._tls
                )
            else:
                connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=self._connect_timeout)
            try:
                connection.request("GET", parts.path + target, headers=self._headers())
                with connection.getresponse() as response:  # it owns the socket now
                    body = self._body(response, deadline, doing)
            finally:
                connection.close()
        except TimeoutError as error:
            raise self._unavailable(doing, "it did not answer in time", FailureReason.TIMEOUT) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(doing, f"{type(error).__name__}: {error}", FailureReason.CONNECTION) from error
        if response.status in _ERRORS:
            kind, reason, text = _ERRORS[response.status]
            raise TransportError(f"{doing}: management at {self._where.url}: {text}", kind, reason)
        if response.status != 200:
            raise self._unavailable(doing, f"it answered with status {response.status}", FailureReason.OTHER)
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._unexpected(doing) from error

    def _headers(self) -> dict[str, str]:
        login = f"{self._where.username}:{self._where.password}".encode()
        return {
            "Authorization": "Basic " + base64.b64encode(login).decode(),
            "Accept": "application/json",
            "Connection": "close",
        }

    def _body(self, response: http.client.HTTPResponse, deadline: float, doing: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        # read1, so that a server which sends a byte now and then can't block the thread forever.
        while part := response.read1(_READ):
            size += len(part)
            if size > _MOST_BYTES:
                raise self._unavailable(doing, f"it sent more than {_MOST_BYTES} bytes", FailureReason.OTHER)
            if time.monotonic() > deadline:
                raise TimeoutError
            parts.append(part)
        return b"".join(parts)

    def _unexpected(self, doing: str) -> TransportError:
        return self._unavailable(doing, "it sent an unexpected response", FailureReason.OTHER)

    def _unavailable(self, doing: str, text: str, reason: FailureReason) -> TransportError:
        return TransportError(f"{doing}: management at {self._where.url}: {text}", FailureKind.UNAVAILABLE, reason)


def policy_for(queue: str, queue_type: str, policies: Sequence[Any]) -> dict[str, Any]:
    """Choose the one policy that applies to a queue; its definition, empty for no policy. Raises `re.error`."""
    targets = ("all", "queues", "streams" if queue_type == "stream" else f"{queue_type}_queues")
    fitting = [
        policy
        for policy in policies
        if isinstance(policy, dict)
        and policy.get("apply-to") in targets
        and re.search(str(policy.get("pattern", "")), queue)
    ]
    chosen = max(fitting, key=lambda policy: int(policy.get("priority") or 0), default={})
    return _table(chosen.get("definition"))


def effective(arguments: Mapping[str, Any], *policies: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a queue's arguments with the policy and the operator policy, as RabbitMQ does.

    Of two bounds the smaller counts; otherwise the operator policy takes precedence over the policy, and the queue's
    own over both, except for a quorum queue's behaviour when full or idle, where policies come first.
    """
    policy: dict[str, Any] = {}
    for each in policies:
        policy = _merged(policy, {f"x-{name}": value for name, value in each.items()}, lambda name: name not in NUMBERS)
    first = (OVERFLOW, EXPIRES) if arguments.get(QUEUE_TYPE) == "quorum" else ()
    return _merged(arguments, policy, first.__contains__)


def _merged(own: Mapping[str, Any], other: Mapping[str, Any], other_counts: Callable[[str], bool]) -> dict[str, Any]:
    merged = dict(own)
    for name, value in other.items():
        here = merged.get(name)
        if here is None or other_counts(name):
            merged[name] = value
        elif name in NUMBERS and type(here) is int and type(value) is int:
            merged[name] = min(here, value)
    return merged


def not_configured(doing: str) -> TransportError:
    """Make the error of a call that needs the management plugin when the URL does not name it."""
    text = "AMQP 0-9-1 can't query this: add ?management=http://host:15672 to the URL"
    return _errors.refused(doing, text, FailureReason.NOT_SUPPORTED)


def _table(value: object) -> dict[str, Any]:
    # RabbitMQ writes an empty table as an empty list.
    return value if isinstance(value, dict) else {}


def _names_of(items: list[Any]) -> Iterator[str]:
    for item in items:
        name = item.get("name") if isinstance(item, dict) else None
        if isinstance(name, str):
            yield name
