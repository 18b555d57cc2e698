"""Writing as Spark's tasks do it: a task ends well when each of its rows has a receipt, and only then."""

from __future__ import annotations

import asyncio
import pickle
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from pairmq.model import Entity, PairMQError, Receipt, Route, SendRefused, SendUnknown
from pairmq.pair import PairSender
from pairmq_redis.testing import RedisServer
from spark_brokers import SOURCE, Brokers, ids
from watching import watching

PLAIN = t.StructType().add("message_id", "string").add("body", "string")
PROPERTIES = t.StructField("application_properties", t.MapType(t.StringType(), t.StringType()))
WITH_PROPERTIES = t.StructType([*PLAIN.fields, PROPERTIES])


@pytest.fixture(scope="module")
def servers():
    with RedisServer(appendfsync="no") as east, RedisServer(appendfsync="no") as west:
        yield east, west


@pytest.fixture
def brokers(servers, tmp_path):
    for server in servers:
        server.start()  # a test may have killed it
        server.flush()
    made = Brokers(servers[0].url, servers[1].url, tmp_path)
    made.make()
    return made


def batch(*names: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"message_id": pa.array(names, pa.string()), "body": ["x"] * len(names)})


def numbered(start: int, end: int) -> pa.RecordBatch:
    return batch(*(f"m{number}" for number in range(start, end)))


def write(brokers: Brokers, batches: Iterator[pa.RecordBatch], schema: t.StructType = PLAIN, **options: str):
    given = {"config": str(brokers.config), "entity": "orders", **options}
    writer = pickle.loads(pickle.dumps(SOURCE(given).writer(schema, False)))
    return writer.write(batches)


@pytest.mark.real_server
def test_a_task_says_how_many_rows_went_where(brokers):
    sent = write(brokers, iter([numbered(0, 700), numbered(700, 1500)]))
    assert (sent.primary, sent.backlog, sent.maybe_duplicate) == (1500, 0, 0)
    assert brokers.take() == Counter(ids(1500))


@pytest.mark.real_server
def test_a_task_without_rows_ends_well(brokers):
    assert write(brokers, iter([])).primary == 0


@pytest.mark.real_server
def test_what_a_task_says_can_be_pickled(brokers):
    sent = write(brokers, iter([numbered(0, 3)]))
    assert pickle.loads(pickle.dumps(sent)) == sent


@pytest.mark.real_server
def test_rows_are_diverted_when_the_primary_is_killed_in_the_middle(brokers, servers):
    east, _ = servers

    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(0, 1000)
        while brokers.counts().active < 500:  # asked in the thread that reads rows, where no loop runs
            pass
        east.kill()
        yield numbered(1000, 2000)

    sent = write(brokers, batches(), window="500")
    assert sent.primary + sent.backlog == 2000
    assert sent.backlog >= 1000
    east.start()
    seen = brokers.take()
    for queue in brokers.backlog():
        seen += brokers.take(queue, side="secondary")
    assert seen.keys() == ids(2000)
    # A copy more only where the outcome of a send was unknown, and the receipts say how many these are.
    assert seen.total() - 2000 <= sent.maybe_duplicate


@pytest.mark.real_server
def test_a_task_fails_when_no_broker_takes_its_rows(brokers, servers):
    for server in servers:
        server.kill()
    with pytest.raises(PairMQError, match="rows have no receipt"):
        write(brokers, iter([numbered(0, 1500)]), send_timeout="1s", attempt_timeout="500ms")


@pytest.mark.real_server
def test_a_refused_row_fails_the_task_by_its_id_when_the_others_have_their_receipts(brokers):
    properties = pa.array([None] * 7 + [[("x-ms-path", '"a"')]] + [None] * 42, pa.map_(pa.string(), pa.string()))
    rows = numbered(0, 50).append_column("application_properties", properties)
    with pytest.raises(PairMQError, match=r"1 rows have no receipt: message m7 .* 49 rows of this task were sent"):
        write(brokers, iter([rows]), WITH_PROPERTIES)
    assert brokers.take() == Counter(ids(50) - {"m7"})


@pytest.mark.real_server
def test_a_row_that_no_message_can_be_made_of_fails_the_task_when_the_others_have_their_receipts(brokers):
    with pytest.raises(PairMQError, match=r"no message_id.* 500 rows of this task were sent before"):
        write(brokers, iter([batch(*(f"m{number}" for number in range(600)), None)]))
    assert brokers.take() == Counter(ids(500))


