"""A short run of chaos on every product's real servers, and on a mixed pair.

The plan of a run is fixed by its seed (``PAIRMQ_TEST_CHAOS_SEED``); what comes of it is not, and every promise must
hold whatever it is. Longer runs: ``make chaos``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pairmq.testing.chaos import ChaosBroker, Settings, carry_out, chaos_broker, planned
from pairmq_rabbitmq.testing import RabbitServer
from pairmq_rabbitmq.testing_chaos import RabbitChaos

pytestmark = pytest.mark.real_server

SEED = int(os.environ.get("PAIRMQ_TEST_CHAOS_SEED", "11"))
SHORT = Settings(seed=SEED, seconds=8.0, every=1.2, longest=2.0, clients=2, differing=True, eager=True)


@pytest.mark.parametrize(
    "products",
    [
        ("redis", "redis"),
        pytest.param(("rabbitmq", "rabbitmq"), marks=pytest.mark.long),
        pytest.param(("servicebus", "servicebus"), marks=pytest.mark.long),
        ("rabbitmq", "redis"),
    ],
    ids=">".join,
)
def test_every_promise_holds(
    products: tuple[str, str], rabbit_servers: Callable[[int], list[RabbitServer]], tmp_path: Path
) -> None:
    kept = iter(rabbit_servers(products.count("rabbitmq")))
    made: list[ChaosBroker] = [
        RabbitChaos(next(kept)) if product == "rabbitmq" else chaos_broker(product) for product in products
    ]
    primary, secondary = made
    slower = max(primary.attempt_timeout, secondary.attempt_timeout)
    settings = replace(SHORT, distance="both") if products == ("redis", "redis") else SHORT
    plan = planned(products, settings, (primary.faults, secondary.faults), slower)
    report = carry_out(plan, (primary, secondary), tmp_path)
    print(report.text(timeline=True))
    assert report.ok, report.text()
    # A run in which nothing happened would prove nothing.
    assert report.counts.faults > 3
    assert report.counts.primary > 50
