"""The test kit: brokers that fail on demand, virtual time, and helpers to run real servers."""

from pairmq.memory import Operation
from pairmq.testing._loop import DeadlockError, VirtualTimeLoop, in_virtual_time, run_virtual, virtual_wall
from pairmq.testing._memory import MemoryBroker, memory_broker
from pairmq.testing._simulated import (
    TEST_OPTIONS,
    Fault,
    SimulatedAdmin,
    SimulatedBroker,
    SimulatedPair,
    SimulatedReceiver,
    SimulatedSender,
    SimulatedTransport,
    simulated_pair,
)
from pairmq.testing.proxy import TcpProxy
from pairmq.testing.simulator import Report, Settings, simulate

__all__ = [
    "TEST_OPTIONS",
    "DeadlockError",
    "Fault",
    "MemoryBroker",
    "Operation",
    "Report",
    "Settings",
    "SimulatedAdmin",
    "SimulatedBroker",
    "SimulatedPair",
    "SimulatedReceiver",
    "SimulatedSender",
    "SimulatedTransport",
    "TcpProxy",
    "VirtualTimeLoop",
    "in_virtual_time",
    "memory_broker",
    "run_virtual",
    "simulate",
    "simulated_pair",
    "virtual_wall",
]
