"""The test kit: brokers that fail on demand, virtual time, and helpers to run real servers."""

from pairmq.testing._loop import DeadlockError, VirtualTimeLoop, in_virtual_time, run_virtual, virtual_wall
from pairmq.testing._simulated import Fault, Operation, SimulatedBroker, SimulatedTransport

__all__ = [
    "DeadlockError",
    "Fault",
    "Operation",
    "SimulatedBroker",
    "SimulatedTransport",
    "VirtualTimeLoop",
    "in_virtual_time",
    "run_virtual",
    "virtual_wall",
]
