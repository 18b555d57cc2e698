"""Defects to plant into a transport, one at a time, to see whether its conformance suite finds them.

``pairmq conformance URL --mutate`` does so; `DEFECTS` is the table.
"""

# Each enters its defects into the table.
from pairmq.testing.defects import _receivers, _senders, _transports
from pairmq.testing.defects._defect import DEFECTS as _TABLE
from pairmq.testing.defects._defect import LIMIT, Defect

assert all((_senders, _receivers, _transports))

DEFECTS = tuple(sorted(_TABLE, key=lambda defect: defect.clause.partition(":")[0]))
"""Every defect, by the part of the contract that it breaks."""

__all__ = ["DEFECTS", "LIMIT", "Defect"]
