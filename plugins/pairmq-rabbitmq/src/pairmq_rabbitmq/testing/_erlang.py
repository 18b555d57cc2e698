"""Erlang expressions, evaluated in a running node by Erlang's own `erl_call`."""

from __future__ import annotations

import abc
import base64
import itertools
import os
import re
import subprocess
from collections.abc import Mapping
from typing import Any

from pairmq.testing.servers import ServerError

# Gives the value, or the error, as text that no printing of terms can mangle.
_ERLANG_CALL = """
begin PairmqText = fun(T) -> base64:encode_to_string(unicode:characters_to_binary(T)) end,
try begin PairmqValue = begin %s end, PairmqText(%s) end of Ok -> "ok " ++ Ok
catch C:R -> "error " ++ PairmqText(io_lib:format("~0tp: ~0tp", [C, R])) end end.
"""

_calls = itertools.count()


class Evaluator(abc.ABC):
    """A server that Erlang expressions can be evaluated in."""

    @abc.abstractmethod
    def erl(self, expression: str, *, timeout: float = 30.0) -> str:
        """Evaluate an expression in the server, and give the value as Erlang writes it.

        Raises:
            ServerError: the server does not run, does not answer in time, or the expression failed.
        """

    @abc.abstractmethod
    def _json(self, expression: str) -> Any:
        """The same, of a value that JSON can hold."""


def call(
    program: str, node: str, environment: Mapping[str, str], expression: str, as_text: str, timeout: float, name: str
) -> str:
    """Evaluate an expression in a node.

    Args:
        program: `erl_call`.
        node: the node's name.
        environment: all of the program's environment, with where the port mapper and the cookie are.
        expression: Erlang expressions, separated by commas, without the full stop.
        as_text: an expression that makes text of the value, which is `PairmqValue` in it.
        timeout: seconds.
        name: the server's, for errors.

    Returns:
        The text.

    Raises:
        ServerError: the node does not answer in time, or the expression failed.
    """
    try:
        done = subprocess.run(  # Erlang's own program, nothing from outside
            # Under its own name all calls have one, and the server refuses one while it still knows another.
            [program, "-sname", node, "-h", f"call{os.getpid()}n{next(_calls)}", "-e"],
            input=_ERLANG_CALL % (expression, as_text),
            env=dict(environment),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ServerError(f"{name} did not answer within {timeout} s: {expression}") from None
    kind, text = _answer(done.stdout)
    if kind == "ok":
        return text
    raise ServerError(f"{expression}: {text or done.stdout or done.stderr or f'status {done.returncode}'}")


def binary(text: str) -> str:
    """Write a text as an Erlang binary."""
    # Readable where that is safe, since errors show it; else by its bytes, so that nothing has to be escaped.
    if re.fullmatch(r"[\w ./*^$#:-]*", text, re.ASCII):
        return f'<<"{text}">>'
    return f"<<{','.join(str(byte) for byte in text.encode())}>>"


def string(text: str) -> str:
    """Write a text as an Erlang string."""
    return f"unicode:characters_to_list({binary(text)})"


def _answer(printed: str) -> tuple[str, str]:
    # erl_call prints short strings as such and long ones as lists of numbers.
    found = re.fullmatch(r'\s*\{ok, (?:"(?P<text>[^"]*)"|\[(?P<codes>[\d, ]*)\])\}\s*', printed)
    if found is None:
        return "", ""
    text = found["text"] if found["codes"] is None else "".join(chr(int(code)) for code in found["codes"].split(","))
    kind, _, encoded = text.partition(" ")
    return kind, base64.b64decode(encoded).decode()
