"""Redis (Streams) for PairMQ: ``redis://``, ``rediss://`` and ``memory://``."""
