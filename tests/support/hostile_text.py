"""Text that may be in a file of settings or prices, or nearly."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from pairmq.core import OPTION_NAMES

PIECES = (
    "[pair]", "[primary]", "primary", "base", "per_million", "=", "\n", "'", '"', "[", "]", "{", "}", ".", ",", "#",
    *OPTION_NAMES, "1", "-1", "nan", "inf", "1e400", "1e999999", "0x" + "f" * 6000, "9" * 6000, "1979-05-27", "07:32",
    "true", "[" * 2000, "{a=" * 2000, "\x00", "\u202e", "\ud800", "é", "10s", "5min", "'''", "\\u0000",
)  # fmt: skip
documents = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=14).map("".join)


def written(folder: Path, text: str) -> str:
    """Write it to a file; gives its path."""
    path = folder / "file"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return str(path)
