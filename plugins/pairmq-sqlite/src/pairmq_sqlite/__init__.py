"""SQLite for PairMQ: ``sqlite:///absolute/path/to/file.db``."""

from pairmq_sqlite._outbox import SQLiteInbox

__all__ = ["SQLiteInbox"]
