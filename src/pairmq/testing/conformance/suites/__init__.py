"""The suites; `pairmq.testing.conformance.tests` has all of them as classes that pytest collects.

One that is subclassed by hand, ``class TestSend(suites.Send): ...``, stands beside a fixture ``harness``, too. For a
transport's other tests, `counted` waits for a busy broker's counts, and `LockClock` knows if a machine was too slow.
"""

try:
    import pytest
    import pytest_asyncio as _pytest_asyncio  # noqa: F401  # only to say clearly what is missing
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "the suites need pytest and pytest-asyncio: install them with: pip install 'pairmq[testing]'"
    ) from None

# Before they are imported, so that a failed assertion shows its values.
pytest.register_assert_rewrite(
    *(f"{__name__}._{suite}" for suite in ("admin", "faults", "lifecycle", "receive", "send")),
    "pairmq.testing.conformance._broker",
)

from pairmq.testing.conformance._broker import LockClock, counted  # noqa: E402
from pairmq.testing.conformance.suites._admin import Admin, Probe  # noqa: E402
from pairmq.testing.conformance.suites._faults import Cancellation, Faults  # noqa: E402
from pairmq.testing.conformance.suites._lifecycle import Failover, Lifecycle  # noqa: E402
from pairmq.testing.conformance.suites._receive import Receive, Settlement  # noqa: E402
from pairmq.testing.conformance.suites._send import Send, Sessions, Topics  # noqa: E402

ALL = (Send, Receive, Settlement, Admin, Topics, Sessions, Lifecycle, Cancellation, Faults, Probe, Failover)
"""Every suite; `Lifecycle` fails in a module that leaves one out."""

__all__ = [
    "ALL",
    "Admin",
    "Cancellation",
    "Failover",
    "Faults",
    "Lifecycle",
    "LockClock",
    "Probe",
    "Receive",
    "Send",
    "Sessions",
    "Settlement",
    "Topics",
    "counted",
]
