"""What a kept state was made of: read with another journal or by another version it would give wrong tables."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from pairmq.model import ConfigurationError
from pairmq.model.records import SCHEMA_VERSION
from pairmq.pipeline.transforms.facts import FACTS

STATE = "_follow"
"""The folder of the output directory that holds the state."""

_NAME = "follow.json"
_LAYOUT = 1  # of the ledger
_WORDS = {
    "journal": "the journal in {}",
    "pairmq": "PairMQ {}",
    "schema": "version {} of the journal's columns",
    "layout": "layout {} of its own files",
    "facts": "other facts ({})",
}


def state_of(out: Path, journal: Path, *, restart: bool) -> Path:
    """Give the folder of the state, made where it is missing.

    Args:
        out: the output directory, which the caller has locked.
        journal: the journal's directory.
        restart: delete what is kept, so that the whole journal is read again.

    Raises:
        ConfigurationError: what is kept there is of another journal or another version.
        OSError: the directory can't be written.
    """
    folder = out / STATE
    if restart and folder.exists():
        # One rename, so that a kill leaves the whole state or none; names like this are deleted by the next run.
        aside = out / f"_work-{secrets.token_hex(4)}"
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    mine, path = _identity(journal), folder / _NAME
    if not path.exists():
        if any(not each.name.startswith(".") for each in folder.iterdir()):
            raise unusable(folder, "does not say of which journal it is")
        written = path.with_name(f".{_NAME}")
        written.write_text(json.dumps(mine, indent=1) + "\n", "utf-8")
        written.replace(path)
        return folder
    try:
        theirs = json.loads(path.read_text("utf-8"))
        other = next((name for name in mine if theirs.get(name) != mine[name]), None)
    except (ValueError, AttributeError):
        raise unusable(folder, f"is damaged: {_NAME} can't be read") from None
    if other is not None:
        raise unusable(folder, f"is of {_WORDS[other].format(theirs.get(other))}, not of {mine[other]}")
    return folder


def unusable(folder: Path, why: str) -> ConfigurationError:
    """The error that says that a state can't be gone on with, and what to do."""
    return ConfigurationError(
        f"what is kept in {folder} {why}; --restart (restart=True) deletes it and reads the whole journal again"
    )


def _identity(journal: Path) -> dict[str, Any]:
    facts = json.dumps([[fact.name, fact.schema.jsonValue()] for fact in FACTS])
    return {
        "journal": str(journal.resolve()),
        "pairmq": importlib.metadata.version("pairmq"),
        "schema": SCHEMA_VERSION,
        "layout": _LAYOUT,
        "facts": hashlib.sha256(facts.encode()).hexdigest()[:12],
    }
