"""Makes segments of what processes left behind that were killed."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from pairmq.observe.journal import _layout
from pairmq.observe.journal._options import Compression
from pairmq.observe.journal._part import DamagedPart, Part
from pairmq.observe.journal._segments import make_loss_segment, make_segments

_log = logging.getLogger("pairmq")


@dataclass(slots=True)
class Recovered:
    """What a recovery did.

    Args:
        parts: that were made into segments.
        rows: in them.
        segments: that came of them.
        lost: events that processes could not write; the journal has a row `EventsDropped` now that says so.
        torn: bytes that were cut from the ends of parts, of batches that were being written when the process died.
        kept: parts that somebody still writes, or that another machine left.
        failed: the parts that could not be opened or read, or whose segments could not be written, and why.
    """

    parts: int = 0
    rows: int = 0
    segments: list[Path] = field(default_factory=list)
    lost: int = 0
    torn: int = 0
    kept: int = 0
    failed: dict[Path, str] = field(default_factory=dict)


def recover(
    directory: str | os.PathLike[str], *, all_hosts: bool = False, compression: Compression = "zstd"
) -> Recovered:
    """Make segments of every part whose process is dead.

    Safe at any time, beside processes that write and beside other recoveries, and safe to be killed: a part is deleted
    once its segments stand, and made again they have the same names and the same rows.

    Args:
        directory: the journal's.
        all_hosts: also the parts of other machines. Locks tell the dead from the living only on the machine where they
            are held, so that this is for when the others are known to be gone.
        compression: of the segments.

    Returns:
        What was done; a part that fails is named there, stays as it is, and does not stop the others.

    Raises:
        OSError: the directory can't be read.
    """
    folder = Path(directory)
    done = Recovered()
    here = socket.gethostname()
    found = sorted((folder / _layout.OPEN).iterdir()) if (folder / _layout.OPEN).is_dir() else []
    for path in found:
        loss = _layout.parse_loss(path)
        if loss is None and _layout.parse_part(path) is None:
            continue
        part = None
        try:
            part = Part.adopt(path)
            if part is None:
                done.kept += path.exists()
            elif loss is not None:
                if not all_hosts and not _layout.is_of_host(loss.process, here):
                    done.kept += 1
                else:
                    done.segments.append(make_loss_segment(folder, part, loss, compression))
                    done.lost += loss.count
            elif _is_empty(part):
                part.remove()  # killed while it was made
            elif not all_hosts and part.head().host != here:
                done.kept += 1
            else:
                segments, rows, contents = make_segments(folder, part, compression)
                done.parts += 1
                done.rows += rows
                done.segments += segments
                done.torn += contents.torn
        except (OSError, pa.ArrowException, DamagedPart) as error:
            done.failed[path] = str(error) or type(error).__name__
            _log.warning("journal: %s stays as it is: %s", path, error)
        finally:
            if part is not None:
                part.close()
    _sweep(found)
    return done


def _is_empty(part: Part) -> bool:
    return part.path.stat().st_size == 0


def _sweep(found: list[Path]) -> None:
    """Delete half-written segments whose part is gone: nobody will finish them."""
    for path in found:
        part = _layout.part_of_aside(path)
        if part is not None and not part.exists():
            with contextlib.suppress(OSError):
                path.unlink()
