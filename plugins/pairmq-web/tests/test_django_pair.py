"""A Django project has one pair a process, and answers whether messages move. Each test is a program of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from pairmq_redis.testing import RedisServer

PROJECT = """
import os, sys
import django
from django.conf import settings

EAST, WEST = sys.argv[1:3]
GIVEN = {
    "PRIMARY": EAST, "SECONDARY": WEST, "READY": ["orders"],
    "OPTIONS": {"failover_interval": 0, "attempt_timeout": 20, "backlog_queue_count": 1},
}
settings.configure(
    ROOT_URLCONF=__name__, INSTALLED_APPS=["pairmq_web.django"], ALLOWED_HOSTS=["*"], PAIRMQ=GIVEN, USE_TZ=True,
)
django.setup()
from django.test import Client, override_settings
from django.urls import path
from pairmq import Entity, Message
from pairmq_web.django import close_pair, get_pair
from pairmq_web.django.views import ready

urlpatterns = [path("ready/", ready)]

def prepare():
    get_pair().primary.admin.create(Entity("orders"))
"""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    with RedisServer() as east, RedisServer() as west:
        yield east, west


@pytest.fixture
def program(servers: tuple[RedisServer, RedisServer]) -> Callable[..., list[str]]:
    """Runs a program in the project, and gives the lines that it printed; warnings are errors."""

    def run(text: str, *more: str) -> list[str]:
        urls = [server.url for server in servers]
        command = [sys.executable, "-W", "error", "-c", PROJECT + text, *urls, *more]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=150)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()

    return run


@pytest.mark.real_server
def test_views_share_the_pair_of_their_process(program):
    text = """
prepare()
assert get_pair() is get_pair()
print(get_pair().sender("orders").send(Message(b"42")).route.value)
answer = Client().get("/ready/")
print(answer.status_code, answer.json()["entities"][0]["route"], answer.headers["Cache-Control"])
print(Client().post("/ready/").status_code)
"""
    assert program(text) == ["primary", "200 primary no-store", "405"]


@pytest.mark.real_server
@pytest.mark.long
def test_a_queue_that_is_missing_is_not_ready(program):
    text = """
with override_settings(PAIRMQ={**GIVEN, "READY": ["missing"]}):
    answer = Client().get("/ready/")
    print(answer.status_code, len(answer.json()["entities"][0]["reasons"]))
"""
    assert program(text) == ["503 1"]


@pytest.mark.real_server
@pytest.mark.long
def test_without_any_broker_it_is_not_ready(program):
    text = """
gone = ["redis://127.0.0.1:1/0", "redis://127.0.0.1:2/0"]
with override_settings(PAIRMQ={**GIVEN, "PRIMARY": gone[0], "SECONDARY": gone[1]}):
    answer = Client().get("/ready/")
    print(answer.status_code, [reason.split(":")[0] for reason in answer.json()["entities"][0]["reasons"]])
"""
    assert program(text) == ["503 ['primary', 'backlog']"]


@pytest.mark.real_server
def test_workers_that_are_forked_have_pairs_of_their_own(program):
    text = """
import multiprocessing
from pairmq.model import Source

def work(number):
    return get_pair().sender("orders").send(Message(str(number).encode())).route.value

if __name__ == "__main__":
    prepare()  # the parent's pair is open when it forks
    before = get_pair().primary.admin.counts(Source(Entity("orders"))).pending
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(set(pool.map(work, range(10))))
        pool.close()
        pool.join()
    print(get_pair().primary.admin.counts(Source(Entity("orders"))).pending - before)
"""
    assert program(text) == ["{'primary'}", "10"]


@pytest.mark.real_server
def test_the_process_ends_by_itself_and_closes_the_pair(program):
    text = """
prepare()
get_pair().subscribe(lambda event: print(type(event).__name__, flush=True))
"""
    assert program(text)[-1] == "PairEnded"


@pytest.mark.real_server
def test_wrong_settings_are_found_by_the_check_of_django_and_answered(program):
    text = """
from django.core.checks import run_checks
misspelt, negative = {"failover_intervall": 5}, {"failover_interval": -1}
for given in ({"PRIMRY": "x"}, {"OPTIONS": 5}, {"OPTIONS": misspelt}, {"OPTIONS": negative}, {"READY": "orders"}, "x"):
    with override_settings(PAIRMQ=given):
        print([error.id for error in run_checks()], Client().get("/ready/").status_code)
print(run_checks())
"""
    assert program(text) == ["['pairmq.E001'] 503"] * 6 + ["[]"]


@pytest.mark.real_server
def test_no_answer_holds_a_password(program):
    text = """
given = {**GIVEN, "PRIMARY": "redis://user:hunter2@127.0.0.1:1/0", "SECONDARY": "redis://user:hunter2@127.0.0.1:2/0"}
with override_settings(PAIRMQ=given):
    body = Client().get("/ready/").content
    print(b"127.0.0.1:1" in body, b"hunter2" in body)
"""
    assert program(text) == ["True False"]


@pytest.mark.real_server
@pytest.mark.long
def test_settings_that_a_test_overrides_bring_a_new_pair(program):
    text = """
before = get_pair()
with override_settings(PAIRMQ={**GIVEN, "OPTIONS": {"send_timeout": 7}}):
    print(get_pair() is before, get_pair().options.send_timeout)
print(get_pair().options.failover_interval)
"""
    assert program(text) == ["False 7.0", "0.0"]


@pytest.mark.real_server
def test_a_fork_while_another_thread_opens_the_pair_leaves_a_child_that_works(program):
    text = """
import signal
from pairmq_web.django import _pair

with _pair._lock:  # as a thread holds it that opens the pair
    child = os.fork()
    if child == 0:
        signal.alarm(100)  # one that waits forever would outlive the test
        close_pair()
        os._exit(0)
print(os.waitpid(child, 0)[1])
"""
    assert program(text) == ["0"]
