"""Hypothesis gives an example no time limit of its own: a busy machine makes one slow, not wrong."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
