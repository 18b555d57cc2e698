"""Transports with one defect each, and false claims."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pairmq.model import Delivery, Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.testing.conformance._limits import limits
from pairmq.testing.defects._defect import (
    Defect,
    DefectiveReceiver,
    DefectiveSender,
    DefectiveTransport,
    false_claim,
    planted,
)
from pairmq.transport import Capabilities, Endpoint, SessionReceiver, Transport


@planted(
    "Transport.close: it returns within 2 s even if the broker is unresponsive",
    "Lifecycle.test_closing_does_not_wait_for_a_frozen_broker",
)
class ClosesSlowly(DefectiveTransport):
    async def close(self) -> None:
        await super().close()
        await asyncio.sleep(2.0 + limits().slack + 0.3)


@planted("Transport.ended: a closed transport has ended", "Lifecycle.test_a_block_closes_its_transport")
class NeverEnds(DefectiveTransport):
    @property
    def ended(self) -> bool:
        return False


@planted(
    "Transport.close: calls in flight end with reason *closed*", "Lifecycle.test_a_long_poll_ends_with_its_transport"
)
class ClosesWithTheWrongReason(DefectiveTransport):
    def receiver(self, source: Source) -> DefectiveReceiver:
        receiver = DefectiveReceiver(self, source)
        sound = receiver.receive

        async def receive(max_messages: int, wait: float) -> list[Delivery]:
            try:
                return await sound(max_messages, wait)
            except TransportError as error:
                raise TransportError(str(error), error.kind, FailureReason.CONNECTION) from None

        receiver.receive = receive  # type: ignore[method-assign]
        return receiver


@planted("Transport.close: everything is closed", "Lifecycle.test_closing_leaves_no_task_behind")
class LeavesATaskBehind(DefectiveTransport):
    def sender(self, entity: Entity) -> DefectiveSender:
        self._beat = asyncio.ensure_future(asyncio.sleep(3600))
        return DefectiveSender(self, entity)


@planted("Transport.fault: the first cause is kept", "Lifecycle.test_a_faulted_transport_keeps_its_first_cause")
class KeepsTheLastCause(DefectiveTransport):
    async def fault(self, cause: BaseException) -> None:
        await super().fault(cause)
        self._fault = cause


@planted("Transport.sender: making objects does no IO", "Lifecycle.test_making_objects_does_no_io")
class ConnectsWhenMade(DefectiveTransport):
    def __init__(self, inner: Transport, defect: Defect, url: str) -> None:
        super().__init__(inner, defect, url)
        self._checking = asyncio.ensure_future(self.admin.check())

    def sender(self, entity: Entity) -> DefectiveSender:
        outer = self

        class Sender(DefectiveSender):
            async def send(self, message: Message) -> None:
                await outer._checking
                await super().send(message)

        return Sender(self, entity)


@planted("Endpoint: the URL has its password left out", "Lifecycle.test_no_password_is_shown", password=True)
class ShowsItsPassword(DefectiveTransport):
    @property
    def endpoint(self) -> Endpoint:
        return replace(super().endpoint, url=self.url)


@planted(
    "Transport.accept_session: a session that has messages and is not locked is found",
    "Sessions.test_a_session_is_read_alone_and_in_order",
    needs=("sessions",),
)
class FindsNoSession(DefectiveTransport):
    async def accept_session(
        self, source: Source, session_id: str | None = None, *, wait: float
    ) -> SessionReceiver | None:
        return None


@planted("Transport.on_end: a listener is called once", "Lifecycle.test_listeners_hear_of_the_end_once")
class NotifiesTwice(DefectiveTransport):
    def _end(self) -> None:
        listeners = list(self._listeners)
        super()._end()
        for listener in listeners:
            listener(self)


@planted("Transport.fault_cause: a regular close has no cause", "Lifecycle.test_an_ordinary_close_has_no_cause")
class FaultsWhenClosed(DefectiveTransport):
    async def close(self) -> None:
        await self.fault(RuntimeError("closed"))


@planted("Endpoint: two endpoints of one identity are the same broker", "Lifecycle.test_an_endpoint_names_a_broker")
class IsAnotherBrokerEachTime(DefectiveTransport):
    @property
    def endpoint(self) -> Endpoint:
        return replace(super().endpoint, identity=("defective", str(id(self))))


@planted("Transport.close: it is idempotent and never raises", "Lifecycle.test_closing_again_is_no_failure")
class ClosesOnce(DefectiveTransport):
    _closed = False

    async def close(self) -> None:
        if self._closed:
            raise TransportError("it is closed already", FailureKind.UNAVAILABLE, FailureReason.CLOSED)
        self._closed = True
        await super().close()


@planted(
    "Transport.check_message: what can never be accepted is refused in every state of the broker",
    "Faults.test_what_a_broker_can_never_take_is_refused_while_it_is_stopped",
)
class AsksBeforeItRefuses(DefectiveTransport):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, scheduling=False)

    def check_message(self, entity: Entity, message: Message) -> None:
        Transport.check_message(self, entity, message)

    def sender(self, entity: Entity) -> DefectiveSender:
        outer = self

        class Sender(DefectiveSender):
            async def send(self, message: Message) -> None:
                await outer.admin.check()
                outer.check_message(entity, message)
                await super().send(message)

        return Sender(self, entity)


@planted(
    "Transport.measure: all that a message holds is counted", "Send.test_a_measure_grows_with_all_that_a_message_holds"
)
class MeasuresBodiesOnly(DefectiveTransport):
    def measure(self, message: Message) -> int:
        return len(message.body)


false_claim("Send.test_a_time_to_live_comes_back_to_the_microsecond", time_to_live=False)
false_claim("Settlement.test_a_renewed_lock_lasts_longer", lock_renewal=False)
false_claim("Probe.test_it_passes_where_sends_pass", probes=False)
false_claim("Topics.test_every_subscription_gets_every_message_in_order", topics=False)
false_claim("Admin.test_a_queue_that_requires_sessions_has_the_property", sessions=False)
false_claim("Faults.test_what_was_accepted_outlives_a_crash", durable=True)
false_claim("Receive.test_the_next_consumer_begins_with_what_the_last_one_gave_back", ordered_consumer=False)
