"""Makes a scenario from a seed."""

from __future__ import annotations

import bisect
import math
from dataclasses import replace
from random import Random
from typing import Any

from pairmq.core import lane_name
from pairmq.testing.history import PRIMARY, SECONDARY
from pairmq.testing.simulator._scenario import (
    BLIPS,
    DELAYING,
    LACKS,
    OF_A_PROCESS,
    OF_A_QUEUE,
    OF_A_WHOLE_BROKER,
    OF_ALL_PROCESSES,
    OF_THE_SECONDARY,
    WEIGHTS,
    Fault,
    ProcessPlan,
    Scenario,
    SenderPlan,
    Settings,
    Setup,
    Shipment,
)

QUEUES = ("orders", "prices", "stock")
TOPICS = ("topic:news",)

_SENDS_AROUND_A_FAULT = 7
_CONSUMERS_ENDED = 0.15  # for each fault: how often a consumer is killed or restarted around it
_BURSTS = 0.012  # for each fault: about one an hour
_WITHOUT_DISK = 0.4  # of the killed primaries
_CONTINUED = 0.25  # of the seeds
_LANES = (QUEUES, ("orders", "pri*", "stock"), ("orders",), ("?r*",))
# The processes, and which of them have a syphon; "s" does nothing else.
_TOPOLOGIES = (
    (("a", True), ("b", False)),
    (("a", True), ("b", True)),
    (("a", False), ("s", True)),
    (("a", False), ("b", True), ("s", True)),
)
_TEMPLATE = "{primary}/spare/{index}"
_WRONG_CLOCKS = 0.2  # of the seeds
_FAR = ((0.6, 0.01), (0.01, 0.6), (0.6, 0.6))


def scenario_of(settings: Settings) -> Scenario:
    """Make the scenario of some settings; equal settings give equal scenarios, on every machine."""
    rng = Random(f"pairmq {settings.seed}")
    setup = _setup(rng)
    seconds = settings.hours * 3600
    faults = _faults(rng, settings, setup, seconds)
    if "delete" in settings.faults:
        faults = _without_disk(setup, faults, settings.seed)
    traffic = _traffic(rng, settings, setup, faults, seconds)
    scenario = Scenario(settings.seed, seconds, settings.mode, setup, faults, traffic)
    return _with_wrong_clocks(_varied(settings, scenario))


def _varied(settings: Settings, scenario: Scenario) -> Scenario:
    """The same scenario with order, or with lanes, or as it is."""
    if settings.ordering != "none":
        return _ordered(scenario)
    rng = Random(f"pairmq continuity {settings.seed}")
    if settings.continuity == "off" or (settings.continuity == "drawn" and rng.random() >= _CONTINUED):
        return scenario
    return _continued(rng, settings, scenario)


def _with_wrong_clocks(scenario: Scenario) -> Scenario:
    """The same scenario with processes whose wall clocks are wrong by minutes, a minute to an hour, in some seeds."""
    rng = Random(f"pairmq wrong clocks {scenario.seed}")
    if rng.random() >= _WRONG_CLOCKS:
        return scenario
    processes = []
    for plan in scenario.setup.processes:
        skew = rng.choice((-1, 1)) * math.exp(rng.uniform(math.log(60), math.log(3600)))
        processes.append(replace(plan, skew=round(skew, 3)) if rng.random() < 0.7 else plan)
    return replace(scenario, setup=replace(scenario.setup, processes=tuple(processes)))


def _ordered(scenario: Scenario) -> Scenario:
    """The same scenario with pairs that keep order, and more sessions, so that there is an order to keep."""
    rng = Random(f"pairmq order {scenario.seed}")
    setup = replace(scenario.setup, options={**scenario.setup.options, "ordering": "session"})
    traffic = tuple(
        replace(each, fields=(*each.fields, "session")) if "session" not in each.fields and rng.random() < 0.6 else each
        for each in scenario.traffic
    )
    return replace(scenario, setup=setup, traffic=traffic)


