"""Every suite as a class that pytest collects: ``from pairmq.testing.conformance.tests import *`` in a test module.

The module has a fixture ``harness`` beside it. A suite that needs changes is subclassed by hand, as `suites` says.
"""

from pairmq.testing.conformance import suites

__all__ = [f"Test{suite.__name__}" for suite in suites.ALL]

globals().update({f"Test{suite.__name__}": type(f"Test{suite.__name__}", (suite,), {}) for suite in suites.ALL})
