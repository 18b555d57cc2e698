"""Commands that say whether the backlog is empty ask every process's queues (SPEC 13.2)."""

from __future__ import annotations

import asyncio
import json

import pytest

from pairmq import Entity, Message, Pair, PairOptions
from pairmq.memory import MemoryTransport
from pairmq.model import FailureKind, FailureReason, TransportError
from pairmq.plugins import registry

pytestmark = pytest.mark.timeout(180)


async def _diverted(primary: str, secondary: str, count: int, options: PairOptions) -> None:
    async with Pair.connect(primary, secondary, options=options) as pair:
        await pair.primary.admin.create(Entity("orders"))
        pair.force_failover("orders")
        pair.hold("orders")
        for number in range(count):
            await pair.sender("orders").send(Message(b"%d" % number))


def divert(brokers: list[str], count: int = 40, *, more: str = "", **options: object) -> None:
    """Leave messages in the backlog, as a process that has ended."""
    asyncio.run(_diverted(brokers[1] + more, brokers[3], count, PairOptions(failover_interval=0.0, **options)))


async def _deleted(url: str, *paths: str) -> None:
    async with registry.transport(url) as transport:
        for path in paths:
            await transport.admin.delete(Entity(path))


def name_of(url: str) -> str:
    return url.removeprefix("memory://")


def test_until_empty_drains_queues_of_senders_with_more_of_them(cli, brokers) -> None:
    divert(brokers, backlog_queue_count=10)
    ended = cli("syphon", "--until-empty", "--backlog-queues", "3", *brokers)
    assert ended.status == 0
    assert "moved 40 messages; the backlog is empty" in ended.err
    assert "backlog_queue_count is 3 here and 10 in another process" in ended.err


def test_until_empty_drains_queues_that_an_earlier_release_left(cli, brokers) -> None:
    divert(brokers, backlog_queue_count=10)
    asyncio.run(_deleted(brokers[3], f"{name_of(brokers[1])}/x-pairmq-record"))
    ended = cli("syphon", "--until-empty", "--backlog-queues", "1", *brokers)
    assert (ended.status, "moved 40 messages; the backlog is empty" in ended.err) == (0, True)


@pytest.mark.parametrize("with_record", [True, False])
def test_until_empty_names_queues_of_another_name(cli, brokers, with_record: bool) -> None:
    divert(brokers, 5, more="?name=other", backlog_queue_count=1)
    if not with_record:
        asyncio.run(_deleted(brokers[3], "other/x-pairmq-record"))
    ended = cli("syphon", "--until-empty", "--json", *brokers)
    assert ended.status == 1
    assert "the backlog is empty" not in ended.err
    assert "other/x-servicebus-transfer/0 holds 5 messages" in ended.err
    assert json.loads(ended.out.splitlines()[-1])["stranded"] == {"other/x-servicebus-transfer/0": 5}


def test_until_empty_leaves_another_primarys_backlog_out(cli, brokers) -> None:
    divert(["", "memory://another-primary", "", brokers[3]], 5)
    ended = cli("syphon", "--until-empty", *brokers)
    assert (ended.status, "the backlog is empty" in ended.err) == (0, True)


def test_status_counts_queues_beyond_its_options(cli, brokers) -> None:
    divert(brokers, backlog_queue_count=10)
    seen = json.loads(cli("status", "--json", "--backlog-queues", "1", *brokers).out)
    assert (seen["ok"], seen["backlog"]["pending"], len(seen["backlog"]["queues"])) == (True, 40, 10)
    shown = cli("status", "--backlog-queues", "1", *brokers).out
    assert "x-servicebus-transfer/{0…9}" in shown
    assert "10 in another" in shown


def test_status_fails_where_messages_wait_in_queues_that_are_not_drained(cli, brokers) -> None:
    divert(brokers, 5, backlog_queue_count=1, backlog_name_template="theirs-{index}")
    ended = cli("status", *brokers)
    assert ended.status == 1
    assert "theirs-0 holds 5 messages" in " ".join(ended.out.split())


def test_status_says_what_missing_queues_mean(cli, brokers) -> None:
    shown = " ".join(cli("status", *brokers).out.split())
    assert "10 backlog queues to be created: a program that opens the pair creates them" in shown


def test_the_doctor_names_what_differs_and_what_is_stranded(cli, brokers) -> None:
    divert(brokers, backlog_queue_count=10)
    ended = cli("doctor", "--backlog-queues", "1", *brokers)
    assert ended.status == 0
    assert "warn  processes of the pair: backlog_queue_count is 1 here and 10 in another process" in ended.out
    divert(brokers, 5, more="?name=other", backlog_queue_count=1)
    ended = cli("doctor", *brokers)
    assert ended.status == 1
    assert "FAIL  stranded messages: other/x-servicebus-transfer/0 holds 5 messages" in ended.out


