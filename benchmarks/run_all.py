"""All benchmarks that compare PairMQ with a peer or hold it to a limit, one after the other.

Each is a program of its own, which starts the servers that it needs. Its table is printed, and its figures are written
as JSON and as a picture. Exit status 1 when one of them failed or missed its limit; the others run all the same.

Run it with: make bench, or make bench ARGS="--only redis_send --only machine_speed"
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from _pictures import draw, draw_curves, draw_lines, draw_tails

HERE = Path(__file__).parent
TITLES = {
    "redis_send": "A healthy send to Redis, one at a time",
    "servicebus_send": "A healthy send to Service Bus (local server), one at a time",
    "rabbitmq_send": "Healthy sends to RabbitMQ",
    "redis_drain": "A drain from Redis to Redis",
    "rabbitmq_drain": "A drain from RabbitMQ to RabbitMQ",
    "failover_time": "kill -9 of the primary to the first send at the secondary",
    "machine_speed": "The machine of one entity",
    "entity_memory": "Memory of an entity, with 100 000 of them",
    "entities_cost": "A send while 100 000 are in flight",
    "idle_cost": "An idle pair with 1000 entities",
    "growth": "How the cost of a message grows",
    "distance": "RabbitMQ over a distance",
    "distance_redis": "Redis over a distance",
    "distance_postgres": "Sends to PostgreSQL over a distance",
    "distance_servicebus": "Service Bus (local server) over a distance",
    "fleet_switch": "Ten processes follow a decision, the brokers 300 ms away",
    "syphon_processes": "pairmq syphon --processes, two processors",
    "tails": "How long sends to RabbitMQ take",
    "tails_redis": "How long sends to Redis take",
    "pipeline_growth": "pairmq pipeline run: processor time of a row, as the journal grows",
    "follow_growth": "A refresh of pairmq pipeline run --follow, in a day at a constant rate",
}


VARIANTS = {
    "distance_redis": ("distance", "--product", "redis"),
    "distance_postgres": ("distance", "--product", "postgres"),
    "distance_servicebus": ("distance", "--product", "servicebus"),
    "tails_redis": ("tails", "--product", "redis"),
    "pipeline_growth": ("pipeline_speed", "--events", "1000000", "10000000"),
}
"""Programs that are run with arguments, by what their figures are called."""

LONG = ("pipeline_growth",)
"""Run only if asked for: a journal of ten million rows takes longer than all others."""

DRAWN = {"curves": draw_curves, "lines": draw_lines, "tails": draw_tails}
"""By what a benchmark reports; bars where it reports none of these."""


def tell_curves(curves: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print what grows, a line for each setting."""
    for what, settings in curves.items():
        for setting, of in settings.items():
            spread = f"(from {of['min']:,.1f} to {of['max']:,.1f})"
            print(f"  {f'{float(setting):,g} {what}':<50} {of['median']:>12,.1f} {spread}")


def run(name: str, out: Path, rounds: int | None) -> bool:
    """Run one, keep what it found, and print its table; returns whether it held."""
    more = [] if rounds is None else ["--rounds", str(rounds)]
    program_name, *arguments = VARIANTS.get(name, (name,))
    command = [sys.executable, str(HERE / f"{program_name}.py"), *arguments, "--json", *more]
    program = subprocess.run(command, stdout=subprocess.PIPE)  # noqa: S603  # ours
    try:
        figures = json.loads(program.stdout)
    except ValueError:
        print(f"{name}: failed, with exit status {program.returncode}")
        return False
    (out / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
    drawn = next((draws for key, draws in DRAWN.items() if key in figures), draw)
    drawn(TITLES[name], figures, out / f"{name}.png")
    print(f"\n{name}: {TITLES[name]}, {figures['unit']}")
    if curves := figures.get("curves") or figures.get("lines"):
        tell_curves(curves)
        return program.returncode == 0
    if "tails" in figures:
        for contender, of in figures["marks"].items():
            print(f"  {contender:<50}", *(f"{mark} {value:,.2f}" for mark, value in of.items()))
        return program.returncode == 0
    for kind, form in (("contenders", ",.0f"), ("ratios", ".2f")):
        for contender, of in figures[kind].items():
            median, least, greatest = (format(of[key], form) for key in ("median", "min", "max"))
            print(f"  {contender:<50} {median:>12} (from {least} to {greatest})")
    if program.returncode:
        print("  the limit that it has was missed")
    return program.returncode == 0


def main() -> int:
    """Run them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", choices=TITLES, action="append", help="repeatable; all but the long ones when left out"
    )
    parser.add_argument("--rounds", type=int, help="of each; its own number when left out")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "performance")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    held = [
        run(name, options.out, options.rounds) for name in options.only or TITLES if options.only or name not in LONG
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