@pytest.mark.real_server
def test_an_error_of_the_rows_themselves_fails_the_task(brokers):
    def batches() -> Iterator[pa.RecordBatch]:
        yield numbered(0, 5)
        raise RuntimeError("the stage before has failed")

    with pytest.raises(RuntimeError, match="the stage before"):
        write(brokers, batches())


@pytest.mark.real_server
def test_an_observer_that_the_settings_file_names_watches_each_task(brokers):
    brokers.config.write_text(brokers.config.read_text() + "observers = ['audit']\n")
    with watching() as seen:
        write(brokers, iter([numbered(0, 3)]))
    assert {"PairOpened", "SendCompleted", "PairEnded"} <= set(seen)


# With a sender that answers what a test wants.


class Stub:
    """Answers each message by the list that it has for its id, the last one again and again."""

    def __init__(self, **answers: list[str]) -> None:
        self.answers = answers
        self.sent: list[list[str]] = []
        self.running = self.most_running = 0

    async def send_batch(self, messages):
        self.sent.append([message.message_id for message in messages])
        self.running += len(messages)
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        self.running -= len(messages)
        return [self._answer(message) for message in messages]

    def _answer(self, message):
        answers = self.answers.get(message.message_id, ["primary"])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer == "unknown":
            return SendUnknown(f"message {message.message_id}: unknown", message_id=message.message_id)
        if answer == "refused":
            return SendRefused(f"message {message.message_id}: refused", message_id=message.message_id)
        return Receipt(Route(answer), Entity("orders"), message.message_id, maybe_duplicate=answer == "backlog")


@pytest.fixture
def through(monkeypatch):
    """Writes batches by such a sender."""

    def through(stub: Stub, *batches: pa.RecordBatch, window: int = 1000):
        monkeypatch.setattr(PairSender, "send_batch", lambda _, messages: stub.send_batch(messages))
        urls = {"primary_url": "memory://rows-east", "secondary_url": "memory://rows-west"}
        return SOURCE({**urls, "entity": "orders", "window": str(window)}).writer(PLAIN, False).write(iter(batches))

    return through


def test_a_row_whose_outcome_is_unknown_is_sent_again_under_its_id(through):
    stub = Stub(m1=["unknown", "unknown", "primary"])
    assert through(stub, numbered(0, 3)).primary == 3
    assert stub.sent == [["m0", "m1", "m2"], ["m1"], ["m1"]]


def test_a_row_whose_outcome_stays_unknown_fails_the_task_by_its_id(through):
    with pytest.raises(PairMQError, match="1 rows have no receipt: message m1: unknown"):
        through(Stub(m1=["unknown"]), numbered(0, 3))


def test_rows_are_counted_by_where_they_went(through):
    tally = through(Stub(m1=["backlog"], m2=["unknown", "backlog"]), numbered(0, 5))
    assert (tally.primary, tally.backlog, tally.maybe_duplicate) == (3, 2, 2)


def test_a_row_that_is_sent_again_after_an_unknown_outcome_counts_as_perhaps_twice_there(through):
    assert through(Stub(m1=["unknown", "primary"]), numbered(0, 3)).maybe_duplicate == 1


def test_nothing_more_is_sent_after_a_row_was_refused(through):
    stub = Stub(m0=["refused"])
    with pytest.raises(PairMQError, match="1 rows have no receipt"):
        through(stub, *(numbered(at, at + 10) for at in range(0, 100, 10)), window=10)
    assert len(stub.sent) == 1


def test_an_error_names_a_few_rows_and_counts_them_all(through):
    stub = Stub(**{f"m{number}": ["refused"] for number in range(20)})
    with pytest.raises(PairMQError, match="20 rows have no receipt") as caught:
        through(stub, numbered(0, 20))
    assert str(caught.value).count("refused") == 5


@pytest.mark.parametrize("window", [1, 7, 500, 1200])
def test_no_more_messages_are_in_flight_than_the_window(through, window):
    stub = Stub()
    assert through(stub, numbered(0, 3000), window=window).primary == 3000
    assert stub.most_running <= window


def test_rows_keep_their_order_in_chunks(through):
    stub = Stub()
    through(stub, numbered(0, 1200), window=500)
    assert [name for chunk in stub.sent for name in chunk] == [f"m{number}" for number in range(1200)]
