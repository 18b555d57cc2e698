import contextlib
import json
import signal
import threading
from pathlib import Path

import pytest
from rich.console import Console

from pairmq.cli._backlog import Depths
from pairmq.cli._demo import DemoReport
from pairmq.cli._demo_run import Consumer
from pairmq.cli._demo_tally import Plan, Tally, Texts
from pairmq.cli._demo_view import DemoView, EntityScene, Scene, verdict_table
from pairmq.cli._output import stdout_console
from pairmq.model import Delivery, Entity, Message, Receipt, Route, SendRefused, SendUnknown
from pairmq.transport import Depth, QueueCounts

_QUICK = ["--rate", "400", "--failover-interval", "200ms", "--ping-interval", "100ms"]
_LONG = ["--messages", "3000", "--rate", "200"]
"""It goes on for many seconds after each of its moments, so that a signal that comes late finds it there."""


def _receipt(route: Route = Route.PRIMARY, *, maybe: bool = False, elapsed: float = 0.1) -> Receipt:
    return Receipt(route, Entity("q"), "id", elapsed=elapsed, maybe_duplicate=maybe)


def _tally(*results) -> Tally:
    tally = Tally("t", len(results))
    for index, result in enumerate(results):
        tally.started(index)
        tally.ended_as(index, result)
    return tally


# The account.


def test_an_accepted_message_that_never_came_is_lost() -> None:
    tally = _tally(_receipt(), _receipt(Route.BACKLOG))
    tally.arrived(0)
    verdict = tally.verdict()
    assert (verdict.delivered, verdict.lost, verdict.ok) == (1, 1, False)


def test_what_is_still_in_the_backlog_is_not_lost() -> None:
    tally = _tally(_receipt(Route.BACKLOG))
    verdict = tally.verdict(frozenset((0,)))
    assert (verdict.left_in_backlog, verdict.lost) == (1, 0)


def test_without_a_look_at_the_primary_nothing_is_called_lost() -> None:
    verdict = _tally(_receipt()).verdict(primary_read=False)
    assert (verdict.unverified, verdict.lost, verdict.ok) == (1, 0, False)


@pytest.mark.parametrize("announced", ["receipt", "syphon", "nobody"])
def test_a_second_copy_is_explained_only_if_it_was_announced(announced: str) -> None:
    tally = _tally(_receipt(maybe=announced == "receipt"))
    if announced == "syphon":
        tally.announced(tally.message_id(0))
    tally.arrived(0)
    tally.arrived(0)
    verdict = tally.verdict()
    assert (verdict.duplicates_explained, verdict.duplicates_unexplained) == (
        (0, 1) if announced == "nobody" else (1, 0)
    )
    assert verdict.ok is (announced != "nobody")


def test_a_refused_message_that_came_all_the_same_is_unexplained() -> None:
    tally = _tally(SendRefused("no"))
    tally.arrived(0)
    assert tally.verdict().duplicates_unexplained == 1


def test_an_unknown_message_may_have_come_or_not_but_the_demo_has_not_succeeded() -> None:
    tally = _tally(SendUnknown("?"), SendUnknown("?"))
    tally.arrived(0)
    verdict = tally.verdict()
    assert (verdict.unknown, verdict.lost, verdict.duplicates_unexplained, verdict.ok) == (2, 0, 0, False)


def test_the_longest_send_is_remembered() -> None:
    assert _tally(_receipt(elapsed=0.5), _receipt(elapsed=2.5), _receipt()).verdict().longest_send == 2.5


@pytest.mark.parametrize("message_id", [None, "", "demo-t-", "demo-t-5", "demo-t--1", "demo-t-x", "demo-u-0", "other"])
def test_messages_of_others_are_not_ours(message_id: str | None) -> None:
    assert Tally("t", 5).index(message_id) is None


