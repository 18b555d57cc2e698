"""Print the functions and files that a healthy send, a diverted one and a message in the syphon enter.

Run it with: .venv/bin/python scripts/walks.py [--functions]
It counts each function once, in the order of the first calls, on a pair in virtual time, without the simulated brokers,
the test kit and comprehensions, which are functions up to Python 3.11 only. A reader of the code walks the same way;
fewer functions in fewer files are a shorter one.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

from pairmq import Message
from pairmq.testing import Fault, run_virtual, simulated_pair

SOURCE = Path(__file__).parents[1] / "src" / "pairmq"
LEFT_OUT = ("memory/", "testing/")


@functools.cache
def first_instruction(code: CodeType) -> int:
    """Where a function begins, after what makes its closure's variables and the coroutine."""
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


class Walk:
    """Collects the functions that are entered while it is open."""

    def __init__(self, name: str, steps: list[Walk]) -> None:
        self.name = name
        self.functions: dict[tuple[str, str], int] = {}
        steps.append(self)

    def __enter__(self) -> None:
        sys.setprofile(self._event)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(str(SOURCE)):
            return
        if frame.f_lasti > first_instruction(frame.f_code):
            return  # a coroutine that is resumed is "called" again
        file = Path(frame.f_code.co_filename).relative_to(SOURCE).as_posix()
        name = frame.f_code.co_qualname
        if not file.startswith(LEFT_OUT) and not name.endswith("comp>"):
            key = (file, name)
            self.functions[key] = self.functions.get(key, 0) + 1

    @property
    def files(self) -> list[str]:
        """In the order in which they are entered."""
        return list(dict.fromkeys(file for file, _ in self.functions))


async def walked() -> list[Walk]:
    """Send a message to a healthy primary, one to a primary that is down, and let the syphon move two."""
    walks: list[Walk] = []
    async with simulated_pair() as simulated:
        sender = simulated.pair.sender("orders")
        await sender.send(Message(b"first"))  # opens links
        await asyncio.sleep(30)
        with Walk("a healthy send", walks):
            await sender.send(Message(b"healthy"))
        simulated.primary.fail(Fault.DOWN)
        await sender.send(Message(b"fails over"))
        await asyncio.sleep(0.2)  # the events of the failover
        with Walk("a diverted send", walks):
            await sender.send(Message(b"diverted"))
        simulated.primary.heal()
        with Walk("two messages through the syphon", walks):
            await asyncio.sleep(2)
        if simulated.pair.moved != 2:
            raise RuntimeError(f"{simulated.pair.moved} of 2 messages were moved")
    return walks


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the walks as a table."""
    parser = argparse.ArgumentParser(description="what a message walks through")
    parser.add_argument("--functions", action="store_true", help="each of them, in its order")
    options = parser.parse_args(arguments)
    for walk in run_virtual(walked()):
        calls = sum(walk.functions.values())
        print(f"{walk.name}: {len(walk.functions)} functions in {len(walk.files)} files, {calls} calls")
        if options.functions:
            for (file, function), times in walk.functions.items():
                print(f"    {file} {function}{f' x{times}' if times > 1 else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
