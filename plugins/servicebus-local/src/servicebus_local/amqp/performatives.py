"""What peers say to each other: the bodies of frames, and what is in them.

The fields and their order are those of the AMQP 1.0 specification, part 2 (section 2.7, performatives), part 3
(section 3.4, delivery states; 3.5, sources and targets), part 4 (coordinator) and part 5 (section 5.3.3, SASL).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from servicebus_local.amqp import _fields
from servicebus_local.amqp._fields import (
    ANY,
    BINARY,
    BOOLEAN,
    FIELDS,
    MAP,
    NULLABLE,
    SYMBOL,
    SYMBOLS,
    TEXT,
    UINT,
    ULONG,
)
from servicebus_local.amqp._types import AmqpDecodeError, Described, Symbol, UByte, UShort

SENDER: Final = False
"""The role of a link's end that sends; the specification has a boolean for it (part 2, section 2.8.1)."""

RECEIVER: Final = True
"""The role of a link's end that receives."""

MAX_UINT = 2**32 - 1


@dataclass(frozen=True, slots=True)
class AmqpError:
    """Why something went wrong, for the peer (part 2, section 2.8.14); a value, not an exception.

    Args:
        condition: a symbol such as ``amqp:not-found``.
        description: for people.
        info: more details; where it is None the field is left out, as the service may do it, and a client is known to
            wait forever for it.
    """

    condition: str
    description: str = ""
    info: dict[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """How far the receiver has got with a delivery (part 3, section 3.4.1)."""

    section_number: int
    section_offset: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The receiver has taken the message over (part 3, section 3.4.2)."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The message is invalid and cannot be processed (part 3, section 3.4.3)."""

    error: AmqpError | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The message was not and will not be processed here (part 3, section 3.4.4)."""


@dataclass(frozen=True, slots=True)
class Modified:
    """Like released, and the message is to be changed (part 3, section 3.4.5)."""

    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    annotations: dict[Any, Any] | None = None


Outcome: TypeAlias = Accepted | Rejected | Released | Modified | Received | Described
"""A delivery's state; those of transactions stay as they were read."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a link's messages come from (part 3, section 3.5.3)."""

    address: Any = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[Any, Any] | None = None
    distribution_mode: str | None = None
    filter: dict[Any, Any] | None = None
    default_outcome: Outcome | None = None
    outcomes: list[Symbol] | None = None
    capabilities: list[Symbol] | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """Where a link's messages go to (part 3, section 3.5.4)."""

    address: Any = None
    durable: int = 0
    expiry_policy: str = "session-end"
    timeout: int = 0
    dynamic: bool = False
    dynamic_node_properties: dict[Any, Any] | None = None
    capabilities: list[Symbol] | None = None


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The target of a link that controls transactions (part 4, section 4.5.1)."""

    capabilities: list[Symbol] | None = None


@dataclass(frozen=True, slots=True)
class Open:
    """Negotiate the connection; the idle time-out is in milliseconds (part 2, section 2.7.1)."""

    container_id: str
    hostname: str | None = None
    max_frame_size: int = MAX_UINT
    channel_max: int = 65535
    idle_timeout: int | None = None
    outgoing_locales: list[Symbol] | None = None
    incoming_locales: list[Symbol] | None = None
    offered_capabilities: list[Symbol] | None = None
    desired_capabilities: list[Symbol] | None = None
    properties: dict[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin a session on a channel (part 2, section 2.7.2)."""

    remote_channel: int | None = field(metadata=NULLABLE)
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = MAX_UINT
    offered_capabilities: list[Symbol] | None = None
    desired_capabilities: list[Symbol] | None = None
    properties: dict[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Attach:
    """Attach a link to a session (part 2, section 2.7.3)."""

    name: str
    handle: int
    role: bool
    snd_settle_mode: int = 2
    rcv_settle_mode: int = 0
    source: Source | None = None
    target: Target | Coordinator | None = None
    unsettled: dict[Any, Any] | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: list[Symbol] | None = None
    desired_capabilities: list[Symbol] | None = None
    properties: dict[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class Flow:
    """Update the flow state of a session or link (part 2, section 2.7.4)."""

    next_incoming_id: int | None = field(metadata=NULLABLE)
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: dict[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class TransferFrame:
    """Carry a message, or a part of it, across a link (part 2, section 2.7.5)."""

    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: Outcome | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@dataclass(frozen=True, slots=True)
class DispositionFrame:
    """Tell the peer about changes of deliveries' states (part 2, section 2.7.6)."""

    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: Outcome | None = None
    batchable: bool = False


@dataclass(frozen=True, slots=True)
class Detach:
    """Detach a link from its session (part 2, section 2.7.7)."""

    handle: int
    closed: bool = False
    error: AmqpError | None = None


@dataclass(frozen=True, slots=True)
class End:
    """End a session (part 2, section 2.7.8)."""

    error: AmqpError | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Close the connection (part 2, section 2.7.9)."""

    error: AmqpError | None = None


@dataclass(frozen=True, slots=True)
class SaslMechanisms:
    """What the server offers (part 5, section 5.3.3.1)."""

    sasl_server_mechanisms: list[Symbol]


@dataclass(frozen=True, slots=True)
class SaslInit:
    """What the client chose (part 5, section 5.3.3.2)."""

    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


@dataclass(frozen=True, slots=True)
class SaslOutcome:
    """How it ended: 0 is ok, 1 that the credentials do not do (part 5, section 5.3.3.5)."""

    code: int
    additional_data: bytes | None = None


_ERROR = _fields.Composite(0x1D, "amqp:error:list", AmqpError, SYMBOL, TEXT, FIELDS, short=True)


def _part(what: str, *types: type) -> _fields.Kind:
    """The kind of a composite within another one, of one of these types."""

    def read(value: Any) -> Any:
        found = _read_part(value)
        if not isinstance(found, types):
            raise AmqpDecodeError(f"It is no {what}.")
        return found

    return _fields.Kind(read, _write_part)


def _read_part(value: Any) -> Any:
    if not isinstance(value, Described):
        raise AmqpDecodeError(f"{type(value).__name__} has no descriptor.")
    composite = _by_descriptor(_PARTS, value.descriptor)
    return value if composite is None else composite.read(value.value)


def _write_part(value: Any) -> Described:
    return value if isinstance(value, Described) else _PART_OF[type(value)].described(value)


def _by_descriptor(composites: dict[Any, _fields.Composite], descriptor: Any) -> _fields.Composite | None:
    try:
        return composites.get(descriptor)
    except TypeError:
        return None


def _table(*composites: _fields.Composite) -> dict[Any, _fields.Composite]:
    table: dict[Any, _fields.Composite] = {composite.code: composite for composite in composites}
    return table | {composite.symbol: composite for composite in composites}


_UBYTE = _fields.whole(8, UByte)
_USHORT = _fields.whole(16, UShort)
_ERRORS = _part("error", AmqpError)
_STATE = _part("state of a delivery", Accepted, Rejected, Released, Modified, Received, Described)
_SOURCE = _part("source", Source)
_TARGET = _part("target", Target, Coordinator)
_NODE = (ANY, UINT, SYMBOL, UINT, BOOLEAN, FIELDS)

_PARTS = _table(
    _ERROR,
    _fields.Composite(0x23, "amqp:received:list", Received, UINT, ULONG),
    _fields.Composite(0x24, "amqp:accepted:list", Accepted),
    _fields.Composite(0x25, "amqp:rejected:list", Rejected, _ERRORS),
    _fields.Composite(0x26, "amqp:released:list", Released),
    _fields.Composite(0x27, "amqp:modified:list", Modified, BOOLEAN, BOOLEAN, FIELDS),
    _fields.Composite(0x28, "amqp:source:list", Source, *_NODE, SYMBOL, MAP, _STATE, SYMBOLS, SYMBOLS),
    _fields.Composite(0x29, "amqp:target:list", Target, *_NODE, SYMBOLS),
    _fields.Composite(0x30, "amqp:coordinator:list", Coordinator, SYMBOLS),
)
_PART_OF = {composite.type: composite for composite in _PARTS.values()}

_LINK_ENDS = (TEXT, UINT, BOOLEAN, _UBYTE, _UBYTE, _SOURCE, _TARGET, MAP, BOOLEAN)
_TRANSFER = (UINT, UINT, BINARY, UINT, BOOLEAN, BOOLEAN, _UBYTE, _STATE, BOOLEAN, BOOLEAN, BOOLEAN)

PERFORMATIVES = _table(
    _fields.Composite(
        0x10, "amqp:open:list", Open, TEXT, TEXT, UINT, _USHORT, UINT, SYMBOLS, SYMBOLS, SYMBOLS, SYMBOLS, FIELDS
    ),
    _fields.Composite(0x11, "amqp:begin:list", Begin, _USHORT, UINT, UINT, UINT, UINT, SYMBOLS, SYMBOLS, FIELDS),
    _fields.Composite(0x12, "amqp:attach:list", Attach, *_LINK_ENDS, UINT, ULONG, SYMBOLS, SYMBOLS, FIELDS),
    _fields.Composite(
        0x13, "amqp:flow:list", Flow, UINT, UINT, UINT, UINT, UINT, UINT, UINT, UINT, BOOLEAN, BOOLEAN, FIELDS
    ),
    _fields.Composite(0x14, "amqp:transfer:list", TransferFrame, *_TRANSFER),
    _fields.Composite(0x15, "amqp:disposition:list", DispositionFrame, BOOLEAN, UINT, UINT, BOOLEAN, _STATE, BOOLEAN),
    _fields.Composite(0x16, "amqp:detach:list", Detach, UINT, BOOLEAN, _ERRORS),
    _fields.Composite(0x17, "amqp:end:list", End, _ERRORS),
    _fields.Composite(0x18, "amqp:close:list", Close, _ERRORS),
)
SASL = _table(
    _fields.Composite(0x40, "amqp:sasl-mechanisms:list", SaslMechanisms, SYMBOLS),
    _fields.Composite(0x41, "amqp:sasl-init:list", SaslInit, SYMBOL, BINARY, TEXT),
    _fields.Composite(0x44, "amqp:sasl-outcome:list", SaslOutcome, _UBYTE, BINARY),
)
_BODY_OF = {composite.type: composite for composite in (*PERFORMATIVES.values(), *SASL.values())}


def read_performative(value: Any, *, sasl: bool = False) -> Any:
    """Make the dataclass of a frame's decoded body."""
    if not isinstance(value, Described):
        raise AmqpDecodeError("A frame does not begin with a performative.")
    composite = _by_descriptor(SASL if sasl else PERFORMATIVES, value.descriptor)
    if composite is None:
        raise AmqpDecodeError(f"There is no performative {value.descriptor!r}.")
    return composite.read(value.value)


def write_performative(performative: Any) -> bytes:
    """Give the bytes of a performative, with all of its fields."""
    out = bytearray()
    _BODY_OF[type(performative)].write_into(out, performative)
    return bytes(out)
