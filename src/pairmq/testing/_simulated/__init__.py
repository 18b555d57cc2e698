"""The broker in memory for tests in virtual time: exact, deterministic, and able to fail in every way.

It keeps the transports' contract and nothing more. It stands beside the tests on real servers, not in their place.
"""

from pairmq.testing._simulated._broker import Fault, Operation
from pairmq.testing._simulated._transport import (
    SimulatedAdmin,
    SimulatedBroker,
    SimulatedReceiver,
    SimulatedSender,
    SimulatedTransport,
)

__all__ = [
    "Fault",
    "Operation",
    "SimulatedAdmin",
    "SimulatedBroker",
    "SimulatedReceiver",
    "SimulatedSender",
    "SimulatedTransport",
]
