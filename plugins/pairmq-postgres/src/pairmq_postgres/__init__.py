"""PostgreSQL for PairMQ: ``postgresql://user:password@host:5432/database``."""