def test_what_stays_in_the_backlog_is_no_success_though_nothing_is_lost() -> None:
    tally = Tally("t", 1)
    tally.started(0)
    tally.ended_as(0, Receipt(Route.BACKLOG, Entity("q"), "id", elapsed=0.1))
    verdict = tally.verdict(frozenset((0,)))
    assert (verdict.left_in_backlog, verdict.lost, verdict.sound, verdict.ok) == (1, 0, True, False)
    console = stdout_console()
    with console.capture() as printed:
        console.print(verdict_table(verdict, stopped=False))
    assert "not every message was moved to the primary" in printed.get()


def test_missing_is_what_is_accepted_and_in_neither_place() -> None:
    tally = Tally("t", 4)
    for index in range(3):
        tally.started(index)
        tally.ended_as(index, Receipt(Route.PRIMARY, Entity("q"), "id", elapsed=0.1))
    tally.arrived(0)
    assert [tally.missing(frozenset(waiting)) for waiting in ((), (1,), (1, 2))] == [2, 1, 0]


@pytest.mark.parametrize(
    ("copies", "completes", "expected"),
    [
        # (delivery count, sequence number) of each copy; whether completing is confirmed; copies, explained
        ([(1, "")], True, (1, 0)),
        ([(1, ""), (2, "")], False, (1, 0)),  # the same copy, as completing it had failed
        ([(1, ""), (2, "")], True, (2, 1)),  # completed, and the broker says that it delivers it again
        ([(1, ""), (1, "")], True, (2, 0)),
        ([(1, ""), (1, "")], False, (2, 0)),
        ([(1, "7"), (2, "7")], False, (1, 0)),
        ([(1, "7"), (2, "8")], True, (2, 0)),  # a broker with numbers can tell that this is another copy
    ],
)
async def test_the_consumer_distinguishes_the_same_copy_from_another_one(copies, completes: bool, expected) -> None:
    class Receiver:
        async def complete_batch(self, deliveries):
            return [None if completes else OSError()] * len(deliveries)

    tally = Tally("t", 1)
    tally.started(0)
    entity = Entity("q")
    scene = Scene("p", "s", {entity: EntityScene("q")}, tally, total=1, queues=1, pace=1.0)
    consumer = Consumer(None, (entity,), tally, scene)
    for count, number in copies:
        message = Message(b"", message_id=tally.message_id(0))
        delivery = Delivery(message, None, delivery_count=count, sequence_number=number)
        await consumer._take(Receiver(), entity, [delivery])
    tally.ended_as(0, Receipt(Route.PRIMARY, entity, "id", elapsed=0.1))
    verdict = tally.verdict()
    assert (scene.entities[entity].delivered, verdict.duplicates_explained) == expected


# The plan.


def test_the_outage_is_in_mid_stream_and_outlasts_the_failover_interval() -> None:
    plan = Plan(2000, None, 1.0)
    assert 0 < plan.outage_at < plan.outage_ends_at < plan.sending
    assert plan.outage_ends_at - plan.outage_at > plan.failover_interval + 1
    assert plan.due_at(0) > 0
    assert plan.due_at(1999) < plan.sending


def test_a_primary_that_takes_long_to_start_draws_the_sending_out() -> None:
    quick, slow = Plan(2000, None, 1.0), Plan(2000, None, 1.0, restart=6.0)
    assert slow.sending == quick.sending + 6
    assert slow.outage_at < slow.outage_ends_at
    assert slow.outage_ends_at + 6 < slow.sending  # back in mid-stream


# The picture: only what is of less interest is dim.


@pytest.fixture
def lines() -> list[list[tuple[str, bool]]]:
    """What is drawn of a scene in an outage, a line each: texts, and whether they are dim."""
    scene = Scene(
        "memory://a",
        "memory://b",
        {Entity("orders"): EntityScene("orders")},
        Tally("run", 10),
        total=10,
        queues=4,
        pace=5.0,
    )
    scene.primary_is(down=True, text="the primary is stopped")
    console = Console(width=100, height=31, color_system="truecolor", force_terminal=True)
    drawn = console.render_lines(DemoView(scene), pad=False)
    return [[(part.text, bool(part.style and part.style.dim)) for part in line] for line in drawn]


