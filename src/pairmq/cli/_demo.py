"""``pairmq demo``: watch a failover happen, and have every message counted.

With ``--pipeline`` it ends with tables of its journal, and the report of what just happened.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Option

from pairmq.cli._common import entity_of, examples, kept_journal
from pairmq.cli._demo_outbox import OutboxPlan, OutboxRun
from pairmq.cli._demo_run import DemoRun
from pairmq.cli._demo_servers import OwnServer, OwnServers, products_of
from pairmq.cli._demo_tally import Plan, Texts
from pairmq.cli._output import Progress, note, say
from pairmq.cli._pipeline import STYLES, show
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import BadUsage, CommandFailed, Duration, positive, printable
from pairmq.core import PairOptions
from pairmq.pair import transports_at
from pairmq.plugins import BrokerControl, registry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pairmq.pipeline.reporting import Written

_MEMORY = ("memory://primary", "memory://secondary")
EPILOG = examples(
    "pairmq demo",
    "pairmq demo --messages 5000 --rate 1000 --seed 7",
    "pairmq demo --continuity",
    "pairmq demo --json",
    "pairmq demo --real rabbitmq",
    "pairmq demo --real rabbitmq,redis",
    "pairmq demo --real rabbitmq,postgres --outbox",
    "pairmq demo --pipeline --open",
    "pairmq demo --primary redis://127.0.0.1:6379/0 --secondary redis://127.0.0.1:6380/0",
)


def demo(
    primary: Annotated[
        str | None, Option("--primary", metavar="URL", help=f"The primary. Default {_MEMORY[0]}.")
    ] = None,
    secondary: Annotated[
        str | None, Option("--secondary", metavar="URL", help=f"The secondary. Default {_MEMORY[1]}.")
    ] = None,
    real: Annotated[
        str | None,
        Option(
            "--real", metavar="PRODUCT[,PRODUCT]", help="Start real servers, and kill the primary: redis, rabbitmq, …"
        ),
    ] = None,
    messages: Annotated[
        int | None, Option("--messages", "-n", metavar="N", min=1, max=10_000_000, help="Messages. Default 2000.")
    ] = None,
    input: Annotated[
        str | None, Option("--input", "-i", metavar="FILE", help="Send the lines of this file instead.")
    ] = None,
    rate: Annotated[
        float | None,
        Option("--rate", parser=positive, metavar="R", help="Messages a second. Default: all within 10 s."),
    ] = None,
    entity: Annotated[
        list[str] | None, Option("--entity", "-e", metavar="NAME", help="Queues; repeatable. Default orders, prices.")
    ] = None,
    failover_interval: Annotated[
        float, Duration("--failover-interval", "Time that an entity may fail before failover.")
    ] = "1s",  # type: ignore[assignment]  # the parser reads defaults too
    ping_interval: Annotated[
        float, Duration("--ping-interval", "Between two pings of a failed-over entity.")
    ] = "500ms",  # type: ignore[assignment]
    backlog_queues: Annotated[int, Option("--backlog-queues", metavar="N", help="Backlog queues.")] = 4,
    continuity: Annotated[
        bool, Option("--continuity", help="Consumers go on in the outage: they read the lanes on the secondary.")
    ] = False,
    seed: Annotated[int | None, Option("--seed", metavar="N", help="Seed of the random choices.")] = None,
    outbox: Annotated[
        bool, Option("--outbox", help="Write a row and its message in one transaction, and kill the program, too.")
    ] = False,
    journal: Annotated[
        str | None, Option("--journal", metavar="DIR", help="Journal every event in this directory.")
    ] = None,
    pipeline: Annotated[bool, Option("--pipeline", help="Afterwards, make a report with Spark.")] = False,
    open: Annotated[bool, Option("--open", help="Show the report in a browser.")] = False,
    json: Annotated[bool, Option("--json", help="Write the verdict as JSON on stdout, and nothing else.")] = False,
) -> int:
    """Send through a pair, stop its primary in mid-stream, restart it, and count every message.

    The brokers are made in this process unless others are named; those are not stopped: do that yourself meanwhile.
    With --real they are servers that the demo starts on this machine, kills with SIGKILL, and removes at the end. With
    --pipeline a report is made from the journal by Spark, which needs Java. Exit status: 0 when every message was
    accepted and delivered, 1 when not, 130 after Ctrl-C.
    """
    if messages is not None and input is not None:
        raise BadUsage("--messages and --input exclude each other: a file has as many messages as lines")
    if real is not None and (primary is not None or secondary is not None):
        raise BadUsage("--real and --primary, --secondary exclude each other: --real starts both brokers itself")
    if open and not pipeline:
        raise BadUsage("--open is for the report of --pipeline")
    products = None if real is None else products_of(real)
    if outbox:
        if any((primary, secondary, input, entity, journal, pipeline, continuity, seed is not None)):
            raise BadUsage(
                "--outbox takes --real, --messages, --rate, --ping-interval, --backlog-queues and --json only"
            )
        options = PairOptions(
            backlog_queue_count=backlog_queues,
            ping_primary_interval=ping_interval,
            enable_syphon=True,
            attempt_timeout=30.0,  # a file of SQLite has one writer at a time
        )
        return _with_outbox(products, messages or 600, rate or 60.0, options, json=json)
    urls = (primary or _MEMORY[0], secondary or _MEMORY[1])
    own = real is not None or all(url.partition("://")[0].lower() == "memory" for url in urls)
    run_id = secrets.token_hex(3) if seed is None else f"{seed:x}"
    names = entity or (
        ["orders", "prices"] if own else [f"pairmq-demo/{run_id}/{name}" for name in ("orders", "prices")]
    )
    if len(set(names)) < len(names):
        raise BadUsage("--entity names a queue twice")
    entities = tuple(entity_of(name) for name in names)
    report = DemoReport(journal, aside=json, open=open) if pipeline else None
    with Texts(input, messages or 2000) as texts, kept_journal(report.journal if report else journal) as kept:
        if report is not None:
            report.prepare(len(texts))

        def made(
            urls: tuple[str, str],
            control: BrokerControl | OwnServer | None,
            *,
            restart: float = 0.0,
            products: dict[str, str] | None = None,
        ) -> DemoRun:
            plan = Plan(len(texts), rate, failover_interval, restart)
            options = PairOptions(
                backlog_queue_count=backlog_queues,
                failover_interval=failover_interval,
                ping_primary_interval=ping_interval,
                enable_syphon=True,
                send_timeout=max(30.0, 3 * failover_interval),
                # A real server may take a while for its first queue, or on a busy machine.
                attempt_timeout=2.0 if products is None else 5.0,
                syphon_batch=20,
                syphon_max_rate=plan.drain_rate,
                continuity=tuple(names) if continuity else (),
            )
            # A name of its own: it must not touch what another program has diverted, nor the record of its pair.
            primary = urls[0] if own else _named(urls[0], f"pairmq-demo-{run_id}")
            return DemoRun(
                primary,
                urls[1],
                options,
                entities,
                plan,
                texts,
                run_id=run_id,
                seed=seed,
                control=control,
                products=products,
                json=json,
                journal=kept,
            )

        async def on(servers: OwnServers, stop: Stop) -> int:
            urls = (servers.primary.url, servers.secondary.url)
            restart = servers.primary.boot_time
            return await made(urls, servers.primary, restart=restart, products=servers.products).run(stop)

        try:
            if products is not None:
                status = _on_own_servers(products, on)
            else:
                transports_at(*urls)  # a bad one fails here, before anything is drawn
                status = run_async(made(urls, _control(urls[0])).run, graceful=True)
        except BaseException:
            if report is not None:
                report.cancel()
            raise
    # The journal is closed by now, and whole.
    return status if report is None else report.make(status)


def _with_outbox(
    products: tuple[str, ...] | None, messages: int, rate: float, options: PairOptions, *, json: bool
) -> int:
    """Run the demo of the outbox on servers of its own, or in this process and a file."""

    async def on(servers: OwnServers, stop: Stop) -> int:
        one, two = servers.primary, servers.secondary
        plan = OutboxPlan(one.url, two.url, messages, rate, options.backlog_queue_count)
        return await OutboxRun(plan, options, one, two, products=servers.products, json=json).run(stop)

    if products is not None:
        return _on_own_servers(products, on)
    with tempfile.TemporaryDirectory(prefix="pairmq-demo-") as folder:
        plan = OutboxPlan(_MEMORY[0], f"sqlite://{folder}/shop.db", messages, rate, options.backlog_queue_count)
        control = cast(BrokerControl, _control(plan.primary))
        return run_async(OutboxRun(plan, options, control, None, products=None, json=json).run, graceful=True)


def _on_own_servers(products: tuple[str, ...], run: Callable[[OwnServers, Stop], Awaitable[int]]) -> int:
    """Run a demo on servers that are started for it; a signal before they have started ends it."""

    async def on_them(stop: Stop) -> int:
        async with OwnServers(products) as servers:
            if await servers.boot(stop):
                return await run(servers, stop)
            note("stopped while the servers were starting: nothing was sent")
            return stop.exit_status

    return run_async(on_them, graceful=True)


def _named(url: str, name: str) -> str:
    address, _, options = url.partition("?")
    kept = [option for option in options.split("&") if option and not option.startswith("name=")]
    return f"{address}?{'&'.join([*kept, f'name={name}'])}"


def _control(url: str) -> BrokerControl | None:
    """The control of an in-process broker; None for one that can't be stopped from here."""
    control = registry.transport_record(url).broker_control
    return None if control is None else control(url)


