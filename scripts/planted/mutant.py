"""What a planted bug is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """One planted bug.

    Args:
        name: what it does wrong.
        file: below the repository's root.
        old: text that occurs exactly once.
        new: what is put in its place.
        ordering: of the pairs that are simulated to find it.
        tests: of those one has to find it, each a file or ``file::name``; none where the simulation has to.
    """

    name: str
    file: str
    old: str
    new: str
    ordering: str = "none"
    tests: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The folder of all packages that are installed with the file's."""
        parts = Path(self.file).parts
        return ROOT.joinpath(*parts[: parts.index("src") + 1])

    @property
    def place(self) -> Path:
        """The file, below that folder."""
        return (ROOT / self.file).relative_to(self.source)

    def planted(self) -> str:
        """The file's text with the bug in it.

        Raises:
            LookupError: its text does not occur, or occurs more than once: adapt it to the source.
        """
        text = (ROOT / self.file).read_text("utf-8")
        if (count := text.count(self.old)) != 1:
            raise LookupError(f"mutant {self.name!r}: its text stands {count} times in {self.file}")
        return text.replace(self.old, self.new)
