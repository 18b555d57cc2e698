"""A connection that is there at once, and connects to the primary when something is asked of it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from kombu.transport import pyamqp

from pairmq_kombu._channel import LINK_ERRORS, PairedChannel
from pairmq_kombu._errors import StillUnreachable, Unreachable
from pairmq_kombu._process import PairOfProcess

_READ_TIMEOUT = 5.0
_PATIENCE = 4.0  # seconds, where the connection has no time limit of its own


class Link(pyamqp.Connection):
    """py-amqp's connection to the primary, on which no wait is without an end.

    Args:
        options: its arguments.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("read_timeout", _READ_TIMEOUT)
        options.setdefault("write_timeout", _READ_TIMEOUT)
        super().__init__(**options)


class LinkTransport(pyamqp.Transport):
    """Kombu's own transport, for the connection to the primary."""

    Connection = Link


class PairedConnection:
    """What Kombu takes for a connection to a broker.

    Publishing needs none to the primary: the pair has its own. So that a primary that is away does not keep tasks from
    being sent, this one connects at the first thing that only the primary can do, such as remote control.

    Args:
        client: the `kombu.Connection` that it belongs to.
        process: the pair and what goes with it.
    """

    def __init__(self, client: Any, process: PairOfProcess) -> None:
        self.client = client
        self._process = process
        self._link: Any = None
        self._made_in = os.getpid()
        self._channels: list[PairedChannel] = []
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether it can be used: always, until it is closed."""
        return not self._closed

    def channel(self, channel_id: int | None = None) -> PairedChannel:
        """Make a channel."""
        channel = PairedChannel(self, self._process)
        self._channels = [known for known in self._channels if known.is_open]
        self._channels.append(channel)
        return channel

    def link(self, patience: float | None = None) -> Any:
        """Give py-amqp's connection to the primary.

        Args:
            patience: seconds of failed attempts of this process after which there is no retry; ``connect_timeout`` when
                left out.

        Raises:
            Unreachable: the primary does not take a connection; Kombu may try again.
            StillUnreachable: it has not for ``patience``. Until `DECLARE_INTERVAL` has passed there is no new attempt.
            amqp.exceptions.AMQPError: it does not let this user in.
        """
        if self._made_in != os.getpid():
            # The parent's: closing it here would close it there.
            self._link, self._made_in = None, os.getpid()
        if self._link is None or not self._link.connected:
            self.drop_link()
            if patience is None:
                patience = float(self.client.connect_timeout or _PATIENCE)
            if self._process.is_away and self._process.is_tired(patience):
                raise StillUnreachable(
                    "the primary is unreachable, as an attempt a moment ago has shown: try again later"
                )
            self._process.pace()
            hostname = self.client.hostname
            try:
                self._link = LinkTransport(self.client).establish_connection()  # type: ignore[no-untyped-call]
            except LINK_ERRORS as error:
                self._process.failed()
                # Kombu's own limits are about connecting, which never fails here: without one of ours a command whose
                # retries have no limit would never return.
                kind = StillUnreachable if self._process.is_tired(patience) else Unreachable
                raise kind(f"the primary is unreachable: {str(error) or type(error).__name__}") from error
            finally:
                # Kombu writes an address there for "localhost", which would be the name of another pair.
                self.client.hostname = hostname
            self._process.reached()
        return self._link

    def drop_link(self) -> None:
        """Give up a connection to the primary that has failed."""
        link, self._link = self._link, None
        if link is not None and self._made_in == os.getpid():
            link.collect()

    def drain_events(self, timeout: float | None = None) -> Any:
        """Wait for something from the primary, as py-amqp does."""
        return self.link().drain_events(timeout=timeout)

    def heartbeat_tick(self, rate: int = 2) -> None:
        """Nothing is asked of the primary just to keep a connection."""

    def close(self, *arguments: Any, **kwargs: Any) -> None:
        """Close it; the pair stays open for the process."""
        link = self._end()
        if link is None:
            return
        if link.connected:
            with suppress(*LINK_ERRORS):
                link.close(*arguments, **kwargs)
        link.collect()

    def collect(self) -> None:
        """Close it without a word to the broker."""
        link = self._end()
        if link is not None:
            link.collect()

    def _end(self) -> Any:
        self._closed = True
        for channel in self._channels:
            channel.collect()
        self._channels = []
        link, self._link = self._link, None
        return link if self._made_in == os.getpid() else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.link(), name)
