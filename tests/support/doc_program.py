"""Runs the Python blocks of one document, one after the other in one namespace: ``doc_program.py FILE``.

The file is JSON: a list of blocks as ``{"place": "docs/page.md:12", "text": "..."}``. An error's traceback names the
lines of the document. Blocks may await at their top level; all that do share one event loop.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import sys
from pathlib import Path


def run(blocks: list[dict[str, str]]) -> None:
    """Run the blocks."""
    variables: dict[str, object] = {"__name__": "__main__"}
    with asyncio.Runner() as runner:
        for block in blocks:
            page, _, line = block["place"].rpartition(":")
            # So that the numbers of the lines are those of the document.
            text = "\n" * (int(line) - 1) + block["text"]
            code = compile(text, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, variables))
            else:
                exec(code, variables)


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text("utf-8")))
