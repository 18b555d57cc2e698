"""Requests to nodes: what is asked of an entity's management, and tokens."""

from __future__ import annotations

from typing import Any

from servicebus_local.amqp import (
    Accepted,
    AmqpDecodeError,
    AmqpError,
    Delivery,
    Described,
    Int,
    Link,
    Rejected,
    Symbol,
    decode_value,
    split_message,
)
from servicebus_local.faults import FaultPoint, FaultRule
from servicebus_local.front._endpoint import Endpoint, Owner, done, path_of, status_of
from servicebus_local.front._management import Management, ReplyLink, Request, Response

_CREDIT = 100
_AMQP_VALUE = 0x77  # AMQP 1.0 part 3, section 3.2.8


class RequestLink(Endpoint):
    """A link over which requests come."""

    def __init__(self, client: Owner, link: Link, path: str, entity: str | None) -> None:
        super().__init__(link)
        self._client = client
        self._path = path
        self._entity = entity
        link.grant(_CREDIT)

    def on_transfer(self, delivery: Delivery, payload: bytes) -> None:
        """Do what is asked, and answer over the link back."""
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
            lambda fault: reply.answer(request, self._refusal(fault)),
        )

    def _refusal(self, fault: FaultRule) -> Response:
        return self._response(fault.status or status_of(fault.condition), fault.description, fault.condition)

    def _perform(self, request: Request) -> Response:
        if self._entity is None:
            return self._put_token(request)
        return Management(self._client, self._entity, request).perform()

    def _response(self, status: int, description: str, condition: str) -> Response:
        if self._entity is None:
            # The node that takes tokens answers with numbers only.
            return Response({"status-code": Int(status), "status-description": description}, None)
        arguments = {
            "statusCode": Int(status),
            "statusDescription": description,
            "errorCondition": Symbol(condition),
        }
        return Response(arguments, None)

    def _put_token(self, request: Request) -> Response:
        audience = request.arguments.get("name")
        if str(request.arguments.get("operation")) != "put-token" or not isinstance(audience, str):
            return self._response(400, "put-token needs an operation and a name", "")
        if not isinstance(request.value, str):
            return self._response(400, "put-token needs a token in its body", "")
        problem = self._client.grants.put(request.value, audience)
        if problem is not None:
            return self._response(401, f"Unauthorized: {problem}", "")
        return self._response(202, "Accepted", "")

    def _reply_link(self, request: Request) -> ReplyLink | None:
        """The link back to who asks: the one that the request names, else one of the same node and session."""
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