_REHEARSED = 60.0  # s that a rehearsal may go on when the demo has ended
_PATIENCE = 1.0  # s: the demo's consumer holds nothing, and the demo waits until it has seen everything
_SIGNALLED = 128  # exit statuses above this are those of signals
_FEW = 10_000  # messages, of which the journal has as few rows as suit a session for little data


class DemoReport:
    """What a demo keeps for its report, and how that is made; what prevents it is raised before the demo begins."""

    def __init__(self, journal: str | None, *, aside: bool, open: bool) -> None:
        # Other commands don't need Spark.
        from pairmq.pipeline import session
        from pairmq.pipeline.reporting import check_reporting

        session.check_packages()
        session.check_java()
        check_reporting()
        if journal is not None and _holds_a_journal(Path(journal)):
            raise BadUsage(
                f"{journal} holds a journal already, and the report of --pipeline covers one demo only: give --journal "
                "a new directory, or omit it"
            )
        try:
            # Kept: it is what the page is made of, and the page itself.
            self._folder = Path(tempfile.mkdtemp(prefix="pairmq-demo-"))
        except OSError as error:
            raise CommandFailed(f"can't make a directory for the report: {error.strerror or error}") from None
        self.journal = str(self._folder / "journal") if journal is None else journal
        self._say = note if aside else say
        self._open = open
        self._spark: Future[tuple[AbstractContextManager[SparkSession], SparkSession]] | None = None
        self._over = threading.Event()
        self._rehearsal: threading.Thread | None = None

    def prepare(self, messages: int) -> None:
        """Start Spark while the demo leaves the machine idle, for the report of so many messages, and rehearse it."""
        from pairmq.pipeline import batch, session

        if messages > _FEW or session.is_given():
            return
        started: Future[tuple[AbstractContextManager[SparkSession], SparkSession]] = Future()

        def start() -> None:
            try:
                with Path(self._folder, "spark.log").open("wb") as log:
                    opened = session.session(settings=session.SMALL, errors=log)
                    spark = opened.__enter__()
                started.set_result((opened, spark))
            except Exception as error:  # it is met again, and reported, when the report is made
                started.set_exception(error)
                return
            with contextlib.suppress(Exception):  # likewise
                batch.rehearse(spark, self._over)

        self._spark = started
        self._rehearsal = threading.Thread(target=start, name="pairmq-spark", daemon=True)
        self._rehearsal.start()

    def cancel(self) -> None:
        """End the rehearsal, for which the program's exit would wait."""
        self._over.set()
        if self._spark is not None and self._spark.done() and self._spark.exception() is None:
            with contextlib.suppress(Exception):  # Java may have ended by the same signal
                self._spark.result()[1].sparkContext.cancelAllJobs()

    def make(self, status: int) -> int:
        """Make the tables and the report; 1 where it says that something is lost, else the demo's own exit status."""
        self._over.set()
        if status > _SIGNALLED:
            self.cancel()
            shutil.rmtree(self._folder, ignore_errors=True)
            return status
        written = self._written()
        content = written.content
        self._say("")
        self._say(f"the journal says: {printable(content['headline'])}", style=STYLES.get(content["verdict"]))
        self._say(f"report: {printable(str(written.page))}")
        if self._open:
            show(written.page)
        return 1 if written.lost else status

    def _written(self) -> Written:
        from pairmq.pipeline import run
        from pairmq.pipeline.reporting import report

        tables = self._folder / "tables"
        note("making the report with Spark: this takes a minute")
        with contextlib.ExitStack() as stack:
            spark = None
            if self._rehearsal is not None and self._spark is not None and self._spark.exception() is None:
                opened, spark = self._spark.result()
                stack.push(opened)
                self._rehearsal.join(_REHEARSED)
            with Progress("made", "tables") as progress:

                def show_progress(name: str, number: int, total: int) -> None:
                    progress.update(number, text=f"of {total}; now {name}")

                run(self.journal, tables, spark=spark, patience=_PATIENCE, progress=show_progress)
            return report(tables, self._folder / "report.html")


def _holds_a_journal(folder: Path) -> bool:
    """Whether a run would find rows there; what a killed process has left becomes segments when a journal begins."""
    from pairmq.pipeline.journal_io import segment_files

    return bool(segment_files(folder)) or any(folder.glob("_open/*.part"))
