"""The sender's queue and task, on a link that answers when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from azure.servicebus._pyamqp.error import ErrorCondition, MessageSendFailed
from azure.servicebus._transport._pyamqp_transport import _LOGGER, PyamqpTransport

from pairmq.model import FailureKind, FailureReason, Message, TransportError
from pairmq.testing import in_virtual_time
from pairmq.transport import is_nothing_sent
from pairmq_servicebus import _codec
from pairmq_servicebus._codec import Parts, measure
from pairmq_servicebus._outbox import MOST_MESSAGES, MOST_TRANSFERS, Chain, Outbox, Parcel


class FakeLink:
    """Records what is sent; each transfer waits until it is answered."""

    max_message_bytes = 10_000
    max_batch_bytes = 10_000
    credit = 1000

    def __init__(self, took: float) -> None:
        self.took = took
        self.round_trips = 0
        self.most_at_once = 0
        self._waiting: list[tuple[asyncio.Future[None], Callable[[Exception | None], None]]] = []
        self.transfers: list[list[str]] = []
        self.answers: list[asyncio.Future[None]] = []
        self.by_itself: Callable[[list[str]], Exception | None] | None = None
        self.open = True
        self.looks = 0
        self.takes = 0.0  # s, a round trip

    def usable(self) -> bool:
        return self.open

    def unread(self) -> bool:
        return False

    async def look(self) -> None:
        self.looks += 1

    def drop(self) -> None:
        self.open = False

    async def close(self) -> None:
        self.open = False

    async def begin(self, messages: Sequence[Parts], answered: Callable[[Exception | None], None]) -> None:
        ids = [parts.properties["message_id"] for parts in messages]
        self.transfers.append(ids)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answers.append(answer)
        self._waiting.append((answer, answered))
        if self.by_itself is not None:
            if (error := self.by_itself(ids)) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(None)

    async def progress(self) -> None:
        self.most_at_once = max(self.most_at_once, len(self._waiting))
        await asyncio.wait([answer for answer, _ in self._waiting], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(self.takes)
        over = [each for each in self._waiting if each[0].done()]
        self._waiting = [each for each in self._waiting if not each[0].done()]
        self.round_trips += 1
        for answer, answered in over:
            error = answer.exception()
            assert error is None or isinstance(error, Exception)
            answered(error)


class Bench:
    """An outbox and its links."""

    def __init__(self, limit: float = 30.0, took: float = 0.0) -> None:
        self.took = took
        self.links: list[FakeLink] = []
        self.opening: asyncio.Event = asyncio.Event()
        self.opening.set()
        self.fails: Exception | None = None
        self.by_itself: Callable[[list[str]], Exception | None] | None = None
        self.box = Outbox(self._open, "send to q", limit)

    async def _open(self) -> FakeLink:
        await self.opening.wait()
        if self.fails is not None:
            raise self.fails
        link = FakeLink(self.took)
        link.by_itself = self.by_itself
        self.links.append(link)
        return link

    def send(self, name: str, group: str | None = None, size: int | None = None) -> asyncio.Task[TransportError | None]:
        return asyncio.create_task(self.box.send(parcel(name, group, size)))


def parcel(name: str, group: str | None = None, size: int | None = None) -> Parcel:
    parts = _codec.take_apart(Message(message_id=name))
    return Parcel(parts, measure(parts) if size is None else size, group)


def rejected(condition: str) -> Exception:
    inner = MessageSendFailed(ErrorCondition(condition.encode()), description="words")
    error: Exception = PyamqpTransport.create_servicebus_exception(_LOGGER, inner)
    return error


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_waits_while_a_transfer_is_under_way_goes_out_in_the_next_one() -> None:
    bench = Bench()
    first = bench.send("1")
    await settle()
    others = [bench.send(str(number)) for number in range(2, 6)]
    await settle()
    [link] = bench.links
    assert link.transfers == [["1"]]
    link.answers[0].set_result(None)
    await settle()
    assert link.transfers == [["1"], ["2", "3", "4", "5"]]
    assert first.done()
    assert not any(task.done() for task in others)
    link.answers[1].set_result(None)
    assert await asyncio.gather(*others) == [None] * 4


async def test_a_batch_has_one_session_and_ends_at_the_link_s_limits_and_at_a_thousand() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: None
    groups = ["a", "a", "b", "a", None, None]
    outcomes = await bench.box.send_all([parcel(str(number), group) for number, group in enumerate(groups)])
    assert set(outcomes) == {None}
    [link] = bench.links
    assert link.transfers == [["0", "1"], ["2"], ["3"], ["4", "5"]]
    link.transfers.clear()
    await bench.box.send_all([parcel(str(number), size=4000) for number in range(5)])
    assert [len(ids) for ids in link.transfers] == [2, 2, 1]
    link.transfers.clear()
    link.max_message_bytes = link.max_batch_bytes = 10**9
    await bench.box.send_all([parcel(str(number)) for number in range(MOST_MESSAGES + 1)])
    assert [len(ids) for ids in link.transfers] == [MOST_MESSAGES, 1]


async def test_a_message_that_the_link_does_not_take_is_refused_and_the_others_go() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: None
    outcomes = await bench.box.send_all([parcel("a"), parcel("b", size=10_001), parcel("c")])
    assert (outcomes[0], outcomes[2]) == (None, None)
    assert outcomes[1] is not None
    assert (outcomes[1].reason, outcomes[1].maybe_applied) == (FailureReason.TOO_LARGE, False)
    assert bench.links[0].transfers == [["a"], ["c"]] or bench.links[0].transfers == [["a", "c"]]


async def test_a_refused_batch_is_sent_again_one_by_one_in_order() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: rejected("amqp:not-allowed") if "bad" in ids else None
    parcels = [parcel(name) for name in ("a", "bad", "b")]
    later = asyncio.create_task(bench.box.send_all(parcels))
    outcomes = await later
    assert outcomes[0] is outcomes[2] is None
    assert outcomes[1] is not None
    assert (outcomes[1].kind, outcomes[1].maybe_applied) == (FailureKind.REFUSED, False)
    assert bench.links[0].transfers == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]


@pytest.mark.parametrize("condition", ["com.microsoft:server-busy", "amqp:internal-error", "amqp:unauthorized-access"])
async def test_a_batch_that_failed_for_no_message_s_fault_fails_as_a_whole(condition: str) -> None:
    bench = Bench()
    bench.by_itself = lambda ids: rejected(condition)
    outcomes = await bench.box.send_all([parcel("a"), parcel("b")])
    assert bench.links[0].transfers == [["a", "b"]]
    assert all(outcome is not None for outcome in outcomes)
    assert outcomes[0] is not outcomes[1]


async def test_one_opening_serves_all_and_its_failure_is_reported_to_all_at_once() -> None:
    bench = Bench()
    bench.opening.clear()
    bench.fails = ConnectionRefusedError("nobody there")
    tasks = [bench.send(str(number)) for number in range(5)]
    await settle()
    bench.opening.set()
    for failed in await asyncio.gather(*tasks):
        assert failed is not None
        assert (failed.kind, failed.maybe_applied) == (FailureKind.UNAVAILABLE, False)
    bench.fails, bench.by_itself = None, lambda ids: None
    assert await bench.send("again") is None
    assert len(bench.links) == 1


async def test_a_caller_cancelled_before_its_message_was_written_leaves_nothing() -> None:
    bench = Bench()
    bench.opening.clear()
    while_opening = bench.send("1")
    await settle()
    while_opening.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await while_opening
    assert is_nothing_sent(caught.value)
    bench.opening.set()
    under_way = bench.send("2")
    await settle()
    waiting = bench.send("3")
    await settle()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await waiting
    assert is_nothing_sent(caught.value)
    bench.links[0].answers[0].set_result(None)
    assert await under_way is None
    assert bench.links[0].transfers == [["2"]]


async def test_a_transfer_is_cut_off_when_its_last_caller_gives_up_and_not_before() -> None:
    bench = Bench()
    blocker = bench.send("0")
    await settle()
    first, second = bench.send("1"), bench.send("2")
    await settle()
    [link] = bench.links
    link.answers[0].set_result(None)
    await settle()
    assert await blocker is None
    assert link.transfers[1] == ["1", "2"]
    first.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await first
    assert not is_nothing_sent(caught.value)
    await settle()
    assert link.open
    other = bench.send("3")
    second.cancel()
    await settle()
    assert not link.open  # in doubt: the next transfer has another link
    assert bench.links[1].transfers == [["3"]]
    bench.links[1].answers[0].set_result(None)
    assert await other is None


async def test_a_caller_that_gives_up_looks_at_no_other_one() -> None:
    """Thousands may give up at about one instant."""
    looks = 0

    class Counted(asyncio.Future[TransportError | None]):
        def done(self) -> bool:
            nonlocal looks
            looks += 1
            return super().done()

    bench, count = Bench(), 200
    blocker = bench.send("0")
    await settle()
    parcels = [parcel(str(number), size=1) for number in range(1, count + 1)]
    for each in parcels:
        each.done = Counted()
    callers = [asyncio.create_task(bench.box.send(each)) for each in parcels]
    await settle()
    [link] = bench.links
    link.answers[0].set_result(None)
    await settle()
    assert await blocker is None
    assert len(link.transfers[1]) == count
    looks = 0
    for caller in callers:
        caller.cancel()
        await asyncio.wait((caller,))
    await settle()
    assert not link.open
    assert looks <= 4 * count


async def test_a_cancelled_batch_that_was_half_sent_does_not_claim_to_have_sent_nothing() -> None:
    bench = Bench()
    batch = asyncio.create_task(bench.box.send_all([parcel("1", "a", 6000), parcel("2", "a", 6000)]))
    await settle()
    batch.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await batch
    assert not is_nothing_sent(caught.value)
    await settle()
    assert [link.transfers for link in bench.links] == [[["1"]]]


async def test_a_transfer_without_an_answer_is_given_up_by_its_own_limit() -> None:
    bench = Bench(limit=0.05)
    silent = bench.send("1")
    await settle()
    waiting = bench.send("2")
    failed = await silent
    assert failed is not None
    assert (failed.reason, failed.maybe_applied) == (FailureReason.TIMEOUT, True)
    await settle()
    assert not bench.links[0].open
    bench.links[1].answers[0].set_result(None)
    assert await waiting is None


async def test_closing_ends_what_waits_for_certain_and_what_is_under_way_in_doubt() -> None:
    bench = Bench()
    under_way = bench.send("1")
    await settle()
    waiting = bench.send("2")
    await settle()
    await bench.box.close()
    outcomes = [await under_way, await waiting, await bench.send("3")]
    assert [(outcome.reason, outcome.maybe_applied) for outcome in outcomes if outcome] == [
        (FailureReason.CLOSED, True),
        (FailureReason.CLOSED, False),
        (FailureReason.CLOSED, False),
    ]
    assert not bench.links[0].open


async def test_a_link_that_was_lost_while_idle_is_replaced_before_it_is_used() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: None
    assert await bench.send("1") is None
    bench.links[0].open = False
    assert await bench.send("2") is None
    assert [link.transfers for link in bench.links] == [[["1"]], [["2"]]]


async def test_thousands_of_senders_with_random_cancellations_leave_nothing_behind() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: None
    tasks = [bench.send(str(number), group=f"g{number % 50 // 10}") for number in range(3000)]
    await asyncio.sleep(0)
    for task in tasks[::7]:
        task.cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
    assert all(outcome is None for number, outcome in enumerate(outcomes) if number % 7)
    sent = [name for link in bench.links for ids in link.transfers for name in ids]
    assert len(sent) == len(set(sent))
    assert sorted(sent, key=int) == sent
    assert not bench.box.waiting


async def test_a_link_is_dropped_when_lists_and_single_sends_of_one_batch_were_all_given_up() -> None:
    bench = Bench()
    bench.send("0")
    await settle()
    several = asyncio.create_task(bench.box.send_all([parcel("1"), parcel("2")]))
    single = bench.send("3")
    await settle()
    [link] = bench.links
    link.answers[0].set_result(None)
    await settle()
    assert link.transfers == [["0"], ["1", "2", "3"]]
    several.cancel()
    await settle()
    assert link.open
    single.cancel()
    await settle()
    assert not link.open
    bench.send("4")
    await settle()
    assert bench.links[1].transfers == [["4"]]


async def test_batches_of_different_sessions_take_one_round_trip_together() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: None
    count = MOST_TRANSFERS // 2
    sessions = [f"s{number}" for number in range(count)]
    assert set(await bench.box.send_all([parcel(name, name) for name in sessions for _ in range(2)])) == {None}
    [link] = bench.links
    assert link.transfers == [[name, name] for name in sessions]
    assert link.round_trips == 1


async def test_no_more_transfers_are_under_way_than_the_link_takes() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: None
    await bench.box.send_all([parcel("m", f"s{number}") for number in range(3 * MOST_TRANSFERS)])
    [link] = bench.links
    assert link.most_at_once == MOST_TRANSFERS
    link.most_at_once, link.credit = 0, 3
    await bench.box.send_all([parcel("m", f"s{number}") for number in range(10)])
    assert link.most_at_once == 3


@pytest.mark.parametrize(("round_trip", "most"), [(0.1, 11), (5.0, 3)])
@in_virtual_time
async def test_more_bytes_are_under_way_on_a_link_that_lets_them_pass(round_trip: float, most: int) -> None:
    """A distant service took a round trip for each mebibyte, however wide the link was."""
    bench = Bench()
    bench.by_itself = lambda ids: None
    assert await bench.box.send_all([parcel("first")]) == [None]
    [link] = bench.links
    link.max_message_bytes = link.max_batch_bytes = 1024 * 1024
    link.takes = round_trip
    await bench.box.send_all([parcel("m", f"s{number}", size=400_000) for number in range(30)])
    assert link.most_at_once == 11  # until it has shown otherwise
    link.most_at_once = 0
    await bench.box.send_all([parcel("m", f"s{number}", size=400_000) for number in range(30)])
    assert link.most_at_once == most


async def test_transfers_of_one_session_are_under_way_together_in_the_order_in_which_they_came() -> None:
    bench = Bench()
    names = [("1", "a"), ("2", "b"), ("3", "a"), ("4", "b"), ("5", "a")]
    sending = asyncio.create_task(bench.box.send_all([parcel(*each) for each in names]))
    await settle()
    [link] = bench.links
    assert link.transfers == [["1"], ["2"], ["3"], ["4"], ["5"]]
    for answer in link.answers:
        answer.set_result(None)
    assert await sending == [None] * 5


async def test_single_sends_of_one_session_gather_while_nothing_else_waits() -> None:
    bench = Bench()
    tasks = [bench.send("1", "a")]
    await settle()
    tasks += [bench.send(name, "a") for name in ("2", "3")]
    await settle()
    [link] = bench.links
    assert link.transfers == [["1"]]
    tasks.append(bench.send("4", "b"))
    link.answers[0].set_result(None)
    await settle()
    assert link.transfers == [["1"], ["2", "3"], ["4"]]
    for answer in link.answers[1:]:
        answer.set_result(None)
    assert await asyncio.gather(*tasks) == [None] * 4


async def test_a_refused_batch_holds_up_no_other_one_and_is_sent_message_by_message() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: rejected("amqp:not-allowed") if "bad" in ids else None
    names = [("a1", "a"), ("bad", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b")]
    outcomes = await bench.box.send_all([parcel(*each) for each in names])
    assert [outcome is None for outcome in outcomes] == [True, False, True, True, True]
    assert bench.links[0].transfers == [["a1", "bad"], ["b1"], ["a2"], ["b2"], ["a1"], ["bad"]]


def chained(*names: str, size: int | None = None) -> list[Parcel]:
    """Parcels of which those that begin with the same letter are one chain, and one session."""
    chains: dict[str, Chain] = {}
    made = [parcel(name, name[0], size) for name in names]
    for each, name in zip(made, names, strict=True):
        each.chain = chains.setdefault(name[0], Chain())
    return made


async def test_chains_go_in_one_transfer_each_in_one_round_trip_together() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: None
    assert await bench.box.send_all(chained("a1", "a2", "a3", "b1", "b2", "c1")) == [None] * 6
    [link] = bench.links
    assert link.transfers == [["a1", "a2", "a3"], ["b1", "b2"], ["c1"]]
    assert link.round_trips == 1


async def test_a_chain_goes_on_only_when_its_transfer_is_confirmed_and_what_follows_keeps_its_place() -> None:
    bench = Bench()
    sending = asyncio.create_task(bench.box.send_all(chained("a1", "a2", "b1", "a3", "c1", "a4")))
    await settle()
    [link] = bench.links
    assert link.transfers == [["a1", "a2"], ["b1"]]
    link.answers[1].set_result(None)
    await settle()
    assert len(link.transfers) == 2
    link.answers[0].set_result(None)
    await settle()
    assert link.transfers == [["a1", "a2"], ["b1"], ["a3"], ["c1"]]
    link.answers[2].set_result(None)
    link.answers[3].set_result(None)
    await settle()
    link.answers[4].set_result(None)
    assert await sending == [None] * 6


@pytest.mark.parametrize("condition", ["com.microsoft:server-busy", "amqp:internal-error", "amqp:unauthorized-access"])
async def test_nothing_of_a_chain_is_sent_behind_a_transfer_that_failed(condition: str) -> None:
    bench = Bench()
    bench.by_itself = lambda ids: rejected(condition) if "a2" in ids else None
    outcomes = await bench.box.send_all(chained("a1", "a2", "a3", "a4", "b1", size=4000))
    assert [outcome is None for outcome in outcomes] == [False, False, False, False, True]
    assert [outcome.kind for outcome in outcomes[2:4] if outcome] == [FailureKind.TRANSIENT] * 2
    assert not any(outcome.maybe_applied for outcome in outcomes[2:4] if outcome)
    assert bench.links[0].transfers == [["a1", "a2"], ["b1"]]
    assert await bench.box.send_all(chained("a1")) == [None]


async def test_nothing_of_a_chain_is_sent_behind_a_message_that_is_refused() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: rejected("amqp:not-allowed") if "a2" in ids else None
    outcomes = await bench.box.send_all(chained("a1", "a2", "a3", "b1"))
    assert [outcome and outcome.kind for outcome in outcomes] == [
        None,
        FailureKind.REFUSED,
        FailureKind.TRANSIENT,
        None,
    ]
    assert bench.links[0].transfers == [["a1", "a2", "a3"], ["b1"], ["a1"], ["a2"]]
    assert not bench.box.waiting


async def test_nothing_of_a_chain_is_sent_behind_a_message_that_the_link_does_not_take() -> None:
    bench = Bench()
    bench.by_itself = lambda ids: None
    parcels = [*chained("a1"), *chained("a2", size=10_001), *chained("a3", "b1")]
    for each in parcels[1:3]:
        each.chain = parcels[0].chain
    outcomes = await bench.box.send_all(parcels)
    assert [outcome and outcome.reason for outcome in outcomes] == [
        None,
        FailureReason.TOO_LARGE,
        FailureReason.OTHER,
        None,
    ]
    assert bench.links[0].transfers == [["a1"], ["b1"]]


async def test_what_waits_of_a_chain_was_not_sent_when_the_link_dies_between_two_transfers() -> None:
    bench = Bench()
    sending = asyncio.create_task(bench.box.send_all(chained("a1", "a2", "a3", "a4", "a5", size=4000)))
    await settle()
    [link] = bench.links
    link.answers[0].set_result(None)
    await settle()
    assert link.transfers == [["a1", "a2"], ["a3", "a4"]]
    link.answers[1].set_exception(ConnectionResetError("gone"))
    outcomes = await sending
    assert [outcome and outcome.maybe_applied for outcome in outcomes] == [None, None, True, True, False]
    assert len(bench.links) == 1


async def test_a_chain_ends_as_a_whole_when_it_is_closed_or_cancelled() -> None:
    bench = Bench()
    cancelled = asyncio.create_task(bench.box.send_all(chained("a1", "a2", size=6000)))
    await settle()
    cancelled.cancel()
    await settle()
    sending = asyncio.create_task(bench.box.send_all(chained("b1", "b2", size=6000)))
    await settle()
    assert [link.transfers for link in bench.links] == [[["a1"]], [["b1"]]]
    await bench.box.close()
    outcomes = [*await sending, *await bench.box.send_all(chained("c1", "c2"))]
    assert [(outcome.reason, outcome.maybe_applied) for outcome in outcomes if outcome] == [
        (FailureReason.CLOSED, True),
        (FailureReason.CLOSED, False),
        (FailureReason.CLOSED, False),
        (FailureReason.CLOSED, False),
    ]
    assert not bench.box.waiting


async def test_a_link_that_answers_within_the_grace_is_kept_when_its_callers_gave_up() -> None:
    bench = Bench(took=30.0)
    given_up = bench.send("1", "a")
    await settle()
    given_up.cancel()
    waiting = bench.send("2", "b")
    await settle()
    [link] = bench.links
    assert link.open
    assert link.transfers == [["1"]]  # it may be a dead one
    link.answers[0].set_result(None)
    await settle()
    assert link.transfers == [["1"], ["2"]]
    link.answers[1].set_result(None)
    assert await waiting is None
    assert len(bench.links) == 1


async def test_a_link_that_answers_nothing_is_dropped_after_the_grace_when_its_callers_gave_up() -> None:
    bench = Bench(took=0.05)
    given_up = bench.send("1", "a")
    await settle()
    given_up.cancel()
    waiting = bench.send("2", "b")
    async with asyncio.timeout(30):
        while len(bench.links) < 2 or not bench.links[1].answers:
            await asyncio.sleep(0.01)
    assert not bench.links[0].open
    assert bench.links[1].transfers == [["2"]]
    bench.links[1].answers[0].set_result(None)
    assert await waiting is None


async def test_a_caller_that_gives_up_puts_no_transfer_of_others_in_doubt() -> None:
    bench = Bench()
    given_up, other = bench.send("1", "a"), bench.send("2", "b")
    await settle()
    given_up.cancel()
    later = bench.send("3", "c")
    await settle()
    [link] = bench.links
    assert link.open
    assert link.transfers == [["1"], ["2"]]
    link.answers[1].set_result(None)
    assert await other is None
    await settle()
    assert not link.open  # no caller waits for what is left
    bench.links[1].answers[0].set_result(None)
    assert await later is None
