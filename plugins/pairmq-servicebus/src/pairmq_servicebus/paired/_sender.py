"""The sender for programs without asyncio."""

from __future__ import annotations

import contextlib
import threading
import uuid
import warnings
from collections.abc import Callable, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from azure.servicebus import ServiceBusSender

from pairmq_servicebus.paired._batch import PairedMessageBatch, make_batch
from pairmq_servicebus.paired._convert import SingleMessage
from pairmq_servicebus.paired._portal import Portal
from pairmq_servicebus.paired._sending import SHUT_DOWN, Messages, OnReceipt, Sending, check_timeout, settle, taken


class PairedServiceBusSender:
    """Sends to a queue or topic of the primary, or to the backlog while that is away.

    Made by the client's ``get_queue_sender`` and ``get_topic_sender``. Any number of threads may share one.
    """

    def __init__(
        self,
        portal: Portal,
        sending: Sending,
        entity_name: str,
        namespace: str,
        make_own: Callable[[str], ServiceBusSender],
        client_identifier: str | None,
        on_receipt: OnReceipt | None,
    ) -> None:
        self._portal = portal
        self._sending = sending
        self._make_own = make_own
        self._own: ServiceBusSender | None = None
        self._own_lock = threading.Lock()
        self._name = client_identifier or f"SBSender-{uuid.uuid4()}"
        self._on_receipt = on_receipt
        self._closed = False
        self.entity_name = entity_name
        self.fully_qualified_namespace = namespace

    @property
    def client_identifier(self) -> str:
        """Its name, as given or made."""
        return self._name

    def send_messages(self, message: Messages, *, timeout: float | None = None, **kwargs: Any) -> None:
        """Send one message, several, or a batch, and return when all of them are accepted.

        Ctrl-C, and whatever else interrupts the waiting thread, gives the send up: its outcome is unknown then.

        Args:
            message: a ``ServiceBusMessage``, ``AmqpAnnotatedMessage`` or mapping, an iterable of these, or a batch of
                `create_message_batch`. Several need not fit one batch.
            timeout: seconds for everything, the pair's ``send_timeout`` when left out.

        Raises:
            TypeError, ValueError: a pair can't carry it; nothing was sent.
            ServiceBusError: not accepted; the subclasses say why. Of several messages it is a `PairedBatchError`, which
                names those that were not accepted.
            SendOutcomeUnknownError: perhaps accepted, perhaps not.
            RuntimeError: the client was made before a fork, or it is called by its own callback.
        """
        if kwargs:
            warnings.warn(f"Unsupported keyword args: {kwargs}", stacklevel=2)
        self._check_open()
        check_timeout(timeout)
        messages, single = taken(message)
        if messages:
            results = self._portal.run(lambda: self._sending.deliver(messages, timeout, single=single))
            settle(results, self._on_receipt)

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> PairedMessageBatch:
        """Make an empty batch; no IO, so that it works while the primary is away.

        Args:
            max_size_in_bytes: at most 1 MiB; 256 KiB when left out.

        Raises:
            ValueError: it is too large, or the sender is closed.
        """
        self._check_open()
        return make_batch(max_size_in_bytes)

    def schedule_messages(
        self, messages: SingleMessage | Iterable[SingleMessage], schedule_time_utc: datetime, **kwargs: Any
    ) -> list[int]:
        """Schedule messages at the primary itself: not covered by failover, as only it can give sequence numbers.

        A message with a ``scheduled_enqueue_time_utc``, given to `send_messages`, is covered.

        Args:
            messages: as the client takes them.
            schedule_time_utc: when they shall be seen.
            kwargs: ``timeout`` in seconds.

        Returns:
            Their sequence numbers.

        Raises:
            ServiceBusError: whatever the client raises, while the primary is away above all.
        """
        with self._own_lock:
            return self._primary().schedule_messages(messages, schedule_time_utc, **kwargs)  # type: ignore[arg-type]

    def cancel_scheduled_messages(self, sequence_numbers: int | list[int], **kwargs: Any) -> None:
        """Cancel what `schedule_messages` has scheduled, at the primary itself.

        Args:
            sequence_numbers: what it returned.
            kwargs: ``timeout`` in seconds.

        Raises:
            ServiceBusError: as the client.
        """
        with self._own_lock:
            self._primary().cancel_scheduled_messages(sequence_numbers, **kwargs)

    def close(self) -> None:
        """Take no more messages. Idempotent."""
        self._closed = True
        if self._portal.elsewhere:
            return  # both connections are the parent's
        if not self._portal.closed:
            with contextlib.suppress(RuntimeError):  # the client is being closed by another thread
                self._portal.run(self._sending.close)
        with self._own_lock:
            if self._own is not None:
                self._own.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return f"Sender client id: {self.client_identifier}, entity: {self.entity_name}"

    def _primary(self) -> ServiceBusSender:
        # The client's own sender is not made for several threads: whoever calls holds the lock.
        self._check_open()
        if self._own is None:
            self._own = self._make_own(self._name)
        return self._own

    def _check_open(self) -> None:
        if self._closed or self._portal.closed:
            raise ValueError(SHUT_DOWN)
