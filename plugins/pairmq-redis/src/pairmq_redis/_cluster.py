"""A Redis Cluster as one broker: which node has an entity, and what becomes of a call while that changes.

All keys of one entity are in one slot, and a slot is on one node. Which one is learned from any node, and again when
there is a doubt: a call had no answer, or the server refused it as the wrong one. A node that has given a slot to
another says which (``MOVED``, or ``ASK`` while keys are on their way), and has done nothing: the call is repeated
there, in the order of its commands. Scripts use several keys, and wait while only some of them have arrived
(``TRYAGAIN``).

A replica that was promoted may lack what its master had confirmed, and a master that was frozen may confirm more when
it wakes: as soon as another node owns its slots, the connections to it end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from redis.asyncio import Connection
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

from pairmq.model import TransportError
from pairmq.transport import Scope, bracketed, nothing_sent, start_task
from pairmq_redis._errors import NotSent, Unanswered, leads_elsewhere
from pairmq_redis._link import Line, Link, Waiter
from pairmq_redis._nodes import Address, as_text, connected, first_answer
from pairmq_redis._wire import Command, Reply, Wire

_SLOTS = 16384
_REST = 0.25  # s between two looks at who owns which slot
_SILENCE = 1.0  # s without an answer after which a node may hang, and another one own its slots
_PATIENCE = 3.0  # s for which a call is repeated, when nodes send it from one to another
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.2  # s
_ASKING: Command = (b"ASKING",)
_LEFT = "UNBLOCKED the stream key no longer exists"  # to a reader that waits, when its stream goes to another node


class Cluster:
    """Who owns which slot, for all lines of a transport; ``timeout`` is in seconds, for learning it.

    When nodes no longer own slots, ``demoted`` is called with those that do.
    """

    def __init__(
        self,
        hosts: Sequence[Address],
        make: Callable[[Address], Connection],
        timeout: float,
        demoted: Callable[[frozenset[Address]], None],
    ) -> None:
        self._hosts = tuple(hosts)
        # Not all processes ask the same node first.
        self._order = random.SystemRandom().sample(hosts, len(hosts))
        self._make = make
        self._timeout = timeout
        self._demoted = demoted
        self._owners: list[Address | None] = [None] * _SLOTS
        self._doubted = True
        self._looked_at = float("-inf")
        self._look: asyncio.Task[None] | None = None
        self._waiters: dict[Waiter, None] = {}  # in the order of their calls
        self._queued = 0  # calls that wait for a look, or were woken and have not written yet
        self._unanswered: dict[_Call, float] = {}  # when each was sent, the oldest first
        self._watching: asyncio.Task[None] | None = None

    @property
    def owners(self) -> frozenset[Address]:
        return frozenset(owner for owner in self._owners if owner is not None)

    def doubt(self) -> None:
        """Look again who owns which slot, before the next call."""
        self._doubted = True

    def moved(self, slot: int, owner: Address) -> None:
        """Note that another node owns a slot now; others may have moved, too."""
        self._owners[slot] = owner
        self._doubted = True

    async def learn(self, scope: Scope) -> None:
        """Look who owns which slot, if that is in doubt and the last look is a moment ago; raises as `Line.call`."""
        self._queued += 1
        try:
            if self._is_due():
                await self._wait(scope)
            elif self._queued > 1:
                # Those who waited have been woken and not yet run: this call comes behind them.
                await asyncio.sleep(0)
        finally:
            self._queued -= 1

    def owner(self, slot: int | None) -> Address:
        """Return the node that owns a slot, one of them for None; raises NotSent where it is not known."""
        owner = min(self.owners, default=None) if slot is None else self._owners[slot]
        if owner is None:
            self._doubted = True
            raise NotSent(ClusterDownError("no node of the cluster owns the slot"))
        return owner

    @contextlib.contextmanager
    def watch(self, call: _Call) -> Iterator[None]:
        """Look who owns which slot while a call has no answer for long: a node that hangs loses its slots."""
        self._unanswered[call] = asyncio.get_running_loop().time()
        if self._watching is None:
            self._watching = start_task(self._watch())
        try:
            yield
        finally:
            self._unanswered.pop(call, None)

    async def close(self) -> None:
        tasks = [task for task in (self._look, self._watching) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while self._unanswered:
            await asyncio.sleep(_SILENCE)
            oldest = next(iter(self._unanswered.values()), float("inf"))
            if asyncio.get_running_loop().time() - oldest >= _SILENCE and self._look is None:
                self._look = start_task(self._learn())
        self._watching = None

    def _is_due(self) -> bool:
        if self._look is not None:
            return True
        rested = asyncio.get_running_loop().time() >= self._looked_at + _REST
        return self._doubted and (rested or not any(self._owners))

    async def _wait(self, scope: Scope) -> None:
        if self._look is None:
            self._look = start_task(self._learn())
        waiter = Waiter()
        self._waiters[waiter] = None
        scope.add(waiter)
        try:
            await waiter.future
        finally:
            scope.discard(waiter)
            self._waiters.pop(waiter, None)

    async def _learn(self) -> None:
        self._doubted = False
        # One that is cut off from the others answers as well as any: the next look begins with another.
        self._order.append(self._order.pop(0))
        failed: BaseException | None = None
        try:
            async with asyncio.timeout(self._timeout):
                self._note(await first_answer(self._order, self._ask, "no node of the cluster answers ({})".format))
        except (Exception, asyncio.CancelledError) as error:
            self._doubted = True
            failed = error
        # At once, so that no call comes before those who waited.
        self._look = None
        self._looked_at = asyncio.get_running_loop().time()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            waiter.wake(None if failed is None else NotSent(failed))

    def _note(self, ranges: list[tuple[int, int, list[Address]]]) -> None:
        before = self.owners
        self._owners = [None] * _SLOTS
        nodes = dict.fromkeys(self._hosts)
        for first, last, addresses in ranges:
            self._owners[first : last + 1] = [addresses[0]] * (last + 1 - first)
            nodes.update(dict.fromkeys(addresses))
        self._order = [each for each in self._order if each in nodes]
        self._order += [each for each in nodes if each not in self._order]
        if before - self.owners:
            self._demoted(self.owners)

    async def _ask(self, address: Address) -> list[tuple[int, int, list[Address]]]:
        """Ask a node for the ranges of slots, each with its master and its replicas."""
        async with connected(self._make(address)) as connection:
            await connection.send_command("CLUSTER", "SLOTS")
            reply = await connection.read_response()
        # A node that does not know its own name is where it was asked.
        return [
            (int(first), int(last), [(as_text(node[0] or address[0].encode()), int(node[1])) for node in nodes])
            for first, last, *nodes in reply
        ]


class _Call:
    """A call's commands, and what is left of them to be sent."""

    def __init__(self, commands: Sequence[Command], number: int) -> None:
        self.commands = commands
        self.number = number
        self.replies: list[Reply] = [None] * len(commands)
        self.left = list(range(len(commands)))
        self.slots: list[int | None] = []
        self.asked: dict[int, Address] = {}
        """By command: the node that the keys of its slot are on their way to."""
        self.done = False
        """Whether a command was carried out, or may have been."""
        self._heads: list[int] = []  # of a command without a key the one before it, which it is about
        self._ends_at: float | None = None
        self._pause = 0.0
        key: bytes | None = None
        slot: int | None = None
        for place, command in enumerate(commands):
            its = _key(command)
            if its is not None and its != key:
                key, slot = its, key_slot(its)
            self.slots.append(slot)
            self._heads.append(place if its is not None or not place else self._heads[-1])

    async def pause(self) -> None:
        """Wait, if nodes sent it elsewhere; after a while that is the answer."""
        now = asyncio.get_running_loop().time()
        if self._ends_at is None:
            self._ends_at = now + _PATIENCE
        elif now < self._ends_at:
            await asyncio.sleep(self._pause)
            self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        else:
            for place in self.left:
                if isinstance(self.replies[place], AskError):
                    self.replies[place] = ClusterDownError("its nodes send the call from one to another")
            self.left = []

    def take(self, places: Sequence[int], replies: Sequence[Reply]) -> Iterator[tuple[int, ResponseError]]:
        """Keep replies; yields the commands, by place, that are to be sent elsewhere or again, and why."""
        again = set[int]()
        for place, reply in zip(places, replies, strict=True):
            head, before = self._heads[place], self.replies[place]
            # WAIT, behind commands of which some went to another node: the fewer replicas count.
            fewer = isinstance(before, int) and isinstance(reply, int)
            self.replies[place] = min(before, reply) if fewer else reply
            if head == place and _is_redirected(reply):
                again.add(head)
                yield place, reply
            elif head == place:
                self.done = True
        sent = set(places)
        self.left = [place for place in self.left if place not in sent or self._heads[place] in again]

    def give_up(self, error: NotSent) -> None:
        """Answer what is left: it was not sent."""
        for place in self.left:
            self.replies[place] = error


