"""For tests that use Azure's client: a namespace that is not ours (calibration), and what the client leaves behind.

``PAIRMQ_TEST_SERVICEBUS`` holds the connection string of a real namespace or of Microsoft's emulator, which must allow
to manage entities; ``PAIRMQ_TEST_SERVICEBUS_ADMIN`` the address of the administration, where it is another one
(``http://localhost:5300`` for the emulator). The transport's tests and the samples of the local server's tests then use
that namespace. Those that start, stop or disturb the server are skipped.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

VARIABLE = "PAIRMQ_TEST_SERVICEBUS"

LEFT_BY_THE_CLIENT = (
    r"ignore:Exception ignored in. <(socket|function StreamWriter|function _SelectorTransport)"
    ":pytest.PytestUnraisableExceptionWarning"
)
"""Azure's client forgets sockets of connections that failed while they were opened, which nothing else refers to."""

ASKED_BY_THE_CLIENT = "ignore:Testing an element's truth value:DeprecationWarning:azure.servicebus.management._utils"
"""Azure's client asks whether an element of a rule has children in a way that Python 3.12 and newer warn of."""


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """Collect what the client has left behind here, and not under some other test that has nothing to do with it."""
    began = time.monotonic()
    yield
    if time.monotonic() - began > 0.2:
        gc.collect()


@pytest.fixture(scope="module", autouse=True)
def swept_at_last() -> Iterator[None]:
    """Collect what the quick tests have left behind, too, before those of another module begin."""
    yield
    gc.collect()


class External:
    """The namespace that the environment names; anything that only the local server can do skips the test."""

    ca_file = None

    def __init__(self) -> None:
        self.connection_string = os.environ[VARIABLE]
        self.admin_address = os.environ.get(f"{VARIABLE}_ADMIN", "")

    @property
    def url(self) -> str:
        admin = f"&admin={quote(self.admin_address, safe='')}" if self.admin_address else ""
        return f"sb://?connection-string-env={VARIABLE}{admin}"

    def start(self) -> None:
        """It runs."""

    def heal(self) -> None:
        """It does nothing wrong, as far as we know."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        pytest.skip(f"{VARIABLE} is set: only the local server has '{name}'")


@pytest.fixture(scope="session")
def external() -> External | None:
    """The namespace to calibrate with; None for the local server."""
    return External() if os.environ.get(VARIABLE) else None