def test_an_event_is_not_as_dim_as_its_time(lines: list[list[tuple[str, bool]]]) -> None:
    (line,) = [line for line in lines if any("is stopped" in text for text, _ in line)]
    assert {dim for text, dim in line if "is stopped" in text} == {False}
    assert {dim for text, dim in line if "0.0 s" in text} == {True}


def test_how_much_is_drained_can_be_seen_without_colours() -> None:
    scene = Scene("memory://a", "memory://b", {}, Tally("run", 1), total=1, queues=1, pace=5.0)
    counts = QueueCounts(active=30)
    scene.saw_depths(Depths((Depth(Entity("a/0"), counts),)))
    scene.moved = 10
    console = Console(width=100, height=31, color_system=None)
    drawn = "".join(part.text for line in console.render_lines(DemoView(scene)) for part in line)
    (line,) = [line for line in drawn.split("│") if "in backlog" in line]
    assert 2 * line.count("━") < line.count("─") < 4 * line.count("━")


def test_the_title_of_a_frame_has_not_the_frame_s_colour() -> None:
    scene = Scene("memory://a", "memory://b", {}, Tally("run", 1), total=1, queues=4, pace=5.0)
    console = Console(width=100, height=31, color_system="truecolor", force_terminal=True)
    drawn = [part for line in console.render_lines(DemoView(scene)) for part in line]
    colours = {part.style.color.name for part in drawn if "events" in part.text and part.style and part.style.color}
    assert colours == {"default"}


def test_lines_of_a_file_are_split_at_line_feeds_only(tmp_path: Path) -> None:
    file = tmp_path / "in"
    file.write_bytes(b"a\r\n\n\xff\x00\x0bz")
    with Texts(str(file), 0) as texts:
        assert list(texts) == [b"a\r", b"", b"\xff\x00\x0bz"]
        assert len(texts) == 3


# The command.


def test_the_demo_loses_nothing_and_reports_it(cli) -> None:
    ended = cli("demo", "--messages", "800", *_QUICK, "--primary", "memory://d1", "--secondary", "memory://d2")
    assert ended.status == 0, ended
    assert "the primary is stopped" in ended.out
    assert "failing → failed-over" in ended.out
    assert "the primary is back" in ended.out
    assert "nothing was lost" in ended.out
    assert "longest accepted send" in ended.out
    assert "\x1b" not in ended.out
    assert ended.err == ""


