"""Redis (Streams) for PairMQ: ``redis://``, ``rediss://`` and ``memory://``."""

from pairmq_redis._claims import RedisClaims

__all__ = ["RedisClaims"]
