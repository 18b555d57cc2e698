"""What a transport's senders, receivers and admin share: its connections, its settings, its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.transport import Receiver, Scope, raise_failure
from pairmq_redis import _errors
from pairmq_redis._errors import NotSent
from pairmq_redis._keys import SourceKeys
from pairmq_redis._link import Line, Link
from pairmq_redis._scripts import Script
from pairmq_redis._url import RedisUrl
from pairmq_redis._wire import Command, Reply, Wire

_MOST_LEFT = 1000
"""Closed receivers of a source: who opens and closes receivers all through an outage must not fill the memory."""


class Context:
    """One transport's shared parts.

    Messages are sent on one connection and settled (and administered) on another, so that a large batch on
    its way out does not hold up locks. A receiver that waits blocks its connection, so each brings its own.
    """

    def __init__(
        self, url: RedisUrl, scope: Scope, make_wire: Callable[[], Wire], make_line: Callable[[], Line] | None = None
    ) -> None:
        self.url = url
        self.scope = scope
        self._make_line = make_line or (lambda: Link(make_wire, self.look_up_again))
        self._links: set[Line] = set()
        self.sending = self.link()
        self.control = self.link()
        self.receivers: set[Receiver] = set()
        self._left_locks: dict[tuple[bytes, bytes], list[bytes]] = {}

    def link(self) -> Line:
        """Make a connection that looks up the address again with all the others; to be ended with `end_link`."""
        link = self._make_line()
        self._links.add(link)
        return link

    async def end_link(self, link: Line) -> None:
        self._links.discard(link)
        await link.close()

    def look_up_again(self) -> None:
        """Let the next call on each connection resolve the address anew: one of them met a server that is no master.

        All of them, because the others may only read there, and take what an old master shows for the present.
        """
        for link in self._links:
            link.look_up_again()

    def leave(self, which: Callable[[Wire], bool]) -> None:
        """End connections to a server that is no master any more; the next calls connect anew."""
        for link in self._links:
            link.leave(which)

    async def nodes(self, scope: Scope, doing: str) -> Sequence[Line]:
        """Find the servers that have a part of the keys: one, unless this is a cluster."""
        if scope.closed:
            raise _errors.closed(doing)
        try:
            return await self.control.nodes(scope)
        except NotSent as error:
            raise_failure(_errors.failure(error, doing))

    def leave_locks(self, source: SourceKeys, consumers: Sequence[bytes]) -> None:
        """Note closed receivers that could not release what they hold, for lack of a connection."""
        if consumers:
            place = (source.stream, source.group)
            self._left_locks[place] = [*self._left_locks.get(place, ()), *consumers][-_MOST_LEFT:]

    def take_left_locks(self, source: SourceKeys) -> list[bytes]:
        """The consumers whose locks were left behind at a source, for a receiver that releases them now."""
        return self._left_locks.pop((source.stream, source.group), [])

    async def run(self, link: Line, scope: Scope, commands: Sequence[Command], doing: str) -> list[Reply]:
        """Call Redis and raise the first failure."""
        if scope.closed:
            raise _errors.closed(doing)
        try:
            replies = await link.call(commands, scope)
        except NotSent as error:
            raise_failure(_errors.failure(error, doing))
        for reply in replies:
            if isinstance(reply, BaseException):
                raise_failure(_errors.failure(reply, doing))
        return replies

    async def script(
        self,
        link: Line,
        scope: Scope,
        script: Script,
        keys: Sequence[bytes],
        arguments: Sequence[bytes],
        doing: str,
        *,
        replicate: bool = False,
    ) -> Reply:
        """Run a script by its name, or by its text where the server does not know it yet.

        With ``replicate`` it waits for replicas where the URL asks for that, on the same connection, since ``WAIT`` is
        about what its own connection wrote.
        """
        if scope.closed:
            raise _errors.closed(doing)
        rest = (b"%d" % len(keys), *keys, *arguments)
        wait = self.wait_command() if replicate else None
        waits = [] if wait is None else [wait]
        try:
            replies = await link.call([(b"EVALSHA", script.sha, *rest), *waits], scope)
            if _errors.is_unknown_script(replies[0]):
                replies = await link.call([(b"EVAL", script.text, *rest), *waits], scope)
        except NotSent as error:
            raise_failure(_errors.failure(error, doing))
        reply = replies[0]
        if isinstance(reply, BaseException):
            raise_failure(_errors.failure(reply, doing))
        if waits:
            unsafe = self.replicated(replies[1], doing)
            if unsafe is not None:
                raise unsafe
        return reply

    def wait_command(self) -> Command | None:
        """The command that waits for replicas after a write; None when it is not asked for."""
        if not self.url.wait_replicas:
            return None
        return (b"WAIT", b"%d" % self.url.wait_replicas, b"%d" % round(self.url.wait_timeout * 1000))

    def replicated(self, reply: Reply, doing: str) -> TransportError | None:
        """Judge the answer of `wait_command`: too few replicas means stored, but not as safely as asked for."""
        if isinstance(reply, BaseException):
            failed = _errors.failure(reply, doing)
            failed.maybe_applied = True  # the write before it was answered
            return failed
        if reply >= self.url.wait_replicas:
            return None
        self.look_up_again()  # it may be the old master, cut off
        return TransportError(
            f"{doing}: {reply} of {self.url.wait_replicas} replicas confirmed in time",
            FailureKind.UNAVAILABLE,
            FailureReason.TIMEOUT,
            maybe_applied=True,
        )
