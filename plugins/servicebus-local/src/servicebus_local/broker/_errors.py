"""What the broker answers when it refuses: an AMQP error condition and one sentence.

The conditions are those of the service (Service Bus documentation: "AMQP 1.0 in Azure Service Bus and Event Hubs
protocol guide" and "Service Bus messaging exceptions").
"""

from __future__ import annotations

NOT_FOUND = "amqp:not-found"
NOT_ALLOWED = "amqp:not-allowed"
QUOTA = "amqp:resource-limit-exceeded"
TOO_LARGE = "amqp:link:message-size-exceeded"
LOCK_LOST = "com.microsoft:message-lock-lost"
SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
SESSION_TAKEN = "com.microsoft:session-cannot-be-locked"
DISABLED = "com.microsoft:entity-disabled"
ARGUMENT = "com.microsoft:argument-error"
OUT_OF_RANGE = "com.microsoft:argument-out-of-range"
MESSAGE_NOT_FOUND = "com.microsoft:message-not-found"
EXISTS = "com.microsoft:entity-already-exists"


class BrokerError(Exception):
    """An operation that the broker refuses; nothing of it was done."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
