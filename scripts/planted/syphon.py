"""Bugs in the syphon, and in what finds out when the backlog is empty."""

from __future__ import annotations

from planted.mutant import Mutant

SYPHON = (
    Mutant(
        "the syphon compares the end of a lock, which the broker dates, with this machine's clock",
        "src/pairmq/core/pump.py",
        "        locked_until, renew_at = now + lock, now + lock / 3\n        settle: list[Item] = []\n",
        "        locked_until, renew_at = now + lock, now + lock / 3\n        settle: list[Item] = []\n"
        "        ends = [each.locked_until for each in deliveries if each.locked_until is not None]\n"
        "        if ends:\n"
        "            left = (ends[0] - instant).total_seconds()\n"
        "            locked_until, renew_at = now + left, now + left / 3\n",
    ),
    Mutant(
        "copies at a queue's tail are scheduled by this machine's clock",
        "src/pairmq/core/pump.py",
        "        if now < self._known_until:\n            return instant",
        "        if True:\n            return instant",
        tests=("tests/core/test_pump.py",),
    ),
    Mutant(
        "the syphon completes before it sends",
        "src/pairmq/runner/pump/_pump.py",
        "        results, took = await reader.each(self._send_to_primary(",
        "        await reader.complete([item.delivery for item in items])\n"
        "        results, took = await reader.each(self._send_to_primary(",
    ),
    Mutant(
        "a backlog queue that can't be reached counts as empty",
        "src/pairmq/runner/_drain.py",
        "                self._empty.not_empty(index)  # a queue that can't be reached is not empty\n"
        "                return None\n",
        "                self._empty.seen_empty(index, began_at)\n                continue\n",
    ),
    Mutant(
        "the syphon drains no more queues than its own options say",
        "src/pairmq/runner/_syphon.py",
        "        if queue in self._backlog.others or queue in self._backlog.entities:\n            return\n",
        "        return\n",
    ),
    Mutant(
        "the syphon drains no queues of another template",
        "src/pairmq/core/record.py",
        '            and (each.template == own.template or "{primary}" in each.template)\n',
        "            and each.template == own.template\n",
    ),
    Mutant(
        "only the first that sees the secondary emptied makes its queues again",
        "src/pairmq/runner/_record.py",
        "            if self._written:\n                if made:\n",
        "            if self._written and made:\n                if made:\n",
    ),
    Mutant(
        "an entity is healthy while queues of another process hold its messages",
        "src/pairmq/runner/_drain.py",
        "        return self._backlog.entities + self._backlog.others\n",
        "        return self._backlog.entities\n",
        tests=("tests/runner/test_record.py",),
    ),
    Mutant(
        "queues that keep no record are not looked for",
        "src/pairmq/runner/_record.py",
        "        if everything:\n            await self._look_for_queues(record)\n",
        "",
        tests=("tests/runner/test_record.py",),
    ),
    Mutant(
        "a backlog from before the URL stated a name counts as another primary's",
        "src/pairmq/runner/_record.py",
        "each.identity in (own.identity, self._by_default) for each",
        "each.identity == own.identity for each",
        tests=("tests/runner/test_record.py",),
    ),
    Mutant(
        "another primary of the same name is let in",
        "src/pairmq/core/record.py",
        "        return next((each for each in self.configurations if each.identity != own.identity), None)\n",
        "        return None\n",
        tests=("tests/core/test_record.py",),
    ),
    Mutant(
        "the backlog is called empty without asking for queues of another name",
        "src/pairmq/cli/_syphon.py",
        "        strays = () if agreement is None else agreement.strays\n",
        "        strays = ()\n",
        tests=("tests/cli/test_agreement.py",),
    ),
    Mutant(
        "a record names queues that are not the primary's",
        "src/pairmq/core/record.py",
        '            and (each.template == own.template or "{primary}" in each.template)\n',
        "",
        tests=("tests/core/test_record.py",),
    ),
    Mutant(
        "the syphon waits until its own process has seen the entity recover",
        "src/pairmq/core/gates.py",
        "gate = self._gates[entity] = Gate(entity)\n",
        "gate = self._gates[entity] = Gate(entity)\n            gate.is_open = False\n",
    ),
    Mutant(
        "the syphon uses the backlog when the primary fails",
        "src/pairmq/runner/pump/_pump.py",
        "        sent = machine.sent(",
        "        if results[0] is not None:\n"
        "            results = await self._tail.send_batch([item.delivery.message for item in items])\n"
        "        sent = machine.sent(",
    ),
    Mutant(
        "a message is settled before the primary has confirmed it",
        "src/pairmq/core/pump.py",
        "            if result is None:\n                delivered.append(",
        "            if result is None or result.maybe_applied:\n                delivered.append(",
    ),
    Mutant(
        "a sender to a missing destination is closed while others use it",
        "src/pairmq/runner/_syphon.py",
        "        if sender is not None and sender not in self._in_use:\n",
        "        if sender is not None:\n",
        tests=("tests/runner/test_syphon.py",),
    ),
    Mutant(
        "a gate never opens again",
        "src/pairmq/core/gates.py",
        "        return Probed.OPENED if self.open(gate) else Probed.NOTHING",
        "        return Probed.NOTHING",
    ),
    Mutant(
        "a close does not release its locked messages",
        "src/pairmq/runner/pump/_reader.py",
        "            failed = await settled_within(_CLOSE_TIMEOUT, receiver.close)",
        "            failed = None",
    ),
    Mutant(
        "locks are not renewed",
        "src/pairmq/runner/pump/_reader.py",
        "                await self._renew(due)\n",
        "                await asyncio.sleep(20)\n",
    ),
    Mutant(
        "a message is sent under a lock that has run out",
        "src/pairmq/core/pump.py",
        "            if item.lost:\n                continue\n",
        "",
    ),
    Mutant(
        "an outage spends delivery counts",
        "src/pairmq/runner/pump/_pump.py",
        "        if sent.failure is not None:\n",
        "        for item, result in zip(items, results, strict=True):\n"
        "            if result is not None and item.poison is None:\n"
        "                await reader._receiver.abandon(item.delivery)\n"
        "        if sent.failure is not None:\n",
    ),
    Mutant(
        "poison stays in its queue",
        "src/pairmq/core/gates.py",
        "            return error.kind is FailureKind.REFUSED and error.reason not in _NOT_POISON",
        "            return False",
    ),
    Mutant(
        "what an operator can fix is poison",
        "src/pairmq/core/gates.py",
        "            return error.kind is FailureKind.REFUSED and error.reason not in _NOT_POISON",
        "            return error.kind is FailureKind.REFUSED",
    ),
    Mutant(
        "a queue that a broker has not got yet makes poison",
        "src/pairmq/core/gates.py",
        "        return now - since >= self._patience",
        "        return True",
    ),
    Mutant(
        "a destination that was missing once is never waited for again",
        "src/pairmq/core/gates.py",
        "            since = now  # no process has looked for so long, and it may have existed meanwhile",
        "            pass",
    ),
    Mutant(
        "a forged destination is delivered to",
        "src/pairmq/core/pump.py",
        "        return not forbidden and self._options.allows(entity.path)",
        "        return True",
    ),
    Mutant(
        "what is stored is released with the rest when order is lost with a lock",
        "src/pairmq/core/pump.py",
        "                if not _is_delivering(other):\n                    self._lose(other)",
        "                self._lose(other)",
        tests=("tests/core/test_pump.py", "tests/runner/test_order.py"),
    ),
    Mutant(
        "a pump that begins anew completes nothing before",
        "src/pairmq/runner/pump/_pump.py",
        "        if works:\n",
        "        if False:\n",
        tests=("tests/runner/test_order.py",),
    ),
    Mutant(
        "a syphon holds messages of a lane while their destination is unavailable",
        "src/pairmq/core/pump.py",
        "        return self._lane and self.stuck",
        "        return False",
        tests=("tests/runner/test_lanes.py",),
    ),
    Mutant(
        "an entity is called drained while its lane holds messages",
        "src/pairmq/core/lanes.py",
        "    return since if lane == 0 else None",
        "    return since",
        tests=("tests/runner/test_lanes.py",),
    ),
    Mutant(
        "a completion that fails is forgotten",
        "src/pairmq/core/pump.py",
        "                item.step(_NOT_SETTLED)\n"
        "                self.unsettled[item] = None\n"
        "                failures.append(error)\n",
        "                failures.append(error)\n",
    ),
    Mutant(
        "what was moved is not remembered",
        "src/pairmq/core/pump.py",
        "                self._delivered[item.identity] = None\n",
        "",
    ),
    Mutant(
        "the pump ends with its first error",
        "src/pairmq/runner/pump/_pump.py",
        "                if self._stopping.is_set():\n                    return\n                wait",
        "                return\n                wait",
    ),
    Mutant(
        "a backlog queue that is gone is not made again",
        "src/pairmq/runner/pump/_pump.py",
        "                    self._missing(error)",
        "                    pass",
    ),
    Mutant(
        "held messages overtake each other",
        "src/pairmq/core/pump.py",
        "        line.items.extend(items)\n",
        "        line.items.extendleft(reversed(items))\n",
    ),
    Mutant(
        "a batch is moved back in reverse order",
        "src/pairmq/runner/pump/_pump.py",
        "        messages = machine.outgoing(",
        "        items = items[::-1]\n        messages = machine.outgoing(",
    ),
    Mutant(
        "a postponed message is forgotten",
        "src/pairmq/runner/pump/_pump.py",
        "            results, _ = await reader.each(self._tail.send_batch(copies), len(copies))\n",
        "            results = [None] * len(copies)\n",
    ),
    Mutant(
        "a held message is taken for another one when it is redelivered",
        "src/pairmq/core/pump.py",
        "            if here is not None and diversion and (here.message, here.diversion) == (message, diversion):\n",
        "            if False:\n",
    ),
)