def test_the_doctor_fails_queues_that_were_deleted(cli, brokers) -> None:
    divert(brokers, 0, backlog_queue_count=2)
    asyncio.run(_deleted(brokers[3], f"{name_of(brokers[1])}/x-servicebus-transfer/0"))
    ended = cli("doctor", "--backlog-queues", "2", *brokers)
    assert ended.status == 1
    assert "FAIL  backlog queues: 1 queue of 2 missing" in ended.out


def test_the_doctor_warns_of_two_addresses_that_may_be_one_broker(cli, brokers) -> None:
    divert(brokers, 1)
    queue = f"{name_of(brokers[1])}/x-servicebus-transfer/0"
    warning = f"warn  settings: the primary holds backlog queue {queue}, too"
    assert warning not in cli("doctor", *brokers).out

    async def make() -> None:
        async with registry.transport(brokers[1]) as transport:
            await transport.admin.create(Entity(queue))

    asyncio.run(make())
    assert warning in cli("doctor", *brokers).out


def test_the_doctor_finds_what_was_diverted_before_the_brokers_exchanged_their_roles(cli, brokers) -> None:
    """The backlog looked empty, and the messages were on the broker that is the primary now."""
    option, primary, other_option, secondary = brokers
    exchanged = [option, secondary, other_option, primary]
    assert "stranded" not in cli("doctor", *brokers).out
    divert(exchanged, 3)
    out = cli("doctor", *brokers).out
    assert "warn  stranded messages: the primary holds 3 messages that were diverted to it while" in out
    assert cli("syphon", "--until-empty", *exchanged).status == 0
    assert "stranded" not in cli("doctor", *brokers).out


def test_the_doctor_leaves_queues_of_a_pair_with_exchanged_roles_alone(cli, brokers) -> None:
    """Its backlog queues have the names of this pair's, where both pairs were given one name."""
    option, primary, other_option, secondary = brokers
    named = [option, f"{primary}?name=shop", other_option, f"{secondary}?name=shop"]
    divert(named, 0)
    divert([option, named[3], other_option, named[1]], 2)
    out = cli("doctor", *named).out
    assert "delete the queues" not in out
    assert "warn  stranded messages: the primary holds 2 messages that were diverted to it while" in out


@pytest.mark.parametrize(("own", "other"), [("b/{index}", "b/{index}/more"), ("b/{index}/more", "b/{index}")])
def test_a_template_that_continues_another_processes_is_shown(cli, brokers, own: str, other: str) -> None:
    for template in (other, own):
        divert(brokers, 0, backlog_queue_count=1, backlog_name_template=f"{{primary}}/{template}")
    ended = cli("status", "--backlog-queues", "1", "--backlog-name-template", f"{{primary}}/{own}", *brokers)
    queues = ", ".join(f"{name_of(brokers[1])}/{each.format(index=0)}" for each in (own, other))
    assert f"backlog queues {queues}" in ended.out


def test_the_doctor_is_content_with_processes_that_agree(cli, brokers) -> None:
    assert "ok    processes of the pair: no process of this release has opened it so far" in cli("doctor", *brokers).out
    divert(brokers, 0)
    assert "ok    processes of the pair: those seen so far have these settings" in cli("doctor", *brokers).out


def test_another_primary_of_the_same_name_is_refused_by_every_command(cli, brokers) -> None:
    divert(brokers, 3)
    other = ["--primary", f"memory://elsewhere?name={name_of(brokers[1])}", *brokers[2:]]
    for command in (["syphon", "--until-empty"], ["backlog", "list"], ["backlog", "purge", "--yes"]):
        ended = cli(*command, *other)
        assert ended.status not in (0,), command
        assert "another primary" in ended.err, command
    assert "FAIL  processes of the pair: " in cli("doctor", *other).out
    assert cli("status", *other).status == 1
    assert json.loads(cli("backlog", "list", "--json", *brokers).out)["pending"] == 3


def test_adopting_lets_a_primary_that_moved_be_paired_again(cli, brokers) -> None:
    divert(brokers, 0)
    moved = ["--primary", f"memory://moved?name={name_of(brokers[1])}", *brokers[2:]]
    assert cli("syphon", "--until-empty", *moved).status != 0
    assert cli("backlog", "adopt", *moved).status == 0
    assert cli("syphon", "--until-empty", *moved).status == 0


def test_a_primary_at_two_addresses_is_one_where_its_identity_is_stated(cli, brokers) -> None:
    divert(brokers, 3, more="?name=orders&identity=orders-eu")
    tunnel = "memory://tunnel?name=orders"
    refused = cli("backlog", "list", "--primary", tunnel, *brokers[2:])
    assert refused.status != 0
    assert "?identity=" in refused.err
    listed = cli("backlog", "list", "--json", "--primary", f"{tunnel}&identity=orders-eu", *brokers[2:])
    assert json.loads(listed.out)["pending"] == 3


