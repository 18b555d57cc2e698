"""Sending: rows in a table, confirmed by the commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from pairmq.model import Entity, FailureKind, FailureReason, Message, TransportError
from pairmq.transport import Sender, encode_header, in_chunks, send_chunks
from pairmq_postgres import _errors, _sql
from pairmq_postgres._capabilities import MAX_MESSAGE_BYTES
from pairmq_postgres._connection import Blobs, Texts
from pairmq_postgres._errors import NoSuchEntity
from pairmq_postgres._pool import Calls

_CHUNK_MESSAGES = 4000
_CHUNK_BYTES = 8 * 1024 * 1024

_Row = tuple[Message, str, int]
"""A message, its header, and the bytes of both."""


class Headers:
    """Encodes headers; of the message that was measured last, which nearly always is stored next, only once."""

    def __init__(self) -> None:
        self._measured: tuple[Message, str] | None = None

    def measure(self, message: Message) -> int:
        """The bytes that a message has with its header."""
        header = encode_header(message)
        self._measured = message, header
        return len(header) + len(message.body)

    def of(self, message: Message) -> str:
        measured, self._measured = self._measured, None
        return measured[1] if measured is not None and measured[0] is message else encode_header(message)


class PostgresSender(Sender):
    def __init__(self, calls: Calls, headers: Headers, entity: Entity, with_sessions: set[Entity]) -> None:
        self._calls = calls
        self._headers = headers
        self.scope = calls.scope
        self._entity = entity
        self._with_sessions = with_sessions
        self._doing = f"send to {entity}"

    async def send(self, message: Message) -> None:
        header = self._headers.of(message)
        (failed,) = await self._store([(message, header, len(header) + len(message.body))])
        if failed is not None:
            raise failed

    async def send_batch(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        """Send in chunks, each in one statement: all of a chunk is stored, or nothing of it."""
        return await send_chunks(_chunks(messages), self._store)

    async def send_in_order(self, messages: Sequence[Message]) -> Sequence[TransportError | None]:
        """Send in such chunks, and none behind one that failed."""
        chunks = list(_chunks(messages))
        if any(size > MAX_MESSAGE_BYTES for chunk in chunks for *_, size in chunk):
            return await super().send_in_order(messages)
        return await send_chunks(chunks, self._store, in_order=True)

    async def make_ready(self) -> None:
        await self._calls.run(f"connect to {self._entity}", ("SELECT 1", {}))

    async def _store(self, rows: Sequence[_Row]) -> list[TransportError | None]:
        fitting = [(message, header) for message, header, size in rows if size <= MAX_MESSAGE_BYTES]
        (found,) = await self._calls.run(self._doing, (_sql.SEND, self._parameters(fitting)), pipelined=True)
        if not found:
            error = _errors.failure(NoSuchEntity(), self._doing)
            raise error from error.__cause__
        self._calls.pool.notify(self._entity.path)
        ((needs_session,),) = found
        (self._with_sessions.add if needs_session else self._with_sessions.discard)(self._entity)
        return [self._refusal(message, size, needs_session) for message, _, size in rows]

    def _parameters(self, rows: Sequence[tuple[Message, str]]) -> dict[str, Any]:
        lives = [message.time_to_live for message, _ in rows]
        sessions = [message.session_id for message, _ in rows]
        return {
            "path": self._entity.path,
            "kind": self._entity.kind.value,
            "headers": Texts([header for _, header in rows]),
            "bodies": Blobs([message.body for message, _ in rows]),
            "due_at": _unless_unset([message.scheduled_enqueue_at for message, _ in rows]),
            "lives": _unless_unset([None if each is None else timedelta(seconds=each) for each in lives]),
            "sessions": _unless_unset([None if each is None else each.encode() for each in sessions]),
        }

    def _refusal(self, message: Message, size: int, needs_session: bool) -> TransportError | None:
        if size > MAX_MESSAGE_BYTES:
            text = f"{self._doing}: the message has {size} bytes, at most {MAX_MESSAGE_BYTES} are allowed"
            return TransportError(text, FailureKind.REFUSED, FailureReason.TOO_LARGE)
        return lacks_session(self._doing) if needs_session and message.session_id is None else None


def lacks_session(doing: str) -> TransportError:
    """Make the error of a message without the session id that its entity requires."""
    text = f"{doing}: the message has no session id, and the entity requires one"
    return TransportError(text, FailureKind.REFUSED, FailureReason.MALFORMED)


def _unless_unset(values: list[Any]) -> list[Any]:
    """Leave out what no message has: `unnest` fills up."""
    return values if values.count(None) < len(values) else []


def _row(message: Message) -> _Row:
    header = encode_header(message)
    return message, header, len(header) + len(message.body)


def _chunks(messages: Sequence[Message]) -> Iterator[list[_Row]]:
    """Cut a batch into statements that hold neither the server nor the memory for long."""
    return in_chunks(map(_row, messages), lambda row: row[2], _CHUNK_MESSAGES, _CHUNK_BYTES)
