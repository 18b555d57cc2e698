"""Bugs that single tests have to find: what needs a rare moment, what is only counted or reported, and the plugins."""

from __future__ import annotations

from planted.mutant import Mutant

_LIMITS = "src/pairmq/runner/_limits.py"
_LIMITS_TESTS = ("tests/runner/test_limits.py",)
_LINE_TESTS = ("tests/runner/test_line.py",)
_READER = "src/pairmq/runner/pump/_reader.py"
_CORE = "src/pairmq/core/pump.py"
_CORE_TESTS = ("tests/core/test_pump.py",)
_IN_DOUBT_TESTS = ("tests/runner/test_syphon_in_doubt.py",)
_PUMP_TESTS = ("tests/runner/test_pump.py",)
_KNOWN = "src/pairmq/runner/_known.py"
_KNOWN_TESTS = ("tests/runner/test_known_entities.py",)
_DEDUPLICATOR = "src/pairmq/pair/_deduplicator.py"
_DEDUPLICATOR_TESTS = ("tests/pair/test_deduplicator_iterating.py",)
_REDIS_LINK = "plugins/pairmq-redis/src/pairmq_redis/_link.py"
_REDIS_LINK_TESTS = ("plugins/pairmq-redis/tests/test_redis_link.py",)
_IN_PROCESS_TESTS = ("tests/transport/test_brokers_in_process.py",)
_SQLITE_MESSAGES_TESTS = ("plugins/pairmq-sqlite/tests/test_sqlite_messages.py",)
_RABBIT_POSITIONS = "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_contents.py"
_RABBIT_RECEIVING = "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_receiving/"
_RABBIT_RECEIVING_A = "plugins/pairmq-rabbitmq/tests/test_rabbitmq_receiving.py::test_a_"
_RABBIT_SETTLING_TESTS = ("plugins/pairmq-rabbitmq/tests/test_rabbitmq_settling.py",)
_RABBIT_MANAGEMENT = "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_management.py"
_RABBIT_SESSION_TESTS = ("plugins/pairmq-rabbitmq/tests/test_rabbitmq_session.py",)
_RABBIT_POSITIONS_TESTS = ("plugins/pairmq-rabbitmq/tests/test_rabbitmq_positions.py",)

