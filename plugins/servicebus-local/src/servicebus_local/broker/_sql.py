"""Reads the expressions of rules into functions, by recursive descent; nothing is ever executed as Python.

::

    condition  = conjunction {OR conjunction}
    conjunction = negation {AND negation}
    negation   = NOT negation | predicate
    predicate  = sum [comparison sum | [NOT] IN (sum, ...) | [NOT] LIKE sum [ESCAPE sum] | IS [NOT] NULL]
    sum        = product {+|- product}
    product    = unary {*|/|% unary}
    unary      = +|- unary | primary
    primary    = literal | @parameter | property | EXISTS(property) | PROPERTY(sum) | (condition)

Grammar: Service Bus documentation: "Subscription rule SQL filter syntax" and "Subscription rule SQL action syntax".
Unknown, in the sense of its remarks, is `None`: a property that is not there, null, and whatever is made of either.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from uuid import UUID

from servicebus_local.broker._errors import ARGUMENT, BrokerError
from servicebus_local.broker._values import NEVER, Stored

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WILDCARDS = {"%": "*", "_": "?"}
MAX_DEPTH = 32
"""How deep parentheses, NOT and signs may nest."""
_COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")
_RESERVED = frozenset(["AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "FALSE"])
_SCOPES = ("SYS", "USER")
MAX_LENGTH = 1024
"""Characters of a filter or action (Service Bus documentation: "Service Bus quotas")."""
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


class EvaluationError(Exception):
    """An expression has no value for a message: a division by zero, or a sum of things that have none."""


class Scope:
    """What an expression sees of a message."""

    __slots__ = ("message", "properties")

    def __init__(self, message: Stored) -> None:
        self.message = message
        self.properties: Mapping[str, object] = message.current_properties


Expression = Callable[[Scope], object]


def _utc(seconds: float | None) -> datetime | None:
    if seconds is None or seconds == NEVER:
        return None
    try:
        return _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _text(value: object) -> object:
    return str(value) if isinstance(value, UUID | int) else value


SYSTEM: dict[str, Callable[[Stored], object]] = {
    "messageid": lambda message: _text(message.message_id),
    "correlationid": lambda message: _text(message.correlation_id),
    "label": lambda message: message.subject,
    "subject": lambda message: message.subject,
    "to": lambda message: message.to,
    "replyto": lambda message: message.reply_to,
    "replytosessionid": lambda message: message.reply_to_session_id,
    "sessionid": lambda message: message.session_id,
    "partitionkey": lambda message: message.partition_key,
    "contenttype": lambda message: message.content_type,
    "enqueuedtimeutc": lambda message: _utc(message.enqueued_at),
    "expiresatutc": lambda message: _utc(message.expires_at),
    "scheduledenqueuetimeutc": lambda message: _utc(message.scheduled_at),
    "timetolive": lambda message: message.time_to_live,
    "sequencenumber": lambda message: message.sequence_number,
    "enqueuedsequencenumber": lambda message: message.enqueued_sequence_number,
    "deliverycount": lambda message: message.delivery_count,
    "size": lambda message: message.size,
    "deadlettersource": lambda message: message.dead_letter_source,
}
"""System properties by their names in small letters; case does not matter there."""

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def compare(sign: str, left: object, right: object) -> bool | None:
    """Two values compared; unknown if one is, or if they are of kinds that cannot be compared."""
    if left is None or right is None:
        return None
    if isinstance(left, datetime) and isinstance(right, datetime):
        comparable = (left.tzinfo is None) == (right.tzinfo is None)
    else:
        comparable = (_is_number(left) and _is_number(right)) or any(
            isinstance(left, kind) and isinstance(right, kind) for kind in (str, bool, UUID, bytes)
        )
    if not comparable:
        return None
    return bool(_COMPARE[sign](left, right))


def compute(sign: str, left: object, right: object) -> object:
    """Arithmetic; `None` if an operand is unknown. Whole numbers give whole numbers, rounded towards zero."""
    if left is None or right is None:
        return None
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        return left + right
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        raise EvaluationError(f"'{sign}' is not defined for these values")
    if isinstance(left, bool) or isinstance(right, bool):
        raise EvaluationError(f"'{sign}' is not defined for true and false")
    try:
        return _arithmetic(sign, left, right)
    except ZeroDivisionError:
        raise EvaluationError("a division by zero") from None
    except (OverflowError, ValueError):
        raise EvaluationError("a number that is too large") from None


def _arithmetic(sign: str, left: float, right: float) -> float:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if not (isinstance(left, int) and isinstance(right, int)):
        if sign == "/":
            return left / right
        return left - right * int(left / right)
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return quotient if sign == "/" else left - right * quotient


def is_like(text: str, pattern: str, escape: str | None) -> bool:
    glob: list[str] = []
    characters = iter(pattern)
    for each in characters:
        if each != escape and each in _WILDCARDS:
            glob.append(_WILDCARDS[each])
        else:
            literal = next(characters, each) if each == escape else each
            glob.append(f"[{literal}]" if literal in "*?[" else literal)
    return fnmatchcase(text, "".join(glob))


class Assignment(NamedTuple):
    """One statement of an action: the application property, and what it becomes; `None` removes it."""

    name: str
    value: Expression | None


def parse_condition(text: str, parameters: Mapping[str, object]) -> Expression:
    """Read a filter into what returns True, False or `None` for unknown."""
    parser = _Parser(text, parameters)
    condition = parser.condition()
    parser.end()
    return condition


def parse_action(text: str, parameters: Mapping[str, object]) -> list[Assignment]:
    """Reads an action, statements with semicolons between them; see `parse_condition`.

    System properties cannot be set: the broker does not look into what they would have to be written to.
    """
    parser = _Parser(text, parameters)
    statements = []
    while True:
        statements.append(parser.statement())
        if not parser.sign(";") or parser.at_end:
            parser.end()
            return statements


class _Parser:
    def __init__(self, text: str, parameters: Mapping[str, object]) -> None:
        self._tokens = tokens_of(text)
        self._at = 0
        self._depth = 0
        self._parameters = {name.removeprefix("@"): value for name, value in parameters.items()}

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    @property
    def at_end(self) -> bool:
        return self._token.kind == "end"

    def _fail(self, what: str) -> BrokerError:
        return BrokerError(ARGUMENT, f"An expression cannot be read at character {self._token.at + 1}: {what}.")

    def _next(self) -> Token:
        token = self._token
        if token.kind != "end":
            self._at += 1
        return token

    def _word(self, *words: str) -> bool:
        if self._token.is_word(*words):
            self._at += 1
            return True
        return False

    def sign(self, *signs: str) -> Token | None:
        return self._next() if self._token.is_sign(*signs) else None

    def _need(self, sign: str) -> None:
        if not self.sign(sign):
            raise self._fail(f"'{sign}' is missing")

    def end(self) -> None:
        if not self.at_end:
            raise self._fail(f"'{self._token.text}' is not expected")

    def _nested(self, read: Callable[[], Expression]) -> Expression:
        if self._depth >= MAX_DEPTH:
            raise self._fail(f"it nests deeper than {MAX_DEPTH}")
        self._depth += 1
        try:
            return read()
        finally:
            self._depth -= 1

    def statement(self) -> Assignment:
        if self._word("SET"):
            name = self._user_property()
            self._need("=")
            return Assignment(name, self._sum())
        if self._word("REMOVE"):
            return Assignment(self._user_property(), None)
        raise self._fail("SET or REMOVE is missing")

    def condition(self) -> Expression:
        return self._joined("OR", self._conjunction, decides=True)

    def _conjunction(self) -> Expression:
        return self._joined("AND", self._negation, decides=False)

    def _joined(self, word: str, read: Callable[[], Expression], *, decides: bool) -> Expression:
        terms = [read()]
        while self._word(word):
            terms.append(read())
        return terms[0] if len(terms) == 1 else _first(decides, terms)

    def _negation(self) -> Expression:
        if self._word("NOT"):
            return _negated(self._nested(self._negation))
        return self._predicate()

    def _predicate(self) -> Expression:
        left = self._sum()
        comparison = self.sign(*_COMPARISONS)
        if comparison is not None:
            right, sign = self._sum(), comparison.text
            return lambda scope: compare(sign, left(scope), right(scope))
        if self._word("IS"):
            wanted = not self._word("NOT")
            if not self._word("NULL"):
                raise self._fail("NULL is missing")
            return lambda scope: (left(scope) is None) is wanted
        negative = self._word("NOT")
        if self._word("IN"):
            found = self._members(left)
        elif self._word("LIKE"):
            found = self._like(left)
        elif negative:
            raise self._fail("IN or LIKE is missing")
        else:
            return left
        return _negated(found) if negative else found

    def _members(self, left: Expression) -> Expression:
        self._need("(")
        members = [self._sum()]
        while self.sign(","):
            members.append(self._sum())
        self._need(")")
        return _first(True, [_equals(left, member) for member in members])

    def _like(self, left: Expression) -> Expression:
        pattern = self._sum()
        escape = self._sum() if self._word("ESCAPE") else None

        def like(scope: Scope) -> object:
            text, wanted = left(scope), pattern(scope)
            sign = None if escape is None else escape(scope)
            if not isinstance(text, str) or not isinstance(wanted, str):
                return None
            if sign is not None and not (isinstance(sign, str) and len(sign) == 1):
                raise EvaluationError("ESCAPE wants one character")
            return is_like(text, wanted, sign)

        return like

    def _sum(self) -> Expression:
        return self._chain(("+", "-"), self._product)

    def _product(self) -> Expression:
        return self._chain(("*", "/", "%"), self._unary)

    def _chain(self, signs: tuple[str, ...], read: Callable[[], Expression]) -> Expression:
        first = read()
        rest: list[tuple[str, Expression]] = []
        while (sign := self.sign(*signs)) is not None:
            rest.append((sign.text, read()))
        if not rest:
            return first

        def chain(scope: Scope) -> object:
            value = first(scope)
            for sign, operand in rest:
                value = compute(sign, value, operand(scope))
            return value

        return chain

    def _unary(self) -> Expression:
        sign = self.sign("+", "-")
        if sign is None:
            return self._primary()
        operand, text = self._nested(self._unary), sign.text
        return lambda scope: compute(text, 0, operand(scope))

    def _primary(self) -> Expression:
        if self.sign("("):
            inner = self._nested(self.condition)
            self._need(")")
            return inner
        token = self._token
        if self._word("EXISTS"):
            self._need("(")
            exists = self._existence()
            self._need(")")
            return exists
        if token.is_word("PROPERTY", "P") and self._tokens[self._at + 1].is_sign("("):
            self._next()
            self._next()
            name = self._nested(self._sum)
            self._need(")")
            return lambda scope: _by_name(scope, name(scope))
        if token.kind in ("word", "quoted") and not token.is_word("TRUE", "FALSE", "NULL"):
            return _property(*self._property())
        value = self._literal()
        return lambda _: value

    def _literal(self) -> object:
        token = self._next()
        if token.kind == "string":
            return token.text
        if token.kind == "integer":
            return int(token.text, 16 if token.text[:2] in ("0x", "0X") else 10)
        if token.kind == "number":
            return float(token.text)
        if token.kind == "parameter" and token.text[1:] in self._parameters:
            return self._parameters[token.text[1:]]
        if token.is_word("TRUE", "FALSE"):
            return token.is_word("TRUE")
        if token.is_word("NULL"):
            return None
        self._at = max(0, self._at - (token.kind != "end"))
        raise self._fail(
            f"the parameter {token.text} has no value" if token.kind == "parameter" else "a value is missing"
        )

    def _property(self) -> tuple[str, str]:
        """Reads ``name``, ``user.name`` or ``sys.name``, and gives the scope in capitals and the name."""
        scope = "USER"
        if self._token.is_word(*_SCOPES) and self._tokens[self._at + 1].is_sign("."):
            scope = self._next().text.upper()
            self._next()
        token = self._token
        is_name = token.kind == "quoted" or (token.kind == "word" and token.text.upper() not in _RESERVED)
        if not is_name:
            raise self._fail("the name of a property is missing")
        if scope == "SYS" and token.text.lower() not in SYSTEM:
            raise self._fail(f"there is no system property '{token.text}'")
        self._next()
        return scope, token.text

    def _user_property(self) -> str:
        scope, name = self._property()
        if scope == "SYS":
            raise self._fail("system properties cannot be changed here")
        return name

    def _existence(self) -> Expression:
        scope_name, name = self._property()
        if scope_name == "SYS":
            read = SYSTEM[name.lower()]
            return lambda scope: read(scope.message) is not None
        return lambda scope: name in scope.properties


def _property(scope_name: str, name: str) -> Expression:
    if scope_name == "SYS":
        read = SYSTEM[name.lower()]
        return lambda scope: read(scope.message)
    return lambda scope: scope.properties.get(name)


def _by_name(scope: Scope, name: object) -> object:
    return scope.properties.get(name) if isinstance(name, str) else None


def _equals(left: Expression, right: Expression) -> Expression:
    return lambda scope: compare("=", left(scope), right(scope))


def _truth(value: object) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise EvaluationError("a condition is neither true nor false")


def _negated(term: Expression) -> Expression:
    def negated(scope: Scope) -> object:
        value = _truth(term(scope))
        return None if value is None else not value

    return negated


def _first(decides: bool, terms: list[Expression]) -> Expression:
    """What one of the terms decides, or else the opposite; unknown if a term is."""

    def first(scope: Scope) -> object:
        answer: bool | None = not decides
        for term in terms:
            value = _truth(term(scope))
            if value is decides:
                return decides
            if value is None:
                answer = None
        return answer

    return first


@dataclass(frozen=True, slots=True)
class Token:
    kind: str  # the name of its group in `_TOKEN`
    text: str  # what it says, without quotes and with what was doubled in them once
    at: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.upper() in words

    def is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.text in signs


def tokens_of(text: str) -> list[Token]:
    """Cut an expression into tokens; the last one is the end."""
    if len(text) > MAX_LENGTH:
        raise BrokerError(ARGUMENT, f"An expression has {len(text)} characters, and {MAX_LENGTH} are allowed.")
    tokens: list[Token] = []
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise BrokerError(ARGUMENT, f"An expression cannot be read at character {at + 1}.")
        kind, word = match.lastgroup, match.group(match.lastgroup)
        if kind in ("string", "quoted"):
            word = word[1:-1].replace(word[-1] * 2, word[-1])
        tokens.append(Token(kind, word, match.start(match.lastgroup)))
        if kind == "end":
            return tokens
        at = match.end()
