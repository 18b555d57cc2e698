"""What a connection reports to the server above it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from servicebus_local.amqp._link import Delivery, Link
from servicebus_local.amqp._session import Session
from servicebus_local.amqp.performatives import AmqpError, Outcome


@dataclass(frozen=True, slots=True)
class SaslDone:
    """The peer has chosen a SASL mechanism."""

    mechanism: str
    initial_response: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer has opened the connection, and we have answered."""

    hostname: str | None
    container_id: str


@dataclass(frozen=True, slots=True)
class SessionBegun:
    """The peer has begun a session, and we have answered."""

    session: Session


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session and all of its links are gone: the peer has ended it, or broken its rules."""

    session: Session
    error: AmqpError | None


@dataclass(frozen=True, slots=True)
class LinkAttached:
    """The peer wants a link; it waits for `accept` or `reject`."""

    link: Link


@dataclass(frozen=True, slots=True)
class LinkFlow:
    """The credit of a receiving peer has changed, or it wants the link drained.

    ``credit`` is that of the moment: when the event is read, the link may have another one already.
    """

    link: Link
    credit: int


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message of the peer's has come in full."""

    link: Link
    delivery: Delivery
    payload: bytes


@dataclass(frozen=True, slots=True)
class Disposition:
    """The peer said something about a delivery that we sent."""

    delivery: Delivery
    outcome: Outcome | None
    settled: bool


@dataclass(frozen=True, slots=True)
class LinkDetached:
    """A link is gone: the peer has detached it, or broken its rules, and the error is the one that we sent."""

    link: Link
    error: AmqpError | None
    closed: bool


@dataclass(frozen=True, slots=True)
class ConnectionEnded:
    """The last event: the connection and everything on it are gone.

    Args:
        error: the peer's, or the one that we sent because it broke the rules.
        clean: whether the close handshake was completed.
    """

    error: AmqpError | None
    clean: bool


Event: TypeAlias = (
    SaslDone
    | Opened
    | SessionBegun
    | SessionEnded
    | LinkAttached
    | LinkFlow
    | Transfer
    | Disposition
    | LinkDetached
    | ConnectionEnded
)
