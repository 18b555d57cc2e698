"""What both kinds of sender do: open the pair in time, send what was converted, and account for every message."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.exceptions import OperationTimeoutError

from pairmq import (
    Message,
    Pair,
    PairClosed,
    PairFaulted,
    PairMQError,
    PairSender,
    PrimaryUnavailable,
    Receipt,
    SendError,
    SendRefused,
)
from pairmq.transport import in_chunks
from pairmq_servicebus.paired._convert import SingleMessage, convert, convert_all, is_one, messages_of
from pairmq_servicebus.paired._errors import as_client_error, batch_error

Messages: TypeAlias = SingleMessage | Iterable[SingleMessage] | ServiceBusMessageBatch
"""What ``send_messages`` takes."""

OnReceipt: TypeAlias = Callable[[Receipt], None]

SHUT_DOWN: Final = "The handler has already been shutdown. Please use the client to create a new instance."

_CHUNK = 500  # messages, as in the pair's own operations
_CHUNK_BYTES = 1 << 20
_log = logging.getLogger("pairmq")


def taken(messages: Messages) -> tuple[list[Message], bool]:
    """Convert what ``send_messages`` was given, all or none; and whether it was a single message."""
    if isinstance(messages, ServiceBusMessageBatch):
        return list(messages_of(messages)), False
    if is_one(messages):
        return [convert(messages)], True  # type: ignore[arg-type]  # checked above
    return convert_all(messages), False  # type: ignore[arg-type]


def check_timeout(timeout: float | None) -> None:
    if timeout is not None and timeout <= 0:
        raise ValueError("The timeout must be greater than 0.")


class Closing(Protocol):
    """What is closed."""

    async def close(self) -> None:
        """Idempotent, never raises."""


class Opening:
    """Opens a pair once, for the first caller; the others wait for the same opening."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._task: asyncio.Task[Pair] | None = None
        self._closed = False
        self.readings: WeakSet[Closing] = WeakSet()
        """What the pair's receivers hold: closed before it."""

    @property
    def done(self) -> bool:
        return self._task is not None and self._task.done() and not self._failed

    async def wait(self, seconds: float | None = None) -> None:
        """Return when the pair is open, after so many seconds at most; the opening goes on in the background.

        Raises what `PairedServiceBusClient` raises when the backlog queues can't be made in time, or the client is
        closed.
        """
        if self._closed:
            raise ValueError(SHUT_DOWN)
        if self._task is None:
            # In a task of its own, as a cancelled opening would be the pair's end.
            self._task = asyncio.create_task(self._pair.open(), name="paired client opening")
        if not self._task.done():
            await asyncio.wait((self._task,), timeout=seconds)
            if not self._task.done():
                raise OperationTimeoutError(message="the pair was not open in time: nothing was sent")
        if self._task.cancelled():
            raise ValueError(SHUT_DOWN)
        error = self._task.exception()
        if isinstance(error, PairClosed):
            raise ValueError(SHUT_DOWN) from error
        if isinstance(error, PairMQError) and not isinstance(error, ValueError):
            raise as_client_error(error)
        if error is not None:
            raise error

    async def close(self) -> None:
        """Close the pair, opened or not. Idempotent, never raises."""
        self._closed = True
        await asyncio.gather(*(reading.close() for reading in self.readings))
        await self._pair.close()
        if self._task is not None:
            await asyncio.wait((self._task,))
            if not self._task.cancelled():
                self._task.exception()

    @property
    def _failed(self) -> bool:
        return self._task is not None and (self._task.cancelled() or self._task.exception() is not None)


OwnHandler = TypeVar("OwnHandler")


class Handler(Generic[OwnHandler]):
    """What senders and receivers have in common: their way to the pair, and Azure's own one, on the primary, which is
    made when something is asked of it."""

    def __init__(self, way: Closing, name: str, namespace: str, make_own: Callable[[], OwnHandler]) -> None:
        self._way = way
        self._name = name
        self._make_own = make_own
        self._own: OwnHandler | None = None
        self._closed = False
        self.fully_qualified_namespace = namespace

    @property
    def client_identifier(self) -> str:
        """Its name, as given or made."""
        return self._name

    def _primary(self) -> OwnHandler:
        self._check_open()
        if self._own is None:
            self._own = self._make_own()
        return self._own

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(SHUT_DOWN)


class Sending:
    def __init__(self, pair: Pair, opening: Opening, path: str, kind: str) -> None:
        self._pair = pair
        self._opening = opening
        self._path = path
        self._kind = kind
        self._sender: PairSender | None = None
        self._closed = False

    async def deliver(
        self, messages: Sequence[Message], timeout: float | None, *, single: bool
    ) -> list[Receipt | SendError]:
        """Send messages, inside one deadline, the opening of the pair included: a receipt each, or why it has none.

        Raises `ValueError` when the sender or the client is closed, `ServiceBusError` when the pair can't be opened, or
        has lost a broker permanently; nothing of the call was sent.
        """
        loop = asyncio.get_running_loop()
        limit = self._pair.options.send_timeout if timeout is None else timeout
        ends_at = loop.time() + limit
        await self._opening.wait(limit)
        if self._closed:
            raise ValueError(SHUT_DOWN)
        results: list[Receipt | SendError] = []
        try:
            sender = self._sender = self._sender or self._pair.sender(self._path, kind=self._kind)
            if single:
                return [await _one(sender, messages[0], ends_at - loop.time())]
            # As the pair would, so that the time left is looked at before each of its operations.
            for chunk in in_chunks(messages, lambda message: len(message.body), _CHUNK, _CHUNK_BYTES):
                left = ends_at - loop.time()
                results += await sender.send_batch(chunk, timeout=left) if left > 0 else _late(chunk, self._path)
        except (PairClosed, PairFaulted) as error:
            if not results:
                if isinstance(error, PairClosed):
                    raise ValueError(SHUT_DOWN) from error
                raise as_client_error(error) from error
            # What was sent before the end must not be lost with it.
            results += [_not_sent(message, self._path, error) for message in messages[len(results) :]]
        return results

    async def close(self) -> None:
        """Take no more; the link closes when sends in flight are over. Idempotent, never raises."""
        self._closed = True
        if self._sender is not None:
            await self._sender.close()


def settle(results: Sequence[Receipt | SendError], on_receipt: OnReceipt | None) -> None:
    """Report the receipts in order, and raise what is to be raised; to be called where the caller waits.

    What ``on_receipt`` raises is logged, as the message was sent all the same.
    """
    if on_receipt is not None:
        for result in results:
            if isinstance(result, Receipt):
                try:
                    on_receipt(result)
                except Exception:
                    _log.exception("on_receipt failed: %r", on_receipt)
    if any(not isinstance(result, Receipt) for result in results):
        raise batch_error(results)


async def _one(sender: PairSender, message: Message, timeout: float) -> Receipt | SendError:
    try:
        return await sender.send(message, timeout=max(timeout, 0.001))
    except SendError as error:
        return error


def _late(messages: Iterable[Message], path: str) -> list[Receipt | SendError]:
    return [_not_sent(message, path, None) for message in messages]


def _not_sent(message: Message, path: str, error: PairMQError | None) -> SendError:
    text = f"message {message.message_id} to {path}: not sent: "
    if error is None:
        text += "the timeout passed before its turn came"
        return PrimaryUnavailable(text, entity=path, message_id=message.message_id)
    return SendRefused(text + str(error), entity=path, message_id=message.message_id, causes=(error,))
