"""The journal: every event of a process, kept in Parquet segments that the pipeline, or anything else, reads.

Needs pyarrow: ``pip install 'pairmq[journal]'``. Nothing else of PairMQ imports this package before a journal is asked
for.
"""

try:
    import pyarrow as _pyarrow  # noqa: F401  # only to say clearly what is missing
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "the journal needs pyarrow: install it with: pip install 'pairmq[journal]'", name="pyarrow"
    ) from None

from pairmq.observe.journal._columns import arrow_schema
from pairmq.observe.journal._deliveries import journal_deliveries
from pairmq.observe.journal._journal import (
    Journal,
    JournalClosedError,
    JournalObserver,
    flush_on_sigterm,
    shared_journal,
)
from pairmq.observe.journal._options import JournalOptions
from pairmq.observe.journal._reading import (
    ShipmentError,
    Shipped,
    Statistics,
    metadata,
    read_rows,
    segments,
    ship,
    statistics,
)
from pairmq.observe.journal._segments import Recovered, recover

__all__ = [
    "Journal",
    "JournalClosedError",
    "JournalObserver",
    "JournalOptions",
    "Recovered",
    "ShipmentError",
    "Shipped",
    "Statistics",
    "arrow_schema",
    "flush_on_sigterm",
    "journal_deliveries",
    "metadata",
    "read_rows",
    "recover",
    "segments",
    "shared_journal",
    "ship",
    "statistics",
]
