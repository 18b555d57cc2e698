"""Bugs in what decides about an entity, in its sends, and in what a message goes to the backlog as."""

from __future__ import annotations

from planted.mutant import Mutant

SENDS = (
    Mutant(
        "a receipt forgets that an attempt was in doubt",
        "src/pairmq/runner/_job.py",
        "receipt.maybe_duplicate = job.unknown",
        "receipt.maybe_duplicate = False",
    ),
    Mutant(
        "the copy in the backlog is not marked",
        "src/pairmq/runner/_send.py",
        "state.sender_id, state.sequence, job.unknown)",
        "state.sender_id, state.sequence, False)",
    ),
    Mutant(
        "drained is said while a diverted send is in flight",
        "src/pairmq/core/machine.py",
        "self.health in _RUNNING and self.diverting == 0 and input.since >= self._settled_at",
        "self.health in _RUNNING",
    ),
    Mutant(
        "a pair with a syphon starts clean",
        "src/pairmq/core/machine.py",
        "Backlog.DIRTY if tracks_backlog and not drained else Backlog.CLEAN",
        "Backlog.CLEAN",
    ),
    Mutant(
        "a success while failing forgets the backlog",
        "src/pairmq/core/machine.py",
        "        left, self.health = self.health, health\n",
        "        left, self.health = self.health, health\n"
        "        if left is Health.FAILING and health is Health.UP:\n            self.backlog = Backlog.CLEAN\n",
    ),
    Mutant(
        "a late result moves the state",
        "src/pairmq/core/machine.py",
        "        row = self._row(symbol if epoch == self.epoch else Symbol.LATE)\n"
        "        self.sending -= 1\n        if epoch != self.epoch:\n",
        "        row = self._rows.get(symbol) or self._row(Symbol.LATE)\n"
        "        self.sending -= 1\n        if symbol not in self._rows:\n",
    ),
    Mutant(
        "a good ping is enough, and no canary follows",
        "src/pairmq/core/transitions.py",
        "        _S.PING_RECOVERED: Row(TRIAL,",
        "        _S.PING_RECOVERED: Row(UP,",
    ),
    Mutant(
        "a flapping entity needs no more pings than before",
        "src/pairmq/core/machine.py",
        "min(MOST_PINGS_NEEDED, self.pings_needed * 2) if self._flaps(now) else 1",
        "1",
    ),
    Mutant(
        "a backlog queue never comes back into use",
        "src/pairmq/core/rotation.py",
        "        if self._out.pop(index, None) is None:",
        "        if True:",
    ),
    Mutant(
        "a diverted message forgets its path",
        "src/pairmq/core/envelope.py",
        "        PATH: diversion.entity.path,\n",
        "",
    ),
    Mutant(
        "a topic's message is moved back as a queue's",
        "src/pairmq/core/envelope.py",
        "        added[KIND] = diversion.entity.kind.value",
        "        pass",
    ),
    Mutant(
        "the schedule is not kept",
        "src/pairmq/core/envelope.py",
        '        added[SCHEDULED_ENQUEUE] = message.scheduled_enqueue_at.isoformat(timespec="microseconds")',
        "        pass",
    ),
    Mutant(
        "the time-to-live is not restored",
        "src/pairmq/core/envelope.py",
        "            time_to_live=_seconds(get(TIME_TO_LIVE)),",
        "            time_to_live=_seconds(get(TIME_TO_LIVE)) and None,",
    ),
    Mutant(
        "the time-to-live runs in the backlog",
        "src/pairmq/core/envelope.py",
        "        session_id=None,\n        time_to_live=None,\n",
        "        session_id=None,\n",
    ),
    Mutant(
        "the session is not restored",
        "src/pairmq/core/envelope.py",
        "            session_id=get(SESSION_ID),",
        "            session_id=get(SESSION_ID) and None,",
    ),
    Mutant(
        "a retry after a lost confirmation is not marked",
        "src/pairmq/core/send.py",
        "        self.unknown = self.unknown or failure.maybe_applied",
        "        self.unknown = False",
    ),
    Mutant(
        "a refused message is tried again",
        "src/pairmq/core/send.py",
        "        return Fate.REFUSED if failure.kind is FailureKind.REFUSED else Fate.AGAIN",
        "        return Fate.REFUSED if failure.reason is FailureReason.TOO_LARGE else Fate.AGAIN",
    ),
    Mutant(
        "a cancelled send is reported as refused",
        "src/pairmq/runner/_job.py",
        "SendOutcome.REFUSED if isinstance(result, SendRefused) else SendOutcome.UNKNOWN",
        "SendOutcome.UNKNOWN if isinstance(result, SendUnknown) else SendOutcome.REFUSED",
    ),
    Mutant(
        "an unknown outcome is called refused",
        "src/pairmq/core/send.py",
        "        return SendUnknown if self.unknown else refusal",
        "        return refusal",
    ),
    Mutant(
        "the results of a batch are shifted by one",
        "src/pairmq/runner/_send.py",
        "            results = await sender.send_batch(messages)",
        "            found = list(await sender.send_batch(messages))\n            results = [found[-1], *found[:-1]]",
    ),
    Mutant(
        "a sender takes another backlog queue each time",
        "src/pairmq/core/rotation.py",
        "        elif kept is not None and kept not in self._out:",
        "        elif False:",
    ),
    Mutant(
        "a backlog queue that failed stays in use",
        "src/pairmq/runner/_send.py",
        "            if fate is Fate.LEAVE and failure is not left:\n",
        "            if False:\n",
    ),
    Mutant(
        "a send writes to a queue that went out of use while it waited for a look at it",
        "src/pairmq/runner/_send.py",
        "left = None if choice.trial else backlog.left(index)",
        "left = None",
    ),
    Mutant(
        "a look at a backlog queue takes its time from the attempt after it",
        "src/pairmq/runner/_send.py",
        "                until = min(deadline, until + now() - looked_at)\n",
        "",
    ),
    Mutant(
        "a queue that drops accepted messages is fit for a backlog",
        "src/pairmq/core/rotation.py",
        "return DROPS if queue.drops_when_full else None",
        "return None",
    ),
    Mutant(
        "a send is refused at once for lack of a backlog queue",
        "src/pairmq/core/send.py",
        "        if self._key is None and self._rules.raises:",
        "        if self._key is None:",
    ),
    Mutant(
        "a scheduled message goes to a lane, where consumers get it too soon",
        "src/pairmq/core/send.py",
        "        if self._lane is not None and any(job.message.scheduled_enqueue_at is not None for job in jobs):\n"
        "            self._lane = None\n",
        "",
        tests=("tests/runner/test_lanes.py",),
    ),
    Mutant(
        "a send without a backlog queue waits for the background to bring one back",
        "src/pairmq/core/send.py",
        "        trials = only is not None or not rules.raises",
        "        trials = False",
        tests=("tests/runner/test_backlog.py",),
    ),
    Mutant(
        "a backlog queue whose trial succeeds stays out of use",
        "src/pairmq/core/rotation.py",
        "            return self.put_back(index)\n",
        "            return False\n",
        tests=("tests/runner/test_backlog.py",),
    ),
    Mutant(
        "every waiting send tries every backlog queue",
        "src/pairmq/core/rotation.py",
        "        self._out[index].in_trial = True",
        "        self._out[index].trial_at = 0.0",
        tests=("tests/core/test_rotation.py", "tests/runner/test_backlog.py"),
    ),
    Mutant(
        "a trial is cancelled, and its backlog queue is never tried again",
        "src/pairmq/runner/_send.py",
        "            if choice.trial:\n",
        "            if choice.trial and outcome is not None:\n",
        tests=("tests/runner/test_backlog.py",),
    ),
    Mutant(
        "a send that waits for both brokers learns of the primary by the next planned ping only",
        "src/pairmq/runner/_send.py",
        "                    if step.nowhere:\n                        state.runner.want_ping()\n",
        "",
        tests=("tests/runner/test_backlog.py",),
    ),
    Mutant(
        "a waiting send pings an entity that is held",
        "src/pairmq/core/machine.py",
        "        if self.health is not Health.DOWN or self._ping is not None or now < self._ping_wanted_from:",
        "        if self.health not in _AWAY or self._ping is not None or now < self._ping_wanted_from:",
        tests=("tests/core/test_machine_rules.py", "tests/runner/test_backlog.py"),
    ),
    Mutant(
        "a missing backlog queue is not created again inside the send",
        "src/pairmq/runner/_send.py",
        "        if await self._problem(self._backlog.make_again(index, began_at), limit) is not None:\n",
        "        if True:\n",
        tests=("tests/runner/test_backlog.py",),
    ),
    Mutant(
        "the backlog accepts what the primary can never hold",
        "src/pairmq/runner/_job.py",
        "            (self._primary if side is _AT_PRIMARY else self._secondary).check_message(entity, message)",
        "            side is _AT_PRIMARY or self._secondary.check_message(entity, message)",
    ),
    Mutant(
        "the backlog accepts what has no room for the mark of a copy",
        "src/pairmq/runner/_job.py",
        "            if near or size - len(message.body) > _FEW_PROPERTIES:",
        "            if False:",
        tests=("tests/runner/test_sizes.py",),
    ),
    Mutant(
        "a disclaimed schedule is accepted by the backlog",
        "src/pairmq/transport/_transport.py",
        "message.scheduled_enqueue_at is not None and not capabilities.scheduling:",
        "False:",
    ),
    Mutant(
        "a disclaimed time-to-live is accepted by the backlog",
        "src/pairmq/transport/_transport.py",
        "if message.time_to_live is not None and not capabilities.time_to_live:",
        "if False:",
    ),
    Mutant(
        "a blip that is over before the interval leaves its timer running",
        "src/pairmq/core/transitions.py",
        "        _S.ACCEPTED: Row(UP, (Do.COUNT_SENT, Do.STOP_INTERVAL), Cause.SEND_SUCCEEDED),",
        "        _S.ACCEPTED: Row(UP, (Do.COUNT_SENT,), Cause.SEND_SUCCEEDED),",
    ),
    Mutant(
        "a ping has half a second, however far the primary is",
        "src/pairmq/core/machine.py",
        "self._ping_ends_at = now + self._options.ping_timeout",
        "self._ping_ends_at = now + min(0.5, self._options.ping_timeout)",
    ),
    Mutant(
        "of very many time limits that are reached together some are forgotten",
        "src/pairmq/runner/_limits.py",
        "        self._arm()\n        goes_on = reached",
        "        self._limits = [entry for entry in self._limits if entry[0] - self.lead > now]\n"
        "        self._arm()\n        goes_on = reached",
    ),
    Mutant(
        "a client stays connected to a broker whose role has moved",
        "src/pairmq/testing/simulator/_network.py",
        "        connection.demoted = False\n",
        "        connection.demoted = True\n",
    ),
    Mutant(
        "a send may last longer than its deadline",
        "src/pairmq/core/send.py",
        "        return now + min(self.attempt_timeout, share)",
        "        return now + self.attempt_timeout",
    ),
    Mutant(
        "a close waits for the sends, however long",
        "src/pairmq/runner/_send.py",
        "        self._limits.end_by(self._rules.ends_at)",
        "        pass",
    ),
    Mutant(
        "pings go on forever without an answer",
        "src/pairmq/core/transitions.py",
        "        _S.PING_OVERDUE: Row(DOWN, (Do.CANCEL_PING, Do.NEXT_PING)),",
        "        _S.PING_OVERDUE: Row(DOWN, (Do.CANCEL_PING,)),",
    ),
    Mutant(
        "an expired message is delivered",
        "src/pairmq/core/envelope.py",
        "    return message.time_to_live - max(0.0, waited)",
        "    return max(0.001, message.time_to_live - max(0.0, waited))",
    ),
    Mutant(
        "the time-to-live of a scheduled message begins before it is due",
        "src/pairmq/core/envelope.py",
        "    begins_at = diversion.diverted_at if due is None else max(due, diversion.diverted_at)\n",
        "    begins_at = diversion.diverted_at\n",
    ),
    Mutant(
        "the failover interval never ends",
        "src/pairmq/core/transitions.py",
        "        _S.INTERVAL_OVER: Row(DOWN, (Do.STOP_INTERVAL, Do.START_PINGS), Cause.INTERVAL_OVER),",
        "        _S.INTERVAL_OVER: Row(FAILING, (Do.STOP_INTERVAL, Do.START_INTERVAL)),",
    ),
    Mutant(
        "a place among the sends in flight is not released",
        "src/pairmq/runner/_send.py",
        "self._admission.leave(len(pending), line):",
        "self._admission.leave(sum(isinstance(job.result, Receipt) for job in pending), line):",
    ),
    Mutant(
        "a failure in the middle of a batch is taken for success",
        "src/pairmq/runner/_send.py",
        "            results = await sender.send_batch(messages)",
        "            failures = await sender.send_batch(messages)\n"
        "            results = [None] * len(failures) if None in failures else failures",
    ),
)
