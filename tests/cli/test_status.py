import asyncio
import importlib.util
import io
import json
import re
import signal
import time
from dataclasses import replace

import pytest
from rich.console import Console

from pairmq import PairOptions
from pairmq.cli._backlog import Depths, OutboxLook, see_outbox
from pairmq.cli._status import BrokerLook, Look, _watched
from pairmq.core.record import Configuration
from pairmq.memory import CAPABILITIES as ALL
from pairmq.memory import MemoryTransport
from pairmq.model import Entity, FailureKind, FailureReason, Message, Source, TransportError
from pairmq.pair import Agreement
from pairmq.plugins import registry
from pairmq.testing.servers import free_port
from pairmq.transport import ConfirmRisk, Depth, QueueCounts
from pairmq_postgres.testing import PostgresServer
from pairmq_rabbitmq.plugin import CAPABILITIES
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_redis.testing import RedisServer


def test_it_only_looks_and_shows_missing_queues_as_missing(cli, brokers) -> None:
    ended = cli("status", *brokers)
    assert ended.status == 0
    assert ended.out.count("missing") == 10
    assert cli("entity", "list", "--primary", brokers[3]).out == ""


def test_queues_are_counted_and_entities_probed(cli, brokers) -> None:
    assert cli("send", "-e", "orders", "--create", *brokers, stdin=b"1\n2\n").status == 0
    seen = json.loads(cli("status", "-e", "orders", "--json", *brokers).out)
    assert seen["ok"] is True
    assert seen["primary"]["reachable"] is True
    assert (seen["entities"][0]["accepts"], seen["entities"][0]["active"]) == (True, 2)
    assert [queue["exists"] for queue in seen["backlog"]["queues"]] == [True] * 10


def test_an_entity_that_takes_nothing_fails_it(cli, brokers) -> None:
    ended = cli("status", "-e", "nowhere", *brokers)
    assert ended.status == 1
    assert "no: " in ended.out


def test_a_broker_that_is_unavailable_is_shown_as_that(cli, primary) -> None:
    ended = cli("status", *primary, "--secondary", f"redis://127.0.0.1:{free_port()}/0")
    assert ended.status == 1
    assert "none: " in ended.out
    assert ended.out.count("\n") < 30


def test_the_node_of_a_cluster_is_shown(cli, brokers, monkeypatch) -> None:
    monkeypatch.setattr(MemoryTransport, "node", "b.example:5672")
    assert cli("status", *brokers).out.count("node b.example:5672") == 2
    assert json.loads(cli("status", "--json", *brokers).out)["primary"]["node"] == "b.example:5672"
    assert ", node b.example:5672" in cli("doctor", *brokers).out


def test_many_queues_are_shortened(cli, brokers) -> None:
    assert cli("send", "-e", "q", "--create", "--backlog-queues", "50", *brokers, stdin=b"").status == 0
    ended = cli("backlog", "list", "--backlog-queues", "51", *brokers)
    assert ended.status == 0
    assert "50 queues not shown: empty" in ended.out
    assert ended.out.count("missing") == 1


@pytest.mark.real_server
def test_watching_ends_with_a_signal(program, servers) -> None:
    first, second = servers
    pair = ["--primary", first.url, "--secondary", second.url]
    watcher = program("status", "--watch", "--interval", "100ms", "--json", *pair)
    watcher.wait_for(b'"ok": true')
    first.pause()
    watcher.signal(signal.SIGINT)
    ended = watcher.end()
    assert ended.status == 130
    assert all(json.loads(line)["ok"] for line in ended.out.splitlines())
    assert "Traceback" not in ended.err


def test_ping_says_whether_an_entity_takes_messages(cli, primary) -> None:
    assert cli("entity", "create", "orders", *primary).status == 0
    ended = cli("ping", "-e", "orders", "--count", "2", "--interval", "10ms", *primary)
    assert (ended.status, ended.out.count("orders: accepts messages")) == (0, 2)
    failed = cli("ping", "-e", "nowhere", "--json", *primary)
    assert failed.status == 1
    assert json.loads(failed.out)["ok"] is False
    assert cli("receive", "-e", "orders", "--idle", "50ms", *primary).out == ""


