"""Bugs in what keeps order; the pairs that are simulated keep it (SPEC 8)."""

from __future__ import annotations

from planted.mutant import Mutant

ORDER = (
    Mutant(
        "a session returns to the primary over its backlog",
        "src/pairmq/core/order.py",
        "        if self._key.facts.clean:\n            self._wait = None",
        "        if True:\n            self._wait = None",
        ordering="session",
    ),
    Mutant(
        "a diverted send leaves its session clean",
        "src/pairmq/core/order.py",
        "        self._key.facts.divert_ended(now, maybe_there=maybe_there)",
        "        self._key.facts.divert_ended(now, maybe_there=False)",
        ordering="session",
    ),
    Mutant(
        "a session's message takes any backlog queue",
        "src/pairmq/core/send.py",
        "            only = key.queue\n            key.diverting()",
        "            key.diverting()",
        ordering="session",
    ),
    Mutant(
        "a backlog queue that can't be asked counts as drained for a session",
        "src/pairmq/core/order.py",
        "        if look is None or wait is None:  # what can't be asked may hold messages\n"
        "            return Way.DIVERT\n",
        "        if look is None or wait is None:\n"
        "            self._key.facts.seen(Look(now, None, 0))\n            return Way.AGAIN\n",
        ordering="session",
    ),
    Mutant(
        "a restarted process takes every session for clean",
        "src/pairmq/runner/_ordered.py",
        "KeyLine(KeyOrder(now), self._queue(state, session), now)",
        "KeyLine(KeyOrder(now, fresh=True), self._queue(state, session), now)",
        ordering="session",
    ),
    Mutant(
        "a session is taken for drained with its last message still in the queue",
        "src/pairmq/core/order.py",
        "look.oldest > self._mark",
        "look.oldest >= self._mark",
        ordering="session",
    ),
    Mutant(
        "sends of one session go side by side",
        "src/pairmq/runner/_ordered.py",
        "        return came is True\n",
        "        return True\n",
        ordering="session",
    ),
    Mutant(
        "backlog queues are made for several consumers at once",
        "src/pairmq/runner/_backlog.py",
        'single_consumer=options.ordering == "session"',
        "single_consumer=False",
        ordering="session",
    ),
    Mutant(
        "messages of one session are moved in one operation",
        "src/pairmq/core/pump.py",
        "if item.key in keys and not (self._ordered_batches and item.key == taken[-1].key):",
        "if False:",
        ordering="session",
    ),
    Mutant(
        "what is behind a failure in one operation counts as delivered",
        "src/pairmq/core/pump.py",
        "            if failed and self.in_order and item.message.session_id in failed:\n",
        "            if False:\n",
        tests=("tests/core/test_pump.py::test_nothing_of_a_key_counts_as_delivered_behind_a_failure",),
    ),
    Mutant(
        "what stands behind a lost lock goes on",
        "src/pairmq/core/pump.py",
        "        if self.ordered:\n            self.broken = True\n",
        "        if False:\n            self.broken = True\n",
        ordering="session",
    ),
    Mutant(
        "an ordered message is put at its queue's tail to make room",
        "src/pairmq/core/pump.py",
        "            return Room.NONE if self.ordered else Room.POSTPONE\n",
        "            return Room.POSTPONE\n",
        ordering="session",
    ),
)
