"""``pairmq dashboard``: a page that shows both brokers, the backlog, and a syphon if it is to run one."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from pairmq.cli._common import (
    BACKLOG,
    SYPHON,
    Json,
    Kind,
    PairArguments,
    entity_of,
    examples,
    transports_of,
    with_pair,
)
from pairmq.cli._dashboard_serve import Serving, check_dashboard
from pairmq.cli._errors import BadUsage, CommandFailed
from pairmq.cli._output import note
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import plural
from pairmq.model import EntityKind
from pairmq.model.events import Event, PairEnded
from pairmq.pair import Pair, Settings

if TYPE_CHECKING:
    from pairmq.dashboard import Brokers

_EPILOG = examples(
    "pairmq dashboard --config pair.toml",
    "pairmq dashboard --entity orders --port 0",
    "pairmq dashboard --syphon --host 10.0.0.5 --token-file /etc/pairmq/token",
)


def add(app: typer.Typer) -> None:
    """Enter the command into the application."""
    app.command(epilog=_EPILOG)(dashboard)


@with_pair(SYPHON)
def dashboard(
    pair: PairArguments,
    syphon: Annotated[
        bool, typer.Option("--syphon", metavar="", help="Move the backlog home too, as 'pairmq syphon' does.")
    ] = False,
    entity: Annotated[
        list[str] | None, typer.Option("--entity", "-e", metavar="NAME", help="Probe and show it; repeatable.")
    ] = None,
    kind: Kind = EntityKind.QUEUE,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Listen at this address; beyond loopback all need the token.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Listen at this port; 0 for any free one.")
    ] = 8765,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="Another name that it may be called by; repeatable."),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Holds the operators' token; else PAIRMQ_DASHBOARD_TOKEN, else random."
        ),
    ] = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", metavar="", help="Nobody can hold, force or mark anything.")
    ] = False,
    json: Json = False,
) -> int:
    """Serve a page that shows both brokers, the backlog, and how a drain goes on.

    It looks, and changes nothing, unless --syphon is given. Exit status: 0 after SIGTERM, 130 after SIGINT, 1 when the
    syphon's pair faulted.
    """
    check_dashboard()
    from pairmq.dashboard import Brokers

    if not syphon and (
        pair.journal or any(pair.options[name] is not None for name in pair.options if name not in BACKLOG)
    ):
        raise BadUsage("options of the syphon, and --journal, need --syphon: without it nothing is moved")

    settings = pair.settings(**({"enable_syphon": True} if syphon else {}))
    place = Serving(
        host,
        port,
        "--port" if host == "127.0.0.1" else "--host, --port",
        "--token-file",
        token_file,
        read_only,
        tuple(allow_host or ()),
        tuple(entity_of(name, kind) for name in entity or ()),
    )

    async def run(stop: Stop) -> int:
        async with AsyncExitStack() as stack:
            if syphon:
                made = Pair.connect(
                    settings.primary,
                    settings.secondary,
                    options=settings.options,
                    journal=settings.journal,
                    observers=settings.observers,
                )
                return await _serve_syphon(made, place, stack, stop, json=json)
            return await _serve_brokers(await _brokers(settings, stack), place, stack, stop, json=json)

    async def _brokers(settings: Settings, stack: AsyncExitStack) -> Brokers:
        primary, secondary = transports_of(settings)
        for transport in (primary, secondary):
            await stack.enter_async_context(transport)
        return Brokers(primary, secondary, settings.options)

    return run_async(run, graceful=True)


async def _serve_brokers(of: Brokers, place: Serving, stack: AsyncExitStack, stop: Stop, *, json: bool) -> int:
    place.tell(*await place.begin(stack, of), json=json)
    await stop.wait()
    return _status(stop)


async def _serve_syphon(pair: Pair, place: Serving, stack: AsyncExitStack, stop: Stop, *, json: bool) -> int:
    ended = asyncio.Event()
    faults: list[str] = []

    def on_event(event: Event) -> None:
        if isinstance(event, PairEnded) and event.fault is not None:
            faults.append(event.fault)
            ended.set()

    stack.push_async_callback(pair.close)
    pair.subscribe(on_event, per_message=False)
    place.tell(*await place.begin(stack, pair), json=json)
    async with pair:
        await stop.or_result(ended.wait())
        if stop.asked:
            note(f"{stop.name}: finishing what is in hand")
    if faults:
        raise CommandFailed(f"the pair has faulted: {faults[0]}")
    note(f"moved {plural(pair.moved, 'message')}")
    return _status(stop)


def _status(stop: Stop) -> int:
    return 0 if stop.signal == signal.SIGTERM else stop.exit_status
