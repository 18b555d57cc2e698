"""The pump of one backlog queue: brings its messages home, or sets them aside (SPEC 7).

`_hand` is the secondary's side: what was received, the locks on it, and settling it. `_transfer` is the primary's: what
may be delivered, and sending it. `_lines` lead from one to the other, one for each destination, and `_pump` runs all.
"""

from pairmq.runner.pump._pump import Pump

__all__ = ["Pump"]
