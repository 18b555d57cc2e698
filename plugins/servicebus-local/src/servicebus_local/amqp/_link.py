"""One end of a link, and the deliveries on it (AMQP 1.0 specification, part 2, section 2.6)."""

from __future__ import annotations

from types import EllipsisType
from typing import Any, Final, Protocol

from servicebus_local.amqp.performatives import (
    MAX_UINT,
    RECEIVER,
    SENDER,
    AmqpError,
    Attach,
    Coordinator,
    Detach,
    Flow,
    Outcome,
    Source,
    Target,
)

DEFAULT_MAX_MESSAGE_SIZE: Final = 100 * 1024 * 1024
"""Bytes of a message that is still coming in, when nothing was announced."""

MAX_TAG_SIZE: Final = 32


class LinkSession(Protocol):
    """What a link needs of its session."""

    def write(self, performative: Any) -> None: ...
    def write_link_flow(
        self, handle: int, delivery_count: int, credit: int, available: int | None, drain: bool
    ) -> None: ...
    def transmit(self, delivery: Delivery, payload: bytes) -> None: ...
    def dispose(self, delivery: Delivery, settled: bool, outcome: Outcome | None) -> None: ...
    def forget_link(self, link: Link) -> None: ...


class Delivery:
    """A message on its way across a link, until it is settled.

    Attributes:
        link: the link.
        delivery_id: its number in the session; -1 while it waits for the peer's window.
        tag: its name on the link, chosen by the sender.
        message_format: how the payload is to be read; 0 is a plain AMQP message.
        settled: whether one of the peers has settled it.
        user_data: for the server above.
    """

    __slots__ = ("delivery_id", "link", "message_format", "settled", "tag", "user_data")

    def __init__(self, link: Link, tag: bytes, message_format: int, *, settled: bool, delivery_id: int = -1) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.settled = settled
        self.user_data: Any = None

    def settle(self, outcome: Outcome | None) -> None:
        """Settle it with an outcome; does nothing if it is settled already or its link is gone."""
        if self.settled:
            return
        self.settled = True
        self.link.session.dispose(self, True, outcome)

    def update(self, outcome: Outcome | None) -> None:
        """Tell the peer about an outcome without settling."""
        if not self.settled:
            self.link.session.dispose(self, False, outcome)


