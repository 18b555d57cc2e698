"""The conformance suite: what every transport has to do, as tests that a plugin subclasses.

The suites themselves are in `pairmq.testing.conformance.suites`, which needs pytest and pytest-asyncio; harnesses need
neither, so that a plugin's ``testing`` module can be used without them.
"""

from pairmq.testing.conformance.harness import Harness, Interruption, MemoryHarness, Server, ServerHarness

__all__ = ["Harness", "Interruption", "MemoryHarness", "Server", "ServerHarness"]