@pytest.mark.real_server
def test_a_command_that_waits_is_ended_by_a_signal(program, servers) -> None:
    first, _ = servers
    pings = program("ping", "-e", "q", "--count", "100", "--primary", first.url)
    pings.wait_for(b"q: fails")
    pings.signal(signal.SIGTERM)
    assert pings.end().status == 143


def test_entities_are_made_listed_and_deleted(cli, primary) -> None:
    assert cli("entity", "create", "a/b", *primary).out == "a/b: made\n"
    assert cli("entity", "create", "a/b", *primary).out == "a/b: exists already, left unchanged\n"
    assert cli("entity", "create", "news", "--kind", "topic", *primary).status == 0
    assert cli("entity", "list", *primary).out == "a/b\ntopic:news\n"
    assert cli("entity", "list", "--kind", "queue", *primary).out == "a/b\n"
    assert json.loads(cli("entity", "list", "--prefix", "n", "--json", *primary).out) == [
        {"path": "news", "kind": "topic"}
    ]
    assert cli("entity", "delete", "a/b", *primary).status == 2
    assert cli("entity", "delete", "a/b", "--yes", *primary).status == 0
    assert cli("entity", "delete", "a/b", "--yes", *primary).status == 1
    assert cli("entity", "create", "q", "-s", "x", *primary).status == 2


def test_json_has_what_was_made_and_deleted(cli, primary) -> None:
    made = cli("entity", "create", "a/b", "--json", *primary)
    assert json.loads(made.out) == {"entity": "a/b", "created": True}
    deleted = cli("entity", "delete", "a/b", "--yes", "--json", *primary)
    assert json.loads(deleted.out) == {"entity": "a/b", "deleted": True}


def test_the_doctor_is_content_with_a_sound_pair(cli, brokers) -> None:
    cli("send", "-e", "q", "--create", *brokers, stdin=b"")
    ended = cli("doctor", *brokers)
    assert ended.status == 0
    assert "backlog queues: 10 of 10 as they should be" in ended.out
    assert "FAIL" not in ended.out


def test_the_doctor_calls_no_queue_sound_when_it_could_not_look_at_all_of_it(cli, brokers, monkeypatch) -> None:
    cli("send", "-e", "q", "--create", *brokers, stdin=b"")

    async def unseen(self, queue=None):
        return () if queue is None else (ConfirmRisk("policies were not looked at", "give management="),)

    monkeypatch.setattr(type(MemoryTransport("memory://any").admin), "confirm_risks", unseen)
    monkeypatch.setattr(MemoryTransport, "capabilities", replace(ALL, durable=True))
    ended = cli("doctor", *brokers)
    assert ended.status == 0
    assert "warn  10 backlog queues: policies were not looked at\n      → give management=" in ended.out
    assert "as they should be" not in ended.out


