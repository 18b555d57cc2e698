"""Forked children open pairs of their own, and a process that ends without closing its pair ends it in good order."""

from __future__ import annotations

import pytest

from pairmq import Entity
from pairmq.observe.journal import read_rows
from pairmq.sync import Pair

# Every child settles by itself; the parent's pair must not notice that there are any.
FORKS = """
import os, sys, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # what this test is about
from pairmq import Entity, LockLost, Message
from pairmq.model import Source
from pairmq.sync import Pair

pair = Pair.connect(*sys.argv[1:3]).open()
pair.primary.admin.create(Entity("orders"))
sender, receiver = pair.sender("orders"), pair.receiver("orders")
sender.send(Message(b"parent's"))
(delivery,) = receiver.receive(wait=10)
children = []
for number in range(4):
    if (child := os.fork()) == 0:
        status = 1
        try:
            for each in range(50):
                sender.send(Message(f"{number} {each}".encode()))
            try:
                delivery.complete()
            except LockLost:
                status = 0
            pair.close()
        finally:
            sys.stdout.flush()
            (os._exit if number % 2 else sys.exit)(status)
    children.append(child)
for each in range(50):
    sender.send(Message(f"parent {each}".encode()))
statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
for each in range(50, 100):  # the children have gone, with whatever they have closed
    sender.send(Message(f"parent {each}".encode()))
delivery.complete()
print(statuses, pair.primary.admin.counts(Source(Entity("orders"))).pending)
pair.close()
"""


@pytest.mark.real_server
def test_forked_children_send_by_an_inherited_pair(program):
    assert program(FORKS).stdout == "[0, 0, 0, 0] 300\n"


GRANDCHILD = """
import multiprocessing, sys, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
from pairmq import Entity, Message
from pairmq.model import Source
from pairmq.sync import Pair

pair = Pair.connect(*sys.argv[1:3])

def send(number):
    pair.sender("orders").send(Message(str(number).encode()))
    return number

def send_by_a_child(number):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(send, [number, number + 1])

if __name__ == "__main__":
    pair.open()
    pair.primary.admin.create(Entity("orders"))
    child = multiprocessing.get_context("fork").Process(target=send_by_a_child, args=(10,))
    child.start()
    child.join()
    send(1)
    print(child.exitcode, pair.primary.admin.counts(Source(Entity("orders"))).pending)
"""


@pytest.mark.real_server
def test_children_of_children_do_so_too(program):
    assert program(GRANDCHILD).stdout == "0 3\n"


IN_A_STREAM = """
import os, signal, sys, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
from pairmq import Entity, Message, PairClosed
from pairmq.sync import Pair

with Pair.connect(*sys.argv[1:3]) as pair:
    pair.primary.admin.create(Entity("orders"))
    children = []

    def messages():
        for number in range(50):
            yield Message(str(number).encode())
            if number in (20, 30, 40) and (child := fork()) is not None:
                children.append(child)

    def fork():
        # A wait that never ends would keep the child for ever: the alarm's own end is none of the statuses below.
        if child := os.fork():
            return child
        signal.alarm(100)
        return None

    try:
        for count, result in enumerate(pair.sender("orders").send_stream(messages(), window=10), 1):
            if count in (5, 15) and (child := fork()) is not None:
                children.append(child)
            elif count == 5:
                sys.exit(5)
            elif count == 15:
                break
        else:
            print(count, sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
            sys.stdout.flush()
            os._exit(0)
    except PairClosed:
        os._exit(7)
    os._exit(15)
"""


@pytest.mark.real_server
def test_a_child_that_is_forked_in_the_midst_of_a_stream_ends_as_it_likes(program):
    ended = program(IN_A_STREAM)
    assert ended.stdout == "50 [5, 7, 7, 7, 15]\n"
    assert ended.stderr == ""


UNUSED = """
import gc, os, sys, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
from pairmq import Entity, Message
from pairmq.model import Source
from pairmq.sync import Pair

pair = Pair.connect(*sys.argv[1:3]).open()
pair.primary.admin.create(Entity("orders"))
sender = pair.sender("orders")
sender.send(Message(b"first"))
children = []
for number in range(3):
    if (child := os.fork()) == 0:
        del pair, sender
        gc.collect()
        sys.exit(0)
    children.append(child)
statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
for each in range(50):
    sender.send(Message(str(each).encode()))
print(statuses, pair.primary.admin.counts(Source(Entity("orders"))).pending)
pair.close()
"""


@pytest.mark.real_server
def test_children_that_want_nothing_of_the_pair_disturb_nothing(program):
    ended = program(UNUSED)
    assert (ended.stdout, ended.stderr) == ("[0, 0, 0] 51\n", "")


CLOSED_BEFORE = """
import os, sys, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
from pairmq import Entity, Message, PairClosed
from pairmq.sync import Pair

pair = Pair.connect(*sys.argv[1:3]).open()
pair.primary.admin.create(Entity("orders"))
sender = pair.sender("orders")
pair.close()
if (child := os.fork()) == 0:
    try:
        sender.send(Message(b"x"))
    except PairClosed:
        os._exit(0)
    os._exit(1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.real_server
def test_a_pair_that_was_closed_before_the_fork_is_closed_in_the_child(program):
    program(CLOSED_BEFORE)


LEFT_OPEN = """
import sys
from pairmq import Entity, Message
from pairmq.sync import Pair

pair = Pair.connect(*sys.argv[1:3], journal=sys.argv[3]).open()
pair.primary.admin.create(Entity("orders"))
pair.sender("orders").send(Message(b"1"))
print("sent")
"""


@pytest.mark.real_server
def test_a_pair_that_is_not_closed_is_closed_as_the_process_ends(program, tmp_path):
    ended = program(LEFT_OPEN, str(tmp_path / "journal"))
    assert (ended.stdout, ended.stderr) == ("sent\n", "")
    kinds = [row["kind"] for row in read_rows(tmp_path / "journal")]
    assert kinds[-1] == "JournalClosed"
    assert kinds.index("SendCompleted") < kinds.index("PairEnded")


AFTER_THE_MAIN_THREAD = """
import sys, threading, time
from pairmq import Message
from pairmq.sync import Pair

# Names, which are looked up by another thread than the event loop's.
pair = Pair.connect(*[url.replace("127.0.0.1", "localhost") for url in sys.argv[1:3]], failover_interval=0).open()

def work():
    while threading.main_thread().is_alive():
        time.sleep(0.05)
    print(pair.sender("orders").send(Message(b"1")).route)

threading.Thread(target=work).start()
"""


@pytest.mark.real_server
def test_threads_that_outlive_the_main_thread_connect_to_brokers_by_name(program, processes):
    """The event loop could start no lookup of a name any more: a primary in good order was failed over."""
    with Pair.connect(*[server.url for server in processes]) as pair:
        pair.primary.admin.create(Entity("orders"))
    assert program(AFTER_THE_MAIN_THREAD).stdout == "primary\n"


CTRL_C = """
import signal, sys, threading, time, os
from pairmq import Entity, Message
from pairmq.sync import Pair

with Pair.connect(*sys.argv[1:3]) as pair:
    pair.primary.admin.create(Entity("orders"))
    receiver = pair.receiver("orders")
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        receiver.receive(wait=60)
    except KeyboardInterrupt:
        print("interrupted")
    pair.sender("orders").send(Message(b"1"))
    print(receiver.receive(wait=10)[0].body)
"""


@pytest.mark.real_server
def test_ctrl_c_interrupts_a_call_and_leaves_the_pair_usable(program):
    assert program(CTRL_C).stdout == "interrupted\nb'1'\n"
