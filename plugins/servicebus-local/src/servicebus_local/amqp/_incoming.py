"""What a session does with the frames that come in (AMQP 1.0 specification, part 2, sections 2.5 and 2.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from servicebus_local.amqp._link import MAX_TAG_SIZE, Delivery, Link
from servicebus_local.amqp._session import MAX_LINKS, Session
from servicebus_local.amqp.events import (
    Disposition,
    Event,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionEnded,
    Transfer,
)
from servicebus_local.amqp.performatives import (
    MAX_UINT,
    RECEIVER,
    SENDER,
    AmqpError,
    Attach,
    Detach,
    DispositionFrame,
    Flow,
    TransferFrame,
)


def handle_frame(session: Session, performative: Any, payload: bytes, events: list[Event]) -> None:
    """Let a session take a frame of its own; what is wrong about it ends the link or the session, never more."""
    if session.state != "open":
        # What the peer sent before it saw that we have ended the session.
        return
    try:
        _HANDLERS[type(performative)](session, performative, payload, events)
    except _SessionFault as fault:
        session.end(fault.error)
        events.append(SessionEnded(session, fault.error))


class _SessionFault(Exception):
    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.error = AmqpError(condition, description)


def _link(session: Session, handle: int) -> Link:
    link = session.peer_links.get(handle)
    if link is None:
        raise _SessionFault("amqp:session:unattached-handle", f"No link is attached with the handle {handle}.")
    return link


def _fail_link(link: Link, condition: str, description: str, events: list[Event]) -> None:
    error = AmqpError(condition, description)
    link.detach(error)
    events.append(LinkDetached(link, error, True))


def _attach(session: Session, attach: Attach, payload: bytes, events: list[Event]) -> None:
    if attach.handle >= MAX_LINKS:
        raise _SessionFault("amqp:not-allowed", f"The handle {attach.handle} is above the maximum {MAX_LINKS - 1}.")
    if attach.snd_settle_mode > 2 or attach.rcv_settle_mode > 1:
        raise _SessionFault("amqp:invalid-field", f"The link {attach.name!r} has settle modes that there are not.")
    present = session.peer_links.get(attach.handle)
    # Azure's Python client does not answer the detach of a refused link, so its handle may come back as it is.
    if present is not None and present.state != "detached":
        raise _SessionFault("amqp:session:handle-in-use", f"The handle {attach.handle} is in use.")
    for link in session.links:
        if link.name == attach.name and link.peer_role is attach.role:
            _fail_link(link, "amqp:link:stolen", f"The link {attach.name!r} was attached again.", events)
    handle = session.free_handle()
    if handle is None:
        raise _SessionFault("amqp:resource-limit-exceeded", "There is no handle left for another link.")
    link = Link(session, handle, attach)
    session.peer_links[attach.handle] = link
    events.append(LinkAttached(link))


def _flow(session: Session, flow: Flow, payload: bytes, events: list[Event]) -> None:
    session.take_flow(flow)
    if flow.handle is None:
        if flow.echo:
            session.write_flow()
        return
    link = _link(session, flow.handle)
    if link.state == "detached":
        return
    if link.take_flow(flow):
        events.append(LinkFlow(link, link.credit))
    if flow.echo and link.state == "open":
        link.write_flow()


def _transfer(session: Session, transfer: TransferFrame, payload: bytes, events: list[Event]) -> None:
    link = _link(session, transfer.handle)
    session.count_incoming()
    if link.state == "detached":
        return
    if link.peer_role is not SENDER:
        raise _SessionFault("amqp:not-allowed", f"A transfer came on the link {link.name!r}, whose peer receives.")
    delivery = link.partial
    if delivery is None:
        found = _first_frame(session, link, transfer, events)
        if found is None:
            return
        delivery = found
    elif transfer.delivery_id is not None and transfer.delivery_id != delivery.delivery_id:
        raise _SessionFault(
            "amqp:not-allowed",
            f"The delivery {transfer.delivery_id} began before the delivery {delivery.delivery_id} was complete.",
        )
    if transfer.aborted:
        link.drop_partial()
        return
    if transfer.settled:
        delivery.settled = True
    if len(link.partial_payload) + len(payload) > link.max_incoming_size:
        _fail_link(
            link,
            "amqp:link:message-size-exceeded",
            f"A message is larger than the maximum of {link.max_incoming_size} bytes.",
            events,
        )
        return
    if transfer.more:
        # One buffer and no list of pieces, which would take many times the memory if the pieces are small.
        link.partial = delivery
        link.partial_payload += payload
        return
    if link.partial is not None:
        link.partial_payload += payload
        payload = bytes(link.partial_payload)
        link.drop_partial()
    if not delivery.settled:
        session.incoming[delivery.delivery_id] = delivery
        link.unsettled[delivery.delivery_id] = delivery
    events.append(Transfer(link, delivery, payload))


def _first_frame(session: Session, link: Link, transfer: TransferFrame, events: list[Event]) -> Delivery | None:
    delivery_id = transfer.delivery_id
    tag = transfer.delivery_tag
    if delivery_id is None or tag is None or len(tag) > MAX_TAG_SIZE:
        raise _SessionFault("amqp:invalid-field", f"A delivery on the link {link.name!r} lacks its id or a valid tag.")
    if delivery_id in session.incoming:
        raise _SessionFault("amqp:not-allowed", f"The delivery {delivery_id} exists already.")
    if link.credit <= 0:
        _fail_link(
            link, "amqp:link:transfer-limit-exceeded", f"The link {link.name!r} has no credit for a message.", events
        )
        return None
    link.credit -= 1
    link.delivery_count = (link.delivery_count + 1) & MAX_UINT
    return Delivery(link, tag, transfer.message_format or 0, settled=False, delivery_id=delivery_id)


def _disposition(session: Session, disposition: DispositionFrame, payload: bytes, events: list[Event]) -> None:
    first = disposition.first
    last = first if disposition.last is None else disposition.last
    span = (last - first) & MAX_UINT
    if span >= 1 << 31:
        raise _SessionFault("amqp:invalid-field", f"A disposition ends at {last}, before it begins at {first}.")
    ours = disposition.role is RECEIVER
    deliveries = session.outgoing if ours else session.incoming
    if not span:
        delivery = deliveries.get(first)
        found = [] if delivery is None else [delivery]
    elif span < len(deliveries):
        ids = ((first + step) & MAX_UINT for step in range(span + 1))
        found = [delivery for delivery_id in ids if (delivery := deliveries.get(delivery_id)) is not None]
    else:
        # The range is the peer's claim; what there is to walk through is what we have.
        found = [delivery for delivery_id, delivery in deliveries.items() if (delivery_id - first) & MAX_UINT <= span]
    for delivery in found:
        if disposition.settled:
            delivery.settled = True
            session.settled(delivery)
        if ours:
            events.append(Disposition(delivery, disposition.state, disposition.settled))


def _detach(session: Session, detach: Detach, payload: bytes, events: list[Event]) -> None:
    link = _link(session, detach.handle)
    del session.peer_links[detach.handle]
    if link.state == "detached":
        # The answer to ours.
        return
    link.detach(closed=detach.closed)
    events.append(LinkDetached(link, detach.error, detach.closed))


_HANDLERS: dict[type, Callable[[Session, Any, bytes, list[Event]], None]] = {
    Attach: _attach,
    Flow: _flow,
    TransferFrame: _transfer,
    DispositionFrame: _disposition,
    Detach: _detach,
}
