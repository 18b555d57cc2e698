"""A connection, from the server's side (AMQP 1.0 specification, part 2, section 2.4; part 5, section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from servicebus_local.amqp import frames
from servicebus_local.amqp._incoming import handle_frame
from servicebus_local.amqp._session import Session
from servicebus_local.amqp._types import AmqpDecodeError, Symbol
from servicebus_local.amqp.events import ConnectionEnded, Event, Opened, SaslDone, SessionBegun, SessionEnded
from servicebus_local.amqp.performatives import (
    AmqpError,
    Begin,
    Close,
    End,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    write_performative,
)

MIN_MAX_FRAME_SIZE: Final = 512
"""What every peer must be able to take (part 2, section 2.7.1)."""

CLOSE_TIMEOUT: Final = 10.0
"""Seconds that the peer has for answering our close."""

MIN_HEARTBEAT: Final = 0.1
"""Seconds between two of our signs of life, however impatient the peer is."""

_FRAMING_ERROR: Final = "amqp:connection:framing-error"


class _ConnectionFault(Exception):
    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.error = AmqpError(condition, description)


class Connection:
    """A peer's connection to us, without the socket: bytes in, events and bytes out.

    Args:
        container_id: our name.
        max_frame_size: bytes of the largest frame that we take, and that we send.
        channel_max: the highest channel number.
        idle_timeout: seconds of silence that we announce as too long; twice as long is really too long. None: never.
        sasl_mechanisms: what we offer; none is checked here: the server above authenticates the peer.
        properties: of the connection, for the peer.

    Attributes:
        closed: nothing more comes or goes; the socket may be shut when `data_to_send` is written.
        remote: what the peer said when it opened; None before.
        sasl_mechanism: what the peer chose; None without SASL.
        peer_frame_size: bytes of the largest frame that we send.
        sessions: the sessions by their channels, including those that only we have ended.
    """

    def __init__(
        self,
        *,
        container_id: str,
        max_frame_size: int = 65536,
        channel_max: int = 4999,
        idle_timeout: float | None = 240.0,
        sasl_mechanisms: Sequence[str] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"),
        properties: dict[Any, Any] | None = None,
    ) -> None:
        self.closed = False
        self.remote: Open | None = None
        self.sasl_mechanism: str | None = None
        self.peer_frame_size = MIN_MAX_FRAME_SIZE
        self.sessions: dict[int, Session] = {}
        self._open = Open(
            container_id=container_id,
            max_frame_size=max_frame_size,
            channel_max=channel_max,
            idle_timeout=None if idle_timeout is None else int(idle_timeout * 1000),
            properties=properties,
        )
        self._idle_timeout = idle_timeout
        self._mechanisms = [Symbol(mechanism) for mechanism in sasl_mechanisms]
        # What has to come next: "header", "sasl-init", "amqp-header", "open", "frames", or "close".
        self._awaits = "header"
        self._open_written = False
        self._buffer = bytearray()
        self._needed = 8
        self._out: list[bytes | memoryview] = []
        self._deferred: list[Session] = []
        self._now: float | None = None
        self._last_received = 0.0
        self._last_sent = 0.0
        self._close_deadline: float | None = None

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Take bytes of the peer's.

        Args:
            data: what came, cut anywhere.
            now: the time, seconds of a monotonic clock.

        Returns:
            What happened, in order; never raises, whatever the bytes are.
        """
        events: list[Event] = []
        if self.closed:
            return events
        self._set_now(now)
        self._last_received = now
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return events
            data = bytes(self._buffer)
            self._buffer.clear()
        try:
            offset = self._read(data, events)
        except _ConnectionFault as fault:
            self._fail(fault.error, events)
        except frames.FramingError as error:
            self._fail(AmqpError(_FRAMING_ERROR, str(error)), events)
        except AmqpDecodeError as error:
            self._fail(AmqpError("amqp:decode-error", str(error)), events)
        else:
            if not self.closed:
                self._buffer += data[offset:]
        return events

    def receive_eof(self) -> list[Event]:
        """Learn that the peer sends nothing more.

        Returns:
            The last event, unless it came before.
        """
        events: list[Event] = []
        if not self.closed:
            self._end(None, False, events)
        return events

    def _read(self, data: bytes, events: list[Event]) -> int:
        """Read as many frames as are there in full; gives the offset behind them."""
        size = len(data)
        offset = 0
        while not self.closed:
            rest = size - offset
            if self._awaits in ("header", "amqp-header"):
                if rest < 8:
                    self._needed = 8
                    break
                self._header(data[offset : offset + 8], events)
                offset += 8
                continue
            if rest < 4:
                self._needed = 8
                break
            length = frames.frame_size(data, offset)
            if not 8 <= length <= self._open.max_frame_size:
                raise frames.FramingError(
                    f"A frame of {length} bytes is not between 8 and {self._open.max_frame_size} bytes."
                )
            if rest < length:
                self._needed = length
                break
            end = offset + length
            if self._awaits == "sasl-init":
                self._sasl(frames.read_frame(data, offset, end, frames.SASL_FRAME), events)
            else:
                self._frame(frames.read_frame(data, offset, end, frames.AMQP_FRAME), events)
            offset = end
        return offset

    def _header(self, header: bytes, events: list[Event]) -> None:
        if header == frames.AMQP_HEADER:
            self._out.append(frames.AMQP_HEADER)
            self._awaits = "open"
        elif header == frames.SASL_HEADER and self._awaits == "header":
            self._out.append(frames.SASL_HEADER)
            self._write_sasl(SaslMechanisms(self._mechanisms))
            self._awaits = "sasl-init"
        else:
            # A peer with another protocol gets the header of the one that would be understood (part 2, section 2.2).
            self._out.append(frames.SASL_HEADER if self._awaits == "header" else frames.AMQP_HEADER)
            self._end(AmqpError(_FRAMING_ERROR, "The peer does not speak AMQP 1.0."), False, events)

    def _sasl(self, frame: frames.Frame, events: list[Event]) -> None:
        init = frame.body
        if not isinstance(init, SaslInit):
            raise frames.FramingError("The peer did not choose a SASL mechanism.")
        if init.mechanism not in self._mechanisms:
            self._write_sasl(SaslOutcome(1))
            error = AmqpError("amqp:unauthorized-access", f"The SASL mechanism {init.mechanism!r} is not offered.")
            self._end(error, False, events)
            return
        self._write_sasl(SaslOutcome(0))
        self.sasl_mechanism = init.mechanism
        self._awaits = "amqp-header"
        events.append(SaslDone(init.mechanism, init.initial_response or b""))

    def _frame(self, frame: frames.Frame, events: list[Event]) -> None:
        body = frame.body
        if body is None:
            return
        if self._awaits == "close":
            # Whatever the peer still sends, it sent it before it saw our close.
            if isinstance(body, Close):
                self._end(body.error, True, events)
            return
        if self._awaits == "open":
            if not isinstance(body, Open) or frame.channel != 0:
                raise _ConnectionFault("amqp:not-allowed", "The connection has to be opened first, on channel 0.")
            self._opened(body, events)
            return
        session = self.sessions.get(frame.channel)
        if isinstance(body, Begin):
            self._begin(frame.channel, session, body, events)
        elif isinstance(body, Close):
            self._write_close(None)
            self._end(body.error, True, events)
        elif isinstance(body, Open):
            raise _ConnectionFault("amqp:not-allowed", "The connection is open already.")
        elif session is None:
            raise _ConnectionFault("amqp:not-allowed", f"There is no session on the channel {frame.channel}.")
        elif isinstance(body, End):
            del self.sessions[frame.channel]
            if session.state == "open":
                session.end()
                events.append(SessionEnded(session, body.error))
            session.state = "ended"
        else:
            handle_frame(session, body, frame.payload, events)

    def _opened(self, remote: Open, events: list[Event]) -> None:
        if remote.max_frame_size < MIN_MAX_FRAME_SIZE:
            raise _ConnectionFault(
                "amqp:invalid-field", f"The peer takes less than {MIN_MAX_FRAME_SIZE} bytes in a frame."
            )
        self.remote = remote
        self.peer_frame_size = max(MIN_MAX_FRAME_SIZE, min(remote.max_frame_size, self._open.max_frame_size))
        self._write_open()
        self._awaits = "frames"
        events.append(Opened(remote.hostname, remote.container_id))

    def _begin(self, channel: int, session: Session | None, begin: Begin, events: list[Event]) -> None:
        if begin.remote_channel is not None:
            raise _ConnectionFault("amqp:not-allowed", "A begin answers one that we have not sent.")
        if session is not None:
            raise _ConnectionFault("amqp:not-allowed", f"There is a session on the channel {channel} already.")
        # We answer on the same channel, so it has to be one that both peers can take.
        limit = min(self._open.channel_max, self.remote.channel_max if self.remote is not None else 0)
        if channel > limit:
            raise _ConnectionFault("amqp:not-allowed", f"The channel {channel} is above the maximum {limit}.")
        self.sessions[channel] = session = Session(self, channel, begin)
        events.append(SessionBegun(session))

    def data_to_send(self) -> bytes:
        if self._deferred:
            self._flush()
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        self._last_sent = self._now if self._now is not None else 0.0
        return data

    def close(self, error: AmqpError | None = None) -> None:
        """Close the connection and wait for the peer's answer; it gets ten seconds for that."""
        if self.closed or self._awaits == "close":
            return
        if self._awaits != "frames":
            # The peer has not opened the connection: it expects no close.
            self._lose()
            return
        self._write_close(error)
        self._lose_sessions()
        self._awaits = "close"
        self._close_deadline = (self._now or 0.0) + CLOSE_TIMEOUT

    def write_performative(self, channel: int, performative: Any) -> None:
        """Write a frame without payload."""
        if self._awaits == "frames":
            self._out.append(frames.write_frame(write_performative(performative), channel=channel))

    def write_payload(self, channel: int, head: bytes, payload: bytes | memoryview) -> None:
        if self._awaits == "frames":
            self._out.append(frames.frame_header(len(head) + len(payload), channel) + head)
            self._out.append(payload)

    def defer(self, session: Session) -> None:
        """Ask a session for its held back dispositions before anything is sent."""
        self._deferred.append(session)

    def _flush(self) -> None:
        for session in self._deferred:
            session.flush()
        self._deferred.clear()

    def _write_sasl(self, performative: Any) -> None:
        self._out.append(frames.write_frame(write_performative(performative), kind=frames.SASL_FRAME))

    def _write_open(self) -> None:
        self._open_written = True
        self._out.append(frames.write_frame(write_performative(self._open)))

    def _write_close(self, error: AmqpError | None) -> None:
        self._flush()
        self._out.append(frames.write_frame(write_performative(Close(error))))

    @property
    def next_timer(self) -> float | None:
        """When `handle_timer` has something to do; None: never, or no time was given so far."""
        if self.closed or self._now is None:
            return None
        times = []
        if self._close_deadline is not None:
            times.append(self._close_deadline)
        elif self._heartbeat is not None:
            times.append(self._last_sent + self._heartbeat)
        if self._idle_timeout is not None:
            times.append(self._last_received + 2 * self._idle_timeout)
        return min(times, default=None)

    def handle_timer(self, now: float) -> list[Event]:
        """Do what is due: empty frames, and the end of a connection whose peer is silent.

        Args:
            now: the time, seconds of a monotonic clock; the first call starts the peer's time, if no bytes did.

        Returns:
            What happened.
        """
        events: list[Event] = []
        if self.closed:
            return events
        if self._now is None:
            self._last_received = now
        self._set_now(now)
        if self._close_deadline is not None and now >= self._close_deadline:
            self._end(None, False, events)
        elif self._idle_timeout is not None and now >= self._last_received + 2 * self._idle_timeout:
            error = AmqpError("amqp:resource-limit-exceeded", f"Nothing came for {2 * self._idle_timeout:g} seconds.")
            self._fail(error, events)
        elif self._close_deadline is None:
            heartbeat = self._heartbeat
            if heartbeat is not None and now >= self._last_sent + heartbeat:
                self._out.append(frames.EMPTY_FRAME)
                self._last_sent = now
        return events

    @property
    def _heartbeat(self) -> float | None:
        if self.remote is None or not self.remote.idle_timeout:
            return None
        return max(MIN_HEARTBEAT, self.remote.idle_timeout / 2000)

    def _set_now(self, now: float) -> None:
        if self._now is None:
            self._last_sent = now
        self._now = now

    def _fail(self, error: AmqpError, events: list[Event]) -> None:
        # A close has to follow an open, even when the peer never got as far as that.
        if self._awaits in ("open", "frames"):
            if not self._open_written:
                self._write_open()
            self._write_close(error)
        self._end(error, False, events)

    def _end(self, error: AmqpError | None, clean: bool, events: list[Event]) -> None:
        self._lose()
        events.append(ConnectionEnded(error, clean))

    def _lose(self) -> None:
        self._lose_sessions()
        self._buffer.clear()
        self._awaits = "nothing"
        self.closed = True

    def _lose_sessions(self) -> None:
        for session in self.sessions.values():
            session.lose()
        self.sessions.clear()
        self._deferred.clear()
