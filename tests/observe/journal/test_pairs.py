"""A pair's journal tells what its callers were told, and nothing that the journal does disturbs a send."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from journal_events import rows
from pairmq import ConfigurationError, Entity, Message, Pair, PairOptions, Receipt, Route, SendError
from pairmq.model import EntityState, LockLost, Source, TransportError
from pairmq.model.events import Event, SendCompleted
from pairmq.observe.journal import Journal, JournalObserver, journal_deliveries, recover, statistics
from pairmq.pair import load_settings
from pairmq.plugins import Observer
from pairmq.testing import Fault, SimulatedBroker
from pairmq.transport import Receiver

OPTIONS = PairOptions(
    failover_interval=0.05,
    ping_primary_interval=0.1,
    attempt_timeout=10.0,  # what fails here fails at once
    send_timeout=30.0,
    backlog_queue_count=2,
    enable_syphon=True,
    syphon_receive_wait=1.0,
)


@asynccontextmanager
async def opened(journal: Any, **values: Any) -> AsyncIterator[tuple[Pair, SimulatedBroker]]:
    """A pair of simulated brokers, with a queue ``orders``."""
    east, west = SimulatedBroker("east"), SimulatedBroker("west")
    pair = Pair.connect(east.transport(), west.transport(), options=OPTIONS, journal=journal, **values)
    await pair.primary.admin.create(Entity("orders"))
    async with pair:
        yield pair, east


async def test_a_pair_is_given_a_directory(tmp_path):
    async with opened(tmp_path) as (pair, _):
        receipt = await pair.sender("orders").send(Message(b"1", session_id="s", time_to_live=60))
    recover(tmp_path)
    (row,) = rows(tmp_path, "SendCompleted")
    assert row["message_id"] == receipt.message_id
    assert (row["outcome"], row["session_id"], row["time_to_live"], row["size"]) == ("accepted-primary", "s", 60.0, 1)
    assert statistics(tmp_path).processes[0].ended


async def test_a_life_is_bracketed(journal, tmp_path):
    one = journal()
    async with opened(one) as (pair, _):
        await pair.sender("orders").send(Message(b"1"))
    assert one.close(30)
    kinds = [row["kind"] for row in rows(tmp_path)]
    assert kinds.index("PairOpened") < kinds.index("SendCompleted") < kinds.index("PairEnded")
    (row,) = rows(tmp_path, "PairOpened")
    assert '"failover_interval": 0.05' in row["options"]


async def test_sends_are_numbered_in_the_order_of_their_calls(journal, tmp_path):
    one = journal()
    async with opened(one) as (pair, _):
        sender, other = pair.sender("orders"), pair.sender("orders")
        results = await asyncio.gather(*(sender.send(Message(str(n).encode(), message_id=f"m{n}")) for n in range(20)))
        await sender.send_batch([Message(b"x", message_id=f"m{n}") for n in range(20, 25)])
        await other.send(Message(b"y", message_id="y"))
    assert len(results) == 20
    assert one.close(30)
    found = {row["message_id"]: (row["sender"], row["sequence"]) for row in rows(tmp_path, "SendCompleted")}
    assert found == {**{f"m{n}": (sender.id, n) for n in range(25)}, "y": (other.id, 0)}


async def test_the_state_of_a_send_is_the_one_at_its_end(journal, tmp_path):
    one = journal()
    async with opened(one) as (pair, _):
        await pair.sender("orders").send(Message(b"0", message_id="before"))
        while pair.state("orders") is not EntityState.HEALTHY:
            await asyncio.sleep(0.01)
        await pair.sender("orders").send(Message(b"1", message_id="healthy"))
        pair.hold("orders")  # for which no ping ends it first
        await pair.sender("orders").send(Message(b"2", message_id="diverted"))
    assert one.close(30)
    states = {row["message_id"]: row["state"] for row in rows(tmp_path, "SendCompleted")}
    assert (states["healthy"], states["diverted"]) == ("healthy", "failed-over")


async def test_the_journal_has_the_results_of_the_callers(journal, tmp_path):
    """Through an outage: every send is in it, with the end that its caller saw."""
    one, told = journal(), {}
    async with opened(one) as (pair, east):
        sender = pair.sender("orders")

        async def send(number: int) -> None:
            message_id = f"m{number}"
            try:
                told[message_id] = await sender.send(Message(b"x", message_id=message_id))
            except SendError as error:
                told[message_id] = error

        for number in range(60):
            if number == 20:
                east.fail(Fault.DOWN)
            if number == 45:
                east.heal()
            await send(number)
            await asyncio.sleep(0.005)
    assert one.close(30)
    found = {row["message_id"]: row for row in rows(tmp_path, "SendCompleted")}
    assert set(found) == set(told)
    for message_id, result in told.items():
        row = found[message_id]
        assert isinstance(result, Receipt)
        wanted = "accepted-primary" if result.route is Route.PRIMARY else "accepted-backlog"
        assert (row["outcome"], row.get("backlog_queue")) == (wanted, result.backlog_queue)
        assert (row["attempts"], row["maybe_duplicate"]) == (result.attempts, result.maybe_duplicate)
    assert {row["outcome"] for row in found.values()} == {"accepted-primary", "accepted-backlog"}
    assert any(row["failure_kind"] == "unavailable" for row in rows(tmp_path, "AttemptFailed"))


async def test_what_was_asked_of_the_brokers_is_counted(journal, tmp_path):
    one = journal()
    async with opened(one) as (pair, _):
        for _ in range(7):
            await pair.sender("orders").send(Message(b"1"))
        await pair.sender("orders").send_batch([Message(b"1")] * 5)
        async with pair.receiver("orders") as receiver:
            (delivery,) = await receiver.receive(1, 0)
            await delivery.complete()
    assert one.close(30)
    counts = {row["side"]: row for row in rows(tmp_path, "OperationsCounted")}
    primary = counts["primary"]
    assert (primary["sends"], primary["receives"], primary["settlements"], primary["pings"]) == (8, 1, 1, 0)
    assert counts["secondary"]["admin"] >= OPTIONS.backlog_queue_count
    assert counts["secondary"]["receives"] >= 1


class Failing(Journal):
    def on_event(self, event: Event) -> None:
        raise RuntimeError("no journal today")


async def test_a_journal_that_fails_disturbs_no_send(tmp_path, caplog):
    async with opened(Failing(tmp_path)) as (pair, _):
        receipts = await pair.sender("orders").send_batch([Message(b"1")] * 50)
    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    assert sum("an observer failed" in record.getMessage() for record in caplog.records) == 1


async def test_a_closed_journal_disturbs_no_send(journal):
    one = journal()
    async with opened(one) as (pair, _):
        one.close(30)
        assert (await pair.sender("orders").send(Message(b"1"))).route is Route.PRIMARY


async def test_other_observers_get_the_same_events(journal, tmp_path):
    one, seen = journal(), []
    async with opened(one) as (pair, _):
        pair.subscribe(seen.append)
        await pair.sender("orders").send(Message(b"1"))
    assert one.close(30)
    (event,) = [event for event in seen if isinstance(event, SendCompleted)]
    (row,) = rows(tmp_path, "SendCompleted")
    assert (event.at, event.sender, event.sequence, event.elapsed) == (
        row["at"],
        row["sender"],
        row["sequence"],
        row["elapsed"],
    )


# --------------------------------------------------------------------------- deliveries


async def test_a_pair_with_a_journal_has_its_deliveries_in_it(journal, tmp_path):
    one = journal()
    async with opened(one) as (pair, _):
        for name in ("a", "b", "c", "d"):
            await pair.sender("orders").send(Message(b"1", message_id=name))
        # Asked for again: nothing is journalled twice.
        async with journal_deliveries(pair.receiver("orders"), one) as receiver:
            first, second, third, fourth = await receiver.receive(4, 1)
            await first.complete()
            await second.abandon()
            await third.dead_letter("broken", "It can't be read.")
            del fourth
    assert one.close(30)
    found = [(row["message_id"], row["settlement"], row.get("reason")) for row in rows(tmp_path, "MessageDelivered")]
    assert found == [("a", "completed", None), ("b", "abandoned", None), ("c", "dead-lettered", "broken")]
    assert all(row["received_at"] <= row["at"] for row in rows(tmp_path, "MessageDelivered"))


async def test_a_receiver_of_a_pair_without_a_journal_is_journalled_in_one_line(journal, tmp_path):
    one = journal()
    async with opened(None) as (pair, _):
        await pair.sender("orders").send(Message(b"1", message_id="a"))
        receiver = journal_deliveries(pair.receiver("orders"), one)
        (delivery,) = await receiver.receive(1, 1)
        await delivery.complete()
        await receiver.close()
    assert one.close(30)
    (row,) = rows(tmp_path)
    assert (row["kind"], row["message_id"], row["pair"], row["entity"]) == (
        "MessageDelivered",
        "a",
        "east>west",
        "orders",
    )


async def test_a_receiver_without_a_pair_is_journalled(journal, tmp_path):
    one, east = journal(), SimulatedBroker("east")
    async with east.transport() as transport:
        await transport.admin.create(Entity("orders"))
        await transport.sender(Entity("orders")).send_batch([Message(b"1", message_id=name) for name in "abcde"])
        source = Source(Entity("orders"))
        receiver = journal_deliveries(transport.receiver(source), one, source=source, pair="east>west")
        a, b, c, d, e = await receiver.receive(5, 1)
        await receiver.complete(a)
        await receiver.abandon(b)
        await receiver.dead_letter(c, "broken", "")
        assert list(await receiver.complete_batch([d, await receiver.renew_lock(e)])) == [None, None]
        await receiver.close()
    assert one.close(30)
    found = rows(tmp_path, "MessageDelivered")
    assert [(row["message_id"], row["settlement"]) for row in found] == [
        ("a", "completed"),
        ("b", "abandoned"),
        ("c", "dead-lettered"),
        ("d", "completed"),
        ("e", "completed"),
    ]
    assert all(row["received_at"] <= row["at"] for row in found)
    assert not any("error" in row for row in found)


async def test_each_receiver_of_a_pair_has_its_own_id(journal, tmp_path):
    one = journal()
    async with opened(one) as (pair, _):
        receivers = [pair.receiver("orders") for _ in range(2)]
        for receiver in receivers:
            await pair.sender("orders").send(Message(b"1"))
            (delivery,) = await receiver.receive(1, 1)
            await delivery.complete()
    assert one.close(30)
    found = [row["receiver"] for row in rows(tmp_path, "MessageDelivered")]
    assert found == [receiver.id for receiver in receivers]
    assert len(set(found)) == 2


async def test_each_receiver_without_a_pair_has_its_own_id(journal, tmp_path):
    one, east = journal(), SimulatedBroker("east")
    async with east.transport() as transport:
        await transport.admin.create(Entity("orders"))
        source = Source(Entity("orders"))
        for _ in range(2):
            await transport.sender(Entity("orders")).send(Message(b"1", message_id="a"))
            receiver = journal_deliveries(transport.receiver(source), one, source=source)
            (delivery,) = await receiver.receive(1, 1)
            await receiver.complete(delivery)
            await receiver.close()
    assert one.close(30)
    first, second = (row["receiver"] for row in rows(tmp_path, "MessageDelivered"))
    assert first
    assert second
    assert first != second


async def test_a_settlement_that_fails_is_journalled_with_its_error(journal, tmp_path):
    one = journal()
    async with opened(one) as (pair, _):
        await pair.sender("orders").send(Message(b"1", message_id="a"))
        receiver = pair.receiver("orders")
        (delivery,) = await receiver.receive(1, 1)
        await delivery.complete()
        with pytest.raises((LockLost, TransportError)):
            await delivery.complete()
        await receiver.close()
    assert one.close(30)
    first, second = rows(tmp_path, "MessageDelivered")
    assert "error" not in first
    assert second["error"]


def test_what_a_receiver_dead_letters_by_itself_is_journalled_and_reported(journal, tmp_path):
    class Silent(Receiver):
        async def receive(self, max_messages, wait):
            return []

        async def complete(self, delivery):
            pass

    one, inner, reported = journal(), Silent(), []
    receiver = journal_deliveries(inner, one, source=Source(Entity("orders")), pair="pair")
    receiver.on_dead_lettered = reported.append
    inner.dead_lettered(Message(b"1", message_id="m"), "malformed", "no header", 3)
    assert one.close(30)
    (row,) = rows(tmp_path, "MessageDelivered")
    assert (row["message_id"], row["settlement"], row["reason"]) == ("m", "dead-lettered", "malformed")
    assert (row["delivery_count"], row["pair"], len(reported)) == (3, "pair", 1)
    assert "error" not in row


async def test_a_receiver_without_its_source_is_refused(journal):
    async with SimulatedBroker("east").transport() as transport:
        with pytest.raises(TypeError, match="pass source"):
            journal_deliveries(transport.receiver(Source(Entity("orders"))), journal())  # type: ignore[call-overload]


# --------------------------------------------------------------------------- settings


def test_the_journal_is_a_setting_like_any_other(tmp_path):
    file = tmp_path / "pair.toml"
    file.write_text("[pair]\nprimary='redis://a/0'\nsecondary='redis://b/0'\njournal='from/file'\n")
    assert load_settings(config=file, environ={}).journal == "from/file"
    environ = {"PAIRMQ_JOURNAL": "from/environment"}
    assert load_settings(config=file, environ=environ).journal == "from/environment"
    assert load_settings(config=file, environ=environ, journal="given").journal == "given"
    file.write_text("[pair]\nprimary='redis://a/0'\nsecondary='redis://b/0'\njournal=7\n")
    with pytest.raises(ConfigurationError, match=r"journal is .*: it must be the path of a directory"):
        load_settings(config=file, environ={})


async def test_the_environment_switches_the_journal_on(tmp_path, monkeypatch):
    monkeypatch.setenv("PAIRMQ_JOURNAL", str(tmp_path))
    async with opened(None) as (pair, _):
        await pair.sender("orders").send(Message(b"1"))
    assert len(rows(tmp_path, "SendCompleted")) == 1


def test_a_journal_in_an_impossible_place_is_refused_when_the_pair_is_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="journal directory"):
        Pair.connect("memory://a", "memory://b", journal=tmp_path / "file" / "x")


def test_without_pyarrow_the_error_names_the_extra(tmp_path):
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pairmq import Pair\nPair.connect('memory://a', 'memory://b', journal=sys.argv[1])"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (
        "ConfigurationError: the journal needs pyarrow: install it with: pip install 'pairmq[journal]'" in ended.stderr
    )


def test_an_observer_is_what_a_pair_expects(tmp_path):
    observer = JournalObserver(Journal(tmp_path))
    assert isinstance(observer, Observer)
