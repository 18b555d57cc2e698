"""The words of a rule's expression (Service Bus documentation: "Subscription rule SQL filter syntax")."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from pairmq_servicebus.server.broker._errors import ARGUMENT, BrokerError

MAX_LENGTH = 1024
"""Characters of a filter or action (Service Bus documentation: "Service Bus quotas")."""


class Kind(Enum):
    """What a token is."""

    WORD = auto()
    QUOTED = auto()
    STRING = auto()
    INTEGER = auto()
    NUMBER = auto()
    PARAMETER = auto()
    SIGN = auto()
    END = auto()


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    Args:
        kind: what it is.
        text: what it says, without quotes and with what was doubled in them once.
        at: where it starts, from 0.
    """

    kind: Kind
    text: str
    at: int

    def is_word(self, *words: str) -> bool:
        """Whether it is one of these keywords, given in capitals."""
        return self.kind is Kind.WORD and self.text.upper() in words

    def is_sign(self, *signs: str) -> bool:
        """Whether it is one of these signs."""
        return self.kind is Kind.SIGN and self.text in signs


_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>'(?:[^']|'')*')
    |(?P<quoted>\[(?:[^\]]|\]\])+\]|"(?:[^"]|"")+")
    |(?P<number>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<integer>0[xX][0-9a-fA-F]+|\d+)
    |(?P<parameter>@[A-Za-z_]\w*)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign><>|!=|<=|>=|[-+*/%=<>(),.;])
    |(?P<end>\Z)
    )""",
    re.VERBOSE,
)


def tokens_of(text: str) -> list[Token]:
    """Cuts an expression up.

    Args:
        text: the expression.

    Returns:
        Its tokens; the last one is the end.

    Raises:
        BrokerError: it is too long, or holds something that is no token.
    """
    if len(text) > MAX_LENGTH:
        raise BrokerError(ARGUMENT, f"An expression has {len(text)} characters, and {MAX_LENGTH} are allowed.")
    tokens: list[Token] = []
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise BrokerError(ARGUMENT, f"An expression cannot be read at character {at + 1}.")
        kind, word = Kind[match.lastgroup.upper()], match.group(match.lastgroup)
        if kind in (Kind.STRING, Kind.QUOTED):
            word = word[1:-1].replace(word[-1] * 2, word[-1])
        tokens.append(Token(kind, word, match.start(match.lastgroup)))
        if kind is Kind.END:
            return tokens
        at = match.end()
