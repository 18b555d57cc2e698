"""Consumers of queues that exist only while the primary does: remote control, broadcasts.

A thread keeps a connection of py-amqp for them, so that a worker's event loop never waits for an unavailable primary.
"""

from __future__ import annotations

import logging
import queue
import selectors
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from amqp.exceptions import ChannelError, RecoverableConnectionError
from amqp.exceptions import ConnectionError as AMQPConnectionError
from kombu.transport import pyamqp

from pairmq_kombu._process import PairOfProcess

_log = logging.getLogger(__name__)

LINK_ERRORS: tuple[type[Exception], ...] = (OSError, RecoverableConnectionError, AMQPConnectionError)
"""What an unavailable primary looks like to py-amqp; a time limit that has passed is an `OSError`."""

_READ_TIMEOUT = 5.0  # s
_PAUSE = 1.0  # s between attempts to connect
_LOOK = 10.0  # s between two heartbeats, at most
_PATIENCE = 5.0  # s that a new consumer waits for the primary


class Link(pyamqp.Connection):
    """py-amqp's connection to the primary, on which no wait is without an end."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("read_timeout", _READ_TIMEOUT)
        options.setdefault("write_timeout", _READ_TIMEOUT)
        super().__init__(**options)


class LinkTransport(pyamqp.Transport):
    """Kombu's own transport, for the connection to the primary."""

    Connection = Link


class Remote:
    """What a worker's connection asks of the primary alone, again on each new connection."""

    def __init__(self, client: Any, process: PairOfProcess, post: Callable[[Callable[[], object]], None]) -> None:
        self._client = client.clone()
        self._process = process
        self._post = post
        self._declared: dict[str, tuple[str, dict[str, Any]]] = {}
        self._consumed: dict[str, dict[str, Any]] = {}
        self._active: set[str] = set()  # of them, on the connection that there is
        self._started: dict[str, threading.Event] = {}
        self._asked: queue.SimpleQueue[Callable[[Any], object]] = queue.SimpleQueue()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pairmq remote", daemon=True)
        self._thread.start()

    def declare(self, method: str, arguments: dict[str, Any]) -> None:
        self._declared[f"{method}{sorted(arguments.items(), key=str)}"] = (method, arguments)
        self._ask(lambda channel: getattr(channel, method)(**arguments))

    def consume(self, arguments: dict[str, Any], give: Callable[[Any, Callable[[str], None]], object]) -> None:
        """Consume a queue, now and on each new connection; ``give`` gets each message, in the worker's thread, with
        what settles it.

        Returns once the primary sends its messages, unless that is unavailable: commands to a worker that is ready must
        find its queue.
        """
        tag = arguments["consumer_tag"]
        self._consumed[tag] = {**arguments, "callback": partial(self._given, tag, give)}
        started = self._started[tag] = threading.Event()
        self._ask(lambda channel: self._start(channel, tag))
        if not self._process.known_down:
            started.wait(_PATIENCE)

    def cancel(self, tag: str) -> bool:
        """Stop consuming a queue; returns whether it was consumed."""
        if self._consumed.pop(tag, None) is None:
            return False
        self._ask(lambda channel: self._stop(channel, tag))
        return True

    def close(self) -> None:
        """End, without waiting for the primary."""
        self._ended.set()
        self._wake()

    def _ask(self, action: Callable[[Any], object]) -> None:
        self._asked.put(action)
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # it is full, and so wakes already
            self._waker.send(b"\0")

    def _given(self, tag: str, give: Callable[[Any, Callable[[str], None]], object], raw: Any) -> None:
        channel, number = raw.channel, raw.delivery_tag

        def settle(action: str) -> None:
            self._ask(lambda now: _settle(channel, number, action) if now is channel else None)

        def given() -> None:
            if tag in self._consumed:
                give(raw, settle)

        self._post(given)

    def _release(self) -> None:
        for started in list(self._started.values()):
            started.set()

    def _run(self) -> None:
        refused = ""
        while not self._ended.is_set():
            link = None
            try:
                link = LinkTransport(self._client).establish_connection()  # type: ignore[no-untyped-call]
                if self._process.known_down:
                    _log.info("remote control works again")
                self._process.known_down = False
                self._process.reached()
                self._serve(link)
                link.close()
            except LINK_ERRORS as error:
                if not self._process.known_down and not self._ended.is_set():
                    _log.warning("the primary is unavailable, and with it remote control and broadcasts: %s", error)
                self._process.known_down = True
                self._release()
            except Exception as error:  # also what py-amqp makes of a connection that is lost in the midst of a frame
                if str(error) != refused:
                    _log.warning("remote control or broadcasts don't work: %s", error)
                refused = str(error)
                self._release()
            finally:
                if link is not None:
                    link.collect()
            self._ended.wait(_PAUSE)
        self._process.known_down = False
        self._woken.close()
        self._waker.close()

    def _serve(self, link: Any) -> None:
        channel = link.channel()
        while not self._asked.empty():  # all of it is in what was declared and consumed, or of a lost channel
            self._asked.get()
        for method, arguments in list(self._declared.values()):
            getattr(channel, method)(**arguments)
        self._active.clear()
        for tag in list(self._consumed):
            self._start(channel, tag)
        while not self._ended.is_set():
            self._make_up(link)
            while not self._asked.empty():
                self._asked.get()(channel)
            if self._has_something(link.sock):
                with suppress(TimeoutError):  # it is a part
                    link.drain_events(timeout=_READ_TIMEOUT)
            link.heartbeat_tick()

    def _has_something(self, sock: Any) -> bool:
        """Wait until the primary has sent something, or something is asked of it."""
        if isinstance(sock, ssl.SSLSocket) and sock.pending():
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(_LOOK)]
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        return sock in ready

    def _start(self, channel: Any, tag: str) -> None:
        arguments = self._consumed.get(tag)
        if arguments is not None and tag not in self._active:
            self._active.add(tag)
            channel.basic_consume(**arguments)
            self._started[tag].set()

    def _stop(self, channel: Any, tag: str) -> None:
        if tag in self._active:
            self._active.remove(tag)
            channel.basic_cancel(tag)

    def _make_up(self, link: Any) -> None:
        """Declare what was put off while the primary was unavailable: this process may publish nothing."""
        for key, (method, arguments) in self._process.postponed.all():
            channel = link.channel()
            try:
                getattr(channel, method)(**arguments)
                channel.close()
            except ChannelError as error:
                _log.warning("%s was put off, and the primary refuses it now: %s", method, error)
            self._process.postponed.made(key)


def _settle(channel: Any, number: int, action: str) -> None:
    if action == "complete":
        channel.basic_ack(number)
    else:
        channel.basic_reject(number, requeue=action == "abandon")
