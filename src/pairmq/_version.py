"""The installed version of PairMQ."""

from __future__ import annotations

import functools
import importlib.metadata


@functools.cache
def version() -> str:
    """Tell the version, ``unknown`` for source code that was never installed."""
    try:
        return importlib.metadata.version("pairmq")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
