"""The pump of one backlog queue: brings its messages home, or sets them aside (SPEC 7).

The secondary's side: the `Reader` receives, the `Hand` holds what is locked, the `Settler` completes and dead-letters,
and the `Intake` starts and ends all three. The primary's side: the `Screen` keeps back what must not be delivered,
`Lines` lead to the destinations, the `Transfer` sends and has it confirmed, and the `Ledger` keeps what came of each
message. The `Window` says how much may be in hand while messages flow, `Holding` how much when a destination is away,
and `Postponing` makes room then.
"""

from pairmq.runner.pump._pump import Pump

__all__ = ["Pump"]
