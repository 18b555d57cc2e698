"""How fast `pairmq syphon --processes N` empties a backlog of eight queues, for N of 1, 2 and 4, Redis to Redis.

The programs take turns, each on a backlog of its own. "a process" is the speed over N. Both servers, and the
programs, share the machine's processors: with two of them there is one for two syphons and two servers to gain.

Run it with: make bench-one NAME=syphon_processes
"""

from __future__ import annotations

import json
import sys

from _measuring import arguments, spread
from drain_speed import PROGRAMS, measure

PROCESSES = (1, 2, 4)
QUEUES = 8


def main() -> int:
    """Measure and print."""
    parser = arguments(__doc__, rounds=3)
    parser.add_argument("--messages", type=int, default=40_000)
    options = parser.parse_args()
    for number in PROCESSES:
        PROGRAMS[f"{number}"] = ("syphon", "--until-empty", *(("--processes", f"{number}") if number > 1 else ()))
    speeds: dict[int, list[float]] = {number: [] for number in PROCESSES}
    for turn in range(options.rounds):
        for number in PROCESSES[:: -1 if turn % 2 else 1]:
            speeds[number].append(measure(f"{number}", options.messages, QUEUES).speed)
            print(f"{turn}: {number} {speeds[number][-1]:,.0f}", file=sys.stderr)
    lines = {
        "all together": {f"{number}": spread(values) for number, values in speeds.items()},
        "a process": {f"{number}": spread([each / number for each in values]) for number, values in speeds.items()},
    }
    if options.json:
        figures = {"unit": "messages a second", "over": "processes", "ours": list(lines), "lines": lines}
        print(json.dumps(figures))
        return 0
    for name, settings in lines.items():
        print(f"{name:15}", *(f"{number}: {of['median']:>8,.0f}" for number, of in settings.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
