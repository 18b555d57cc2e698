"""The command line of chaos runs, ``python -m pairmq.testing.chaos``: see docs/how-to/run-chaos.md."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pairmq.model import ConfigurationError, PairMQError
from pairmq.testing.chaos._run import carry_out
from pairmq.testing.chaos.broker import chaos_broker
from pairmq.testing.chaos.plan import DISTANCES, Plan, Settings, drawn_settings, planned
from pairmq.testing.chaos.report import ChaosReport

DEFAULT_PAIRS = ("redis,redis", "rabbitmq,rabbitmq", "servicebus,servicebus", "rabbitmq,redis")
_DEFAULT_MINUTES = 2.0
_CONSUMERS = 2
_TAKEN = ("every", "longest", "clients", "rate", "continuity", "ordering")  # options that are settings as they are


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it: 0 when every promise was kept, 1 if one was broken, 2 if something could not be run, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1_000_000)
    reports: list[ChaosReport] = []
    status = 0
    try:
        # A plan names its own pair, and is carried out once.
        for pair in ("",) if options.plan else options.pair or DEFAULT_PAIRS:
            reports.append(_run(options, pair, seed))
            if not options.json:
                print(reports[-1].text(timeline=options.timeline), flush=True)
            if reports[-1].interrupted:
                status = 130
                break
    except KeyboardInterrupt:
        print("chaos: interrupted: no verdict", file=sys.stderr)
        status = 130
    except ConfigurationError as error:
        print(f"chaos: {error}", file=sys.stderr)
        status = 2
    except (PairMQError, RuntimeError, OSError) as error:
        print(f"chaos: {type(error).__name__}: {error}", file=sys.stderr)
        status = 2
    if options.json:
        print(json.dumps([report.to_dict() for report in reports], indent=1))
    return 1 if any(not report.ok for report in reports) else status


def _run(options: argparse.Namespace, pair: str, seed: int) -> ChaosReport:
    if options.plan is None and not 60 * options.minutes >= 1:
        raise ConfigurationError(f"--minutes is {options.minutes:g}: it must be a second (0.017) or more")
    with ExitStack() as stack:
        plan = None if options.plan is None else Plan.from_json(Path(options.plan).read_text("utf-8"))
        products = tuple(pair.split(",")) if plan is None else plan.products
        if len(products) != 2:
            raise ConfigurationError(f"--pair is {pair!r}: it must be PRIMARY,SECONDARY")
        brokers = (chaos_broker(products[0]), chaos_broker(products[1]))
        for broker in brokers:
            stack.callback(broker.close)  # it has a directory, also when it is never started
        if plan is None:
            drawn = drawn_settings(seed)
            drawn |= {name: value for name in drawn if (value := getattr(options, name)) is not None}
            settings = Settings(
                seed=seed,
                seconds=60 * options.minutes,
                faults=tuple(options.faults.split(",")) if options.faults else None,
                consumers=options.consumers or (_CONSUMERS if options.continuity else 0),
                **{name: getattr(options, name) for name in _TAKEN},
                **drawn,
            )
            slower = max(broker.attempt_timeout for broker in brokers)
            faults = brokers[0].faults, brokers[1].faults
            behind = bool(brokers[0].addresses), bool(brokers[1].addresses)
            plan = planned((products[0], products[1]), settings, faults, slower, behind)
        directory = _directory(options, plan, stack)
        (directory / "plan.json").write_text(plan.to_json(), "utf-8")
        print(f"chaos: {'>'.join(products)} seed {plan.settings.seed}, {plan.settings.seconds:g} s", file=sys.stderr)

        def say(line: str) -> None:
            if not options.quiet:
                print(f"  {line}", file=sys.stderr, flush=True)

        report = carry_out(plan, brokers, directory, say, journal=_journal(options, plan))
        (directory / "report.json").write_text(json.dumps(report.to_dict(), indent=1), "utf-8")
        return report


def _journal(options: argparse.Namespace, plan: Plan) -> Path | None:
    if options.journal is None:
        return None
    journal = Path(options.journal, _name(plan)).absolute()
    journal.mkdir(parents=True, exist_ok=True)
    return journal


def _name(plan: Plan) -> str:
    return f"{'-'.join(plan.products)}-{plan.settings.seed}".replace(":", "-")


def _directory(options: argparse.Namespace, plan: Plan, stack: ExitStack) -> Path:
    if options.keep is None:
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pairmq-chaos-")))
    directory = Path(options.keep, _name(plan))
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty: the ledgers of two runs can't be distinguished")
    return directory


def _distance(text: str) -> str:
    distance = "" if text == "none" else text
    if not text or distance not in DISTANCES:
        raise argparse.ArgumentTypeError(f"it is {text!r}, and must be none, primary, secondary or both")
    return distance


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description="random faults on real servers, judged")
    add = parser.add_argument
    pairs = f"transports' names, or module:function; may be repeated ({' '.join(DEFAULT_PAIRS)})"
    add("--pair", action="append", metavar="PRIMARY,SECONDARY", help=pairs)
    add("--minutes", type=float, default=_DEFAULT_MINUTES, help="duration of the faults, for each pair (2)")
    add("--seed", type=int, help="of the plan (random)")
    add("--faults", help="only these, by name, separated by commas (all)")
    add("--every", type=float, default=4.0, help="seconds between two faults of a broker (4)")
    add("--longest", type=float, default=10.0, help="the longest fault in seconds (10)")
    add("--clients", type=int, default=3, help="processes (3)")
    add("--rate", type=float, default=20.0, help="sends per second of each process (20)")
    add("--consumers", type=int, default=0, help="processes that read the primary meanwhile (0)")
    add("--continuity", action="store_true", help="queues with lanes, which the consumers read as well (2 consumers)")
    add("--ordering", default="none", choices=("none", "session"), help="of the pairs, judged (none)")
    add("--distance", type=_distance, help="the side with high latency: none, primary, secondary or both (drawn)")
    yes_no = argparse.BooleanOptionalAction
    add("--differing", action=yes_no, help="clients with different numbers of backlog queues (drawn)")
    add("--eager", action=yes_no, help="eager tasks (drawn)")
    add("--plan", metavar="FILE", help="run this plan instead")
    add("--keep", metavar="DIRECTORY", help="keep plan, ledgers and report there")
    add("--journal", metavar="DIRECTORY", help="keep a journal of all processes in a folder there")
    add("--timeline", action="store_true", help="show all faults with their times, also without violations")
    add("--json", action="store_true", help="print the reports as JSON")
    add("--quiet", action="store_true", help="don't report events as they happen")
    return parser


if __name__ == "__main__":
    sys.exit(main())
