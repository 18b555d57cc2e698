"""The messages of a chaos run: each is made of its number alone, so that the content need not be recorded."""

from __future__ import annotations

from pairmq.model import Message

CANARY = 90_000_000
"""The first number of the messages that are sent when all is healed."""

CANARIES_OF_A_SENDER = 8
"""One for each session of its client, and one without a session."""

_NUMBER = slice(1, 9)
_LENGTHS = (9, 40, 700, 3000)
_A_LIFE = 100_000
_A_CLIENT = 10_000_000
_SESSIONS = CANARIES_OF_A_SENDER - 1


def first_number(client: int, life: int) -> int:
    """The first number of a life of a client: no two lives ever send the same one."""
    if not 0 < life < _A_CLIENT // _A_LIFE:
        raise ValueError(f"client {client} has lived {life} times: there are no numbers left")
    return client * _A_CLIENT + life * _A_LIFE


def first_canary(client: int, life: int) -> int:
    """The number of a life's first canary; with `CANARIES_OF_A_SENDER` from there on each session has one."""
    return CANARY + first_number(client, life) // 100


def made(number: int) -> Message:
    """The message of a number."""
    some = number % 3 == 0
    return Message(
        (b"m%08d" % number).ljust(_LENGTHS[number % len(_LENGTHS)], b"."),
        message_id=f"id-{number}",
        session_id=_session(number),
        time_to_live=3600.0 if number % 5 == 0 else None,
        correlation_id=f"about-{number}" if some else None,
        subject="chaos",
        application_properties={"number": number, "text": "n", "some": some},
    )


def _session(number: int) -> str | None:
    """Its client's own: order is a promise while one process at a time owns a session's sends."""
    if number >= CANARY:
        client, turn = (number - CANARY) // (_A_CLIENT // 100), number % CANARIES_OF_A_SENDER
        return f"session-{client}-{turn}" if turn < _SESSIONS else None
    return f"session-{number // _A_CLIENT}-{number % _SESSIONS}" if number % 3 == 0 else None


def number_of(message: Message) -> int | None:
    """Read a message's number out of its body; None for one that was never sent."""
    digits = message.body[_NUMBER]
    return int(digits) if message.body[:1] == b"m" and len(digits) == 8 and digits.isdigit() else None
