"""The author's own plugin: its harness."""

import sys
from types import ModuleType

from pairmq.testing.conformance import MemoryHarness

for name in ("my_plugin", "my_plugin.testing"):
    sys.modules[name] = ModuleType(name)
sys.modules["my_plugin.testing"].MyHarness = MemoryHarness
