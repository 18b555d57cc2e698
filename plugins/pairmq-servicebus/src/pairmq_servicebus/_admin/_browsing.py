"""The oldest messages of a queue or subscription, as the service shows them: some at a time, by sequence number."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from azure.servicebus import ServiceBusReceivedMessage

MOST_SHOWN: Final = 250
"""Messages that the service shows at once."""


async def browse_oldest(
    show: Callable[[int, int], Awaitable[Sequence[ServiceBusReceivedMessage]]],
    wanted: Callable[[ServiceBusReceivedMessage], bool],
    most: int,
) -> list[ServiceBusReceivedMessage]:
    """Browse until enough messages are found or no more are shown.

    Args:
        show: asks for messages from a sequence number on, at most so many.
        wanted: tells which ones count.
        most: how many are wanted.
    """
    found: list[ServiceBusReceivedMessage] = []
    first = 1
    while len(found) < most:
        shown = await show(first, min(most - len(found), MOST_SHOWN))
        if not shown:
            break
        found += [message for message in shown if wanted(message)]
        # Of what the client can't decode the number may be missing: they only grow, so that this is no more.
        first = max(first + len(shown), *(1 + (message.sequence_number or 0) for message in shown))
    return found
