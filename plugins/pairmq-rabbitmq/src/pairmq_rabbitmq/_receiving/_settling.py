"""Confirmed settling on one channel, and the record of what is unsettled there.

AMQP 0-9-1 has no reply to an acknowledgement. So settlements are written, and then the broker is asked about the queue
on the same channel: the reply shows that the channel and the queue's process have handled what came before.
One request confirms all that was written before it, so concurrent calls share it.

An acknowledgement of a message that the channel does not know closes the channel, and everything else that is locked
on it is requeued. The record ensures that none is ever written.

RabbitMQ reports to its clients how many messages of a queue are ready, and not how many are delivered and unsettled:
what this process holds is counted here.

When a node is lost, the leader of a quorum queue that is on another one requeues what consumers of that node hold, but
not what cancelled ones do (seen with 3.10: only processes of consumers that are up are looked at). That stays locked
until another node leads the queue. So a consumer whose window is used up is not cancelled before something that it got
is settled: in the same write, ahead of the settlement, as the broker would send it more after that.
"""

from __future__ import annotations

import asyncio
import bisect
import enum
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from aiormq.abc import ChannelFrame
from aiormq.channel import Channel
from pamqp.commands import Basic

from pairmq.model import Message, TransportError
from pairmq.transport import Scope, start_task
from pairmq_rabbitmq import _header
from pairmq_rabbitmq._driver import count_in
from pairmq_rabbitmq._errors import Unsent
from pairmq_rabbitmq._link import Asked, Session

T = TypeVar("T")

_STUCK = 1.0  # s
_HELD_BACK = 30  # settlements, about, that RabbitMQ passes on before a quorum queue has written them to its log
_LOG_WRITE = 0.01  # s

_lock = threading.Lock()  # transports may be used in several threads, each with a loop of its own
_shares: dict[tuple[tuple[str, ...], str], list[Share]] = {}


class State(enum.Enum):
    WAITING = "not passed to a caller yet"
    GIVEN = "passed to a caller, and not settled"
    BUSY = "being published to the dead-letter queue"
    SETTLING = "being settled"
    GONE = "settled, released, or lost with the channel"


WAITING, GIVEN, BUSY, SETTLING, GONE = State
"""The same by names of this module: up to Python 3.11 `State.GIVEN` takes six times as long."""


class Locked:
    __slots__ = (
        "_properties",
        "arrived",
        "body",
        "count",
        "header",
        "job",
        "message",
        "owner",
        "redelivered",
        "state",
        "tag",
        "until",
    )

    def __init__(self, tag: int, redelivered: bool, header: bytes, body: bytes, arrived: float, until: float) -> None:
        self.tag = tag
        self.redelivered = redelivered
        self.header = header
        self._properties: Basic.Properties | None = None
        self.body = body
        self.arrived = arrived
        self.until = until  # instant of the loop's clock when it is released
        self.state = WAITING
        self.message: Message | None = None  # once it was decoded, and then
        self.count = 1  # how many times it was delivered
        self.job: Job | None = None
        self.owner: object = None  # the receiver that passed it to a caller

    @property
    def properties(self) -> Basic.Properties:
        if self._properties is None:
            self._properties = _header.read(self.header)
        return self._properties


class Job:
    __slots__ = ("done", "forsaken", "messages", "requeue", "written")

    def __init__(self, messages: Sequence[Locked], *, requeue: bool) -> None:
        self.messages = messages
        self.requeue = requeue
        self.written = False
        self.forsaken = False  # its caller stopped waiting, and may ask again
        self.done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        """None when the broker has handled them, an `Unsent` if they were not written, or why no reply arrived."""

    def forsaken_as(self, *, requeue: bool) -> bool:
        """Whether a call like this one was interrupted, and the job has not failed."""
        failed = self.done.done() and self.done.result() is not None
        return self.forsaken and self.requeue == requeue and not failed

    def end(self, cause: BaseException | None) -> None:
        for locked in self.messages:
            locked.state = GONE
        if not self.done.done():
            self.done.set_result(cause)


