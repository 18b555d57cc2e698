"""A client process of a chaos run: ``python -m pairmq.testing.chaos.client``, started by the run itself.

Its first line of standard input is a JSON object that says what to do, passwords included; further lines are words:
``quiet`` (send nothing more), ``canary`` (send more through each sender, once its entity is healthy) and ``close``.
Each is answered by a JSON line on standard output. It ends with its standard input, so that it never outlives the run.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from pairmq.core import PairOptions
from pairmq.model import EntityState, LockLost, PairClosed, PairFaulted, Receipt, SendError, TransportError
from pairmq.model.events import Event
from pairmq.model.records import row_of
from pairmq.pair import Pair, PairDelivery, PairSender
from pairmq.plugins import Observer, registry
from pairmq.testing.chaos._ledger import (
    CANARIES_OF_A_SENDER,
    OPENED,
    SENDING,
    Ledger,
    RecordingTransport,
    first_canary,
    first_number,
    message_of,
    number_of,
)
from pairmq.testing.history import Result, send_and_report
from pairmq.transport import Capabilities

if TYPE_CHECKING:
    from pairmq.testing.chaos._journal import NotedJournal

_BEAT = 0.01  # s between two looks at how late the event loop is
_WORTH_NOTING = 0.01  # s of lag
_BATCH = (2, 3, 5, 10)
_RETRY_OPEN = 0.5  # s, while the secondary refuses to let the backlog queues be made
_MOST = 10  # messages of one receive
_WAIT = 1.0  # s
_PAUSE = 0.2  # s, while the primary is unavailable
_RELEASED = 0.1  # of the messages


class Client:
    """One life of one client; ``spec`` is what the run says, with ``consumes`` instead of sending."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._ledger = Ledger(Path(spec["ledger"]))
        self._chance = Random(f"{spec['seed']} {spec['name']} {spec['life']}")
        self._numbers: Iterator[int] = itertools.count(first_number(spec["place"], spec["life"]))
        self._canaries = itertools.count(first_canary(spec["place"], spec["life"]))
        self._options = PairOptions(**spec["options"], enable_syphon=spec["syphon"])
        self._handled = itertools.count()
        self._words: asyncio.Queue[str] = asyncio.Queue()
        self._stopping = asyncio.Event()
        self._flying: set[asyncio.Task[None]] = set()
        self._journal = self._made_journal()

    def _made_journal(self) -> NotedJournal | None:
        if not self._spec["journal"]:
            return None
        # Not before it is asked for: it needs pyarrow, which takes a while to import.
        from pairmq.testing.chaos._journal import NotedJournal

        return NotedJournal(Path(self._spec["journal"]), self._ledger)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        if self._spec["eager"]:
            loop.set_task_factory(getattr(asyncio, "eager_task_factory", None))  # from Python 3.12 on
        loop.set_exception_handler(self._unhandled)
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        threading.Thread(target=self._listen, args=(loop,), daemon=True).start()
        spec = self._spec
        self._ledger.write("life", process=spec["name"], number=spec["life"], syphon=spec["syphon"])
        beat = loop.create_task(self._beat())
        pair = await self._opened()
        if pair is None:
            await self._end()
            return
        self._leave_out_what_is_disclaimed(pair.primary.capabilities, pair.secondary.capabilities)
        self._ledger.write("opened")
        _answer(OPENED)
        traffic: list[asyncio.Task[None]] = []
        senders = [(f"{spec['name']}-{path}", pair.sender(path)) for path in spec["entities"]]
        if spec["consumes"]:
            traffic += [loop.create_task(self._keep_consuming(pair, path)) for path in spec["entities"]]
        else:
            traffic += [loop.create_task(self._keep_sending(name, sender)) for name, sender in senders]
        while (word := await self._words.get()) != "close":
            for task in traffic:
                task.cancel()
            if word == "quiet":
                while self._flying:
                    await asyncio.wait(tuple(self._flying))
            elif word == "canary":
                await self._canary(pair, senders)
            _answer(word, **{entity.path: state.value for entity, state in pair.states().items()})
        self._ledger.write("closing")
        await pair.close()
        self._ledger.write("closed")
        for task in (*traffic, beat):
            task.cancel()
        while self._flying:
            await asyncio.wait(tuple(self._flying))
        await asyncio.gather(*traffic, beat, return_exceptions=True)
        await self._end()

    def _leave_out_what_is_disclaimed(self, *both: Capabilities) -> None:
        """Send no message that a product refuses in every state: its refusals would show nothing."""
        if not all(capabilities.time_to_live for capabilities in both):
            self._numbers = (number for number in self._numbers if message_of(number).time_to_live is None)

    async def _end(self) -> None:
        if self._journal is not None:
            await asyncio.to_thread(self._journal.finish)
        self._ledger.write("ended")

    def _stop(self) -> None:
        self._stopping.set()
        self._words.put_nowait("close")

    async def _opened(self) -> Pair | None:
        """An open pair, after as many attempts as needed; None if this life was to end first."""
        while not self._stopping.is_set():
            sides = [
                RecordingTransport(registry.transport(self._spec[side]), side, self._ledger)
                for side in ("primary", "secondary")
            ]
            pair = Pair(sides[0], sides[1], self._options, observers=self._observers())
            if self._journal is None:
                pair.subscribe(self._note)
            try:
                return await pair.open()
            except TransportError:
                # The secondary refuses these credentials at the moment: an operator has to fix that.
                await pair.close()
                await asyncio.sleep(_RETRY_OPEN)
        return None

    def _observers(self) -> tuple[Observer, ...]:
        if self._journal is None:
            return ()
        from pairmq.observe.journal import JournalObserver

        return (JournalObserver(self._journal),)

    def _note(self, event: Event) -> None:
        self._ledger.write("event", event=row_of(event))

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        text = f"{context.get('message')}: {type(error).__name__}: {error}"
        # Exceptions that a driver leaves unretrieved are not covered by PairMQ's promises.
        ours = any("pairmq" in repr(context.get(key)) for key in ("task", "future", "handle"))
        self._ledger.write("crash" if ours else "noise", text=text[:500])

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        woken = loop.time()
        while True:
            due = woken + _BEAT  # not of the time after the write: a process may have to wait in it, too
            await asyncio.sleep(due - loop.time())
            woken = loop.time()
            if woken - due > _WORTH_NOTING:
                self._ledger.write("lag", due=due, woken=woken)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(self._words.put_nowait, line.strip())
        os._exit(3)  # the parent process has exited

    # Sending.

    async def _keep_sending(self, name: str, sender: PairSender) -> None:
        SENDING.set(True)
        chance, spec = self._chance, self._spec
        every = len(spec["entities"]) / spec["rate"]
        for timeout in itertools.cycle(spec["timeouts"]):
            together = chance.choice(_BATCH) if chance.random() < 0.1 else 1
            cancel_after = chance.uniform(0.0, timeout) if chance.random() < 0.05 else None
            numbers = [next(self._numbers) for _ in range(together)]
            send = self._send(name, sender, numbers, timeout, cancel_after)
            task = asyncio.create_task(send, name=f"pairmq chaos send {numbers[0]}")
            self._flying.add(task)
            task.add_done_callback(self._flying.discard)
            await asyncio.sleep(chance.uniform(0.0, 2 * every))

    async def _send(
        self, name: str, sender: PairSender, numbers: list[int], timeout: float, cancel_after: float | None = None
    ) -> None:
        self._ledger.write("send", messages=numbers, sender=name, entity=sender.entity.path, timeout=timeout)

        def report(results: Sequence[Receipt | SendError | Result]) -> None:
            self._ledger.write("reported", results=[_result_of(*each) for each in zip(numbers, results, strict=False)])

        def crashed(text: str) -> None:
            self._ledger.write("crash", text=text)

        messages, together = [message_of(number) for number in numbers], len(numbers) > 1
        await send_and_report(sender, messages, timeout, report, crashed, together=together, cancel_after=cancel_after)

    # Consuming.

    async def _keep_consuming(self, pair: Pair, path: str) -> None:
        """Read a queue until the pair ends, and settle what comes."""
        async with pair.receiver(path) as receiver:
            while True:
                try:
                    deliveries = await receiver.receive(_MOST, _WAIT)
                    # Side by side: over a distance one after the other is slower than what is sent.
                    handled = (self._handle(path, delivery) for delivery in deliveries)
                    for error in await asyncio.gather(*handled, return_exceptions=True):
                        if error is not None:
                            raise error
                except (PairClosed, PairFaulted):
                    return
                except (TransportError, LockLost):
                    # What could not be settled is redelivered when its lock expires.
                    await asyncio.sleep(_PAUSE)

    async def _handle(self, path: str, delivery: PairDelivery) -> None:
        if self._chance.random() < _RELEASED:
            await delivery.abandon()
            return
        number, turn = number_of(delivery.message), next(self._handled)
        side, place = delivery.origin.value, delivery.delivery.sequence_number
        self._ledger.write("handle", turn=turn, number=number, path=path, side=side, place=place)
        if number is None or delivery.message != message_of(number):
            self._ledger.write("altered", number=number, path=path, message=repr(delivery.message)[:500])
        settled = False
        try:
            await delivery.complete()
            settled = True
        finally:
            self._ledger.write("handled", turn=turn, settled=settled)

    # The end.

    async def _canary(self, pair: Pair, senders: list[tuple[str, PairSender]]) -> None:
        """More messages through each sender as soon as its entity is healthy, or when that takes too long.

        With order one of each session of this client, and any of it that was diverted: it must have been moved, too.
        """
        SENDING.set(True)
        ends_at = asyncio.get_running_loop().time() + self._spec["patience"]
        for name, sender in senders:
            await _until(lambda at=sender: pair.state(at.entity.path) is EntityState.HEALTHY, ends_at)  # type: ignore[misc]
            for _ in range(CANARIES_OF_A_SENDER if self._options.ordering == "session" else 1):
                await self._send(name, sender, [next(self._canaries)], self._options.send_timeout)


def _answer(word: str, **states: str) -> None:
    print(json.dumps({"done": word, "states": states}), flush=True)


def _result_of(number: int, result: Receipt | SendError | Result) -> dict[str, Any]:
    line: dict[str, Any] = {"number": number, "result": Result.of(result).value}
    if isinstance(result, Receipt):
        line |= {"duplicate": result.maybe_duplicate, "queue": result.backlog_queue}
    elif isinstance(result, SendError):
        line["error"] = f"{type(result).__name__}: {result}"[:300]
    return line


async def _until(condition: Callable[[], bool], ends_at: float) -> None:
    loop = asyncio.get_running_loop()
    while not condition() and loop.time() < ends_at:  # noqa: ASYNC110  # the end of a drain has no event
        await asyncio.sleep(0.05)


def main() -> None:
    """Read what to do, and do it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then closes its clients
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    asyncio.run(Client(json.loads(sys.stdin.readline())).run())


if __name__ == "__main__":
    main()
