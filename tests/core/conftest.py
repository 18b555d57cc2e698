"""What the tests of the core share."""

from __future__ import annotations

from hypothesis import settings

# A busy machine makes an example slow, not wrong.
settings.register_profile("core", deadline=None)
settings.load_profile("core")
