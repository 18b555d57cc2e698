"""Keeps the pair's record on the secondary, and finds where processes disagree (SPEC 13)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

from pairmq.core import OPTION_RANGES, RECORD_QUEUE, Backoff, PairOptions, backlog_queue_name, lane_path
from pairmq.core.options import LANE_QUEUE
from pairmq.core.record import MAX_ENTRIES, MOST_LANES, Configuration, Record, conflict_text, plain
from pairmq.model import (
    ConfigurationError,
    Delivery,
    Entity,
    FailureKind,
    FailureReason,
    Message,
    Source,
    TransportError,
)
from pairmq.model.events import Warned
from pairmq.runner._backlog import backlog_properties
from pairmq.runner._counted import EngineContext
from pairmq.runner._limits import TimeLimits, settled_within
from pairmq.transport import Endpoint, QueueProperties, Receiver, Transport

LOOK_INTERVAL = 600.0
"""Seconds between two looks at the record."""

LANES_LOOK_INTERVAL = 30.0
"""Likewise of a process with a syphon where a pattern may name lanes that others use for the first time."""

_SOON = 5.0  # s after which a process that wrote looks again: another one may have written in the same moment
_CLOSE = 2.5  # s: a transport promises 2
_FRESH = 60.0  # s for which a look is good enough for a drain that ends
_RETRY = Backoff(first=0.25, factor=2.0, cap=30.0)
_REFUSED = Backoff(first=60.0, factor=2.0, cap=LOOK_INTERVAL)  # a permission may be given at any time, or never
_COPIES = 16  # of what is in the record already, from which on they are removed
_PATIENCE, _HIDDEN = 0.2, 3  # s, times: a broker that shows messages by fetching them hides them from others meanwhile
RECORD_PROPERTIES = QueueProperties(max_delivery_count=2**31 - 1)
"""Of the record's queues: looking may count as a delivery."""
_BEHIND_A_GAP = "queues of lower indexes are missing: set backlog_queue_count above its index"
_FULL = (
    f"the record has {MAX_ENTRIES} messages or more; no others are read, and none is added: processes with other "
    "options go unnoticed; run 'pairmq backlog adopt', which empties it"
)
_A_LANE = "it is a lane that no process is known to use: name its queue in 'continuity'"
_MOST = OPTION_RANGES["backlog_queue_count"][1]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stray:
    """A queue that holds messages and that this pair does not drain."""

    queue: Entity
    pending: int  # messages in it
    reason: str  # why it is not drained, and what to do
    certain: bool = True  # the messages are this primary's; else they may be another one's
    others: int = 0  # queues that are meant besides, where one stands for all that have the same reason

    def __str__(self) -> str:
        more = f" and {self.others} more queue{'' if self.others == 1 else 's'} hold" if self.others else " holds"
        return f"{self.queue.path}{more} {self.pending} message{'' if self.pending == 1 else 's'}: {self.reason}"


def by_reason(strays: Iterable[Stray]) -> list[Stray]:
    """One for each reason, with the sum: ten queues of one name would be ten times the same sentence."""
    merged: dict[tuple[str, bool], Stray] = {}
    for stray in strays:
        first = merged.setdefault((stray.reason, stray.certain), stray)
        if first is not stray:
            pending, others = first.pending + stray.pending, first.others + 1
            merged[stray.reason, stray.certain] = replace(first, pending=pending, others=others)
    return list(merged.values())


@dataclass(frozen=True, slots=True)
class Agreement:
    """What can be seen on the secondary of the processes of a pair."""

    own: Configuration
    record: Record = field(default_factory=Record)
    # Backlog queues of this primary beyond the process's own options; the syphon drains them.
    found: tuple[Entity, ...] = ()
    strays: tuple[Stray, ...] = ()  # queues that hold messages which no process that agrees with this one moves
    conflict: str | None = None  # why the pair can't be used: another primary has its name or its queues
    unread: str | None = None  # why the record could not be read, or queues not be looked for; None when all was

    @property
    def stranded(self) -> list[Stray]:
        """What to say of the strays: one for each reason."""
        return by_reason(self.strays)

    @property
    def differences(self) -> tuple[str, ...]:
        """What a person should look at, a sentence each; `conflict`, `strays` and `unread` left out."""
        return (*self.record.differences(self.own), *self.record.problems)


def configuration_of(primary: Endpoint, options: PairOptions) -> Configuration:
    """The configuration of a process."""
    return Configuration.of(primary.name, primary.identity, primary.scope, options)


