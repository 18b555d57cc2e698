"""Bugs to be planted in PairMQ's code, one at a time, to see whether the tests find them.

What goes wrong in hours of failures is for the simulation to find: `sends`, `syphon`, `lanes` and `order`. What it
can't provoke, or comes upon too seldom, and what it does not run, as the plugins, is for single tests to find:
`tested`.
"""

from __future__ import annotations

from planted.lanes import LANES
from planted.mutant import Mutant as Mutant
from planted.order import ORDER
from planted.sends import SENDS
from planted.syphon import SYPHON
from planted.tested import TESTED

MUTANTS = SENDS + SYPHON + LANES + ORDER + TESTED