class ClusterLine:
    """One connection to each node, made when first needed: a `Line` for commands of any slot."""

    def __init__(self, cluster: Cluster, make: Callable[[Address], Wire]) -> None:
        self._cluster = cluster
        self._make = make
        self._links: dict[Address, Link] = {}
        self._numbers = itertools.count()
        self._repeated: dict[_Call, asyncio.Event] = {}  # calls that nodes have sent elsewhere, set when they are over
        self._closed = False

    async def call(self, commands: Sequence[Command], scope: Scope) -> list[Reply]:
        call = _Call(commands, next(self._numbers))
        del commands
        try:
            while call.left:
                await self._prepare(call, scope)
                for (address, asking), places in self._parts(call).items():
                    await self._send(call, address, asking, places, scope)
        except NotSent as error:
            if not call.done:
                raise
            call.give_up(error)
        except TransportError as error:
            error.maybe_applied = error.maybe_applied or call.done
            raise
        except asyncio.CancelledError as cancellation:
            self._cluster.doubt()  # a node may hang
            if call.done:  # that nothing was sent may be true of the rest
                raise asyncio.CancelledError(*cancellation.args) from None
            raise
        finally:
            if (over := self._repeated.pop(call, None)) is not None:
                over.set()
        return call.replies

    async def nodes(self, scope: Scope) -> list[Line]:
        scope.check()
        await self._cluster.learn(scope)
        return [self._link(address) for address in sorted(self._cluster.owners)]

    def leave(self, which: Callable[[Wire], bool]) -> None:
        for link in self._links.values():
            link.leave(which)

    def look_up_again(self) -> None:
        self._cluster.doubt()
        for link in self._links.values():
            link.look_up_again()

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def _prepare(self, call: _Call, scope: Scope) -> None:
        try:
            await call.pause()
            for earlier, over in tuple(self._repeated.items()):  # two chunks of a batch are stored in order
                if earlier.number < call.number and not set(earlier.slots).isdisjoint(call.slots):
                    await over.wait()
            scope.check()
            await self._cluster.learn(scope)
        except asyncio.CancelledError as cancellation:
            nothing_sent(cancellation)
            raise

    def _parts(self, call: _Call) -> dict[tuple[Address, bool], list[int]]:
        """What is left, in order, by the node that it goes to, and whether keys are on their way there."""
        parts: dict[tuple[Address, bool], list[int]] = {}
        for place in call.left:
            asked = call.asked.get(place)
            where = (self._cluster.owner(call.slots[place]), False) if asked is None else (asked, True)
            parts.setdefault(where, []).append(place)
        return parts

    async def _send(self, call: _Call, address: Address, asking: bool, places: Sequence[int], scope: Scope) -> None:
        commands = [call.commands[place] for place in places]
        if asking:
            commands = [part for command in commands for part in (_ASKING, command)]
        # A read that waits in the server has a time limit of its own.
        watched = contextlib.nullcontext() if commands[0][0] == b"XREADGROUP" else self._cluster.watch(call)
        try:
            with watched:
                replies = await self._link(address).call(commands, scope)
        except NotSent as error:
            self._cluster.doubt()
            # Not an address of the URL: nodes may announce one that can't be reached from here.
            error.where = f"the cluster's node {bracketed(address[0])}:{address[1]}"
            raise
        if any(isinstance(reply, Unanswered) for reply in replies):
            self._cluster.doubt()
        for place, reply in call.take(places, replies[1::2] if asking else replies):
            self._repeated.setdefault(call, asyncio.Event())
            call.asked.pop(place, None)
            if isinstance(reply, AskError):
                host, port = reply.node_addr
                to = host or address[0], port  # none, where the nodes do not know their names
                if isinstance(reply, MovedError):
                    self._cluster.moved(reply.slot_id, to)
                else:
                    call.asked[place] = to

    def _link(self, address: Address) -> Link:
        if self._closed:
            raise NotSent(ConnectionAbortedError("the connection was closed"))
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(lambda: self._make(address), self.look_up_again, _is_elsewhere)
        return link


def _key(command: Command) -> bytes | None:
    """The command's first key: all keys of a command are in one slot."""
    match command[0]:
        case b"EVAL" | b"EVALSHA":
            return command[3]
        case b"XREADGROUP":
            return command[-2]
        case b"CONFIG" | b"INFO" | b"PING" | b"SCAN" | b"TIME" | b"WAIT":
            return None
    return command[1]


def _is_redirected(reply: Reply) -> bool:
    """Whether a node did nothing, and another one, or this one soon, will."""
    return isinstance(reply, AskError | TryAgainError) or (isinstance(reply, ResponseError) and str(reply) == _LEFT)


def _is_elsewhere(reply: Exception) -> bool:
    """Whether a reply is about the node, and not about one slot."""
    return not isinstance(reply, AskError) and leads_elsewhere(reply)
