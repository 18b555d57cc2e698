"""What a readiness check answers, whatever framework asks."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from pairmq import PairMQError, Readiness

Answer: TypeAlias = tuple[int, dict[str, Any]]

NO_CACHE: Final = {"Cache-Control": "no-store"}


def answer(found: Readiness | PairMQError) -> Answer:
    """Make the HTTP status and the body of what a check has found.

    Args:
        found: what `Pair.check` returned or raised.

    Returns:
        200 or 503, and JSON without secrets.
    """
    if isinstance(found, Readiness):
        return (200 if found.ready else 503), found.as_json()
    return 503, {"ready": False, "reasons": [f"{type(found).__name__}: {found}"]}
