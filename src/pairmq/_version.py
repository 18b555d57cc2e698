"""The installed version of PairMQ."""

from __future__ import annotations

import functools


@functools.cache
def version() -> str:
    """Return the version, ``unknown`` for source code that was never installed."""
    from importlib import metadata  # takes as long to import as a third of PairMQ

    try:
        return metadata.version("pairmq")
    except metadata.PackageNotFoundError:
        return "unknown"
