"""The pump of one backlog queue: moves its messages back to the primary, or dead-letters them (SPEC 7).

`_reader` is the secondary's side: what was received, the locks on it, and settling it. `_transfer` is the primary's:
what may be delivered, and sending it. `_lines` lead from one to the other, one for each destination, and `_pump` runs
all.
"""

from pairmq.runner.pump._pump import Pump
from pairmq.runner.pump._reader import PumpContext

__all__ = ["Pump", "PumpContext"]
