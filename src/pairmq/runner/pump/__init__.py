"""The pump of one backlog queue: moves its messages back to the primary, or dead-letters them (SPEC 7).

`pairmq.core.pump` decides; here are the tasks and the operations. `_reader` is the secondary's side: receiving, the
locks on what was received, and settling it. `_pump` sends, and runs all.
"""

from pairmq.runner.pump._pump import Pump, PumpContext

__all__ = ["Pump", "PumpContext"]
