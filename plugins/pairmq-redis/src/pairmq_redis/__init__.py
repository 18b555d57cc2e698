"""Redis (Streams) for PairMQ: ``redis://``, ``rediss://`` and ``fakeredis://``."""

from pairmq_redis._claims import RedisClaims

__all__ = ["RedisClaims"]
