"""The expressions of rules."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from servicebus_local.broker import BrokerError, Stored
from servicebus_local.broker._sql import parse_action, parse_condition
from servicebus_local.broker._sql_values import EvaluationError, Scope, is_like

MESSAGE = Stored(
    b"",
    120,
    message_id="m-1",
    subject="it's",
    to="there",
    correlation_id=7,
    enqueued_at=0.0,
    properties={"n": 5, "f": 2.5, "s": "blue sky", "yes": True, "null": None, "odd name": 1, "like": "x_y", "neg": -7},
)


def evaluate(text: str, parameters=None):
    return parse_condition(text, parameters or {})(Scope(MESSAGE))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("n = 5", True),
        ("n <> 5", False),
        ("n != 4 AND n >= 5 and n<=5", True),
        ("n > 5 OR f < 2.6", True),
        ("user.n = 5.0", True),
        ("s = 'blue sky'", True),
        ("s = 'Blue sky'", False),
        ("sys.Label = 'it''s'", True),
        ("SYS.messageid LIKE 'm-%'", True),
        ("sys.CorrelationId = '7'", True),
        ("sys.To IN ('here', 'there')", True),
        ("sys.To NOT IN ('here', 'there')", False),
        ("n IN (1, 2 + 3)", True),
        ("n NOT IN (1, missing)", None),
        ("missing = 1", None),
        ("NOT missing = 1", None),
        ("missing = 1 OR n = 5", True),
        ("missing = 1 AND n = 4", False),
        ("missing = 1 AND n = 5", None),
        ("missing IS NULL", True),
        ("null IS NULL", True),
        ("n IS NOT NULL", True),
        ("EXISTS(n) AND NOT EXISTS(missing) AND EXISTS(user.s) AND EXISTS(sys.To)", True),
        ("EXISTS(sys.ReplyTo)", False),
        ("yes", True),
        ("yes = TRUE AND NOT false", True),
        ("yes = 1", None),
        ("n = '5'", None),
        ("[odd name] = 1", True),
        ('"odd name" = 1', True),
        ("[like] LIKE 'x!_y' ESCAPE '!'", True),
        ("s LIKE 'x!_y' ESCAPE '!'", False),
        ("s LIKE '%e_sky'", True),
        ("s NOT LIKE '%e_sky'", False),
        ("n LIKE '5'", None),
        ("n + 2 * 3 = 11", True),
        ("(n + 2) * 3 = 21", True),
        ("n / 2 = 2", True),
        ("neg / 2 = -3", True),
        ("neg % 2 = -1", True),
        ("f / 2 = 1.25", True),
        ("f % 2 = .5", True),
        ("- n = -5 AND - -n = +5", True),
        ("n = 0x5 AND 1e1 = 10", True),
        ("n = @five", True),
        ("property('n') = 5", True),
        ("sys.EnqueuedTimeUtc < sys.ExpiresAtUtc", None),
        ("sys.DeliveryCount = 0 AND sys.Size = 120", True),
        ("1=1", True),
        ("not (n = 5 and (f = 1 or s = 'x'))", True),
    ],
)
def test_an_expression_has_its_value(text, value):
    assert evaluate(text, {"@five": 5}) is value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "n =",
        "= 5",
        "n = 5 5",
        "(n = 5",
        "n IN ()",
        "n IN 5",
        "n NOT 5",
        "n IS 5",
        "n = @unknown",
        "sys.Nothing = 1",
        "n = 'open",
        "EXISTS(5)",
        "n = 5; DROP",
        "n & 1",
        "AND",
        "import os",
        "__import__('os')",
        "(" * 40 + "n" + ")" * 40,
        "NOT " * 40 + "yes",
        "- " * 40 + "n = 1",
        "n = 1 OR " * 200 + "n = 2",
    ],
)
def test_what_cannot_be_understood_is_refused(text):
    with pytest.raises(BrokerError, match="argument-error"):
        parse_condition(text, {})


@pytest.mark.parametrize(
    "text", ["n / 0 = 1", "n % 0 = 1", "s + 1 = 2", "NOT n", "yes * 2 = 2", "s LIKE 'a' ESCAPE 'ab'"]
)
def test_what_has_no_value_is_an_error(text):
    with pytest.raises(EvaluationError):
        evaluate(text)


def test_long_chains_are_no_deep_ones():
    assert evaluate("+".join(["1"] * 500) + "=500") is True
    assert evaluate(" OR ".join(["n=1"] * 100 + ["n=5"])) is True


@given(st.text(max_size=60))
@example("0" * 50)
@example("x" + "(" * 50)
def test_any_text_is_read_or_refused(text):
    try:
        condition = parse_condition(text, {})
    except BrokerError:
        return
    with contextlib.suppress(EvaluationError):
        condition(Scope(MESSAGE))


@given(
    st.lists(
        st.sampled_from(
            [
                "n",
                "f",
                "s",
                "(",
                ")",
                "AND",
                "OR",
                "NOT",
                "=",
                "<",
                "+",
                "-",
                "*",
                "/",
                "%",
                "1",
                "2.5",
                "'a'",
                "IN",
                "LIKE",
                "ESCAPE",
                "IS",
                "NULL",
                "EXISTS",
                "sys",
                ".",
                "Label",
                "missing",
                ",",
                "@p",
            ]
        ),
        max_size=14,
    )
)
def test_any_row_of_tokens_is_read_or_refused(words):
    test_any_text_is_read_or_refused.hypothesis.inner_test(" ".join(words))


@given(st.text("ab*[", max_size=8), st.text("ab*[%_", max_size=6))
def test_like_matches_what_its_definition_does(text, pattern):
    def matches(text: str, pattern: str) -> bool:
        if not pattern:
            return not text
        if pattern[0] == "%":
            return any(matches(text[at:], pattern[1:]) for at in range(len(text) + 1))
        return bool(text) and pattern[0] in ("_", text[0]) and matches(text[1:], pattern[1:])

    assert is_like(text, pattern, None) is matches(text, pattern)


def test_an_action_is_read_into_assignments():
    (first, second) = parse_action("SET a = n + 1; REMOVE [odd name];", {})
    assert (first.name, first.value(Scope(MESSAGE))) == ("a", 6)
    assert second == ("odd name", None)
    for text in ("SET sys.Label = 'x'", "SET a", "DROP a", "SET a = 1 SET b = 2"):
        with pytest.raises(BrokerError, match="argument-error"):
            parse_action(text, {})
