"""Names and limits that Service Bus and its client give the parts of a message."""

from __future__ import annotations

from typing import Final

PING_CONTENT_TYPE: Final = "application/vnd.ms-servicebus-ping"
"""Of messages that Service Bus takes and never delivers (SPEC 6.2)."""

DEAD_LETTER_REASON: Final = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION: Final = "DeadLetterErrorDescription"

DIVERTED: Final = "x-ms-path"
"""An application property of every message in a backlog queue, and of no other (SPEC 5.6)."""

PARTITION_KEY: Final = b"x-opt-partition-key"
SCHEDULED_TIME: Final = b"x-opt-scheduled-enqueue-time"

MOST_MS: Final = 2**32 - 1
"""The longest time-to-live that AMQP's header holds, in milliseconds: 49.7 days."""

LAST_INSTANT: Final = 253_402_243_199_000
"""What the client takes as the end of time, in milliseconds since 1970."""

ENDLESS: Final = LAST_INSTANT - 2 * 86_400_000
"""An end of life from here on is Service Bus' way of saying *unlimited*."""
