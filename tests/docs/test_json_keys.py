"""The keys of what commands print with --json are those that the reference lists."""

from __future__ import annotations

import json
import re

import pytest

from command_line import run
from doc_blocks import ROOT
from pairmq import Entity, Message
from pairmq.sync import Pair

PAGE = (ROOT / "docs/reference/command-line.md").read_text("utf-8")
(TABLE,) = re.findall(r"\| command \| keys \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE)
ROWS = dict(re.findall(r"\| `([a-z ]+)` \| (.*) \|", TABLE))

ARGUMENTS = {
    "status": ["--entity", "orders"],
    "ping": ["--entity", "orders"],
    "backlog purge": ["--yes", "--dead-letter"],
    "entity create": ["new"],
    "entity delete": ["old", "--yes"],
    "switch hold": ["orders", "--timeout", "0"],
}
SIDES = ["--primary", "memory://json-east", "--secondary", "memory://json-west"]
PRIMARY_ONLY = ("ping", "entity")
ALONE = ("plugins", "cost")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("command", ROWS)
def test_the_keys_of_a_document_are_documented(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    with Pair.connect(SIDES[1], SIDES[3]) as pair:
        for name in ("orders", "old"):
            pair.primary.admin.create(Entity(name))
        pair.force_failover("orders")
        pair.sender("orders").send(Message(b"1"))
        first = command.split()[0]
        sides = [] if first in ALONE else SIDES[:2] if first in PRIMARY_ONLY else SIDES
        capfd.readouterr()
        status = run([*command.split(), *ARGUMENTS.get(command, []), "--json", *sides])
    out, err = capfd.readouterr()
    assert status == 0, err
    document = json.loads(out.splitlines()[0] if command == "backlog peek" else out)
    keys = list(document[0] if isinstance(document, list) else document)
    if command == "backlog peek":
        keys = keys[: keys.index("message_id")]
    assert [key for key in keys if f"`{key}`" not in ROWS[command]] == []
