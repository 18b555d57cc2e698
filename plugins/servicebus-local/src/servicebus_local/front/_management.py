"""Nodes that answer requests: that for tokens, and an entity's, for the operations that are no transfers.

Names, arguments and answers are those of the Service Bus documentation, "AMQP 1.0 in Azure Service Bus:
request-response-based operations".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from servicebus_local.amqp import (
    Accepted,
    AmqpDecodeError,
    AmqpError,
    Array,
    Delivery,
    Described,
    Int,
    Link,
    Long,
    Properties,
    Rejected,
    Sections,
    Symbol,
    Timestamp,
    decode_value,
    encode_message,
    split_message,
)
from servicebus_local.broker import BrokerError, SessionLock, Source, status_of
from servicebus_local.faults import FaultPoint, FaultRule
from servicebus_local.front import _messages
from servicebus_local.front._endpoint import Client, Endpoint, done, path_of
from servicebus_local.front._links import ReceivingLink

_UNSETTLED = 0  # AMQP 1.0 part 2, section 2.8.2
_MOST_WAITING = 1000

_OK, _NO_CONTENT = 200, 204
_MOST_PEEKED = 250
_MOST_BYTES = 200_000
_PREFIX = "com.microsoft:"
_RECEIVE_AND_DELETE = 0
_END_OF_TIME = 253_402_300_800_000  # ms: the first instant of the year 10000

Answer = tuple[int, dict[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Request:
    sections: Sections
    value: Any
    link: Link

    @property
    def arguments(self) -> dict[str, Any]:
        """The application properties, by their names as plain text."""
        return {str(name): value for name, value in (self.sections.application_properties or {}).items()}


@dataclass(frozen=True, slots=True)
class Response:
    arguments: dict[str, Any]
    body: Any


class ReplyLink(Endpoint):
    """A link to the client over which answers go, each as soon as there is credit."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._waiting: deque[bytes] = deque()
        self._tags = 0
        self._settled = link.snd_settle_mode != _UNSETTLED

    @property
    def full(self) -> bool:
        """Whether so many answers wait for the client that it may not ask for more."""
        return len(self._waiting) >= _MOST_WAITING

    def answer(self, request: Request, response: Response) -> None:
        """Send an answer; the request's message id becomes the correlation id."""
        asked = request.sections.properties
        properties = Properties(correlation_id=None if asked is None else asked.message_id)
        self._waiting.append(
            encode_message(properties=properties, application_properties=response.arguments, body=response.body)
        )
        self.pump()

    def pump(self) -> None:
        while self._waiting and self.link.credit > 0 and self.link.state == "open":
            self._tags += 1
            tag = self._tags.to_bytes(8, "big")
            delivery = self.link.send(self._waiting.popleft(), tag=tag, settled=self._settled)
            delivery.settle(Accepted())
        if self.link.drain and not self._waiting:
            self.link.drained()