async def find_agreement(
    primary: Endpoint, secondary: Transport, options: PairOptions, time_limit: float, *, everywhere: bool = False
) -> Agreement:
    """Look for what other processes of a pair have left on the secondary, by operations of ``time_limit`` seconds;
    makes and changes nothing. A broker that can't be asked is part of what is found.

    To look ``everywhere``, for backlog queues of other names, takes a list of all the secondary's queues.
    """
    own = configuration_of(primary, options)
    looker = Looker(secondary, TimeLimits(time_limit), by_default=primary.by_default)
    try:
        record = await looker.read(own)
        conflict = record.conflict(own)
        if conflict is not None:
            return Agreement(own, record, conflict=conflict_text(own, conflict))
        found = await looker.used(own, record) + tuple(queue for queue, _ in await looker.beyond(own, record))
        found += tuple(queue for queue in await looker.lanes(own, record) if queue not in found)
        strays = await looker.former(own, primary.former_names)
        # Queues of a template that this process can't trust are not drained by it.
        strays += await looker.holding(record.undrained(own), "this process has another backlog_name_template")
    except TransportError as error:
        return Agreement(own, unread=f"could not compare with the record because it can't be read: {error}")
    unread = None
    if everywhere:
        known = {queue.path for queue in found} | {stray.queue.path for stray in strays}
        known.update(own.queue_names(), own.lane_names())
        try:
            strays += await looker.of_other_names(own, options, known)
        except TransportError as error:
            unread = f"backlog queues under other names of this primary were not looked for: {error}"
    return Agreement(own, record, found, tuple(strays), unread=unread)


async def write_anew(primary: Endpoint, secondary: Transport, options: PairOptions, time_limit: float) -> None:
    """Forget what any process wrote into the record, and write this process's configuration; running processes add
    theirs again at their next look. An operation may take ``time_limit`` seconds. If it fails, the record may be empty.
    """
    own = configuration_of(primary, options)
    looker = Looker(secondary, TimeLimits(time_limit))
    for place in own.places:
        await looker.clear(place)
    await looker.write(own)