class Calls:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._waiting: set[Asked] = set()

    async def __call__(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await a call of the driver, or the end of the connection; as `Session.run`."""
        asked = Asked(self._session)
        self._waiting.add(asked)
        try:
            return await self._session.run(operation)
        finally:
            self._waiting.discard(asked)

    def stuck(self, seconds: float | None = None) -> bool:
        """Whether a reply has been waited for that long, by default much longer than replies take."""
        since = asyncio.get_running_loop().time() - (_STUCK if seconds is None else seconds)
        return any(asked.at <= since for asked in self._waiting)

    def silent(self) -> bool:
        return any(asked.silent for asked in self._waiting)


class Settling:
    """The unsettled messages of one channel; ``failed`` is called with the cause when that can't be used any more."""

    def __init__(
        self, raw: Channel, queue: str, calls: Calls, share: Share, failed: Callable[[BaseException], None]
    ) -> None:
        self.unsettled: dict[int, Locked] = {}
        """Messages that no settlement was written for yet, by tag, in the order of the tags."""
        self.newest = 0
        """The last tag."""
        self._used_up: list[tuple[str, ...]] = []  # consumers that are still to be cancelled
        self._used_up_by: list[int] = []  # of each of these groups the last tag; each has those behind the one before
        self._raw = raw
        self._queue = queue
        self._call = calls
        self._share = share
        self._failed = failed
        self._lost: BaseException | None = None
        self._jobs: list[Job] = []
        self._under_way: list[Job] = []
        self._task: asyncio.Task[None] | None = None

    def add(self, locked: Locked) -> None:
        """Add a message that was received; tags only grow."""
        self.unsettled[locked.tag] = locked
        self.newest = locked.tag
        self._share.count += 1

    def cancel_later(self, *consumers: str) -> None:
        """Cancel consumers whose windows are used up, and who got the newest messages, when one of these is settled."""
        self._used_up.append(consumers)
        self._used_up_by.append(self.newest)

    def settle(self, messages: Sequence[Locked], *, requeue: bool) -> Job:
        """Begin to settle messages; it continues whether or not a caller waits."""
        job = Job(messages, requeue=requeue)
        if self._lost is not None:
            job.end(Unsent(self._lost))
            return job
        for locked in messages:
            locked.state = SETTLING
            locked.job = job
        self._jobs.append(job)
        if self._task is None:
            self._task = start_task(self._work())
        return job

    @property
    def empty(self) -> bool:
        return not self.unsettled and self._task is None

    async def idle(self) -> None:
        while self._task is not None:
            await asyncio.wait((self._task,))

    def lose(self, cause: BaseException) -> None:
        """The channel is lost: what was not settled will be delivered again."""
        self._lost = cause
        jobs = [*self._under_way, *self._jobs]
        self._under_way, self._jobs = [], []
        for locked in self.unsettled.values():
            locked.state = GONE
        self.unsettled.clear()
        self._share.release()
        for job in jobs:
            job.end(cause if job.written else Unsent(cause))

    async def ask(self) -> int:
        """Ask how many messages of the queue are ready; the reply shows that all written before has been handled."""
        found = await self._call(self._raw.rpc(count_in(self._queue)))
        return found.message_count or 0

    async def _work(self) -> None:
        try:
            while self._jobs:
                self._under_way, self._jobs = self._jobs, []
                await self._settle(self._under_way)
                jobs, self._under_way = self._under_way, []
                for job in jobs:
                    self._share.count -= len(job.messages)
                    job.end(None)
        except Exception as error:
            self._failed(error)
        finally:
            self._task = None

    async def _settle(self, jobs: list[Job]) -> None:
        cancelled = self._cancelled(jobs) if self._used_up else []
        frames = self._frames(jobs)
        payload = ChannelFrame.marshall(self._raw.number, [*cancelled, *frames])
        if self._raw.is_closed or self._raw.connection.channels.get(self._raw.number) is not self._raw:
            # Another channel may have the number by now.
            raise ConnectionAbortedError("the broker closed the channel")
        for job in jobs:
            job.written = True
        queue = self._raw.write_queue
        if queue.full():
            await self._call(queue.put(payload))
        else:
            queue.put_nowait(payload)
        await self.ask()
        if len(frames) > _HELD_BACK:
            # The broker's channel buffers the others until then, and loses them if it is closed before.
            await asyncio.sleep(_LOG_WRITE)
            await self.ask()

    def _cancelled(self, jobs: list[Job]) -> list[Basic.Cancel]:
        """Cancel the consumers who got what is settled now."""
        by = self._used_up_by
        groups = {bisect.bisect_left(by, locked.tag) for job in jobs for locked in job.messages} - {len(by)}
        consumers: list[str] = []
        for group in sorted(groups, reverse=True):
            consumers += self._used_up.pop(group)
            del by[group]
        for consumer in consumers:
            self._raw.consumers.pop(consumer, None)  # with nowait there is no answer for the driver
        return [Basic.Cancel(consumer_tag=consumer, nowait=True) for consumer in consumers]

    def _frames(self, jobs: list[Job]) -> list[Basic.Ack | Basic.Reject]:
        """Express settlements in few frames: one completes all up to it, if all of them are to be completed."""
        requeue = {locked.tag: job.requeue for job in jobs for locked in job.messages}
        frames: list[Basic.Ack | Basic.Reject] = []
        run: list[int] = []
        for tag in self.unsettled:
            if tag not in requeue:
                break
            if run and requeue[tag] != requeue[run[-1]]:
                frames += _settle_run(run, requeue[run[-1]])
                run = []
            run.append(tag)
        if run:
            frames += _settle_run(run, requeue[run[-1]])
        last = run[-1] if run else 0
        for tag in sorted(requeue):
            if tag > last:
                frames += _settle_run([tag], requeue[tag])
        for tag in requeue:
            del self.unsettled[tag]
        return frames


def _settle_run(tags: Sequence[int], requeue: bool) -> list[Basic.Ack | Basic.Reject]:
    """Settle all messages with some tags, before which nothing is unsettled or which are only one."""
    if requeue:
        # A nack could do it in one frame, but from RabbitMQ 4.3 on it counts as no delivery: a message that is released
        # each time would be redelivered without limit.
        return [Basic.Reject(delivery_tag=tag, requeue=True) for tag in tags]
    return [Basic.Ack(delivery_tag=tags[-1], multiple=len(tags) > 1)]


def held_by_this_process(identity: tuple[str, ...], queue: str) -> int:
    """Count what receivers of this process hold, passed to a caller or not: all transports, loops and threads."""
    with _lock:
        return sum(share.count for share in _shares.get((identity, queue), ()))


class Share:
    def __init__(self, identity: tuple[str, ...], queue: str) -> None:
        self.count = 0
        """Changed by the channel's own thread only, for each message received or settled; read by any."""
        self._key = (identity, queue)
        with _lock:
            _shares.setdefault(self._key, []).append(self)

    def release(self) -> None:
        """Hold nothing from now on: the channel is closed, and its messages are requeued."""
        with _lock:
            shares = _shares.get(self._key, [])
            if self in shares:
                shares.remove(self)
                if not shares:
                    del _shares[self._key]


class Waits:
    """The waits of one receiver, which end when it closes."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._ended: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def until(self, *futures: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Wait for the first of some futures, or the end of the receiver, or ``seconds``; none is cancelled."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            self._scope.add(self)
        await asyncio.wait((*futures, self._ended), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def begin(self, operation: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Let something go on, whether or not a caller waits, until `cancel`."""
        return start_task(operation, keep=self._tasks)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def end(self, error: TransportError) -> None:
        """End all waits, and those that come; the scope calls it."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
