"""PostgreSQL for PairMQ: ``postgresql://user:password@host:5432/database``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pairmq_postgres._outbox import PostgresInbox

__all__ = ["PostgresInbox"]


def __getattr__(name: str) -> Any:
    # Listing the transports imports this package: it must not import the client.
    if name == "PostgresInbox":
        from pairmq_postgres._outbox import PostgresInbox

        return PostgresInbox
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
