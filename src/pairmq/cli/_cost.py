"""``pairmq cost``: what a pair costs in broker operations (SPEC 7.9)."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Annotated, Any

from typer import Option

from pairmq.cli._common import Json, examples
from pairmq.cli._output import put_json, say
from pairmq.cli._values import BadUsage, Duration, grouped, positive, price_number, read_prices
from pairmq.core import PairOptions
from pairmq.core.lanes import LANE_LOOK_INTERVAL, LANE_POLL
from pairmq.core.switch import REPORT_INTERVAL
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
    lanes: Annotated[int, Option("--lanes", metavar="N", min=0, help="Queues with continuity.")] = 0,
    receivers: Annotated[
        int, Option("--receivers", metavar="N", min=0, help="Receivers of queues with continuity, in all processes.")
    ] = 0,
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
    that every five minutes, and a diverted message four. A queue with continuity costs a look at its lane every minute,
    and one more long poll of a minute for each of its receivers.
    """
    if price_per_million is not None and prices is not None:
        raise BadUsage("--price-per-million and --prices exclude each other")
    PairOptions(
        backlog_queue_count=backlog_queues, syphon_receive_wait=receive_wait, control_interval=control_interval
    )  # checks the ranges
    one = Price(price_number("--price-per-million", price_per_million or "0"))
    primary, secondary = (one, one) if prices is None else read_prices(prices)
    result = Cost(
        backlog_queues,
        receive_wait,
        days,
        messages_diverted,
        processes,
        control_interval,
        primary,
        secondary,
        lanes,
        receivers,
    )
    if json:
        put_json(_as_json(result), indent=2)
    else:
        _show(result)
    return 0


def _show(result: Cost) -> None:
    def line(label: str, value: str) -> None:
        say(f"  {label:<19}{value:>12}")

    say(f"Receives of an idle syphon with {result.backlog_queues} backlog queues")
    line("an hour", grouped(float(result.receives_per_hour)))
    line("a day", grouped(result.idle_receives_in(1)))
    line("30 days", grouped(result.idle_receives_in(30)))
    say("Operations of each diverted message: 4")
    for name, side in _MOVED:
        say(f"  {name:<26}at the {side}")
    say(f"In {result.days:g} days with {grouped(result.messages_diverted)} diverted messages")
    for name, count in result.counts().items():
        if not name.startswith("lane_") or result.lanes or result.receivers:
            line(_LABELS[name], grouped(count))
    if any(price.per_million or price.base for price in (result.primary, result.secondary)):
        say("Money")
        for name, money in result.money().items():
            line(_LABELS[name], f"{money:,.4f}")


_LABELS = {
    "idle_receives": "idle receives",
    "record_looks": "looks at the record",
    "switch_looks": "looks at the switch",
    "switch_reports": "reports of it",
    "lane_looks": "looks at lanes",
    "lane_receives": "receives of lanes",
    "primary_operations": "at the primary",
    "secondary_operations": "at the secondary",
    "operations": "operations",
    "primary_money": "primary",
    "secondary_money": "secondary",
    "money": "together",
}


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
            **result.counts(),
            **{name: str(money) for name, money in result.money().items()},
        },
    }


_MILLION = 1_000_000
_FREE = Price()


@dataclass(frozen=True)
class Cost:
    """What a pair with one syphon does in so many days, and what that costs.

    Each backlog queue has one long poll open at all times. A diverted message is sent to the backlog, received from it,
    sent to the primary and received from the primary by its consumer: four operations, two at each broker.
    """

    backlog_queues: int = 10
    receive_wait: float = 900.0
    days: float = DAYS_A_MONTH
    messages_diverted: int = 0
    processes: int = 1
    control_interval: float = 15.0
    primary: Price = _FREE
    secondary: Price = _FREE
    lanes: int = 0
    receivers: int = 0

    @property
    def receives_per_hour(self) -> Fraction:
        return Fraction(self.backlog_queues * 3600) / Fraction(self.receive_wait)

    def idle_receives_in(self, days: float) -> int:
        return _whole(self.receives_per_hour * 24 * Fraction(days))

    def counts(self) -> dict[str, int]:
        """Operations in that time, by what they are for."""
        idle, moved = self.idle_receives_in(self.days), 2 * self.messages_diverted
        looks = {
            "record_looks": self._every(LOOK_INTERVAL, self.processes),
            "switch_looks": self._every(self.control_interval, self.processes),
            "switch_reports": self._every(REPORT_INTERVAL, 4 * self.processes) if self.control_interval else 0,
            "lane_looks": self._every(LANE_LOOK_INTERVAL, self.lanes),
            "lane_receives": self._every(LANE_POLL, self.receivers),
        }
        at_brokers = {"primary_operations": moved, "secondary_operations": moved}
        return {"idle_receives": idle, **looks, **at_brokers, "operations": idle + sum(looks.values()) + 2 * moved}

    def money(self) -> dict[str, Decimal]:
        """The price of all that at each broker, and together; what nothing diverted costs is the secondary's."""
        counts = self.counts()
        at_primary = counts["primary_operations"]
        primary = _money(self.primary, at_primary, self.days)
        secondary = _money(self.secondary, counts["operations"] - at_primary, self.days)
        return {"primary_money": primary, "secondary_money": secondary, "money": primary + secondary}

    def _every(self, seconds: float, operations: int) -> int:
        """How many in that time if there are so many at each interval; an interval of 0 is never."""
        return _whole(operations * 86_400 * Fraction(self.days) / Fraction(seconds)) if seconds else 0


def _money(price: Price, operations: int, days: float) -> Decimal:
    exact = Fraction(price.per_million) * operations / _MILLION + Fraction(price.base) * Fraction(days) / DAYS_A_MONTH
    money = Decimal(exact.numerator) / Decimal(exact.denominator)
    return money.quantize(Decimal("0.0001"), ROUND_HALF_UP)


def _whole(number: Fraction) -> int:
    return int(number + Fraction(1, 2))
