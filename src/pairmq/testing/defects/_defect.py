"""What a defect is: wrappers around any transport, of which one thing breaks a clause of the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pairmq.model import Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.transport import (
    Admin,
    AdminWrapper,
    Capabilities,
    Receiver,
    ReceiverWrapper,
    Sender,
    SenderWrapper,
    Transport,
    TransportWrapper,
)

T = TypeVar("T")

LIMIT = 150_000
"""Bytes of a message where a defect is about a limit: few enough that the tests are not about the machine."""


class DefectiveSender(SenderWrapper):
    """Passes everything on, as the other three do, but for what a subclass changes."""

    def __init__(self, transport: DefectiveTransport, entity: Entity) -> None:
        super().__init__(transport.inner.sender(entity))
        self.transport = transport
        self.entity = entity


class LimitedSender(DefectiveSender):
    """Keeps to the limit that the defect's transport claims."""

    async def send(self, message: Message) -> None:
        self.transport.check_size(message)
        await self.inner.send(message)

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        refused: dict[int, TransportError] = {}
        for position, message in enumerate(messages):
            try:
                self.transport.check_size(message)
            except TransportError as error:
                refused[position] = error
        fitting = [message for position, message in enumerate(messages) if position not in refused]
        outcomes = iter(await self.inner.send_batch(fitting))
        return [refused[position] if position in refused else next(outcomes) for position in range(len(messages))]

    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        return await Sender.send_in_order(self, messages)  # one after the other


class DefectiveReceiver(ReceiverWrapper):
    def __init__(self, transport: DefectiveTransport, source: Source) -> None:
        super().__init__(transport.inner.receiver(source))
        self.transport = transport
        self.source = source


class DefectiveAdmin(AdminWrapper):
    def __init__(self, transport: DefectiveTransport) -> None:
        super().__init__(transport.inner.admin)
        self.transport = transport


class DefectiveTransport(TransportWrapper):
    """Makes the defect's senders, receivers and administration, and claims what it claims."""

    def __init__(self, inner: Transport, defect: Defect, url: str) -> None:
        super().__init__(inner)
        self.defect = defect
        self.url = url
        self._admin = defect.admin(self)

    @property
    def limit(self) -> int | None:
        """The largest message; below the inner one's, so that a defect is free to accept more."""
        most = self.inner.capabilities.max_message_bytes
        if not self.defect.limited:
            return most
        return LIMIT if most is None else min(LIMIT, most // 2)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, max_message_bytes=self.limit, **self.defect.claims)

    @property
    def admin(self) -> Admin:
        return self._admin

    def sender(self, entity: Entity) -> Sender:
        if self.defect.limited and self.defect.sender is DefectiveSender:
            return LimitedSender(self, entity)
        return self.defect.sender(self, entity)

    def receiver(self, source: Source) -> Receiver:
        return self.defect.receiver(self, source)

    def check_message(self, entity: Entity, message: Message) -> None:
        self.inner.check_message(entity, message)
        self.check_size(message)

    def check_size(self, message: Message) -> None:
        if self.limit is not None and self.measure(message) > self.limit:
            raise TransportError("the message is too large", FailureKind.REFUSED, FailureReason.TOO_LARGE)


@dataclass(frozen=True, slots=True)
class Defect:
    """One way in which a transport may break the contract.

    Args:
        name: of the class with the defect, or of the claim.
        clause: what it breaks: the name in `pairmq.transport`, and what is asked for there.
        found_by: ``Suite.test`` of each test that must fail, if the transport and the harness let it run.
        needs: capabilities without which it can't be seen.
        unless: capabilities with which it is not a defect.
        password: whether only a URL with a password shows it.
        limited: whether the transport is given a limit of `LIMIT` bytes for it.
        claims: capabilities that are reported in place of the true ones.
        sender: makes what replaces the sound senders; likewise ``receiver``, ``admin`` and ``transport``. The sound
            objects are those of the transport's ``inner``.
    """

    name: str
    clause: str
    found_by: tuple[str, ...]
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    password: bool = False
    limited: bool = False
    claims: dict[str, Any] = field(default_factory=dict)
    sender: Callable[[DefectiveTransport, Entity], Sender] = DefectiveSender
    receiver: Callable[[DefectiveTransport, Source], Receiver] = DefectiveReceiver
    admin: Callable[[DefectiveTransport], Admin] = DefectiveAdmin
    transport: Callable[[Transport, Defect, str], Transport] = DefectiveTransport

    def plant(self, transport: Transport, url: str) -> Transport:
        """Wrap a transport, which must not be used by itself any more.

        Args:
            transport: of any product.
            url: that it was made with.
        """
        return self.transport(transport, self, url)

    def not_applicable(self, capabilities: Capabilities, url: str) -> str | None:
        """Return why a transport can't have it, None if it can.

        Args:
            capabilities: of the transport, without the defect.
            url: the broker's; whether it has a password matters to some.
        """
        for name in self.needs:
            if not getattr(capabilities, name):
                return f"the transport disclaims {name}"
        for name in self.unless:
            if getattr(capabilities, name):
                return f"the transport claims {name}"
        if self.password and not urlsplit(url).password:
            return "the harness's URL has no password"
        return None


DEFECTS: list[Defect] = []
_PARTS: dict[type, str] = {
    DefectiveSender: "sender",
    DefectiveReceiver: "receiver",
    DefectiveAdmin: "admin",
    DefectiveTransport: "transport",
}


def planted(
    clause: str, *found_by: str, needs: tuple[str, ...] = (), password: bool = False, limited: bool = False
) -> Callable[[type[T]], type[T]]:
    """Enter a class into the table, with the clause that it breaks and the tests that must find it."""

    def enter(defective: type[T]) -> type[T]:
        (part,) = (name for base, name in _PARTS.items() if issubclass(defective, base))
        parts: dict[str, Any] = {part: defective}
        DEFECTS.append(Defect(defective.__name__, clause, found_by, needs, password=password, limited=limited, **parts))
        return defective

    return enter


def false_claim(found_by: str, **claims: bool) -> None:
    ((name, value),) = claims.items()
    DEFECTS.append(
        Defect(
            f"{name}={value}",
            f"Capabilities: {name} is what the transport does",
            (found_by,),
            needs=() if value else (name,),
            unless=(name,) if value else (),
            claims=claims,
        )
    )
