"""What the demo sends, how fast, and when it takes the primary away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Self

from pairmq.cli._errors import BadUsage, file_problem
from pairmq.cli._lines import MAX_LINE

_SENDING = 10.0  # s that all messages take unless a rate is given
_LONGEST_RESTART = 10.0  # s that the sending is drawn out for a primary that comes back slowly, at most


@dataclass(frozen=True, slots=True)
class Plan:
    """The course of a demo, in seconds from its start.

    Args:
        messages: how many are sent.
        rate: a second; None to send them within 10 s, and as much longer as the primary needs to start again.
        failover_interval: the outage lasts longer than this.
        restart: how long the primary probably takes to start again.
    """

    messages: int
    rate: float | None
    failover_interval: float
    restart: float = 0.0

    @property
    def sending(self) -> float:
        """How long sending takes."""
        if self.rate is None:
            return _SENDING + min(self.restart, _LONGEST_RESTART)
        return self.messages / self.rate

    @property
    def outage_at(self) -> float:
        """When the primary goes."""
        return 0.25 * self.sending

    @property
    def outage_ends_at(self) -> float:
        """When the primary is brought back, which takes `restart`."""
        return self.outage_at + max(0.35 * self.sending - self.restart, self.failover_interval + 1.5)

    @property
    def drain_rate(self) -> float:
        """Messages a second of the syphon: held down a little, so that the drain can be watched."""
        return max(20.0, 1.2 * self.messages / self.sending)

    def due_at(self, index: int) -> float:
        """When a message is sent."""
        return (index + 0.5) * self.sending / self.messages


class Texts:
    """The bodies: the lines of a file, read as they are needed, or made up.

    Args:
        path: the file; None to make them up.
        count: how many to make up.

    Raises:
        BadUsage: the file can't be read or is empty.
    """

    def __init__(self, path: str | None, count: int) -> None:
        self._path = path
        self._count = count
        self._file: BinaryIO | None = None
        if path is None:
            return
        try:
            self._file = open(path, "rb")  # noqa: SIM115  # closed in __exit__
            if not self._file.seekable():
                self._file.close()
                raise BadUsage(f"{path}: the demo reads a file twice, so that it must be an ordinary one")
            self._count = sum(1 for _ in self._lines())
        except OSError as error:
            raise BadUsage(f"can't read {file_problem(path, error)}") from None
        if not self._count:
            raise BadUsage(f"{path}: it is empty, there is nothing to send")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        if self._file is None:
            for number in range(1, self._count + 1):
                yield f"message {number} of {self._count}".encode()
        else:
            yield from self._lines()

    def _lines(self) -> Iterator[bytes]:
        file = self._file
        if file is None:
            return
        file.seek(0)
        while line := file.readline(MAX_LINE):
            yield line.removesuffix(b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
