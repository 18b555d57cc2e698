"""``pairmq cost``: what a pair costs in broker operations (SPEC 7.9)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Annotated, Any

from typer import Option

from pairmq.cli._common import Json, examples
from pairmq.cli._errors import BadUsage
from pairmq.cli._output import put_json, say
from pairmq.cli._values import Duration, grouped, positive, price_number, read_prices
from pairmq.core import REPORT_INTERVAL, PairOptions
from pairmq.model import DAYS_A_MONTH, Price
from pairmq.runner import LOOK_INTERVAL

EPILOG = examples(
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


def cost(
    backlog_queues: Annotated[int, Option("--backlog-queues", metavar="N", help="Backlog queues.")] = 10,
    receive_wait: Annotated[float, Duration("--receive-wait", "One long poll at a backlog queue.")] = "15min",  # type: ignore[assignment]  # the parser reads defaults too
    days: Annotated[float, Option("--days", parser=positive, metavar="N", help="Days to estimate.")] = 30.0,
    messages_diverted: Annotated[
        int, Option("--messages-diverted", metavar="N", min=0, help="Messages diverted by outages in that time.")
    ] = 0,
    processes: Annotated[
        int,
        Option("--processes", metavar="N", min=1, help="Processes that have the pair open, including the syphon's."),
    ] = 1,
    control_interval: Annotated[float, Duration("--control-interval", "Between two looks of 'pairmq switch'.")] = "15s",  # type: ignore[assignment]
    price_per_million: Annotated[
        str | None, Option("--price-per-million", metavar="MONEY", help="Price of operations, at both brokers.")
    ] = None,
    prices: Annotated[
        str | None,
        Option("--prices", metavar="FILE", help="TOML: tables primary and secondary, each per_million and base."),
    ] = None,
    json: Json = False,
) -> int:
    """Compute the broker operations of a pair with one syphon, and their price.

    An idle syphon costs one receive per backlog queue and long poll, a look at the pair's record every ten minutes one
    operation of each process, likewise a look at what 'pairmq switch' has decided every 15 seconds and four to report
    that every five minutes, and a diverted message four.
    """
    if price_per_million is not None and prices is not None:
        raise BadUsage("--price-per-million and --prices exclude each other")
    PairOptions(
        backlog_queue_count=backlog_queues, syphon_receive_wait=receive_wait, control_interval=control_interval
    )  # checks the ranges
    one = Price(price_number("--price-per-million", price_per_million or "0"))
    primary, secondary = (one, one) if prices is None else read_prices(prices)
    result = cost_of(
        backlog_queues=backlog_queues,
        receive_wait=receive_wait,
        days=days,
        messages_diverted=messages_diverted,
        processes=processes,
        control_interval=control_interval,
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
    say(f"  looks at the switch{grouped(result.switch_looks):>12}")
    say(f"  reports of it      {grouped(result.switch_reports):>12}")
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
            "switch_looks": result.switch_looks,
            "switch_reports": result.switch_reports,
            "primary_operations": result.primary_operations,
            "secondary_operations": result.secondary_operations,
            "operations": result.operations,
            "primary_money": str(result.primary_money),
            "secondary_money": str(result.secondary_money),
            "money": str(result.money),
        },
    }


_MILLION = 1_000_000
_FREE = Price()


@dataclass(frozen=True, slots=True)
class Cost:
    """What the pair does, and what that costs; all but the receives an hour is about ``days``."""

    receives_per_hour: Fraction
    days: Fraction
    idle_receives: int
    record_looks: int
    switch_looks: int
    switch_reports: int
    primary_operations: int
    secondary_operations: int
    primary_money: Decimal
    secondary_money: Decimal

    def idle_receives_in(self, days: int | Fraction) -> int:
        return _whole(self.receives_per_hour * 24 * days)

    @property
    def operations(self) -> int:
        return self.idle_receives + self.looks + self.primary_operations + self.secondary_operations

    @property
    def looks(self) -> int:
        """All that processes ask of the secondary to agree, in the time asked for."""
        return self.record_looks + self.switch_looks + self.switch_reports

    @property
    def money(self) -> Decimal:
        return self.primary_money + self.secondary_money


def cost_of(
    *,
    backlog_queues: int = 10,
    receive_wait: float = 900.0,
    days: float = DAYS_A_MONTH,
    messages_diverted: int = 0,
    processes: int = 1,
    control_interval: float = 15.0,
    primary: Price = _FREE,
    secondary: Price = _FREE,
) -> Cost:
    """Compute what a pair with one syphon costs.

    Each backlog queue has one long poll open at all times. A diverted message is sent to the backlog, received from it,
    sent to the primary and received from the primary by its consumer: four operations, two at each broker.
    """
    per_hour = Fraction(backlog_queues * 3600) / Fraction(receive_wait)
    time = Fraction(days)
    idle = _whole(per_hour * 24 * time)
    seconds = Fraction(processes * 86_400) * time
    looks = _whole(seconds / Fraction(LOOK_INTERVAL))
    switch_looks = _whole(seconds / Fraction(control_interval)) if control_interval else 0
    reports = _whole(4 * seconds / Fraction(max(REPORT_INTERVAL, control_interval))) if control_interval else 0
    return Cost(
        receives_per_hour=per_hour,
        days=time,
        idle_receives=idle,
        record_looks=looks,
        switch_looks=switch_looks,
        switch_reports=reports,
        primary_operations=2 * messages_diverted,
        secondary_operations=2 * messages_diverted,
        primary_money=_money(primary, 2 * messages_diverted, time),
        secondary_money=_money(secondary, idle + looks + switch_looks + reports + 2 * messages_diverted, time),
    )


def _money(price: Price, operations: int, days: Fraction) -> Decimal:
    exact = Fraction(price.per_million) * operations / _MILLION + Fraction(price.base) * days / DAYS_A_MONTH
    money = Decimal(exact.numerator) / Decimal(exact.denominator)
    return money.quantize(Decimal("0.0001"), ROUND_HALF_UP)


def _whole(number: Fraction) -> int:
    return int(number + Fraction(1, 2))