TESTED = (
    # Names.
    Mutant(
        "two virtual hosts have one default name",
        "src/pairmq/transport/_naming.py",
        '        name = f"{plain or identity[0]}--{digest}"\n',
        "        name = plain or identity[0]\n",
        tests=("plugins/pairmq-rabbitmq/tests/test_rabbitmq_url.py",),
    ),
    Mutant(
        "localhost of two machines has one default name",
        "src/pairmq/transport/_naming.py",
        "        host, scope = _machine()\n",
        '        host, scope = "localhost", "localhost"\n',
        tests=("tests/transport/test_naming.py",),
    ),
    # Tasks.
    Mutant(
        "a task factory may run a task before what it needs is set",
        "src/pairmq/transport/_scope.py",
        "    if loop.get_task_factory() is None:\n",
        "    if loop is not None:\n",
        tests=("tests/runner/test_eager_tasks.py",),
    ),
    Mutant(
        "a task that is cancelled before its first step leaves its work open",
        "src/pairmq/transport/_scope.py",
        "        task.add_done_callback(lambda _: work.close())\n",
        "",
        tests=("tests/runner/test_eager_tasks.py",),
    ),
    # Throttling.
    Mutant(
        "throttling lets the failover interval of a failing entity run out",
        "src/pairmq/core/machine.py",
        " or (kind is FailureKind.BUSY and not self._options.failover_on_busy):\n",
        ":\n",
        tests=("tests/core/test_table.py",),
    ),
    Mutant(
        "the deadline of a throttled send counts against the primary",
        "src/pairmq/core/send.py",
        "        return (self._throttled or self._remainder) and not self._fair and FailureReason.TIMEOUT in reasons\n",
        "        return self._remainder and not self._fair and FailureReason.TIMEOUT in reasons\n",
        tests=("tests/core/test_send.py",),
    ),
    Mutant(
        "a time-out of the last moments of a send counts against the primary",
        "src/pairmq/core/send.py",
        "        return (self._throttled or self._remainder) and not self._fair and FailureReason.TIMEOUT in reasons\n",
        "        return self._throttled and not self._fair and FailureReason.TIMEOUT in reasons\n",
        tests=("tests/core/test_send.py",),
    ),
    # Time limits.
    Mutant(
        "a send with hardly any time left is let in while thousands end",
        "src/pairmq/core/send.py",
        "            enters = now < _ends(started, deadline, lead) or",
        "            enters = now <= deadline or",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a time limit that is reached is reported as a cancellation by the caller",
        _LIMITS,
        "            timed_out = self.task.uncancel() <= self.cancelling\n",
        "            self.task.uncancel()\n            timed_out = False\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a cancellation by the caller at the very instant of a time limit is swallowed",
        _LIMITS,
        "            timed_out = self.task.uncancel() <= self.cancelling\n",
        "            self.task.uncancel()\n            timed_out = True\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a close shortens the limits of later operations only",
        _LIMITS,
        "(min(entry[0], instant), *entry[1:])",
        "entry",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "the timer is not set anew for a limit that is earlier than the others",
        _LIMITS,
        "        if at < limits._armed_for or ",
        "        if limits._timer is None or ",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "the timer is not set anew when a close shortens the limits",
        _LIMITS,
        "        self._plan_again_at = 0.0\n        self._arm()\n",
        "        self._plan_again_at = 0.0\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a caller is cancelled by the limit of an operation that has ended",
        _LIMITS,
        "            if not limit.running:\n",
        "            if False:\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "the limits of what runs are forgotten with those of what has ended",
        _LIMITS,
        "            heap[:] = [entry for entry in heap if entry[2].running]\n",
        "            heap.clear()\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "an operation that goes on after its limit is cancelled only once",
        _LIMITS,
        "                heapq.heappush(exact, (now + _AGAIN, number, limit))\n",
        "                pass\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a send is given up without an attempt while thousands of others end",
        "src/pairmq/runner/_send.py",
        "        first = self._rules.at_once(",
        "        if self._clock.now() >= deadline - self._limits.lead:\n"
        "            deadline = self._clock.now()\n        first = self._rules.at_once(",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a send tries no backlog queue while thousands of others end",
        "src/pairmq/core/send.py",
        "min(lead, (deadline - started) / 2)",
        "lead",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a closing send waits for one more attempt",
        "src/pairmq/core/send.py",
        "        if now + wait < _ends(self._started, self._deadline, lead):\n",
        "        if True:\n",
        tests=("tests/core/test_send.py",),
    ),
    # The syphon.
    Mutant(
        "a count is dated by its end instead of its beginning",
        "src/pairmq/runner/_drain.py",
        "            self._empty.seen_empty(index, began_at)\n        return",
        "            self._empty.seen_empty(index, self._clock.now())\n        return",
        tests=("tests/runner/test_drain.py",),
    ),
    Mutant(
        "a move is reported twice when the pump restarts",
        _CORE,
        "        del self._settling[item]\n",
        "        item.state = State.LAPSED\n",
        tests=_PUMP_TESTS,
    ),
    Mutant(
        "a move whose completion hangs is never reported",
        _CORE,
        "        for item in tuple(self._settling):\n"
        "            self._lose(item)\n"
        "            item.step(_NOT_SETTLED)\n"
        "            self._report(item, reports, completed=False)\n",
        "",
        tests=_CORE_TESTS,
    ),
    Mutant(
        "retries that were stopped before they began are taken for running",
        _READER,
        "            if retries.done() and self._retries is retries:\n",
        "            if False:\n",
        tests=_PUMP_TESTS,
    ),
    Mutant(
        "a completion under a lock that was replaced is given up",
        _CORE,
        "            if lock_lost and item.delivery is not delivery and not item.lost:",
        "            if False:",
        tests=_CORE_TESTS,
    ),
    Mutant(
        "the first locks are not renewed in time",
        _READER,
        "        await self._asked.wait()\n",
        "",
        tests=_IN_DOUBT_TESTS,
    ),
    Mutant(
        "locks wait for the renewals of messages that came later",
        _CORE,
        "        due.sort(key=lambda item: item.locked_until)\n",
        "        due.sort(key=lambda item: -item.locked_until)\n",
        tests=_CORE_TESTS,
    ),
    Mutant(
        "as many locks are renewed side by side however far the broker is",
        _CORE,
        "max(_RENEWED_AT_ONCE, math.ceil(count * self._renewals_took / self._third))",
        "_RENEWED_AT_ONCE",
        tests=_IN_DOUBT_TESTS,
    ),
    Mutant(
        "what could not be postponed is forgotten",
        _CORE,
        "        line.items.extendleft(reversed(rest))\n",
        "",
        tests=_IN_DOUBT_TESTS,
    ),
    Mutant(
        "a message in doubt does not wait",
        _CORE,
        "        wait = _DOUBT.wait(attempts - _AT_ONCE - 1, 0.0) if attempts > _AT_ONCE else 0.0\n",
        "        wait = 0.0\n",
        tests=("tests/core/test_pump.py", *_IN_DOUBT_TESTS),
    ),
    Mutant(
        "what may not be postponed yet leaves its line",
        _CORE,
        "        line.items = deque(item for item in line.items if item.copy_after > now or item not in waiting)\n",
        "        line.items = deque()\n",
        tests=_IN_DOUBT_TESTS,
    ),
    # The simulation itself.
    Mutant(
        "Ctrl-C is raised wherever the simulation is",
        "src/pairmq/testing/simulator/_loop.py",
        "    _asked = True\n",
        "    raise KeyboardInterrupt\n",
        tests=("tests/simulator/test_command.py",),
    ),
    # Order.
    Mutant(
        "a clean session whose entity fails over is diverted and stays clean",
        "src/pairmq/core/send.py",
        "            key.diverting()\n",
        "            pass\n",
        tests=("tests/runner/test_order.py",),
    ),
    Mutant(
        "a look that began before a diverted send had ended counts for it",
        "src/pairmq/core/order.py",
        "        if look.began_at < self._since:\n",
        "        if False:\n",
        tests=("tests/core/test_order.py",),
    ),
    Mutant(
        "all limits of one instant are reached in one turn of the loop",
        _LIMITS,
        "        while reached < most and looked_at < _LOOKED_AT:\n",
        "        while looked_at < _LOOKED_AT:\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "what thousands of cancellations cost is not allowed for",
        _LIMITS,
        "        return self._takes(self._running) if sum(self._running) > AT_ONCE else 0.0\n",
        "        return 0.0\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a time-out keeps the cancellation, and all frames that this went through",
        _LIMITS,
        "                self.failure = self._limits._timeout(maybe_applied=not is_nothing_sent(error))\n",
        "                self.failure = self._limits._timeout(maybe_applied=not is_nothing_sent(error))\n"
        "                self.failure.__context__ = error\n",
        tests=_LIMITS_TESTS,
    ),
    # Redis.
    Mutant(
        "the reply to a cancelled call is given to the next one",
        _REDIS_LINK,
        "            session.retire()\n            raise\n",
        "            if call in session._calls:\n                session._calls.remove(call)\n"
        "            session.retire()\n            raise\n",
        tests=_REDIS_LINK_TESTS,
    ),
    Mutant(
        "a connection goes on being used after a call on it was cancelled",
        _REDIS_LINK,
        "            session.retire()\n            raise\n",
        "            raise\n",
        tests=_REDIS_LINK_TESTS,
    ),
    Mutant(
        "a connection in doubt is dropped over calls that still wait for their replies",
        _REDIS_LINK,
        "        if not self._waiting:\n",
        "        if True:\n",
        tests=_REDIS_LINK_TESTS,
    ),
    Mutant(
        "each cancelled call looks at all calls on its connection",
        _REDIS_LINK,
        "        if not self._waiting:\n",
        "        if all(call.done() for call in self._calls):\n",
        tests=_REDIS_LINK_TESTS,
    ),
    Mutant(
        "the connection to a server that is no master any more is kept",
        _REDIS_LINK,
        "        if isinstance(reply, Exception) and self.usable and self._leads_elsewhere(reply):\n",
        "        if False:\n",
        tests=_REDIS_LINK_TESTS,
    ),
    Mutant(
        "each refused call makes a new connection",
        _REDIS_LINK,
        " - self._made_at >= _MOMENT:\n",
        " - self._made_at >= 0:\n",
        tests=_REDIS_LINK_TESTS,
    ),
    Mutant(
        "replies that come before a caller takes them are lost",
        "plugins/pairmq-redis/src/pairmq_redis/_wire.py",
        "        self._take = take\n        self._hand_on()\n",
        "        self._take = take\n",
        tests=("plugins/pairmq-redis/tests/test_redis_wire.py",),
    ),
    Mutant(
        "what a receiver held that closed in an outage waits for the ends of its locks in Redis",
        "plugins/pairmq-redis/src/pairmq_redis/_context.py",
        "        if consumers:\n",
        "        if False:\n",
        tests=_IN_PROCESS_TESTS,
    ),
    Mutant(
        "locks that could not be released with one receive are forgotten",
        "plugins/pairmq-redis/src/pairmq_redis/_receiver.py",
        "        left = consumers\n        try:\n",
        "        left: list[bytes] = []\n        try:\n",
        tests=_IN_PROCESS_TESTS,
    ),
    Mutant(
        "a sentinel that is behind leads back to the old master",
        "plugins/pairmq-redis/src/pairmq_redis/_nodes.py",
        "            if answer[0] < self._epoch:\n",
        "            if False:\n",
        tests=("plugins/pairmq-redis/tests/test_redis_sentinels.py",),
    ),
    # What can't be decoded.
    Mutant(
        "a pump reports nothing of what its transport dead-letters",
        _READER,
        "            self._receiver.on_dead_lettered = self._dead_lettered\n",
        "",
        tests=_SQLITE_MESSAGES_TESTS,
    ),
    Mutant(
        "a consumer reports nothing of what its transport dead-letters",
        "src/pairmq/pair/_receiver.py",
        "        self._receiver.on_dead_lettered = self._dead_lettered\n",
        "",
        tests=_SQLITE_MESSAGES_TESTS,
    ),
    # SQLite.
    Mutant(
        "what a receiver held that closed in an outage waits for the ends of its locks in SQLite",
        "plugins/pairmq-sqlite/src/pairmq_sqlite/_worker.py",
        "        if locks:\n",
        "        if False:\n",
        tests=_SQLITE_MESSAGES_TESTS,
    ),
    Mutant(
        "what a receive has locked whose outcome is not known waits for the ends of its locks",
        "plugins/pairmq-sqlite/src/pairmq_sqlite/_receiver.py",
        "                store.take_back(place, each)\n",
        "                pass\n",
        tests=_SQLITE_MESSAGES_TESTS,
    ),
    # Service Bus.
    Mutant(
        "a receive of Service Bus that waits begins before a completion that was submitted beside another",
        "plugins/pairmq-servicebus/src/pairmq_servicebus/_lane.py",
        "next((job for job in self._jobs if not job.yields), None) or next(iter(self._jobs))",
        "next(iter(self._jobs))",
        tests=("plugins/pairmq-servicebus/tests/transport/test_lane.py",),
    ),
    Mutant(
        "a send that Service Bus has rejected counts as accepted",
        "plugins/pairmq-servicebus/src/pairmq_servicebus/_direct.py",
        "        answered(as_reported(sender, error) if failed else None)\n",
        "        answered(None)\n",
        tests=("plugins/pairmq-servicebus/tests/transport/test_direct.py",),
    ),
    Mutant(
        "an outcome that the client of Service Bus does not know counts as accepted",
        "plugins/pairmq-servicebus/src/pairmq_servicebus/_private.py",
        "        return None\n    error = ",
        "        return {_ACCEPTED: []}\n    error = ",
        tests=("plugins/pairmq-servicebus/tests/transport/test_direct.py",),
    ),
    # Entities that are forgotten.
    Mutant(
        "an idle entity is kept for the pair's life",
        _KNOWN,
        "            if runner.recent or not",
        "            if True or not",
        tests=_KNOWN_TESTS,
    ),
    Mutant(
        "the link of a forgotten entity stays open",
        _KNOWN,
        "                self._unwanted.append(runner.spare.pop())\n",
        "                runner.spare.pop()\n",
        tests=_KNOWN_TESTS,
    ),
    Mutant(
        "an entity in use is forgotten as soon as its sender is dropped",
        _KNOWN,
        "            runner.recent = True\n",
        "            pass\n",
        tests=_KNOWN_TESTS,
    ),
    Mutant(
        "a held entity is forgotten with its last sender",
        "src/pairmq/runner/_engine.py",
        "        self._known.keep(runner)\n",
        "        pass\n",
        tests=_KNOWN_TESTS,
    ),
    Mutant(
        "an entity is forgotten while it may flap",
        "src/pairmq/core/machine.py",
        "            and not self._flaps(now)\n",
        "",
        tests=_KNOWN_TESTS,
    ),
    Mutant(
        "a forgotten entity counts as draining when it is used again",
        "src/pairmq/runner/_engine.py",
        "drained=self._known.forgot",
        "drained=False",
        tests=_KNOWN_TESTS,
    ),
    # The deduplicator.
    Mutant(
        "a claim is confirmed before the broker has settled its message",
        _DEDUPLICATOR,
        "            await settlement\n",
        "            await self._held.confirm()\n            await settlement\n",
        tests=_DEDUPLICATOR_TESTS,
    ),
    Mutant(
        "a claim is confirmed for a settlement that the broker did not confirm",
        _DEDUPLICATOR,
        "    return delivery.settled and delivery",
        "    return delivery",
        tests=_DEDUPLICATOR_TESTS,
    ),
    Mutant(
        "a settlement that fails takes the place of the one that the broker confirmed",
        "src/pairmq/pair/_receiver.py",
        "        if not self._settled:  # a",
        "        if True:  # a",
        tests=_DEDUPLICATOR_TESTS,
    ),
    Mutant(
        "each caller of Service Bus that gives up looks at its whole batch",
        "plugins/pairmq-servicebus/src/pairmq_servicebus/_outbox.py",
        "        if transfer.awaited:\n",
        "        if not all(parcel.done.done() for parcel in transfer.batch):\n",
        tests=("plugins/pairmq-servicebus/tests/transport/test_outbox.py",),
    ),
    Mutant(
        "a chain of Service Bus has several transfers under way",
        "plugins/pairmq-servicebus/src/pairmq_servicebus/_outbox.py",
        "                batch[0].chain.under_way = True\n",
        "                batch[0].chain.under_way = False\n",
        tests=("plugins/pairmq-servicebus/tests/transport/test_outbox.py",),
    ),
    Mutant(
        "messages of Service Bus that callers complete together are completed one by one over a slow network",
        "plugins/pairmq-servicebus/src/pairmq_servicebus/_settling.py",
        "(_SIDE_BY_SIDE if link.is_far else 1)",
        "1",
        tests=("plugins/pairmq-servicebus/tests/transport/test_settling.py",),
    ),
    Mutant(
        "the end of a lock of Service Bus is compared with this machine's clock",
        "plugins/pairmq-servicebus/src/pairmq_servicebus/_settling.py",
        "        _private.let_the_service_end_locks(received)\n",
        "",
        tests=("plugins/pairmq-servicebus/tests/transport/test_receiver.py",),
    ),
    # RabbitMQ.
    Mutant(
        "the answer to a marker is believed of later ones",
        _RABBIT_POSITIONS,
        "        self._answered = max(self._answered, number)\n",
        "        self._answered = self._published\n",
        tests=_RABBIT_POSITIONS_TESTS,
    ),
    Mutant(
        "a look relies on a marker that was published before it began",
        _RABBIT_POSITIONS,
        "        newest = self._published + 1\n",
        "        newest = max(1, self._published)\n",
        tests=_RABBIT_POSITIONS_TESTS,
    ),
    # RabbitMQ: what a call does to the others of its connection, and what the server makes of it.
    Mutant(
        "RabbitMQ: a call that is given up in a stall ends the connection that others use",
        _RABBIT_RECEIVING + "_receiver.py",
        "            self._link.retire(channel.session, silent=True)\n        if channel.stuck(",
        "            channel.session.end(TimeoutError())\n        if channel.stuck(",
        tests=(_RABBIT_RECEIVING_A + "call_that_is_given_up_in_a_stall_takes_no_lock_of_other_calls",),
    ),
    Mutant(
        "RabbitMQ: a call that is given up in a stall gives up what other calls hold on its channel",
        _RABBIT_RECEIVING + "_receiver.py",
        "(channel.empty and (silent or channel.stuck()))",
        "(silent or channel.stuck())",
        tests=(_RABBIT_RECEIVING_A + "call_that_is_given_up_in_a_stall_takes_no_lock_of_other_calls",),
    ),
    Mutant(
        "RabbitMQ: a channel to which nothing comes any more is kept",
        _RABBIT_RECEIVING + "_receiver.py",
        "                if channel.empty and loop.time() >= channel.heard_at + _QUIET:\n",
        "                if False:\n",
        tests=(_RABBIT_RECEIVING_A + "message_that_the_broker_lost_on_its_way_comes_on_another_channel",),
    ),
    Mutant(
        "RabbitMQ: a retired connection ends while others use it",
        "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_link.py",
        "        if session.users:\n",
        "        if False:\n",
        tests=(_RABBIT_RECEIVING_A + "connection_without_calls_after_a_stall_ends",),
    ),
    Mutant(
        "RabbitMQ: a retired connection ends in the midst of other calls",
        "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_link.py",
        "        if session.users:\n",
        "        if False:\n",
        tests=_RABBIT_SESSION_TESTS,
    ),
    Mutant(
        "RabbitMQ: a channel is closed across the answer to its question",
        "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_driver.py",
        "                await turn.enter_async_context(channel.lock)\n",
        "                pass\n",
        tests=_RABBIT_SESSION_TESTS,
    ),
    Mutant(
        "RabbitMQ: a close leaves tasks of the driver behind",
        "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_link.py",
        "while tasks := self._tasks | self._loop.tasks:",
        "while tasks := self._tasks:",
        tests=_RABBIT_SESSION_TESTS,
    ),
    Mutant(
        "RabbitMQ: a close does not wait for the connections that were lost before",
        "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_link.py",
        "self._made = [*(one for one in self._made if not one.cleared), session]",
        "self._made = [session]",
        tests=_RABBIT_SESSION_TESTS,
    ),
    Mutant(
        "RabbitMQ: a cancelled consumer changes the set that the driver calls it from",
        _RABBIT_RECEIVING + "_delivery_channel.py",
        "        self.session.wire.leave(self._raw.number, self)\n        self._wake()\n",
        "        self.session.wire.leave(self._raw.number, self)\n"
        "        self._raw.on_consumer_cancel_callbacks.discard(self._on_consumer_cancel)\n        self._wake()\n",
        tests=(_RABBIT_RECEIVING_A + "queue_that_is_deleted_while_it_is_asked_about_takes_no_lock_of_others",),
    ),
    Mutant(
        "RabbitMQ: a channel whose queue owes an answer is never closed",
        "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_driver.py",
        "        except TimeoutError:\n            pass\n",
        "        except TimeoutError:\n            return\n",
        tests=(_RABBIT_RECEIVING_A + "channel_whose_queue_owes_an_answer_is_closed_all_the_same_and_once",),
    ),
    Mutant(
        "RabbitMQ: a channel is closed twice, for which the server closes the connection",
        "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_driver.py",
        '        if not getattr(channel, "close_sent", False):\n',
        "        if True:\n",
        tests=(_RABBIT_RECEIVING_A + "channel_is_closed_once_however_often_that_is_asked_in_a_stall",),
    ),
    Mutant(
        "RabbitMQ: messages are abandoned by nack, which 4.3 does not count",
        _RABBIT_RECEIVING + "_settling.py",
        "return [Basic.Reject(delivery_tag=tag, requeue=True) for tag in tags]",
        "return [Basic.Nack(delivery_tag=tags[-1], multiple=len(tags) > 1, requeue=True)]",
        tests=_RABBIT_SETTLING_TESTS,
    ),
    Mutant(
        "RabbitMQ: a policy that makes a quorum queue drop its oldest messages is not reported",
        _RABBIT_MANAGEMENT,
        'first = (OVERFLOW, EXPIRES) if arguments.get(QUEUE_TYPE) == "quorum" else ()',
        "first = ()",
        tests=("plugins/pairmq-rabbitmq/tests/test_rabbitmq_admin.py::test_policies_count_as_the_broker_counts_them",),
    ),
    Mutant(
        "a policy on a backlog queue that was made this moment is not reported",
        "src/pairmq/runner/_backlog.py",
        "        try:\n            actual = await self._limits.run(admin.properties(queue))\n",
        "        try:\n            actual = None if created else await self._limits.run(admin.properties(queue))\n",
        tests=("tests/runner/test_backlog.py",),
    ),
    Mutant(
        "a property without a value, beside texts alone, makes its message malformed",
        "src/pairmq/transport/_header.py",
        '                if type(written) is not list or len(written) != 2 or written[0] != "str":\n',
        '                if len(written) == 2 and written[0] != "str":\n',
        tests=("tests/transport/test_header.py",),
    ),
    Mutant(
        "no scout leaves the line",
        "src/pairmq/core/send.py",
        "        self.elsewhere += 1\n",
        "",
        tests=_LINE_TESTS,
    ),
    Mutant(
        "an answer of the secondary is kept from the line",
        "src/pairmq/runner/_send.py",
        "            if outcome.answered and (turns := state.runner.line.answered()):\n"
        "                self._limits.wake(turns)\n",
        "",
        tests=_LINE_TESTS,
    ),
    Mutant(
        "a send that is cancelled in line takes its turn with it",
        "src/pairmq/runner/_entity.py",
        "        if not self.line.leave(turn) and turn.done()",
        "        if not self.line.leave(turn) and False",
        tests=_LINE_TESTS,
    ),
    Mutant(
        "a send in line keeps the others behind it when it ends",
        "src/pairmq/core/send.py",
        "        return bool(self._turns or line.turns)\n",
        "        return bool(self._turns)\n",
        tests=_LINE_TESTS,
    ),
    Mutant(
        "a send in line with hardly any time left is let in while thousands end",
        "src/pairmq/core/send.py",
        "            if now < _ends(started, deadline, lead):\n                return turn\n",
        "            return turn\n",
        tests=("tests/core/test_send.py", "tests/runner/test_limits.py"),
    ),
    Mutant(
        "a pass of the garbage collector makes the ends of thousands early",
        _LIMITS,
        "                few = self._turns[kind] <= _LEAST_OF\n",
        "                few = False\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "thousands of limits that need no end yet are looked at in one turn of the loop",
        "src/pairmq/runner/_limits.py",
        "while reached < most and looked_at < _LOOKED_AT:",
        "while reached < most:",
        tests=("tests/runner/test_limits.py",),
    ),
    Mutant(
        "sends that hang at the primary keep others from the secondary when their entity fails over",
        "src/pairmq/runner/_entity.py",
        "            for _ in range(self.line.failed_over()):\n                self.next_turn()\n",
        "            pass\n",
        tests=_LINE_TESTS,
    ),
    Mutant(
        "a decision with a number that no other can exceed is followed",
        "src/pairmq/core/switch.py",
        "if decision.number > latest:",
        "if False:",
        tests=("tests/core/test_switch.py",),
    ),
    Mutant(
        "a decision is written behind messages that are all that processes read",
        "src/pairmq/runner/_switch.py",
        "            if not known.full:",
        "            if known is not None:",
        tests=("tests/runner/test_switch.py",),
    ),
)