def test_the_doctor_says_what_the_pair_can_not_carry(cli, brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = json.loads(cli("doctor", "--json", *brokers).out)["findings"]
    [carried] = [each for each in findings if each["subject"] == "pair carries"]
    assert (carried["grade"], carried["text"]) == ("ok", "messages with a time-to-live and with a schedule")
    less = replace(ALL, time_to_live=False, scheduling=False)
    monkeypatch.setattr(MemoryTransport, "capabilities", less)
    findings = json.loads(cli("doctor", "--json", *brokers).out)["findings"]
    [carried] = [each for each in findings if each["subject"] == "pair carries"]
    assert (carried["grade"], carried["text"]) == (
        "warn",
        "no messages with a time-to-live or a schedule: the primary does not keep it",
    )
    assert carried["advice"] == "they are refused in every state: send them without it"


def test_the_doctor_makes_nothing_and_names_what_is_missing(cli, brokers) -> None:
    findings = json.loads(cli("doctor", "--json", *brokers).out)["findings"]
    assert any(finding["grade"] == "warn" and "10 queues of 10 missing" in finding["text"] for finding in findings)
    assert cli("entity", "list", "--primary", brokers[3]).out == ""


def forbid(monkeypatch: pytest.MonkeyPatch, broker: str, what: str, kind: FailureKind = FailureKind.REFUSED) -> None:
    """Have a broker in memory refuse one operation to its users."""
    transport = MemoryTransport(broker)
    made = {
        "check": transport.admin,
        "create": transport.admin,
        "probe": transport.admin,
        "positions": transport.admin,
        "send": transport.sender(Entity("q")),
        "receive": transport.receiver(Source(Entity("q"))),
        "complete": transport.receiver(Source(Entity("q"))),
    }[what]

    async def refuse(self, *arguments):
        raise TransportError("not for this user", kind, FailureReason.UNAUTHORIZED)

    monkeypatch.setattr(type(made), what, refuse)


@pytest.mark.parametrize(
    ("what", "told", "advice"),
    [
        (
            "create",
            "sends can't be diverted to 10 missing queues: this user can't create queues",
            "create queues named",
        ),
        ("send", "sends can't be diverted: ", "send to queues named"),
        ("receive", "a syphon with this user can't move the backlog back: ", "receive and settle messages of queues"),
        ("complete", "a syphon with this user can't move the backlog back: ", "receive and settle messages of queues"),
        (
            "positions",
            "sends whose order is kept would always be diverted: ",
            "see how far messages are settled of queues",
        ),
    ],
)
def test_the_doctor_fails_a_user_who_may_not_do_what_an_outage_takes(
    cli, brokers, monkeypatch: pytest.MonkeyPatch, what: str, told: str, advice: str
) -> None:
    forbid(monkeypatch, brokers[3], what)
    monkeypatch.setenv("PAIRMQ_ORDERING", "session")
    ended = cli("doctor", "--json", *brokers)
    assert ended.status == 1
    [found] = [each for each in json.loads(ended.out)["findings"] if each["subject"] == "rights at secondary"]
    assert (found["grade"], found["text"].startswith(told), advice in found["advice"]) == ("fail", True, True)
    assert "not for this user" in found["text"]
    assert cli("entity", "list", "--primary", brokers[3]).out == ""


@pytest.mark.parametrize("what", ["create", "send"])
def test_the_doctor_blames_no_right_where_the_secondary_takes_no_messages(
    cli, brokers, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    forbid(monkeypatch, brokers[3], what, FailureKind.UNAVAILABLE)
    findings = {each["subject"]: each for each in json.loads(cli("doctor", "--json", *brokers).out)["findings"]}
    assert "not for this user" in findings["secondary takes messages"]["text"]
    assert "rights at secondary" not in findings


@pytest.mark.parametrize(("what", "status"), [("create", 0), ("probe", 1), ("receive", 1)])
def test_the_doctor_tries_an_existing_queue_where_a_user_may_not_create_one(
    cli, brokers, monkeypatch: pytest.MonkeyPatch, what: str, status: int
) -> None:
    cli("send", "-e", "q", "--create", *brokers, stdin=b"")
    queue = Entity(f"{brokers[1].removeprefix('memory://')}/x-servicebus-transfer/0")
    asyncio.run(MemoryTransport(brokers[3]).sender(queue).send(Message(b"kept", message_id="1")))
    forbid(monkeypatch, brokers[3], "create")
    forbid(monkeypatch, brokers[3], what)
    ended = cli("doctor", "--json", *brokers)
    found = [each["grade"] for each in json.loads(ended.out)["findings"] if each["subject"] == "rights at secondary"]
    assert (ended.status, found) == (status, ["warn", "fail"][: 1 + status])
    monkeypatch.undo()
    counts = asyncio.run(MemoryTransport(brokers[3]).admin.counts(Source(queue)))
    assert (counts.active, counts.locked) == (1, 0)


def test_a_hold_that_may_be_forgotten_is_named_by_doctor_and_send(cli, brokers) -> None:
    cli("send", "-e", "q", "--create", *brokers, stdin=b"")
    assert "held entities" not in cli("doctor", *brokers).out
    assert cli("switch", "hold", "q", "--timeout", "0", *brokers).status == 0
    assert (
        "    as an operator holds q: 'pairmq switch status' shows who"
        in cli("send", "-e", "q", *brokers, stdin=b"1").err
    )
    ended = cli("doctor", *brokers)
    assert ended.status == 0
    assert "warn  held entities: q has been held for " in ended.out
    assert "`pairmq switch resume q` ends that" in ended.out
    cli("switch", "resume", "q", "--timeout", "0", *brokers)
    assert "held entities" not in cli("doctor", *brokers).out


def test_the_doctor_does_not_start_a_broker_that_refuses_its_user(cli, monkeypatch, brokers) -> None:
    forbid(monkeypatch, brokers[3], "check")
    ended = cli("doctor", *brokers)
    assert ended.status == 1
    assert "not for this user\n      → correct user and password in its URL, or what this user may do" in ended.out


@pytest.mark.parametrize("command", [["send", "-e", "q"], ["syphon"]], ids=" ".join)
def test_a_secondary_that_refuses_the_backlog_queues_is_named(cli, monkeypatch, brokers, command) -> None:
    forbid(monkeypatch, brokers[3], "create")
    ended = cli(*command, *brokers)
    error = ended.err.splitlines()[-1]
    assert (ended.status, error.startswith(f"error: {brokers[3]}: ")) == (1, True), ended.err
    assert error.endswith("not for this user")


@pytest.mark.real_server
def test_the_doctor_fails_a_redis_user_who_may_not_read(cli, primary) -> None:
    with RedisServer() as server:
        server.command("ACL", "SETUSER", "writer", "on", ">secret", "~*", "&*", "+@all", "-lrange", "-zrange", "-zadd")
        ended = cli("doctor", *primary, "--secondary", server.url.replace("//", "//writer:secret@"))
        assert ended.status == 1
        assert "FAIL  rights at secondary: a syphon with this user can't move the backlog back" in ended.out
        assert server.command("DBSIZE") == ":0"


@pytest.mark.real_server
def test_the_doctor_fails_a_postgresql_role_that_may_not_insert(cli, primary) -> None:
    with PostgresServer() as server:
        server.query("REVOKE INSERT ON pairmq.message FROM messenger")
        ended = cli("doctor", *primary, "--secondary", server.url)
        assert ended.status == 1
        assert "FAIL  rights at secondary: sends can't be diverted" in ended.out
        assert server.query("SELECT count(*) FROM pairmq.entity") == [(0,)]


@pytest.mark.real_server
def test_the_doctor_fails_a_rabbitmq_user_who_may_not_configure(cli, primary) -> None:
    with RabbitServer() as server:
        server.add_user("writer", "secret", configure="")
        ended = cli("doctor", *primary, "--secondary", server.url_for("writer", "secret"))
        assert ended.status == 1
        assert "FAIL  rights at secondary: sends can't be diverted to 10 missing queues" in ended.out
        assert server.queues() == {}


def test_the_doctor_says_what_to_do_about_a_broker_that_is_unavailable(cli, primary) -> None:
    ended = cli("doctor", *primary, "--secondary", f"redis://127.0.0.1:{free_port()}/0")
    assert ended.status == 1
    assert "FAIL  secondary: " in ended.out
    assert "start the broker, or correct its URL" in ended.out


def test_the_doctor_names_a_variable_that_is_not_read(cli, brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAILOVER_INTERVALL", "PRIMARY_URL", "SERVICEBUS_KEY", "DASHBOARD_TOKEN", "PING_TIMEOUT"):
        monkeypatch.setenv(f"PAIRMQ_{name}", "5")
    findings = json.loads(cli("doctor", "--json", *brokers).out)["findings"]
    told = [(each["text"], each["advice"]) for each in findings if each["subject"] == "environment"]
    assert told == [
        ("unknown variable PAIRMQ_FAILOVER_INTERVALL", "did you mean PAIRMQ_FAILOVER_INTERVAL?"),
        ("unknown variable PAIRMQ_PRIMARY_URL", "did you mean PAIRMQ_PRIMARY?"),
    ]


def test_the_doctor_sees_queues_that_differ_and_options_that_work_against_each_other(cli, brokers) -> None:
    queue = f"{brokers[1].removeprefix('memory://')}/x-servicebus-transfer/0"
    assert cli("entity", "create", queue, "--primary", brokers[3]).status == 0
    ended = cli("doctor", "--attempt-timeout", "60s", *brokers)
    assert ended.status == 0
    assert "max_size_megabytes" in ended.out
    assert "lower attempt_timeout" in ended.out


@pytest.mark.parametrize("command", [["status"], ["backlog", "list"]], ids=" ".join)
def test_a_depth_that_is_not_known_is_no_number(cli, primary, command: list[str]) -> None:
    secondary = f"redis://127.0.0.1:{free_port()}/0"
    ended = cli(*command, *primary, "--secondary", secondary)
    assert ended.status == 1
    assert ["all", "?", "?", "?", "?"] in [line.split() for line in ended.out.splitlines()]
    seen = json.loads(cli(*command, "--json", *primary, "--secondary", secondary).out)
    backlog = seen.get("backlog", seen)
    assert (backlog["pending"], backlog["dead_letter"]) == (None, None)


@pytest.mark.real_server
def test_a_broker_that_hangs_is_named_after_the_table(cli, servers) -> None:
    first, second = servers
    second.pause()
    pair = ["--primary", first.url, "--secondary", second.url, "--attempt-timeout", "300ms"]
    ended = cli("backlog", "list", *pair)
    assert ended.status == 1
    assert len(ended.error_lines) == 1
    assert second.url.rpartition("/")[0] in ended.error_lines[0]


def test_the_sum_comes_before_the_queues(cli, brokers) -> None:
    lines = [line.split()[:1] for line in cli("status", *brokers).out.splitlines()]
    assert lines.index(["all"]) < lines.index(["0"])


@pytest.mark.real_server
def test_a_ping_takes_no_longer_than_an_attempt_may(cli, servers) -> None:
    first, _ = servers
    assert cli("entity", "create", "q", "--primary", first.url).status == 0
    first.pause()
    ended = cli("ping", "-e", "q", "--attempt-timeout", "300ms", "--json", "--primary", first.url)
    assert ended.status == 1
    assert "no answer within 0.3 s" in json.loads(ended.out)["error"]


def test_the_doctor_fails_an_ordering_that_the_secondary_cannot_keep(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAIRMQ_ORDERING", "session")
    limited = replace(CAPABILITIES, ordered_consumer=False)
    monkeypatch.setattr(type(registry.transport("amqp://h/")), "capabilities", property(lambda _: limited))
    ended = cli("doctor", "--primary", "memory://a", "--secondary", "amqp://127.0.0.1:1/", "--attempt-timeout", "300ms")
    assert ended.status == 1
    assert "FAIL  settings: ordering='session' can't be kept with amqp://127.0.0.1:1/" in ended.out


def test_the_doctor_says_whether_spark_could_run_the_pipeline(cli, brokers, tmp_path, monkeypatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert re.search(r"^ok    pipeline: PySpark 4\.\S+ on Java 21$", cli("doctor", *brokers).out, re.MULTILINE)


def test_the_doctor_only_warns_of_a_java_that_spark_can_not_use(cli, brokers, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    cli("send", "-e", "q", "--create", *brokers, stdin=b"")
    ended = cli("doctor", *brokers)
    assert ended.status == 0
    assert "warn  pipeline: Spark needs Java: JAVA_HOME is" in ended.out


def test_the_doctor_is_content_without_pyspark(cli, brokers, monkeypatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "pyspark" else found(name, *more)
    )
    assert "ok    pipeline: PySpark is not installed" in cli("doctor", *brokers).out


@pytest.mark.parametrize(
    ("mode", "login", "warned"),
    [(0o644, ":geheim@", True), (0o604, ":geheim@", True), (0o640, ":geheim@", False), (0o644, "", False)],
)
def test_the_doctor_warns_of_passwords_in_a_file_that_all_users_can_read(cli, tmp_path, mode, login, warned) -> None:
    file = tmp_path / "pair.toml"
    port = free_port()
    file.write_text(f'[pair]\nprimary = "redis://{login}127.0.0.1:{port}/0"\nsecondary = "memory://west"\n')
    file.chmod(mode)
    ended = cli("doctor", "--config", str(file), "--attempt-timeout", "1s")
    assert ("warn  settings file: every user of this machine can read" in ended.out) is warned
    assert "geheim" not in ended.out + ended.err


@pytest.mark.real_server
def test_the_doctor_warns_of_a_secondary_that_may_lose_what_it_confirmed(cli, primary) -> None:
    options = ("--appendonly", "no", "--maxmemory-policy", "allkeys-lru")
    with RedisServer(options=options) as server:
        ended = cli("doctor", *primary, "--secondary", server.url)
    assert ended.status == 0
    assert "warn  secondary keeps: appendonly is no: a server that ends loses everything" in ended.out
    assert "warn  secondary keeps: maxmemory-policy is allkeys-lru" in ended.out


AGREED = Agreement(Configuration("east", ("east",), PairOptions().backlog_name_template, 40, "none"))


def look_at(counts: dict[int, QueueCounts | None]) -> Look:
    """A look at a pair of well brokers with 40 backlog queues."""
    queues = (
        Depth(Entity(f"east/x-servicebus-transfer/{index}"), counts.get(index, QueueCounts())) for index in range(40)
    )
    well = BrokerLook("redis://10.0.0.1:6379/0", 0.001, None)
    return Look(well, well, (), Depths(tuple(queues)), AGREED)


def test_a_watched_status_has_a_clock_and_the_warnings_before_what_a_low_screen_cuts_off() -> None:
    console = Console(width=80, file=io.StringIO())
    console.print(_watched(look_at({index: QueueCounts(active=100 + index) for index in range(30)} | {3: None})))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert re.fullmatch(r"at [0-9]{2}:[0-9]{2}:[0-9]{2}", lines[0].strip())
    numbered = [match[1] for line in lines if (match := re.match(r" +([0-9]+) +(?:missing|[0-9]+) ", line))]
    assert numbered == [str(index) for index in range(30)]
    warned = next(number for number, line in enumerate(lines) if "1 backlog queue to be created" in line)
    assert warned < next(number for number, line in enumerate(lines) if line.split()[:1] == ["all"])


def test_missing_queues_are_explained(cli, brokers) -> None:
    ended = cli("status", *brokers)
    assert ended.status == 0
    words = " ".join(ended.out.split())
    assert "10 queues to be created: a program that opens the pair creates them; if programs of the pair are" in words
    assert "the secondary was emptied or replaced" in cli("doctor", *brokers).out


def test_all_is_well_only_if_the_outbox_was_asked() -> None:
    """One that could not be counted was exit status 0, and "ok": true."""
    seen = look_at({})
    queue = Entity("primary/x-pairmq-outbox")
    assert replace(seen, outbox=OutboxLook(queue)).ok
    assert not replace(seen, outbox=OutboxLook(queue, error="no answer")).ok


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0004, "0 ms"),
        (0.87, "870 ms"),
        (4.2, "4.2 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_an_age_is_written_for_people(seconds: float, text: str) -> None:
    seen = OutboxLook(Entity("primary/x-pairmq-outbox"), QueueCounts(active=28_800), seconds)
    assert str(seen) == f"28 800 messages to be moved, the oldest for {text}"


async def test_outbox_shows_how_it_grows_between_two_looks(tmp_path) -> None:
    queue = Entity("primary/x-pairmq-outbox")
    async with registry.transport(f"sqlite://{tmp_path}/s.db") as secondary:
        await secondary.admin.create(queue)
        first = await see_outbox(secondary, queue, 30)
        await secondary.sender(queue).send_batch([Message(b"1"), Message(b"2")])
        assert first is not None
        seen = await see_outbox(secondary, queue, 30, replace(first, seen_at=time.monotonic() - 4))
    assert re.fullmatch(r"2 messages to be moved, the oldest for \S+ (ms|s), \+0\.\d a second", str(seen))