def _continued(rng: Random, settings: Settings, scenario: Scenario) -> Scenario:
    """The same scenario with lanes, and processes of consumers that are killed and restarted."""
    setup = scenario.setup
    patterns = rng.choice(_LANES)
    options = {**setup.options, "continuity": patterns, "lane_patience": rng.choice((0.0, 5.0, 60.0))}
    processes = list(setup.processes)
    drained = rng.random() >= 0.15
    if not drained:  # consumers alone empty the lanes
        processes = [replace(each, syphon=False) for each in processes]
    least = (0, 1, 1, 2) if drained else (1, 1, 2)
    readers = tuple(path for path in QUEUES for _ in range(rng.choice(least)))
    processes.append(ProcessPlan("c", readers=readers or ("orders",), skew=round(rng.uniform(-0.5, 0.5), 3)))
    if rng.random() < 0.4:
        # Without continuity it reads the primary alone.
        own = () if rng.random() < 0.3 else None
        paths = tuple(rng.sample(QUEUES, 2))
        processes.append(ProcessPlan("d", readers=paths, skew=round(rng.uniform(-0.5, 0.5), 3), continuity=own))
    handling = rng.choice((0.0, 0.05, 0.5))
    setup = replace(setup, options=options, processes=tuple(processes), handling=handling)
    lanes = tuple(lane_name(PRIMARY, path) for path in QUEUES if setup.pair_options(syphon=False).continues(path))
    names = [each.name for each in processes[len(scenario.setup.processes) :]]
    faults = []
    for fault in scenario.faults:
        if fault.process and rng.random() < 0.3:
            fault = replace(fault, process=rng.choice(names))
        if fault.entity and fault.broker == SECONDARY and rng.random() < 0.6:
            fault = replace(fault, entity=rng.choice(lanes))
        faults.append(fault)
        if "kill" in settings.faults and rng.random() < _CONSUMERS_ENDED:
            at = round(min(scenario.seconds, max(1.0, fault.at + rng.uniform(-1.0, 5.0))), 3)
            kind = rng.choice(("kill", "kill", "restart"))
            seconds = round(rng.uniform(0.3, 20.0), 3)
            faults.append(Fault(at, kind, seconds, "", rng.choice(names), seed=rng.randrange(2**31)))
    return replace(scenario, setup=setup, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _setup(rng: Random) -> Setup:
    topology = rng.choice(_TOPOLOGIES)
    skews = [round(rng.uniform(-0.5, 0.5), 3) for _ in range(3)]
    consumer = rng.random() < 0.3
    processes = tuple(
        ProcessPlan(name, syphon, consumer and name == "a", skew)
        for (name, syphon), skew in zip(topology, skews, strict=False)
    )
    senders = [
        SenderPlan(f"{process.name}{number}", process.name, entity)
        for process in processes
        if process.name != "s"
        for number, entity in enumerate((rng.choice(QUEUES), rng.choice(QUEUES), rng.choice(QUEUES + TOPICS)), 1)
    ]
    setup = Setup(
        processes=processes,
        senders=tuple(senders),
        entities=QUEUES + TOPICS,
        options=_options(rng),
        lock_duration=rng.choice((5.0, 15.0, 60.0, 60.0, None)),
        scheduling=rng.random() < 0.7,
        counts_scheduled=rng.random() < 0.7,
        latency=(rng.choice((0.002, 0.01, 0.05)), rng.choice((0.002, 0.01, 0.05))),
        most_bytes=rng.choice(((50_000, 50_000), (50_000, 20_000), (20_000, 50_000))),
    )
    return _distant(rng, _differing(rng, setup))


def _differing(rng: Random, setup: Setup) -> Setup:
    """Processes with other options than the rest, and a primary that can do less than the secondary."""
    processes = list(setup.processes)
    if rng.random() < 0.4:
        index = rng.randrange(len(processes))
        count = rng.choice([each for each in (1, 2, 3, 5) if each != setup.options["backlog_queue_count"]])
        processes[index] = replace(processes[index], backlog_queue_count=count)
    if rng.random() < 0.15:
        # A syphon of another template would not know the usual queues for what they are, and they may be forbidden.
        index = rng.choice([index for index, plan in enumerate(processes) if not plan.syphon] or [0])
        if not processes[index].syphon:
            processes[index] = replace(processes[index], backlog_name_template=_TEMPLATE)
    lacks = tuple(name for name in LACKS if rng.random() < 0.15)
    return replace(setup, processes=tuple(processes), primary_lacks=lacks)


def _distant(rng: Random, setup: Setup) -> Setup:
    """Distant brokers, with time limits that fit."""
    jitter = rng.choice((0.0, 0.0, 0.5))
    if rng.random() >= 0.25:
        return replace(setup, jitter=jitter)
    options = dict(setup.options)
    options["attempt_timeout"] = max(3.0, options["attempt_timeout"])
    options["ping_timeout"] = max(5.0, options["ping_timeout"])
    return replace(setup, jitter=jitter, latency=rng.choice(_FAR), options=options)


def _options(rng: Random) -> dict[str, Any]:
    return {
        "backlog_queue_count": rng.choice((1, 2, 3, 5)),
        "failover_interval": rng.choice((0.0, 0.5, 2.0, 5.0)),
        "ping_primary_interval": rng.choice((0.5, 2.0, 10.0, 60.0)),
        "attempt_timeout": rng.choice((0.5, 1.0, 3.0, 10.0)),
        "send_timeout": rng.choice((3.0, 10.0, 30.0, 60.0)),
        "while_failing": "raise" if rng.random() < 0.15 else "wait",
        "ttl_policy": rng.choice(("restore", "restore", "elapse")),
        "failover_on_busy": rng.random() < 0.25,
        "close_grace": rng.choice((0.0, 2.0, 5.0)),
        "syphon_receive_wait": rng.choice((5.0, 30.0, 120.0, 900.0)),
        "syphon_batch": rng.choice((1, 3, 10, 100)),
        "syphon_max_rate": rng.choice((None, None, None, 5.0, 50.0)),
        "ping_timeout": rng.choice((1.0, 5.0, 10.0)),
        "flap_window": rng.choice((0.0, 30.0, 300.0)),
        "backlog_retry_interval": rng.choice((2.0, 10.0, 30.0)),
        "max_pending_sends": rng.choice((3, 20, 10_000)),
        "allowed_entities": rng.choice(((), ("orders", "pri*", "stock", "news"))),
    }


def _faults(rng: Random, settings: Settings, setup: Setup, seconds: float) -> tuple[Fault, ...]:
    kinds = [kind for kind in settings.faults if kind in WEIGHTS]
    if not kinds or not settings.faults_per_hour:
        return ()
    weights = [WEIGHTS[kind] for kind in kinds]
    faults: list[Fault] = []
    at = 20.0
    while True:
        at += rng.expovariate(settings.faults_per_hour / 3600)
        if at >= seconds:
            return tuple(sorted(faults, key=lambda fault: fault.at))
        fault = _fault(rng, setup, round(at, 3), rng.choices(kinds, weights)[0])
        faults.append(fault)
        if fault.kind in ("kill", "restart") and "hang" in kinds and rng.random() < 0.5:
            # A process that ends while a broker keeps it waiting.
            before = round(max(0.0, at - rng.uniform(0.0, 2.0)), 3)
            broker = rng.choice((PRIMARY, SECONDARY))
            faults.append(Fault(before, "hang", 15.0, broker, fault.process, seed=rng.randrange(2**31)))
        elif fault.kind == "lock-lost" and "refuse" in kinds and rng.random() < 0.5:
            # Locks of messages held because their destination is unavailable.
            before = round(max(0.0, at - rng.uniform(2.0, 15.0)), 3)
            faults.append(Fault(before, "refuse", 30.0, PRIMARY, seed=rng.randrange(2**31)))


def _without_disk(setup: Setup, faults: tuple[Fault, ...], seed: int) -> tuple[Fault, ...]:
    """The same faults, but that some killed primaries come back without their queues, which programs make later."""
    rng = Random(f"pairmq disk {seed}")
    found = list(faults)
    for fault in faults:
        if (fault.kind, fault.broker) == ("broker-kill", PRIMARY) and rng.random() < _WITHOUT_DISK:
            lasts = fault.duration + math.exp(rng.uniform(math.log(0.3), math.log(60.0)))
            paths = (text.rpartition(":")[2] for text in setup.entities)
            found += [Fault(fault.at, "delete", round(lasts, 3), PRIMARY, entity=path) for path in paths]
    return tuple(sorted(found, key=lambda fault: fault.at))


def _fault(rng: Random, setup: Setup, at: float, kind: str) -> Fault:
    longest = 400.0 if rng.random() < 0.1 else 60.0
    duration = round(math.exp(rng.uniform(math.log(0.3), math.log(longest))), 3)
    broker = rng.choice((PRIMARY, PRIMARY, SECONDARY))
    process = entity = ""
    if kind in BLIPS:
        broker, duration = rng.choice(("", "", PRIMARY, SECONDARY)), round(rng.uniform(0.1, 0.7), 3)
    if kind in OF_A_PROCESS:
        broker, process = "", rng.choice(setup.processes).name
        duration = min(duration, 60.0)
    elif kind != "broker-kill" and rng.random() < 0.25:
        process = rng.choice(setup.processes).name
    if kind in OF_ALL_PROCESSES:
        process = ""
    if kind in OF_THE_SECONDARY:
        broker = SECONDARY
    if kind in OF_A_QUEUE or (kind not in OF_A_WHOLE_BROKER and rng.random() < 0.25):
        entity = _entity(rng, setup, broker)
    share = 1.0 if rng.random() < 0.5 else round(rng.uniform(0.2, 0.9), 2)
    delay = round(math.exp(rng.uniform(math.log(0.05), math.log(20))), 3) if kind in DELAYING else 0.0
    return Fault(at, kind, duration, broker, process, entity, share, delay, rng.randrange(2**31))


def _entity(rng: Random, setup: Setup, broker: str) -> str:
    if broker == SECONDARY:
        return rng.choice(setup.backlog_queues())
    return rng.choice(setup.entities).rpartition(":")[2]


def _traffic(
    rng: Random, settings: Settings, setup: Setup, faults: tuple[Fault, ...], seconds: float
) -> tuple[Shipment, ...]:
    if not setup.senders:
        return ()
    instants: list[float] = []
    at = 1.0
    while settings.sends_per_hour:
        at += rng.expovariate(settings.sends_per_hour / 3600)
        if at >= seconds:
            break
        instants.append(at)
    for fault in faults if settings.sends_per_hour else ():
        for _ in range(_SENDS_AROUND_A_FAULT):
            before, after = (2.0, 0.5) if fault.kind == "restart" else (1.0, min(fault.duration, 30.0) + 5.0)
            bisect.insort(instants, min(seconds, max(1.0, fault.at + rng.uniform(-before, after))))
    bursts = {
        min(seconds, max(1.0, fault.at + rng.uniform(-0.5, 1.0))): rng.randint(150, 400)
        for fault in (faults if settings.sends_per_hour else ())
        if rng.random() < _BURSTS
    }
    number = 1
    traffic = []
    for at in sorted([*instants, *bursts]):
        shipment = _shipment(rng, round(at, 3), rng.choice(setup.senders).name, number)
        if at in bursts:
            shipment = replace(shipment, count=bursts[at], together=False)
        traffic.append(shipment)
        number += shipment.count
    return tuple(traffic)


def _shipment(rng: Random, at: float, sender: str, number: int) -> Shipment:
    shape = rng.random()
    count = 1 if shape < 0.7 else rng.randint(2, 8)
    timeout = round(rng.uniform(0.2, 20), 3) if rng.random() < 0.15 else None
    cancel_after = round(math.exp(rng.uniform(math.log(0.003), math.log(5))), 4) if rng.random() < 0.06 else None
    size = 0
    if rng.random() < 0.03:
        size = rng.choice((15_000, 30_000, 60_000))
    chosen = [name for name in ("session", "priority", "property") if rng.random() < 0.1]
    if rng.random() < 0.15:
        chosen.append(rng.choice(("ttl", "short-ttl")))
    if rng.random() < 0.1:
        chosen.append("schedule")
    if rng.random() < 0.2 and cancel_after is None:
        chosen.append("no-id")
    return Shipment(at, sender, number, count, shape >= 0.85, timeout, cancel_after, size, tuple(chosen))
