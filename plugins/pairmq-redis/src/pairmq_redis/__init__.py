"""Redis (Streams) for PairMQ: ``redis://``, ``rediss://`` and ``fakeredis://``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairmq_redis._claims import RedisClaims

__all__ = ["RedisClaims"]


def __getattr__(name: str) -> Any:
    # Listing the transports imports this package: it must not import the client.
    if name == "RedisClaims":
        from pairmq_redis._claims import RedisClaims

        return RedisClaims
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