def test_the_doctor_says_how_to_state_an_identity(cli, brokers) -> None:
    divert(brokers, 0, more="?name=orders")
    ended = cli("doctor", "--primary", "memory://tunnel?name=orders", *brokers[2:])
    assert "FAIL  processes of the pair: " in ended.out
    assert "?identity=" in ended.out


def test_adopting_forgets_a_larger_number_of_queues(cli, brokers) -> None:
    divert(brokers, 0, backlog_queue_count=10)
    few = ["--backlog-queues", "3", *brokers]
    assert "10 in another process" in cli("doctor", *few).out
    assert cli("backlog", "adopt", *few).status == 0
    assert "10 in another process" not in cli("doctor", *few).out


def test_the_backlog_commands_look_at_queues_beyond_their_options(cli, brokers) -> None:
    divert(brokers, backlog_queue_count=10)
    few = ["--backlog-queues", "1", *brokers]
    listed = json.loads(cli("backlog", "list", "--json", *few).out)
    assert (listed["pending"], len(listed["queues"])) == (40, 10)
    assert len(cli("backlog", "peek", "-n", "100", "--json", *few).out.splitlines()) == 40
    assert json.loads(cli("backlog", "purge", "--yes", "--json", *few).out)["deleted"] == 40


def unreadable(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Let the secondary refuse one question: what it would have answered is unknown then."""

    async def refuse(self, *arguments):
        raise TransportError("no permission", FailureKind.REFUSED, FailureReason.UNAUTHORIZED)

    monkeypatch.setattr(type(MemoryTransport("memory://any").admin), method, refuse)


def test_until_empty_calls_the_backlog_empty_only_when_it_was_looked_for_everywhere(cli, brokers, monkeypatch) -> None:
    divert(brokers, 5)
    unreadable(monkeypatch, "list_entities")
    ended = cli("syphon", "--until-empty", *brokers)
    assert ended.status == 0
    assert "moved 5 messages; the queues of this pair are empty" in ended.err
    assert "backlog queues under other names of this primary were not looked for: no permission" in ended.err


def test_status_is_not_ok_when_it_can_not_be_seen_what_others_use(cli, brokers, monkeypatch) -> None:
    divert(brokers, 5)
    unreadable(monkeypatch, "peek")
    ended = cli("status", "--json", *brokers)
    seen = json.loads(ended.out)
    assert (ended.status, seen["ok"]) == (1, False)
    assert "can't be read" in seen["agreement"]["unread"]


@pytest.mark.parametrize("own", ["", "orders", "ord*"])
@pytest.mark.parametrize("others", ["orders", "ord*"])
def test_commands_know_lanes_by_the_settings_the_record_and_their_names(cli, brokers, monkeypatch, own, others) -> None:
    monkeypatch.setenv("PAIRMQ_CONTINUITY", own)
    monkeypatch.setenv("PAIRMQ_LANE_PATIENCE", "100ms")
    divert(brokers, 7, continuity=(others,))
    lane = f"{name_of(brokers[1])}/x-pairmq-lane/orders"
    listed = json.loads(cli("backlog", "list", "--json", *brokers).out)
    assert {each["queue"]: each["active"] for each in listed["queues"] if each["active"]} == {lane: 7}
    assert listed["pending"] == json.loads(cli("status", "--json", *brokers).out)["backlog"]["pending"] == 7
    ended = cli("syphon", "--until-empty", *brokers)
    assert (ended.status, "moved 7 messages; the backlog is empty" in ended.err) == (0, True)
    assert ("continuity is" in ended.err) == (own != others)


async def _sent(url: str, path: str, body: bytes) -> None:
    async with registry.transport(url) as transport:
        await transport.sender(Entity(path)).send(Message(body))


@pytest.mark.parametrize(
    "command",
    [["status"], *(["backlog", *words.split()] for words in ("list", "peek", "peek --dead-letter", "purge --yes"))],
    ids=" ".join,
)
def test_all_is_said_to_be_known_only_if_the_whole_record_can_be_read(cli, brokers, command) -> None:
    """It was "nothing there", or "ok": true, and status 0, where a queue of another process may have held messages."""
    divert(brokers, 0)
    assert cli(*command, *brokers).status == 0
    asyncio.run(_sent(brokers[3], f"{name_of(brokers[1])}/x-pairmq-record", b"of a later release"))
    ended = cli(*command, *brokers)
    assert (ended.status, "a message of the record is not JSON" in ended.err + ended.out) == (1, True)
    if command[:2] not in (["status"], ["backlog", "list"]):
        assert cli(*command, "--index", "0", *brokers).status == 0


def test_messages_are_requeued_and_what_may_be_left_is_said(cli, brokers) -> None:
    divert(brokers, 0)
    asyncio.run(_sent(brokers[3], f"{name_of(brokers[1])}/x-pairmq-record", b"of a later release"))
    ended = cli("backlog", "requeue", *brokers)
    assert (ended.status, "queues that only other processes use may be left out" in ended.err) == (1, True)
