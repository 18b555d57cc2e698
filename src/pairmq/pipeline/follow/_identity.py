"""What a kept state was made of: read with another journal or by other rules it would give wrong tables."""

from __future__ import annotations

import importlib.metadata
import json
import secrets
import shutil
from pathlib import Path
from typing import Any

from pairmq.model import ConfigurationError
from pairmq.pipeline._writing import writing

STATE = "_follow"
"""The folder of the output directory that holds the state."""

STATE_VERSION = 1
"""Raised with every change of what is kept: the facts' columns, how they are made of rows, the files of the ledger.

Only this decides whether a state can be gone on with, so that an upgrade which changes none of these goes on. The tests
keep fingerprints of the facts, and fail where these change and this does not.
"""

_NAME = "follow.json"


def state_of(out: Path, journal: Path, *, restart: bool) -> Path:
    """Give the folder of the state, made where it is missing.

    Args:
        out: the output directory, which the caller has locked.
        journal: the journal's directory.
        restart: delete what is kept, so that the whole journal is read again.

    Raises:
        ConfigurationError: what is kept there is of another journal, of another `STATE_VERSION`, or damaged.
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
        with writing(written):
            written.write_text(json.dumps(mine, indent=1) + "\n", "utf-8")
        written.replace(path)
        return folder
    try:
        theirs = json.loads(path.read_text("utf-8"))
        its_journal, its_version, its_maker = (theirs.get(name) for name in ("journal", "state", "pairmq"))
    except (ValueError, AttributeError):
        raise unusable(folder, f"is damaged: {path} can't be read") from None
    if its_journal != mine["journal"]:
        raise unusable(folder, f"is of the journal in {its_journal}, not of {mine['journal']}")
    if its_version != STATE_VERSION:
        raise unusable(
            folder,
            f"was made by PairMQ {its_maker} by other rules (version {its_version} of the state; PairMQ "
            f"{mine['pairmq']} goes on with version {STATE_VERSION})",
        )
    return folder


def unusable(folder: Path, why: str) -> ConfigurationError:
    """The error that says that a state can't be gone on with, and what to do."""
    return ConfigurationError(
        f"what is kept in {folder} {why}; --restart (restart=True) deletes it and reads the whole journal again"
    )


def _identity(journal: Path) -> dict[str, Any]:
    return {
        "journal": str(journal.resolve()),
        "state": STATE_VERSION,
        "pairmq": importlib.metadata.version("pairmq"),  # for people, and for the error above
    }
