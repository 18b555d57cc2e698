"""What stands before a transport passes on every method: one with a default in the contract would be lost silently."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import pytest

from pairmq.model import Message
from pairmq.transport import Admin, Receiver, ReceiverWrapper, Sender, Transport

# Where wrappers are.
for module in ("pairmq.runner", "pairmq.testing.chaos.client", "pairmq.observe.journal"):
    importlib.import_module(module)


def subclasses(kind: type) -> Iterator[type]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def wraps(kind: type, contract: type) -> bool:
    """Whether it is made with another object of the contract."""
    parameters = inspect.signature(kind.__init__).parameters.values()
    return kind.__module__.startswith("pairmq.") and any(each.annotation == contract.__name__ for each in parameters)


WRAPPERS = [
    pytest.param(kind, contract, id=f"{kind.__module__}.{kind.__name__}")
    for contract in (Sender, Receiver, Admin, Transport)
    for kind in subclasses(contract)
    if wraps(kind, contract)
]
# The contract implements these itself, by means of the others.
OWN = {"scope", "endpoint", "fault_cause", "ended", "close", "fault", "on_end", "remove_on_end"}


def test_wrappers_are_found():
    assert {each.values[1] for each in WRAPPERS} == {Sender, Receiver, Admin, Transport}


@pytest.mark.parametrize(("kind", "contract"), WRAPPERS)
def test_wrapper_passes_on_every_method(kind, contract):
    # What a receiver reports goes the other way: see the next test.
    left = OWN if contract is Transport else {"scope", "dead_lettered", "on_dead_lettered"}
    public = {name for name in vars(contract) if not name.startswith("_")} - left
    written = {name for each in kind.__mro__ if not issubclass(contract, each) for name in vars(each)}
    assert public - written == set()


class Silent(Receiver):
    async def receive(self, max_messages, wait):
        return []

    async def complete(self, delivery):
        pass


def test_wrapper_passes_on_what_its_receiver_reports():
    inner, reported = Silent(), []
    ReceiverWrapper(ReceiverWrapper(inner)).on_dead_lettered = reported.append
    inner.dead_lettered(Message(b"1"), "malformed", "no header")
    assert [(each.message.body, each.dead_letter_reason) for each in reported] == [(b"1", "malformed")]
