"""Hypothesis without a clock, by being imported: how long an example takes is the machine's business.

Its own limits (200 ms for an example, a second or so for the first inputs) are for a machine that does nothing else.
The first tier tries a quarter of a test's examples; `make test-long` tries the others.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

LOOK = float(os.environ.get("PAIRMQ_TEST_LOOK", "0.25"))
"""How long tests look for a bad example; 10 is a long look."""


def examples(count: int) -> int:
    """So many examples, for a look of 1."""
    return max(1, round(count * LOOK))


settings.register_profile(
    "pairmq", deadline=None, max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("pairmq")