def test_json_is_one_object_and_nothing_else(cli, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_bytes(b"line\n" * 300)
    arguments = ["--input", str(file), *_QUICK, "--seed", "7", "--primary", "memory://d3", "--secondary", "memory://d4"]
    ended = cli("demo", "--json", "--entity", "one", *arguments)
    assert ended.status == 0, ended
    verdict = json.loads(ended.out)
    assert verdict["sent"] == verdict["delivered"] == 300
    assert verdict["accepted_primary"] + verdict["accepted_backlog"] == 300
    assert verdict["accepted_backlog"] > 0
    assert (verdict["lost"], verdict["duplicates_unexplained"], verdict["ok"]) == (0, 0, True)
    assert verdict["outage_staged"] is True
    assert 0 < verdict["longest_send"] < verdict["elapsed"]


def test_with_continuity_messages_are_delivered_in_the_outage(cli) -> None:
    arguments = ["--messages", "300", *_QUICK, "--primary", "memory://d7", "--secondary", "memory://d8"]
    ended = cli("demo", "--continuity", "--json", *arguments)
    assert ended.status == 0, ended
    assert 0 < json.loads(ended.out)["delivered_by_secondary"] <= json.loads(ended.out)["accepted_backlog"]
    assert "orders: the primary can't be read; consumers go on with the other broker" in ended.err


def test_an_outage_lasts_until_it_was_noticed(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the process was held up: here its whole time is over at once."""
    monkeypatch.setattr(Plan, "outage_ends_at", Plan.outage_at)
    arguments = ["--messages", "300", *_QUICK, "--primary", "memory://d5", "--secondary", "memory://d6"]
    ended = cli("demo", "--json", *arguments)
    assert ended.status == 0, ended
    assert json.loads(ended.out)["accepted_backlog"] > 0
    assert "failing → failed-over" in ended.err


@pytest.mark.real_server
def test_with_real_brokers_no_outage_is_staged_and_nothing_is_left_behind(cli, servers) -> None:
    first, second = servers
    ended = cli("demo", "-n", "100", "--rate", "200", "--primary", first.url, "--secondary", second.url, "--json")
    assert ended.status == 0, ended
    assert "can't be stopped by the demo" in ended.err
    assert json.loads(ended.out)["outage_staged"] is False
    assert cli("entity", "list", "--primary", first.url).out == ""
    assert cli("entity", "list", "--primary", second.url).out == ""


@pytest.mark.real_server
def test_a_queue_that_holds_messages_of_others_is_left_alone(cli, servers) -> None:
    first, second = servers
    pair = ["--primary", first.url, "--secondary", second.url]
    assert cli("send", "-e", "orders", "--create", *pair, stdin=b"mine\n").status == 0
    ended = cli("demo", "-e", "orders", *pair)
    assert ended.status == 1
    assert "holds messages" in ended.err
    assert cli("receive", "-e", "orders", "--max", "1", "--primary", first.url).out == "mine\n"


@pytest.mark.real_server  # programs, which run through an outage
@pytest.mark.parametrize("moment", ["sent", "stopped", "failed-over"])
def test_ctrl_c_ends_it_with_the_verdict_so_far(program, moment: str) -> None:
    demo = program("demo", *_LONG)
    demo.wait_for(moment.encode())
    demo.signal(signal.SIGINT)
    ended = demo.end()
    assert ended.status == 130
    assert "stopped early" in ended.out
    assert "nothing was lost" in ended.out
    assert "Traceback" not in ended.err


def test_demo_of_the_outbox_finds_a_message_for_each_row_and_for_nothing_else(cli) -> None:
    ended = cli("demo", "--outbox", "--messages", "30", "--rate", "200", "--json", "--ping-interval", "100ms")
    assert ended.status == 0, ended.err
    seen = json.loads(ended.out)
    assert (seen["rows"], seen["messages"], seen["lost"], seen["invented"]) == (27, 27, 0, 0)
    assert [line.partition(": ")[2].partition(" is ")[0] for line in ended.err.splitlines() if " of 30: " in line] == [
        "the broker",
        "the program",
        "the broker",
    ]
    for other in (("--entity", "orders"), ("--continuity",), ("--seed", "0")):
        refused = cli("demo", "--outbox", *other)
        assert (refused.status, "--outbox takes --real" in refused.err) == (2, True)


def test_spark_rehearses_the_report_until_the_demo_is_over(monkeypatch, tmp_path) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("pairmq.pipeline.session.check_java", lambda: 17)
    monkeypatch.setattr("pairmq.pipeline.session.is_given", lambda: False)
    monkeypatch.setattr("pairmq.pipeline.session.session", lambda **_: contextlib.nullcontext("session"))
    began, ended = threading.Event(), threading.Event()

    def rehearse(spark, enough):
        began.set()
        assert spark == "session"
        assert enough.wait(60)
        ended.set()

    monkeypatch.setattr("pairmq.pipeline.batch.rehearse", rehearse)
    demo = DemoReport(None, aside=False, open=False)
    demo.prepare(100)
    assert began.wait(60)
    assert not ended.is_set()
    assert demo.make(130) == 130  # after Ctrl-C there is no report
    assert ended.wait(60)
    assert [*tmp_path.iterdir()] == []


def test_a_demo_keeps_its_journal_where_there_is_none_yet(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("pairmq.pipeline.session.check_java", lambda: 17)
    for folder in (tmp_path, tmp_path / "new"):
        assert DemoReport(str(folder), aside=False, open=False).journal == str(folder)
