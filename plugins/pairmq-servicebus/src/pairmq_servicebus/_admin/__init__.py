"""Looking after a namespace's queues and topics: over HTTP, and where a key may not do that, as far as links tell.

`BusAdmin` is the interface. The `Service` asks the administration, the `Maker` makes entities, `Contents` looks into
them, `purge` empties them, and the `Probe` pings them.
"""

from pairmq_servicebus._admin._admin import BusAdmin

__all__ = ["BusAdmin"]
