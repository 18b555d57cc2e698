"""Bugs that single tests have to find: what needs a rare moment, what is only counted or told, and the plugins."""

from __future__ import annotations

from planted.mutant import Mutant

_LIMITS = "src/pairmq/runner/_limits.py"
_LIMITS_TESTS = ("tests/runner/test_limits.py",)
_SETTLER = "src/pairmq/runner/pump/_settler.py"
_POSTPONING = "src/pairmq/runner/pump/_postponing.py"
_IN_DOUBT_TESTS = ("tests/runner/test_syphon_in_doubt.py",)
_PUMP_TESTS = ("tests/runner/test_pump.py",)
_REDIS_LINK = "plugins/pairmq-redis/src/pairmq_redis/_link.py"
_REDIS_LINK_TESTS = ("plugins/pairmq-redis/tests/test_redis_link.py",)
_RABBIT_POSITIONS = "plugins/pairmq-rabbitmq/src/pairmq_rabbitmq/_positions.py"
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
    # Time limits.
    Mutant(
        "a time limit that is reached is told as a cancellation by the caller",
        _LIMITS,
        "        return limit.task.cancelling() <= limit.cancelling",
        "        return False",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a cancellation by the caller at the very instant of a time limit is swallowed",
        _LIMITS,
        "        return limit.task.cancelling() <= limit.cancelling",
        "        return True",
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
        "        if at < self._armed_for:\n",
        "        if self._timer is None:\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "the timer is not set anew when a close shortens the limits",
        _LIMITS,
        "*entry[1:]) for entry in running])\n        self._arm()\n",
        "*entry[1:]) for entry in running])\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a caller is cancelled by the limit of an operation that has ended",
        _LIMITS,
        "            if limit.running:\n",
        "            if True:\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "the limits of what runs are forgotten with those of what has ended",
        _LIMITS,
        "            self._keep([entry for entry in self._limits if entry[2].running])",
        "            self._keep([])",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "an operation that goes on after its limit is cancelled only once",
        _LIMITS,
        "                heapq.heappush(limits, (now + _AGAIN, number, limit))\n",
        "                pass\n",
        tests=_LIMITS_TESTS,
    ),
    Mutant(
        "a closing send waits for one more attempt",
        "src/pairmq/runner/_send.py",
        "                deadline = min(deadline, self._ends_at)  # the pair began",
        "                pass  # the pair began",
        tests=("tests/runner/test_close.py",),
    ),
    # The syphon.
    Mutant(
        "a count tells of its end instead of its beginning",
        "src/pairmq/runner/_drain.py",
        "            self._empty.seen_empty(index, began_at)\n        return",
        "            self._empty.seen_empty(index, self._clock.now())\n        return",
        tests=("tests/runner/test_drain.py",),
    ),
    Mutant(
        "a move is told twice when the pump begins anew",
        _SETTLER,
        "        if self._untold.pop(id(settlement), None) is not None:",
        "        if self._untold.get(id(settlement)) is not None:",
        tests=_PUMP_TESTS,
    ),
    Mutant(
        "a move whose completion hangs is never told",
        _SETTLER,
        "        for settlement in tuple(self._untold.values()):\n            self._tell(settlement, error)\n",
        "",
        tests=_PUMP_TESTS,
    ),
    Mutant(
        "a completion under a lock that was replaced is given up",
        _SETTLER,
        "        elif error.reason is FailureReason.LOCK_LOST and item.delivery is not used and not item.lost:",
        "        elif False:",
        tests=_IN_DOUBT_TESTS,
    ),
    Mutant(
        "the first locks are not renewed in time",
        "src/pairmq/runner/pump/_hand.py",
        "        await self._reader.asked.wait()\n",
        "",
        tests=_IN_DOUBT_TESTS,
    ),
    Mutant(
        "what could not be postponed is forgotten",
        _POSTPONING,
        "            self._lines.put_back(line, rest)\n",
        "            pass\n",
        tests=_IN_DOUBT_TESTS,
    ),
    Mutant(
        "what may not be postponed yet leaves its line",
        _POSTPONING,
        "        line.items.extend(staying)\n",
        "",
        tests=_IN_DOUBT_TESTS,
    ),
    # Order.
    Mutant(
        "a send is routed a moment after its session was seen to be clean",
        "src/pairmq/runner/_ordered.py",
        "            place.wait = None\n            return runner.route()",
        "            place.wait = None\n            await asyncio.sleep(0)\n            return runner.route()",
        tests=("tests/runner/test_order.py",),
    ),
    Mutant(
        "a look that began before a diverted send had ended tells of it",
        "src/pairmq/core/order.py",
        "        if look.began_at < self._since:\n",
        "        if False:\n",
        tests=("tests/core/test_order.py",),
    ),
    # Redis.
    Mutant(
        "the reply to a cancelled call is given to the next one",
        _REDIS_LINK,
        "            self._retire()\n            raise\n",
        "            if call in self._calls:\n                self._calls.remove(call)\n"
        "            self._retire()\n            raise\n",
        tests=_REDIS_LINK_TESTS,
    ),
    Mutant(
        "a connection goes on being used after a call on it was cancelled",
        _REDIS_LINK,
        "            self._retire()\n            raise\n",
        "            raise\n",
        tests=_REDIS_LINK_TESTS,
    ),
    Mutant(
        "a connection in doubt is dropped over calls that still wait for their replies",
        _REDIS_LINK,
        "        if all(call.future.done() for call in self._calls):\n",
        "        if True:\n",
        tests=_REDIS_LINK_TESTS,
    ),
    Mutant(
        "replies that come before anybody takes them are lost",
        "plugins/pairmq-redis/src/pairmq_redis/_wire.py",
        "        self._take = take\n        self._hand_on()\n",
        "        self._take = take\n",
        tests=("plugins/pairmq-redis/tests/test_redis_wire.py",),
    ),
    # Service Bus.
    Mutant(
        "a send that Service Bus has rejected counts as accepted",
        "plugins/pairmq-servicebus/src/pairmq_servicebus/_direct.py",
        "    except Exception as error:\n        failure = error\n",
        "    except Exception:\n        return\n",
        tests=("plugins/pairmq-servicebus/tests/transport/test_direct.py",),
    ),
    Mutant(
        "an outcome that the client of Service Bus does not know counts as accepted",
        "plugins/pairmq-servicebus/src/pairmq_servicebus/_private.py",
        "        return None\n    error = ",
        "        return {_ACCEPTED: []}\n    error = ",
        tests=("plugins/pairmq-servicebus/tests/transport/test_direct.py",),
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
)
