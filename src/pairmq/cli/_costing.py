"""What a pair costs in broker operations (SPEC 7.9): arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

from pairmq.model import DAYS_A_MONTH, Price
from pairmq.runner import LOOK_INTERVAL

_MILLION = 1_000_000
_FREE = Price()


@dataclass(frozen=True, slots=True)
class Cost:
    """What the pair does, and what that costs.

    Args:
        receives_per_hour: receives of an idle syphon at empty backlog queues, an hour.
        days: the time that everything below is about.
        idle_receives: the same in that time.
        record_looks: looks of all processes at the pair's record, in that time.
        primary_operations: what diverted messages cost at the primary: send, receive.
        secondary_operations: what they cost at the secondary: send to the backlog, receive from it.
        primary_money: operations and base charge.
        secondary_money: operations, idle receives, looks and base charge.
    """

    receives_per_hour: Fraction
    days: Fraction
    idle_receives: int
    record_looks: int
    primary_operations: int
    secondary_operations: int
    primary_money: Decimal
    secondary_money: Decimal

    def idle_receives_in(self, days: int | Fraction) -> int:
        """Receives of an idle syphon in so many days."""
        return _whole(self.receives_per_hour * 24 * days)

    @property
    def operations(self) -> int:
        """All operations in the time asked for."""
        return self.idle_receives + self.record_looks + self.primary_operations + self.secondary_operations

    @property
    def money(self) -> Decimal:
        """All money in the time asked for."""
        return self.primary_money + self.secondary_money


def cost(
    *,
    backlog_queues: int = 10,
    receive_wait: float = 900.0,
    days: float = DAYS_A_MONTH,
    messages_diverted: int = 0,
    processes: int = 1,
    primary: Price = _FREE,
    secondary: Price = _FREE,
) -> Cost:
    """Compute what a pair with one syphon costs.

    Args:
        backlog_queues: each has one long poll open at all times.
        receive_wait: seconds of one long poll.
        days: the time asked for.
        messages_diverted: in that time; each is sent to the backlog, received from it, sent to the primary and received
            from the primary by its consumer: four operations, two at each broker.
        processes: that have the pair open, the syphon's among them; each looks at the pair's record now and then.
        primary: its prices.
        secondary: its prices.
    """
    per_hour = Fraction(backlog_queues * 3600) / Fraction(receive_wait)
    time = Fraction(days)
    idle = _whole(per_hour * 24 * time)
    looks = _whole(Fraction(processes * 86_400) / Fraction(LOOK_INTERVAL) * time)
    return Cost(
        receives_per_hour=per_hour,
        days=time,
        idle_receives=idle,
        record_looks=looks,
        primary_operations=2 * messages_diverted,
        secondary_operations=2 * messages_diverted,
        primary_money=_money(primary, 2 * messages_diverted, time),
        secondary_money=_money(secondary, idle + looks + 2 * messages_diverted, time),
    )


def _money(price: Price, operations: int, days: Fraction) -> Decimal:
    exact = Fraction(price.per_million) * operations / _MILLION + Fraction(price.base) * days / DAYS_A_MONTH
    money = Decimal(exact.numerator) / Decimal(exact.denominator)
    return money.quantize(Decimal("0.0001"), ROUND_HALF_UP)


def _whole(number: Fraction) -> int:
    return int(number + Fraction(1, 2))
