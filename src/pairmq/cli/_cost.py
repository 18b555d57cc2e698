"""``pairmq cost``: what a pair costs in broker operations."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pairmq.cli._common import Json, examples
from pairmq.cli._costing import Cost
from pairmq.cli._costing import cost as compute
from pairmq.cli._errors import BadUsage
from pairmq.cli._output import put_json, say
from pairmq.cli._prices import price_number, read_prices
from pairmq.cli._values import duration, grouped, positive
from pairmq.core import PairOptions
from pairmq.model import Price

_EPILOG = examples(
    "pairmq cost",
    "pairmq cost --backlog-queues 4 --receive-wait 1min --messages-diverted 50000 --price-per-million 0.05",
    "pairmq cost --prices prices.toml --days 365",
)
_MOVED = (
    ("send to the backlog", "secondary"),
    ("receive from the backlog", "secondary"),
    ("send to the primary", "primary"),
    ("receive from the primary", "primary"),
)


def add(app: typer.Typer) -> None:
    """Enter the command into the application."""
    app.command(epilog=_EPILOG)(cost)


def cost(
    backlog_queues: Annotated[int, typer.Option("--backlog-queues", metavar="N", help="Backlog queues.")] = 10,
    receive_wait: Annotated[
        float,
        typer.Option("--receive-wait", parser=duration, metavar="DURATION", help="One long poll at a backlog queue."),
    ] = "15min",  # type: ignore[assignment]  # the parser reads defaults too
    days: Annotated[float, typer.Option("--days", parser=positive, metavar="N", help="For so many days.")] = 30.0,
    messages_diverted: Annotated[
        int, typer.Option("--messages-diverted", metavar="N", min=0, help="Messages that outages divert in that time.")
    ] = 0,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, help="That have the pair open, with the syphon's.")
    ] = 1,
    price_per_million: Annotated[
        str | None, typer.Option("--price-per-million", metavar="MONEY", help="Of operations, at both brokers.")
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option("--prices", metavar="FILE", help="TOML: tables primary and secondary, each per_million and base."),
    ] = None,
    json: Json = False,
) -> int:
    """Compute the broker operations of a pair with one syphon, and their price.

    An idle syphon costs one receive for each backlog queue and long poll, a look at the pair's record every ten minutes
    one operation of each process, and a diverted message four.
    """
    if price_per_million is not None and prices is not None:
        raise BadUsage("--price-per-million and --prices exclude each other")
    PairOptions(backlog_queue_count=backlog_queues, syphon_receive_wait=receive_wait)  # checks the ranges
    one = Price(price_number("--price-per-million", price_per_million or "0"))
    primary, secondary = (one, one) if prices is None else read_prices(prices)
    result = compute(
        backlog_queues=backlog_queues,
        receive_wait=receive_wait,
        days=days,
        messages_diverted=messages_diverted,
        processes=processes,
        primary=primary,
        secondary=secondary,
    )
    priced = any(price.per_million or price.base for price in (primary, secondary))
    if json:
        put_json(_as_json(result), indent=2)
    else:
        _show(result, backlog_queues, messages_diverted, priced=priced)
    return 0


def _show(result: Cost, queues: int, diverted: int, *, priced: bool) -> None:
    say(f"Receives of an idle syphon with {queues} backlog queues")
    say(f"  an hour            {grouped(float(result.receives_per_hour)):>12}")
    say(f"  a day              {grouped(result.idle_receives_in(1)):>12}")
    say(f"  30 days            {grouped(result.idle_receives_in(30)):>12}")
    say("Operations of each diverted message: 4")
    for name, side in _MOVED:
        say(f"  {name:<26}at the {side}")
    say(f"In {float(result.days):g} days with {grouped(diverted)} diverted messages")
    say(f"  idle receives      {grouped(result.idle_receives):>12}")
    say(f"  looks at the record{grouped(result.record_looks):>12}")
    say(f"  at the primary     {grouped(result.primary_operations):>12}")
    say(f"  at the secondary   {grouped(result.secondary_operations):>12}")
    say(f"  operations         {grouped(result.operations):>12}")
    if priced:
        say("Money")
        say(f"  primary            {result.primary_money:>12,.4f}")
        say(f"  secondary          {result.secondary_money:>12,.4f}")
        say(f"  together           {result.money:>12,.4f}")


def _as_json(result: Cost) -> dict[str, Any]:
    return {
        "idle_receives": {
            "hour": float(result.receives_per_hour),
            "day": result.idle_receives_in(1),
            "30_days": result.idle_receives_in(30),
        },
        "operations_per_diverted_message": {"primary": 2, "secondary": 2},
        "period": {
            "days": float(result.days),
            "idle_receives": result.idle_receives,
            "record_looks": result.record_looks,
            "primary_operations": result.primary_operations,
            "secondary_operations": result.secondary_operations,
            "operations": result.operations,
            "primary_money": str(result.primary_money),
            "secondary_money": str(result.secondary_money),
            "money": str(result.money),
        },
    }
