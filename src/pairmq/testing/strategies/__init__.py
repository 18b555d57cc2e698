"""Hypothesis strategies for messages, options, faults, and for what others may put on a backlog queue.

    from hypothesis import given
    from pairmq.testing import strategies as pst

    @given(pst.messages())
    def test_my_codec_restores_what_it_encoded(message): ...

Everything shrinks to the simplest thing of its kind: a message to an empty one without properties, options to short
durations and the first choice, a plan of faults to no fault. Needs hypothesis: ``pip install 'pairmq[testing]'``; no
other module of the test kit but `pairmq.testing.machine` does.
"""

try:
    import hypothesis as _hypothesis  # noqa: F401  # only to say clearly what is missing
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "the strategies need hypothesis: install it with: pip install 'pairmq[testing]'", name="hypothesis"
    ) from None

from pairmq.testing.strategies._faults import fault_plans, scenarios, simulator_settings
from pairmq.testing.strategies._messages import (
    hostile_messages,
    hostile_properties,
    ids,
    instants,
    messages,
    property_names,
    property_values,
)
from pairmq.testing.strategies._options import entities, entity_paths, options

__all__ = [
    "entities",
    "entity_paths",
    "fault_plans",
    "hostile_messages",
    "hostile_properties",
    "ids",
    "instants",
    "messages",
    "options",
    "property_names",
    "property_values",
    "scenarios",
    "simulator_settings",
]