class RecordKeeper:
    """Writes this process's configuration, and compares it with those of the others at pairing and now and then.

    ``found`` takes backlog queues that others use, again and again; ``lost`` is called when the secondary has lost
    what was there, as its backlog queues are probably missing too.
    """

    def __init__(
        self,
        context: EngineContext,
        *,
        agreed: Callable[[], None],
        found: Callable[[Entity], None],
        lost: Callable[[], Awaitable[None]],
        conflict: Callable[[ConfigurationError], None],
    ) -> None:
        self.agreed = False
        """A first look has ended."""
        self.unread: str | None = None
        """Why the last look could not compare this process with the others: the secondary refused it."""
        primary, options = context.primary.endpoint, context.options
        self._own = configuration_of(primary, options)
        self._former = primary.former_names
        self._syphon = options.enable_syphon
        self._clock = context.clock
        self._emit = context.emit
        self._looker = Looker(context.secondary, context.limits, by_default=primary.by_default)
        self._agreed = agreed
        self._found = found
        self._lost = lost
        self._conflict = conflict
        self._queue_properties = backlog_properties(options)
        self._asked_for: set[Entity] = set()
        self._warned: set[str] = set()
        self._written = False
        self._wrote = False
        self._looked_at = float("-inf")
        self._turn = asyncio.Lock()
        self._lanes: set[str] = set()
        self._new_lane = asyncio.Event()
        self._usual = LOOK_INTERVAL

    def lane(self, queue: Entity) -> None:
        """Write a lane of a pattern into the record, soon: a syphon of another process learns of it (SPEC 13.2)."""
        path = lane_path(queue.path)
        if path is not None and path not in self._lanes:
            self._lanes.add(path)
            self._new_lane.set()

    async def begin(self) -> None:
        """Look for the first time; a secondary that can't be reached is looked at later, by `run`.

        Raises `ConfigurationError`: another primary has this one's name or backlog queues.
        """
        with contextlib.suppress(TransportError):
            await self._look()

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        retry, last = 0, None
        while True:
            backoff = _RETRY if not self.agreed else None if self.unread is None else _REFUSED
            retry, last = retry + 1 if backoff is last else 0, backoff
            usual = _SOON if self._wrote else self._usual
            wait = usual if backoff is None else backoff.wait(retry, 0.0)
            if backoff is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._new_lane.wait()
            else:
                await asyncio.sleep(wait)
            self._new_lane.clear()
            try:
                await self._look()
            except TransportError:
                continue
            except ConfigurationError as error:
                self._conflict(error)
                return

    async def refresh(self, *, everything: bool = False) -> bool:
        """Look again unless that was done lately; for who is about to say that nothing is left. With ``everything``
        look now, and also for queues of processes that keep no record, as at pairing.

        Returns whether what others use is known; not while the secondary can't be asked.
        """
        if not everything and self._clock.now() - self._looked_at < _FRESH:
            return True
        try:
            await self._look(everything=everything)
        except TransportError:
            return False
        except ConfigurationError as error:
            self._conflict(error)
            return False
        return True

    async def _look(self, *, everything: bool = False) -> None:
        async with self._turn:
            began_at = self._clock.now()
            self._wrote = False
            unread = None
            try:
                await self._compare(everything or not self.agreed)
            except TransportError as error:
                if error.kind is not FailureKind.REFUSED:
                    raise
                # Not allowed, or not possible with this broker: the pair works without, as all did before.
                unread = f"could not compare with the record because the secondary refused: {error}"
            if unread is not None and self.unread is None:
                self._warn(f"{unread}; processes of this pair with other options go unnoticed meanwhile", again=True)
            self.unread = unread
            self._looked_at = began_at
            if not self.agreed:
                self.agreed = True
                self._agreed()

    async def _compare(self, everything: bool) -> None:
        own, looker = self._own, self._looker
        if not own.places:
            self._warn("processes of this pair with other options go unnoticed: the primary's name is too long")
            return
        record = await looker.read(own)
        for _ in range(_HIDDEN):
            if not self._written or _is_known(own, record) or looker.is_quiet:
                break
            await asyncio.sleep(_PATIENCE)
            record = await looker.read(own)
        other = record.conflict(own)
        if other is not None:
            raise ConfigurationError(conflict_text(own, other))
        if _is_known(own, record):
            if record.copies >= _COPIES:
                await looker.remove_copies(own)
        else:
            made = await looker.write(own)
            self._wrote = True
            if self._written:
                if made:
                    self._warn(
                        "the secondary has lost the pair's record, and what it held: it was emptied or replaced; the "
                        "backlog queues are made again",
                        again=True,
                    )
                # Another process may have been the first to see it: the queues of this one are missing all the same.
                await self._lost()
        self._written = True
        if self._syphon and any(each.has_patterns for each in (own, *record.configurations)):
            self._usual = LANES_LOOK_INTERVAL
        if not record.full:
            await self._write_lanes(record)
        for text in (*record.differences(own), *record.problems):
            self._warn(text)
        if not self._syphon:
            return
        for queue in await looker.used(own, record):
            await self._find(queue)
        if everything:
            await self._look_for_queues(record)

    async def _write_lanes(self, record: Record) -> None:
        known = record.lane_paths(self._own)
        for path in sorted(self._lanes.difference(known)):
            if len(record.lanes) >= MOST_LANES:
                self._warn(
                    f"more than {MOST_LANES} lanes of patterns: a syphon of another process may not drain that of "
                    f"{path}; name the queue itself in continuity"
                )
                return
            for place in self._own.places:
                await self._looker.add(place, self._own.lane_message(path))
            self._wrote = True

    async def _look_for_queues(self, record: Record) -> None:
        """Look for what processes left that kept no record, as where it was refused or removed."""
        own, looker = self._own, self._looker
        for queue, pending in await looker.beyond(own, record):
            if pending:
                self._warn(f"backlog queue {queue.path} is in no process's options and holds messages: it is drained")
            await self._find(queue)
        for queue in await looker.lanes(own, record):
            await self._find(queue)
        strays = await looker.former(own, self._former)
        strays += await looker.holding(record.undrained(own), "this process has another backlog_name_template")
        for stray in by_reason(strays):
            self._warn(str(stray))

    async def _find(self, queue: Entity) -> None:
        if queue not in self._asked_for:
            # It exists and stays as it is; a broker may count only those surely that it was asked to make.
            await self._looker.make(queue, self._queue_properties)
            self._asked_for.add(queue)
        self._found(queue)

    def _warn(self, text: str, *, again: bool = False) -> None:
        if again or text not in self._warned:
            self._warned.add(text)
            self._emit(Warned, subject=f"{self._own.name}/{RECORD_QUEUE}", text=text)


