"""What Azure's client needs around every test here; see `azure_clients` for the calibration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

import ctrl_c  # noqa: F401  # by being imported
import patient_examples  # noqa: F401  # likewise
from azure_clients import ASKED_BY_THE_CLIENT, LEFT_BY_THE_CLIENT, external, swept, swept_at_last

__all__ = ["external", "swept", "swept_at_last"]


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    folder = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker(pytest.mark.filterwarnings(LEFT_BY_THE_CLIENT, ASKED_BY_THE_CLIENT))