class Management:
    def __init__(self, client: Client, path: str, request: Request) -> None:
        self._client = client
        self._broker = client.shared.broker
        self._path = path
        self._request = request
        self._body: dict[str, Any] = (
            {str(name): value for name, value in request.value.items()} if isinstance(request.value, dict) else {}
        )

    def perform(self) -> Response:
        """Do what is asked; returns the answer, errors included."""
        name = str(self._request.arguments.get("operation", ""))
        operation = self._operations.get(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else None
        self._client.shared.changed()
        try:
            if operation is None:
                raise BrokerError("amqp:not-implemented", f"{self._path} has no operation {name[:80]!r}")
            status, body = operation(self)
        except BrokerError as error:
            return _refusal(error.condition, error.description)
        except AmqpDecodeError as error:
            return _refusal("amqp:decode-error", str(error))
        return Response({"statusCode": Int(status), "statusDescription": "OK"}, body)

    # Messages.

    def _schedule(self) -> Answer:
        messages = []
        for entry in self._list("messages"):
            payload = entry.get("message") if isinstance(entry, dict) else None
            if not isinstance(payload, bytes):
                raise _invalid("messages: each needs its encoded message")
            messages.extend(_messages.incoming(payload, 0))
        if any(message.scheduled_at is None for message in messages):
            raise _invalid("messages: each needs the annotation x-opt-scheduled-enqueue-time")
        numbers = self._broker.schedule(self._path, messages)
        return _OK, {"sequence-numbers": Array([Long(number) for number in numbers], Long)}

    def _cancel(self) -> Answer:
        self._broker.cancel(self._path, self._numbers())
        return _OK, None

    def _peek(self) -> Answer:
        count = self._number("message-count")
        session = self._body.get("session-id")
        found: list[dict[str, bytes]] = []
        size = 0
        for message in self._source.peek(self._number("from-sequence-number"), min(count, _MOST_PEEKED), session):
            payload = _messages.outgoing(message, locked=False)
            size += len(payload)
            if found and size > _MOST_BYTES:
                break
            found.append({"message": payload})
        return (_OK, {"messages": found}) if found else (_NO_CONTENT, None)

    def _renew(self) -> Answer:
        expirations = [self._source.renew(token) for token in self._tokens()]
        return _OK, {"expirations": Array([_messages.instant(at) for at in expirations], Timestamp)}

    def _receive_deferred(self) -> Answer:
        at_once = self._number("receiver-settle-mode") == _RECEIVE_AND_DELETE
        lock = None if self._body.get("session-id") is None else self._held_session()
        found = [
            {"message": _messages.outgoing(message), **({} if token is None else {"lock-token": token})}
            for message in self._source.receive_deferred(self._numbers(), session=lock, delete=at_once)
            for token in (message.lock_token,)
        ]
        return (_OK, {"messages": found}) if found else (_NO_CONTENT, None)

    def _update_disposition(self) -> Answer:
        status, source = self._body.get("disposition-status"), self._source
        properties = self._body.get("properties-to-modify")
        changed = _messages.plain_properties(properties if isinstance(properties, dict) else None)
        for token in self._tokens():
            if status == "completed":
                source.complete(token)
            elif status == "abandoned":
                source.abandon(token, changed)
            elif status == "defered":
                source.defer(token, changed)
            elif status == "suspended":
                reason, text = self._body.get("deadletter-reason"), self._body.get("deadletter-description")
                source.dead_letter(token, reason or None, text or None, changed)
            else:
                raise _invalid(f"disposition-status is {str(status)[:40]!r}")
        return _OK, None

    # Sessions.

    def _renew_session(self) -> Answer:
        lock = self._held_session()
        return _OK, {"expiration": _messages.instant(self._source.renew_session(lock))}

    def _get_state(self) -> Answer:
        return _OK, {"session-state": self._source.get_session_state(self._held_session())}

    def _set_state(self) -> Answer:
        state = self._body.get("session-state")
        if state is not None and not isinstance(state, bytes):
            raise _invalid("session-state must be binary, or null")
        self._source.set_session_state(self._held_session(), state)
        return _OK, None

    def _list_sessions(self) -> Answer:
        updated = self._body.get("last-updated-time")
        # Clients that want all sessions say the end of time.
        since = updated / 1000 if isinstance(updated, int) and updated < _END_OF_TIME else None
        skip, top = self._number("skip"), self._number("top")
        found = self._source.list_sessions(since, skip, top)
        if not found:
            return _NO_CONTENT, None
        return _OK, {"skip": Int(skip + len(found)), "sessions-ids": Array(found, str)}

    _operations: ClassVar[dict[str, Callable[[Management], Answer]]] = {
        "schedule-message": _schedule,
        "cancel-scheduled-message": _cancel,
        "peek-message": _peek,
        "renew-lock": _renew,
        "receive-by-sequence-number": _receive_deferred,
        "update-disposition": _update_disposition,
        "renew-session-lock": _renew_session,
        "get-session-state": _get_state,
        "set-session-state": _set_state,
        "get-message-sessions": _list_sessions,
    }

    # Arguments.

    @property
    def _source(self) -> Source:
        return self._broker.resolve_receive(self._path)

    def _held_session(self) -> SessionLock:
        """The lock of the session in question, which one of this client's links has to hold."""
        session_id = self._body.get("session-id")
        if not isinstance(session_id, str):
            raise _invalid("session-id is missing")
        for endpoint in self._client.endpoints.values():
            if not isinstance(endpoint, ReceivingLink) or endpoint.source is not self._source:
                continue
            if endpoint.session is not None and endpoint.session.session_id == session_id:
                return endpoint.session
        text = f"The lock of session '{session_id}' of '{self._path}' is lost, or is another client's."
        raise BrokerError("com.microsoft:session-lock-lost", text)

    def _list(self, name: str) -> list[Any]:
        value = self._body.get(name)
        if not isinstance(value, list):
            raise _invalid(f"{name} must be a list")
        return value

    def _number(self, name: str) -> int:
        value = self._body.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise BrokerError("com.microsoft:argument-out-of-range", f"{name} must be a number from 0 on")
        return value

    def _numbers(self) -> list[int]:
        numbers = self._list("sequence-numbers")
        if not all(isinstance(number, int) for number in numbers):
            raise _invalid("sequence-numbers must be numbers")
        return numbers

    def _tokens(self) -> list[UUID]:
        tokens = [_uuid(token) for token in self._list("lock-tokens")]
        if not tokens:
            raise _invalid("lock-tokens is empty")
        return tokens


def _invalid(description: str) -> BrokerError:
    return BrokerError("com.microsoft:argument-error", description)


def _refusal(condition: str, description: str, status: int | None = None) -> Response:
    arguments = {
        "statusCode": Int(status or status_of(condition)),
        "statusDescription": description,
        "errorCondition": Symbol(condition),
    }
    return Response(arguments, None)


def _token_answer(status: int, description: str) -> Response:
    """What the node that takes tokens answers: without names of conditions."""
    return Response({"status-code": Int(status), "status-description": description}, None)


def _uuid(token: object) -> UUID:
    if isinstance(token, UUID):
        return token
    try:
        return UUID(str(token))
    except ValueError:
        raise _invalid("lock-tokens holds something that is not a token") from None


_CREDIT = 100
_AMQP_VALUE = 0x77  # AMQP 1.0 part 3, section 3.2.8


class RequestLink(Endpoint):
    def __init__(self, client: Client, link: Link, path: str, entity: str | None) -> None:
        super().__init__(link)
        self._client = client
        self._path = path
        self._entity = entity
        link.grant(_CREDIT)

    def on_transfer(self, delivery: Delivery, payload: bytes) -> None:
        if self.link.credit <= _CREDIT // 2:
            self.link.grant(_CREDIT)
        try:
            sections = split_message(payload)
            request = Request(sections, _body_value(sections.raw_body), self.link)
        except AmqpDecodeError as error:
            delivery.settle(Rejected(AmqpError("amqp:decode-error", f"{self._path}: {error}", {})))
            return
        reply = self._reply_link(request)
        if reply is None:
            text = f"{self._path}: there is no link for the answer"
            delivery.settle(Rejected(AmqpError("amqp:precondition-failed", text, {})))
            return
        if reply.full:
            text = f"{self._path}: too many answers wait to be taken"
            delivery.settle(Rejected(AmqpError("amqp:resource-limit-exceeded", text, {})))
            return
        delivery.settle(Accepted())
        point = FaultPoint.CBS if self._entity is None else FaultPoint.MANAGEMENT
        operation = str(request.arguments.get("operation", "")).removeprefix("com.microsoft:")
        done(
            self._client,
            self.link,
            self._client.shared.faults.strike(point, self._entity or "", operation),
            lambda: self._perform(request),
            lambda response: reply.answer(request, response),
            lambda fault: reply.answer(request, self._struck(fault)),
        )

    def _struck(self, fault: FaultRule) -> Response:
        if self._entity is None:
            return _token_answer(fault.status or status_of(fault.condition), fault.description)
        return _refusal(fault.condition, fault.description, fault.status)

    def _perform(self, request: Request) -> Response:
        if self._entity is None:
            return self._put_token(request)
        return Management(self._client, self._entity, request).perform()

    def _put_token(self, request: Request) -> Response:
        audience = request.arguments.get("name")
        if str(request.arguments.get("operation")) != "put-token" or not isinstance(audience, str):
            return _token_answer(400, "put-token needs an operation and a name")
        if not isinstance(request.value, str):
            return _token_answer(400, "put-token needs a token in its body")
        problem = self._client.grants.put(request.value, audience)
        if problem is not None:
            return _token_answer(401, f"Unauthorized: {problem}")
        return _token_answer(202, "Accepted")

    def _reply_link(self, request: Request) -> ReplyLink | None:
        """The link for the answer: the one that the request names, else one of the same node and session."""
        asked = request.sections.properties
        reply_to = None if asked is None else asked.reply_to
        found: ReplyLink | None = None
        for endpoint in self._client.endpoints.values():
            link = endpoint.link
            if not isinstance(endpoint, ReplyLink) or link.session is not self.link.session:
                continue
            if path_of(link.source).lower() != self._path.lower():
                continue
            if reply_to is not None and getattr(link.target, "address", None) == reply_to:
                return endpoint
            found = endpoint
        return found


def _body_value(raw_body: bytes) -> Any:
    """The value that a body holds; None for bodies of other kinds."""
    if not raw_body:
        return None
    section, _ = decode_value(raw_body, 0)
    return section.value if isinstance(section, Described) and section.descriptor == _AMQP_VALUE else None