class Looker:
    """What is asked of the secondary."""

    def __init__(self, transport: Transport, limits: TimeLimits, *, by_default: tuple[str, ...] = ()) -> None:
        self._transport = transport
        self._limits = limits
        self._by_default = tuple(map(plain, by_default))

    @property
    def is_quiet(self) -> bool:
        """Whether to look at messages hides them from no other one meanwhile."""
        return self._transport.capabilities.quiet_peek

    async def read(self, own: Configuration) -> Record:
        """Read the record; an empty one if it does not exist."""
        found = [await self.bodies(place) for place in own.places]
        record = Record.read(chain.from_iterable(found))
        if any(len(bodies) >= MAX_ENTRIES for bodies in found):
            record = replace(record, full=True, problems=(*record.problems, _FULL))
        return record

    async def write(self, own: Configuration) -> bool:
        """Add this process's configuration; returns whether the record's queue was made for it."""
        made = False
        for place in own.places:
            made = await self._limits.run(self._transport.admin.create(place, RECORD_PROPERTIES)) or made
            await self.add(place, own.message())
        return made

    async def add(self, place: Entity, message: Message) -> None:
        """Add a message to a queue of the record, which must exist."""
        sender = self._transport.sender(place)
        try:
            await self._limits.run(sender.send(message))
        finally:
            await settled_within(_CLOSE, sender.close)

    async def make_ready(self, place: Entity) -> None:
        """Have connected what adding a message needs, where a transport connects for that."""
        sender = self._transport.sender(place)
        try:
            await self._limits.run(sender.make_ready())
        finally:
            await settled_within(_CLOSE, sender.close)

    async def make(self, queue: Entity, properties: QueueProperties) -> None:
        """Ask for a queue, as pairing does."""
        await self._limits.run(self._transport.admin.create(queue, properties))

    async def clear(self, place: Entity) -> None:
        """Remove all that one of the record's queues holds."""
        try:
            await self._limits.run(self._transport.admin.purge(Source(place)))
        except TransportError as error:
            if error.reason is not FailureReason.NOT_FOUND:
                raise

    async def bodies(self, place: Entity) -> list[bytes]:
        """What the messages of one of the record's queues hold."""
        return [delivery.message.body for delivery in await self.shown(place)]

    async def shown(self, place: Entity, most: int = MAX_ENTRIES) -> Sequence[Delivery]:
        """Read one of the record's queues, by one operation where the transport can peek; nothing if it is missing."""
        source = Source(place)
        try:
            if self._transport.capabilities.peek:
                return await self._limits.run(self._transport.admin.peek(source, most))
            receiver = self._transport.receiver(source)
            try:
                found = await self._limits.run(receiver.receive(most, 0))
                for delivery in found:
                    await self._limits.run(receiver.abandon(delivery))
            finally:
                await settled_within(_CLOSE, receiver.close)
            return found
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                return []
            raise

    async def remove(self, place: Entity, unwanted: Callable[[Delivery], bool], most: int) -> None:
        """Remove what is unwanted of the ``most`` oldest messages of one of the record's queues."""
        receiver = self._transport.receiver(Source(place))
        try:
            found = await self._limits.run(receiver.receive(most, 0))
            # Side by side: meanwhile some brokers show them to no one else.
            settling = [self._settle(receiver, delivery, unwanted(delivery)) for delivery in found]
            for outcome in await asyncio.gather(*settling, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        finally:
            await settled_within(_CLOSE, receiver.close)

    async def _settle(self, receiver: Receiver, delivery: Delivery, unwanted: bool) -> None:
        """Remove or release one message. The operation is made here: a task may be cancelled before it begins."""
        await self._limits.run(receiver.complete(delivery) if unwanted else receiver.abandon(delivery))

    async def remove_copies(self, own: Configuration) -> None:
        """Remove what the record holds twice: each copy while another one is locked here, so that none is lost."""
        for place in own.places:
            receiver = self._transport.receiver(Source(place))
            try:
                kept: set[bytes] = set()
                for delivery in await self._limits.run(receiver.receive(MAX_ENTRIES, 0)):
                    if delivery.message.body in kept:
                        await self._limits.run(receiver.complete(delivery))
                    kept.add(delivery.message.body)
            finally:
                await settled_within(_CLOSE, receiver.close)

    async def used(self, own: Configuration, record: Record) -> tuple[Entity, ...]:
        """Those of the backlog queues that exist which other processes of this primary use, and this one does not."""
        queues = [Entity(name) for name in (*record.other_queues(own), *record.other_lanes(own))]
        return tuple([queue for queue in queues if await self.pending(queue) is not None])

    async def lanes(self, own: Configuration, record: Record) -> list[Entity]:
        """Lanes of this primary found by their names, beyond those that the options name, where any process has some.

        Empty where the secondary can't list its queues: the record then names what processes use.
        """
        if not (own.continuity or record.lanes or any(each.continuity for each in record.configurations)):
            return []
        try:
            listed = await self._limits.run(self._transport.admin.list_entities(f"{own.name}/{LANE_QUEUE}/"))
        except TransportError as error:
            if error.kind is FailureKind.REFUSED:
                return []
            raise
        named = own.lane_names()
        return [queue for queue in listed if lane_path(queue.path) is not None and queue.path not in named]

    async def beyond(self, own: Configuration, record: Record) -> list[tuple[Entity, int]]:
        """Backlog queues of this primary beyond those that any process is known to use, with what they hold."""
        return [each async for each in self._row(own.template, own.name, record.most_queues(own))]

    async def former(self, own: Configuration, names: Sequence[str]) -> list[Stray]:
        """Find what is left under other names of this primary: those that its URL gave it before."""
        strays: list[Stray] = []
        if "{primary}" not in own.template:
            return strays
        for name in names:
            holding = [each async for each in self._row(own.template, name, 0) if each[1]]
            owner = await self._owner(own, name) if holding else None
            if owner is None:
                continue  # empty, or another primary's that has that name by right
            reason, certain = owner
            if not certain:
                reason = (
                    f"this primary's address alone calls it {name!r}, and maybe others too; where all of these "
                    f"messages are this primary's, drain them with ?name={name} in its URL"
                )
            strays += [Stray(queue, pending, reason, certain) for queue, pending in holding]
        return strays

    async def _row(self, template: str, name: str, first: int) -> AsyncIterator[tuple[Entity, int]]:
        """Backlog queues of one name from an index on, with what they hold, up to the first that does not exist.

        Pairing makes the queues of all indexes: no queue exists behind a missing one.
        """
        for index in range(first, _MOST):
            try:
                queue = Entity(backlog_queue_name(template, name, index))
            except ValueError:
                return
            pending = await self.pending(queue)
            if pending is None:
                return
            yield queue, pending

    async def holding(self, names: Sequence[str], reason: str) -> list[Stray]:
        """Those of the named queues that hold messages."""
        pending = [(queue, await self.pending(queue)) for queue in map(Entity, names)]
        return [Stray(queue, count, reason) for queue, count in pending if count]

    async def of_other_names(self, own: Configuration, options: PairOptions, known: set[str]) -> list[Stray]:
        """Find backlog queues that hold messages and that belong to no other primary that keeps a record."""
        strays: list[Stray] = []
        owners: dict[str, tuple[str, bool] | None] = {}
        for queue in await self._limits.run(self._transport.admin.list_entities("")):
            name = options.primary_of_backlog_queue(queue.path)
            if name is None or queue.path in known:
                continue
            pending = await self.pending(queue)
            if not pending:
                continue
            if name not in owners:
                owners[name] = (_BEHIND_A_GAP, True) if name == own.name else await self._owner(own, name)
            owner = owners[name]
            if name == own.name and lane_path(queue.path) is not None:
                owner = (_A_LANE, True)
            if owner is not None:
                strays.append(Stray(queue, pending, *owner))
        return strays

    async def _owner(self, own: Configuration, name: str) -> tuple[str, bool] | None:
        """Why queues of another name may not be drained, and whether that is certain; None for another primary's."""
        try:
            places = Configuration(name, own.identity, own.template, 1, own.ordering).places
        except ValueError:
            return None
        record = Record.read([body for place in places for body in await self.bodies(place)])
        if any(each.identity in (own.identity, self._by_default) for each in record.configurations):
            return f"another process calls this primary {name!r}: give all processes one URL, or one ?name=", True
        if record.configurations:
            return None
        return "no process of this release uses it: if it is this primary's, give the URL that name (?name=…)", False

    async def pending(self, queue: Entity) -> int | None:
        """How many messages a queue holds; None when it does not exist."""
        try:
            return (await self._limits.run(self._transport.admin.counts(Source(queue)))).pending
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                return None
            raise


def _is_known(own: Configuration, record: Record) -> bool:
    """Whether a process need not write its configuration: it is there, or the record is full."""
    return record.full or own in record.configurations