class Link:
    """One end of a link; the other one is the peer's, and `peer_role` says what the peer does.

    Attributes:
        name: chosen by the peer, unique in one direction.
        handle, peer_handle: the numbers that we and the peer use for it.
        peer_role: `SENDER` or `RECEIVER`.
        source, target: as the peer asked for.
        snd_settle_mode: 0 unsettled, 1 settled, 2 mixed; as the peer asked for.
        rcv_settle_mode: 0 first, 1 second; as the peer asked for.
        properties, desired_capabilities, max_message_size, initial_delivery_count: the peer's.
        session: where it is attached.
        user_data: for the server above.
        state: ``attaching`` until it is accepted, ``open``, or ``detached``.
        credit: how many deliveries may still go across: what the peer has granted us, or we have granted to it.
        drain: whether a receiving peer wants its credit used up or returned.
    """

    def __init__(self, session: LinkSession, handle: int, attach: Attach) -> None:
        self.session = session
        self.handle = handle
        self.peer_handle = attach.handle
        self.name = attach.name
        self.peer_role = attach.role
        self.source = attach.source
        self.target = attach.target
        self.snd_settle_mode = attach.snd_settle_mode
        self.rcv_settle_mode = attach.rcv_settle_mode
        self.properties = attach.properties
        self.desired_capabilities = attach.desired_capabilities
        self.max_message_size = attach.max_message_size
        self.initial_delivery_count = attach.initial_delivery_count
        self.user_data: Any = None
        self.state = "attaching"
        self.credit = 0
        self.drain = False
        self.delivery_count = attach.initial_delivery_count or 0
        self.max_incoming_size = DEFAULT_MAX_MESSAGE_SIZE
        self.unsettled: dict[int, Delivery] = {}
        # The delivery whose last frame has not come yet.
        self.partial: Delivery | None = None
        self.partial_payload = bytearray()

    def accept(
        self,
        *,
        source: Source | EllipsisType | None = ...,
        target: Target | Coordinator | EllipsisType | None = ...,
        properties: dict[Any, Any] | None = None,
        max_message_size: int | None = None,
        offered_capabilities: list[Any] | None = None,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int | None = None,
    ) -> None:
        """Answer the peer's attach; does nothing if the link is gone by now.

        Args:
            source, target: what the link really has; left out, what the peer asked for.
            properties: of the link.
            max_message_size: in bytes; a larger message of the peer's detaches the link.
            offered_capabilities: symbols.
            snd_settle_mode, rcv_settle_mode: None: what the peer asked for.

        Raises:
            ValueError: it has been answered already.
        """
        if self.state == "detached":
            return
        if self.state != "attaching":
            raise ValueError(f"the link {self.name!r} has been accepted already")
        self.state = "open"
        self.max_incoming_size = max_message_size or DEFAULT_MAX_MESSAGE_SIZE
        self._write_attach(
            source=self.source if isinstance(source, EllipsisType) else source,
            target=self.target if isinstance(target, EllipsisType) else target,
            properties=properties,
            max_message_size=max_message_size,
            offered_capabilities=offered_capabilities,
            snd_settle_mode=self.snd_settle_mode if snd_settle_mode is None else snd_settle_mode,
            rcv_settle_mode=self.rcv_settle_mode if rcv_settle_mode is None else rcv_settle_mode,
        )

    def reject(self, error: AmqpError) -> None:
        """Answer the peer's attach with an error (part 2, section 2.6.3); does nothing if the link is gone by now.

        Raises:
            ValueError: it has been accepted already.
        """
        if self.state == "open":
            raise ValueError(f"the link {self.name!r} has been accepted already")
        self.detach(error)

    def detach(self, error: AmqpError | None = None, *, closed: bool = True) -> None:
        """End the link; does nothing if it is gone already. No event reports a detach that we began.

        Args:
            error: why, if not in peace.
            closed: whether the link is to be forgotten and not only to be interrupted.
        """
        if self.state == "detached":
            return
        if self.state == "attaching":
            # A link is refused by an attach without the terminus that could not be had, and a detach after it.
            self._write_attach(snd_settle_mode=self.snd_settle_mode, rcv_settle_mode=self.rcv_settle_mode)
        self.session.write(Detach(handle=self.handle, closed=closed, error=error))
        self.lose()

    def lose(self) -> None:
        """Forget what the link held, without telling the peer."""
        self.state = "detached"
        self.credit = 0
        self.drop_partial()
        self.session.forget_link(self)
        self.unsettled.clear()

    def grant(self, credit: int) -> None:
        """Allow a sending peer so many deliveries from now on, in place of what it was allowed before.

        Raises:
            ValueError: the peer does not send on this link, the link is not accepted yet, or the number is negative.
        """
        if self.peer_role is not SENDER or self.state == "attaching" or not 0 <= credit <= MAX_UINT:
            raise ValueError(f"cannot grant {credit} on the link {self.name!r}")
        if self.state != "open":
            return
        self.credit = credit
        self.write_flow()

    def send(self, payload: bytes, *, tag: bytes, message_format: int = 0, settled: bool = False) -> Delivery:
        """Send a message to a receiving peer; uses one credit.

        Args:
            payload: the encoded message.
            tag: its name on the link, at most 32 bytes, unlike those of all unsettled deliveries on it.
            message_format: how the payload is to be read.
            settled: send it without waiting for an outcome.

        Returns:
            The delivery.

        Raises:
            ValueError: there is no credit, the link is not open, the peer does not receive, or the tag is too long.
        """
        if self.peer_role is not RECEIVER or self.state != "open" or self.credit <= 0:
            raise ValueError(f"the link {self.name!r} has no credit to send with")
        if len(tag) > MAX_TAG_SIZE:
            raise ValueError(f"a delivery tag has at most {MAX_TAG_SIZE} bytes, not {len(tag)}")
        self.credit -= 1
        self.delivery_count = (self.delivery_count + 1) & MAX_UINT
        delivery = Delivery(self, tag, message_format, settled=settled)
        self.session.transmit(delivery, payload)
        return delivery

    def drained(self) -> None:
        """Tell a receiving peer that nothing more comes for the credit it has granted (part 2, section 2.6.7)."""
        if self.peer_role is not RECEIVER or self.state != "open":
            return
        self.delivery_count = (self.delivery_count + self.credit) & MAX_UINT
        self.credit = 0
        self.write_flow()

    def write_flow(self) -> None:
        sending = self.peer_role is RECEIVER
        self.session.write_link_flow(
            self.handle, self.delivery_count, self.credit, 0 if sending else None, self.drain and sending
        )

    def take_flow(self, flow: Flow) -> bool:
        """Take over what the peer says about the link's flow state.

        Returns:
            Whether something changed for the sender on this link; a repeated request is a change, too.
        """
        if self.peer_role is SENDER:
            if flow.delivery_count is not None:
                # A sender only moves its count on its own when it returns credit after a drain.
                given_back = (flow.delivery_count - self.delivery_count) & MAX_UINT
                if given_back <= self.credit:
                    self.delivery_count = flow.delivery_count
                    self.credit -= given_back
            return False
        credit = self.credit
        if flow.link_credit is not None:
            # The peer may not have seen our last deliveries when it said this, and not even our attach.
            seen = self.delivery_count if flow.delivery_count is None else flow.delivery_count
            unseen = (self.delivery_count - seen) & MAX_UINT
            credit = max(0, flow.link_credit - unseen)
        changed = flow.link_credit is not None or flow.drain != self.drain
        self.credit = credit
        self.drain = flow.drain
        return changed or flow.drain

    def drop_partial(self) -> None:
        """Forget the frames of a delivery that has not come in full."""
        self.partial = None
        self.partial_payload = bytearray()

    def _write_attach(self, **fields: Any) -> None:
        initial = self.delivery_count if self.peer_role is RECEIVER else None
        self.session.write(
            Attach(self.name, self.handle, role=not self.peer_role, initial_delivery_count=initial, **fields)
        )
