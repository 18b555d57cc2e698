"""An operator's decisions for all processes: what is in force, and who follows (SPEC 13.4)."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairmq import ConfigurationError, Delivery, Entity, EntityKind, Message
from pairmq.core import switch
from pairmq.core.record import MAX_ENTRIES
from pairmq.core.switch import (
    REPORT_LIFETIME,
    Decision,
    Decisions,
    Fleet,
    Following,
    Order,
    ProcessReport,
    SwitchAction,
    SwitchReport,
    alike,
    is_old_report,
    switch_action,
    switch_queues,
)

ORDERS, PRICES = Entity("orders"), Entity("prices", EntityKind.TOPIC)
HOLD, FAILOVER, RESUME = SwitchAction.HOLD, SwitchAction.FAILOVER, SwitchAction.RESUME


def decision(number: int, action: SwitchAction = HOLD, *entities: Entity, id: str = "a", at: float = 0.0) -> Decision:
    return Decision(number, id, action, entities or (ORDERS,), False, at, "web-1", 17)


def report(process: str = "p1", number: int = 1, *followed: str, ended: bool = False) -> ProcessReport:
    return ProcessReport(process, "web-1", 17, number, 10.0, 1.0, 15.0, False, followed, ended)


def read(*decisions: Decision, now: float = 20.0) -> Decisions:
    return Decisions.read([each.message().body for each in decisions], now)


def stored(what: ProcessReport | Decision | bytes, at: float | None = None) -> Delivery:
    """A message as a broker shows it, one that dates what it stores if that is known."""
    body = what if isinstance(what, bytes) else what.message().body
    return Delivery(Message(body), None, enqueued_at=None if at is None else datetime.fromtimestamp(at, UTC))


def fleet(*reports: ProcessReport) -> Fleet:
    made = Fleet()
    made.read(map(stored, reports), 20.0)
    return made


def unused(entity: Entity) -> bool:
    return False


def test_a_decision_reads_as_it_was_written() -> None:
    written = Decision(7, "ab", HOLD, (ORDERS, PRICES), True, 1.5, "日本", 4711)
    assert read(written, written) == Decisions((written,))


def test_a_report_reads_as_it_was_written() -> None:
    written = ProcessReport("p", "h", 1, 2, 3.5, 4.0, 0.1, True, ("a", "b"))
    assert fleet(written).processes == (written,)


@given(st.permutations([decision(2, id="b"), decision(2, RESUME, id="c"), decision(1, FAILOVER, id="z")]))
def test_the_last_decision_is_in_force_in_whatever_order_they_are_read(written: list[Decision]) -> None:
    assert read(*written).in_force() == {ORDERS: decision(2, RESUME, id="c")}


def test_each_entity_has_its_own_last_decision() -> None:
    both, one = decision(1, HOLD, ORDERS, PRICES), decision(2, RESUME, PRICES)
    assert read(one, both).in_force() == {ORDERS: both, PRICES: one}
    assert read(one, both).removable() == frozenset()
    assert read(one, both, decision(3)).removable() == {both.message().body}


def test_what_decides_nothing_can_be_removed_but_not_what_a_later_release_may_have_written() -> None:
    in_force, content = decision(7), json.loads(decision(1).message().body)
    decides_nothing = [json.dumps({**content, **change}).encode() for change in ({}, {"number": -1}, {"number": 2**53})]
    later = [json.dumps({**content, **change}).encode() for change in LATER]
    found = Decisions.read([*decides_nothing, b"x", *later, in_force.message().body], 20.0)
    assert found.removable() == {*decides_nothing, b"x"}


LATER: list[dict[str, object]] = [{"pairmq_record": 2}, {"action": "burn"}, {"kind": "later"}]


def test_it_is_a_problem_that_there_may_be_decisions_behind_those_that_are_read() -> None:
    assert not Decisions.read([b"x"] * (MAX_ENTRIES - 1), 20.0).full
    found = Decisions.read([b"x"] * MAX_ENTRIES, 20.0)
    assert found.full
    assert len(found.problems) == 2


def test_a_number_is_above_all_that_are_known_and_grows_after_a_loss() -> None:
    assert read(decision(10**12)).next_number(5.0) == 10**12 + 1
    assert read().next_number(5.0) == 5000 < read().next_number(6.0)


@pytest.mark.parametrize("now", [0.0, 20.0, 2e9], ids=["a clock that was not set", "likewise", "2033"])
def test_no_number_is_so_large_that_no_later_decision_could_be_in_force(now: float) -> None:
    forged = read(*(decision(10**power) for power in range(16)), decision(2**53), now=now)
    mine = decision(forged.next_number(now), RESUME, id="b")
    assert read(*forged.all, decision(2**53), mine, now=now + 1).in_force() == {ORDERS: mine}
    assert len(forged.problems) == 1


def test_a_clock_that_was_not_set_reads_the_decisions_of_those_that_were() -> None:
    made = decision(int(1.9e12), at=1.9e9)
    assert read(made, now=0.0).in_force() == {ORDERS: made}


@pytest.mark.parametrize(
    "change",
    [
        {"entities": []},
        {"entities": [["queue", "a//b"]]},
        {"entities": [["exchange", "a"]]},
        {"entities": [["queue"]]},
        {"entities": ["orders"]},
        {"action": "burn"},
        {"action": 1},
        {"number": -1},
        {"number": True},
        {"number": 10**30},
        {"at": "now"},
        {"at": -1},
        {"syphon": 1},
        {"host": ""},
        {"pid": None},
        {"id": "\n"},
        {"pairmq_record": 2},
    ],
)
def test_what_can_not_be_read_is_a_problem_and_decides_nothing(change: dict[str, object]) -> None:
    content = json.loads(decision(1).message().body)
    bodies = [json.dumps({**content, **change}).encode(), decision(1, RESUME, PRICES).message().body]
    found = Decisions.read(bodies, 20.0)
    assert found.all == (decision(1, RESUME, PRICES),)
    assert len(found.problems) == 1


def test_messages_of_other_kinds_are_passed_over() -> None:
    content = json.dumps({"pairmq_record": 1, "kind": "later"}).encode()
    assert Decisions.read([content, report().message().body], 20.0) == Decisions()
    made = Fleet()
    made.read(map(stored, (content, b"x", decision(1))), 20.0)
    assert made.processes == ()


@given(st.binary(max_size=50))
def test_any_bytes_are_read_without_an_error(body: bytes) -> None:
    Decisions.read([body], 20.0)
    Fleet().read([stored(body)], 20.0)
    is_old_report(stored(body), 20.0)


def test_a_process_follows_each_decision_once() -> None:
    following = Following()
    assert following.follow(read(), 0.0, unused) == []
    assert following.follow(read(decision(1)), 0.0, unused) == [Order(ORDERS, HOLD, False)]
    assert following.follow(read(decision(1)), 0.0, unused) == []
    assert following.follow(read(decision(1), decision(2, RESUME, id="b")), 0.0, unused) == [
        Order(ORDERS, RESUME, False)
    ]
    assert following.followed == ("a", "b")


def test_a_decision_that_is_hidden_for_a_while_changes_nothing() -> None:
    following = Following()
    following.follow(read(decision(1), decision(2, RESUME, id="b")), 0.0, unused)
    assert following.follow(read(decision(1)), 0.0, unused) == []
    assert following.follow(read(), 0.0, unused) == []
    assert following.followed == ("a", "b")


def test_the_last_of_many_decisions_is_reported_as_followed_at_each_look() -> None:
    queues = [decision(number, HOLD, Entity(f"q{number}"), id=f"{number}") for number in range(1, 151)]
    following = Following()
    reported = []
    for _ in range(3):
        following.follow(read(*queues), 0.0, unused)
        reported.append(following.followed)
    assert reported == [tuple(each.id for each in queues[50:])] * 3


def test_what_is_used_is_followed_though_decisions_name_more_entities_than_are_remembered(monkeypatch) -> None:
    monkeypatch.setattr(switch, "_MOST_ENTITIES", 3)
    forged, following = [decision(number, HOLD, Entity(f"x{number}")) for number in range(1, 6)], Following()
    hold, resume = decision(9, HOLD, ORDERS, PRICES), decision(10, RESUME)
    for _ in range(2):
        following.follow(read(*forged), 0.0, unused)
    assert following.follow(read(*forged, hold), 0.0, {ORDERS}.__contains__) == [Order(ORDERS, HOLD, False)]
    assert following.follow(read(*forged, hold, resume), 0.0, unused) == [Order(ORDERS, RESUME, False)]
    # Of those that are not, as many as are remembered: a process keeps something for each.
    assert [order.entity.path for order in Following().follow(read(*forged, hold), 0.0, unused)] == ["x1", "x2", "x3"]


def test_a_process_that_starts_later_follows_what_is_in_force() -> None:
    hold, resume = decision(1, HOLD, ORDERS, PRICES), decision(2, RESUME, PRICES)
    assert Following().follow(read(hold, resume), 1e6, unused) == [Order(ORDERS, HOLD, False)]


@pytest.mark.parametrize(("age", "orders"), [(60.0, [Order(ORDERS, FAILOVER, False)]), (3601.0, [])])
def test_a_process_that_starts_later_follows_a_failover_for_an_hour(age: float, orders: list[Order]) -> None:
    assert Following().follow(read(decision(1, FAILOVER)), age, unused) == orders


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_last_report_of_a_process_counts(order: tuple[int, ...]) -> None:
    reports = [report("p1", 1), report("p1", 2, "a"), report("p2", 1)]
    assert fleet(*(reports[each] for each in order)).processes == (report("p1", 2, "a"), report("p2", 1))


def test_a_process_that_has_ended_is_not_listed() -> None:
    assert fleet(report("p1", 2, ended=True), report("p1", 1)).processes == ()


def test_a_process_that_reports_no_more_is_forgotten() -> None:
    made = fleet(report("p1"))
    made.read([stored(report("p2"))], 10.0 + REPORT_LIFETIME)
    assert [each.process for each in made.processes] == ["p1", "p2"]
    made.read([], 11.0 + REPORT_LIFETIME)
    assert made.processes == ()


def test_a_report_of_a_time_to_come_is_not_listed_and_removed() -> None:
    forged, fast = replace(report("p1"), at=86_420.1), replace(report("p3"), at=86_420.0)
    assert fleet(forged, report("p2"), fast).processes == (report("p2"), fast)
    assert is_old_report(stored(forged), 20.0)
    assert not is_old_report(stored(fast), 20.0)


def test_old_reports_and_what_can_not_be_read_are_removed() -> None:
    known = stored(report())
    assert [is_old_report(each, 11.0 + REPORT_LIFETIME) for each in (known, stored(b"x"))] == [True, True]
    assert not is_old_report(known, 10.0 + REPORT_LIFETIME)


@pytest.mark.parametrize("change", [{"kind": "later"}, {"pairmq_record": 2}], ids=["kind", "format"])
def test_what_a_later_release_reports_is_kept_as_long_as_a_report(change: dict[str, object]) -> None:
    later = stored(json.dumps({**json.loads(report().message().body), **change}).encode())
    assert not is_old_report(later, 10.0 + REPORT_LIFETIME)
    assert is_old_report(later, 11.0 + REPORT_LIFETIME)


HOUR = 3600.0


@pytest.mark.parametrize("clock", [-HOUR, 0.0, HOUR], ids=["the broker is slow", "right", "the broker is fast"])
@pytest.mark.parametrize("wrong", [-HOUR, HOUR], ids=["the process is slow", "the process is fast"])
def test_a_process_whose_clock_is_wrong_is_listed_by_that_of_the_broker(wrong: float, clock: float) -> None:
    now, made = 10 * HOUR, Fleet()
    made.read([stored(replace(report(), at=now + wrong), now + clock)], now, clock)
    made.read([], now + 600)
    assert [each.process for each in made.processes] == ["p1"]
    assert abs(made.processes[0].at - now) <= max(0.0, wrong)  # how long ago an operator reads
    if wrong < 0:
        made.read([], now + REPORT_LIFETIME + 1)
        assert made.processes == ()


def test_a_process_that_crashed_is_not_listed_again_by_the_clock_of_the_broker() -> None:
    now, made = 10 * HOUR, Fleet()
    made.read([stored(replace(report(), at=now - 1000), now - 1000)], now)
    assert made.processes == ()


def test_the_report_of_a_slow_process_is_not_removed_where_the_broker_dates_it() -> None:
    now = 10 * HOUR
    slow = replace(report(), at=now - HOUR)
    assert [is_old_report(stored(slow, at), now) for at in (now - 60, now - 1000, None)] == [False, True, True]


def test_followers_are_distinguished_from_other_observers() -> None:
    made = SwitchReport.of(decision(1), read(decision(1)), fleet(report("p1", 2, "a"), report("p2", 1, "z")))
    assert [each.process for each in made.followed] == ["p1"]
    assert [each.process for each in made.missing] == ["p2"]
    assert (made.complete, made.wait, made.overruled) == (False, 17.0, ())


def test_of_two_operators_at_once_each_learns_which_decision_is_in_force() -> None:
    one, two = decision(5, HOLD, ORDERS, PRICES, id="x"), decision(5, RESUME, id="y")
    known, followers = read(two, one), fleet(report("p1", 2, "x", "y"))
    assert SwitchReport.of(one, known, followers).overruled == ((ORDERS, two),)
    assert SwitchReport.of(two, known, followers).complete
    assert not SwitchReport.of(one, known, followers).complete


def test_a_decision_is_not_complete_while_there_may_be_processes_that_are_not_listed() -> None:
    made = SwitchReport.of(decision(1), read(decision(1)), fleet(report("p1", 2, "a")), "too many reports")
    assert (made.missing, made.complete) == ((), False)


@pytest.mark.parametrize(
    ("action", "entities", "syphon", "said"),
    [("stop", [ORDERS], False, "must be one of"), (HOLD, [], False, "no entity"), ("resume", [ORDERS], True, "hold")],
)
def test_what_can_not_be_decided_is_refused(action: str, entities: list[Entity], syphon: bool, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        switch_action(action, entities, syphon=syphon)


def test_too_many_entities_for_one_decision_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="switch fewer"):
        replace(decision(1), entities=tuple(Entity(f"{number}" * 50) for number in range(1000, 2000))).message()


def test_the_queues_of_the_switch_are_the_record_s() -> None:
    assert [each.path for each in switch_queues("east") or ()] == [
        "east/switch/x-pairmq-record",
        "east/processes/x-pairmq-record",
    ]
    assert switch_queues("e" * 250) is None
    assert REPORT_LIFETIME == 900.0


@pytest.mark.parametrize(
    ("asked", "known", "meant"),
    [
        ("ordres", ["prices", "orders"], ["orders"]),
        ("order", ["orders", "old-orders"], ["orders"]),
        ("shop/orders", ["shop/order", "prices"], ["shop/order"]),
        ("orders-1", ["orders-2", "orders-13"], []),
        ("prices", ["prices", "topic-prices"], []),
        ("stock", ["orders", "prices"], []),
    ],
)
def test_names_that_may_be_meant(asked: str, known: list[str], meant: list[str]) -> None:
    assert [each.path for each in alike(Entity(asked), map(Entity, known))] == meant


def test_a_name_of_another_kind_may_be_meant() -> None:
    assert alike(Entity("prices"), [ORDERS, PRICES]) == (PRICES,)


def test_of_very_many_names_those_that_may_be_alike_are_compared() -> None:
    unlike = (Entity(f"prices-{number}") for number in range(20_000))
    assert alike(Entity("ordres"), itertools.chain(unlike, [ORDERS])) == (ORDERS,)
    assert alike(Entity("ordres"), map(Entity, itertools.repeat("oranges"))) == ()
