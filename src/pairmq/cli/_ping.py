"""``pairmq ping``: does an entity of the primary take messages?"""

from __future__ import annotations

import time
from typing import Annotated

from typer import Option

from pairmq.cli._common import (
    PRIMARY_ONLY,
    EntityName,
    Json,
    Kind,
    PairArguments,
    at_broker,
    entity_of,
    examples,
    transport_of,
    with_pair,
    within,
)
from pairmq.cli._output import FAIL, OK, put_json, say
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import Duration, printable, short_duration
from pairmq.model import Entity, EntityKind, TransportError
from pairmq.transport import Transport

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
                record = await _ping_once(transport, target, limit)
                failures += not record["ok"]
                if json:
                    put_json({"number": number, **record})
                else:
                    _print_result(record)
                if number < count and await stop.wait(interval):
                    return stop.exit_status
        return 1 if failures else 0

    return run_async(run)


async def _ping_once(transport: Transport, entity: Entity, time_limit: float) -> dict[str, object]:
    started = time.monotonic()
    error: str | None = None
    try:
        await within(time_limit, transport.admin.probe(entity))
    except TransportError as failure:
        error = at_broker(transport, failure)
    return {"entity": str(entity), "ok": error is None, "seconds": round(time.monotonic() - started, 6), "error": error}


def _print_result(record: dict[str, object]) -> None:
    after = short_duration(float(str(record["seconds"])))
    if record["ok"]:
        say(f"{record['entity']}: accepts messages, {after}", style=OK)
    else:
        say(f"{record['entity']}: fails, {after}: {printable(str(record['error']))}", style=FAIL)
