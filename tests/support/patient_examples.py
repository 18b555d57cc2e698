"""Hypothesis without a clock, by being imported: how long an example takes is the machine's business.

Its own limits (200 ms for an example, a second or so for the first inputs) are for a machine that does nothing else.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("pairmq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pairmq")
