"""``pairmq entity`` and ``pairmq ping``: make, delete, list and probe queues and topics of the primary."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument, Option

from pairmq.cli._common import (
    PRIMARY_ONLY,
    EntityName,
    Json,
    Kind,
    PairArguments,
    at_broker,
    entity_of,
    examples,
    source_of,
    timed,
    transport_of,
    used,
    with_pair,
    within,
)
from pairmq.cli._output import FAIL, OK, put_json, say
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import BadUsage, CommandFailed, Duration, printable, short_duration
from pairmq.model import EntityKind

EPILOG = examples("pairmq ping --entity orders", "pairmq ping --entity orders --count 10 --json")


@with_pair(PRIMARY_ONLY)
def ping(
    pair: PairArguments,
    entity: EntityName,
    kind: Kind = EntityKind.QUEUE,
    count: Annotated[int, Option("--count", "-c", metavar="N", min=1, help="Number of pings.")] = 1,
    interval: Annotated[float, Duration("--interval", "Between two pings.")] = "1s",  # type: ignore[assignment]  # the parser reads defaults too
    json: Json = False,
) -> int:
    """Probe whether an entity of the primary accepts writes, as failover does; invisible to consumers.

    Exit status: 0 when every ping succeeded, 1 when one failed.
    """
    target = entity_of(entity, kind)
    settings = pair.primary_settings()
    transport = transport_of(settings.primary)
    limit = min(settings.options.ping_timeout, settings.options.attempt_timeout)

    async def run(stop: Stop) -> int:
        failures = 0
        async with transport:
            for number in range(1, count + 1):
                seconds, failure = await timed(limit, transport.admin.probe(target))
                failures += failure is not None
                error = None if failure is None else at_broker(transport, failure)
                if json:
                    ended = {"ok": error is None, "seconds": round(seconds, 6), "error": error}
                    put_json({"number": number, "entity": str(target), **ended})
                elif error is None:
                    say(f"{target}: accepts messages, {short_duration(seconds)}", style=OK)
                else:
                    say(f"{target}: fails, {short_duration(seconds)}: {printable(error)}", style=FAIL)
                if number < count and await stop.wait(interval):
                    return stop.exit_status
        return 1 if failures else 0

    return run_async(run)


_EPILOG = examples("pairmq entity create orders", "pairmq entity list", "pairmq entity delete orders --yes")

group = typer.Typer(
    no_args_is_help=True, help="Create, delete and list queues and topics of the primary.", epilog=_EPILOG
)

Name = Annotated[str, Argument(metavar="NAME", help="The queue's or topic's path.")]


@group.command()
@with_pair(PRIMARY_ONLY)
def create(
    pair: PairArguments,
    name: Name,
    kind: Kind = EntityKind.QUEUE,
    subscription: Annotated[
        list[str] | None, Option("--subscription", "-s", metavar="NAME", help="Of a topic; repeatable.")
    ] = None,
    json: Json = False,
) -> int:
    """Create a queue or topic, with subscriptions; existing ones are left unchanged."""
    entity = entity_of(name, kind)
    if subscription and kind is not EntityKind.TOPIC:
        raise BadUsage("a queue has no subscriptions: add --kind topic")
    for one in subscription or ():
        source_of(name, one, dead_letter=False)
    settings = pair.primary_settings()
    transport = transport_of(settings.primary)
    limit = settings.options.attempt_timeout

    async def run(stop: Stop) -> int:
        async with used(transport):
            made = await within(limit, transport.admin.create(entity))
            for one in subscription or ():
                await within(limit, transport.admin.create_subscription(entity, one))
        if json:
            put_json({"entity": str(entity), "created": made})
        else:
            say(f"{entity}: {'made' if made else 'exists already, left unchanged'}")
        return 0

    return run_async(run)


@group.command()
@with_pair(PRIMARY_ONLY)
def delete(
    pair: PairArguments,
    name: Name,
    kind: Kind = EntityKind.QUEUE,
    yes: Annotated[bool, Option("--yes", help="Confirm: with all messages that it holds.")] = False,
    json: Json = False,
) -> int:
    """Delete a queue or topic and its messages; exit status 1 when it did not exist."""
    entity = entity_of(name, kind)
    if not yes:
        raise BadUsage(f"this deletes {entity} with every message in it: add --yes to confirm")
    settings = pair.primary_settings()
    transport = transport_of(settings.primary)

    async def run(stop: Stop) -> int:
        async with used(transport):
            deleted = await within(settings.options.attempt_timeout, transport.admin.delete(entity))
        if not deleted:
            raise CommandFailed(f"{transport.endpoint} has no {entity.kind} {entity.path!r}")
        if json:
            put_json({"entity": str(entity), "deleted": True})
        else:
            say(f"{entity}: deleted")
        return 0

    return run_async(run)


@group.command(name="list")
@with_pair(PRIMARY_ONLY)
def list_entities(
    pair: PairArguments,
    prefix: Annotated[str, Option("--prefix", metavar="TEXT", help="Only paths with this prefix.")] = "",
    kind: Annotated[EntityKind | None, Option("--kind", help="Only queues, or only topics.")] = None,
    json: Json = False,
) -> int:
    """List queues and topics of the primary, one path per line."""
    settings = pair.primary_settings()
    transport = transport_of(settings.primary)

    async def run(stop: Stop) -> int:
        async with used(transport):
            listed = await within(settings.options.attempt_timeout, transport.admin.list_entities(prefix))
        entities = [entity for entity in listed if kind is None or entity.kind is kind]
        if json:
            put_json([{"path": entity.path, "kind": entity.kind.value} for entity in entities], indent=2)
            return 0
        for entity in entities:
            say(printable(str(entity)))
        return 0

    return run_async(run)
