"""What aiormq logs about connections of ours: demoted to DEBUG, as every failure there is told by exception.

aiormq logs an error for each attempt to connect that is refused, and a warning with a traceback for each connection
that is lost. It can't know that somebody tries again and again through an outage, and tells of that once. So what it
says of *our* connections is for those who look for a cause, and an application's own connections go on as they were.
Which is which stands in the context that a task begins with, and hands on to the tasks that it makes: all that aiormq
does for a connection is done in tasks of which the first one was ours.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextvars import Context, ContextVar, copy_context
from typing import Final

_ours: ContextVar[bool] = ContextVar("pairmq_rabbitmq_connection", default=False)

_DEMOTED: Final[Mapping[str, int]] = {
    "aiormq.connection": logging.CRITICAL,
    # Its errors tell of a callback that failed, or of what a broker must not send: nobody else would tell of that.
    "aiormq.channel": logging.WARNING,
}
"""Its loggers, and up to which level their records are demoted."""


def connection_context() -> Context:
    """Make the context for a task that works at a connection of ours: the present one, marked."""
    context = copy_context()
    context.run(_ours.set, True)
    return context


class _OursAreForDebugging(logging.Filter):
    """Demotes a logger's records of our connections; on the logger itself, as it must act before any handler."""

    def __init__(self, logger: logging.Logger, up_to: int) -> None:
        super().__init__()
        self._logger = logger
        self._up_to = up_to

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > self._up_to or not _ours.get():
            return True
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        return self._logger.isEnabledFor(logging.DEBUG)


# Without a handler of anybody's Python would write what is left to stderr.
for _name in ("aio_pika", "aiormq"):
    logging.getLogger(_name).addHandler(logging.NullHandler())
for _name, _level in _DEMOTED.items():
    _logger = logging.getLogger(_name)
    _logger.addFilter(_OursAreForDebugging(_logger, _level))
