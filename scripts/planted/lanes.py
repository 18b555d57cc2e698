"""Bugs of lanes: what their consumers get, and when the syphon reads them (SPEC 11)."""

from __future__ import annotations

from planted.mutant import Mutant

_CONTINUITY = "src/pairmq/pair/_continuity.py"
_CONSUMER = "src/pairmq/pair/_consumer.py"
_RULES = "src/pairmq/core/lanes.py"
_ROTATION = "src/pairmq/core/rotation.py"

LANES = (
    Mutant(
        "a lane is not read while the primary is up",
        _RULES,
        "        return any(now < call.ends_at or max",
        "        return (side is self.primary or self.primary.is_lost) and any(now < call.ends_at or max",
    ),
    Mutant(
        "a lane's delivery is settled at the primary",
        _CONTINUITY,
        "        super().__init__(delivery, side.receiver, side.owner, received_at)",
        "        super().__init__(delivery, side.owner._receiver, side.owner, received_at)",
    ),
    Mutant(
        "a lane's delivery names the primary as its origin",
        _CONTINUITY,
        "        return Side.SECONDARY",
        "        return Side.PRIMARY",
    ),
    Mutant(
        "a lane's delivery is given as it is stored",
        _CONTINUITY,
        "                given.append(LaneDelivery(delivery, found, self, received_at))",
        "                given.append(LaneDelivery(delivery, delivery.message, self, received_at))",
    ),
    Mutant(
        "what is dead-lettered in a lane is given all the same",
        _CONTINUITY,
        "                owner.later(self._bury(delivery, found))\n            else:\n",
        "                owner.later(self._bury(delivery, found))\n"
        "                found = delivery.message\n            if True:\n",
    ),
    Mutant(
        "a side that was lost is never asked again",
        _RULES,
        "        self.retry_at = now + _RECONNECTS.wait(self._retry, chance)",
        "        self.retry_at = now + 1e6",
    ),
    Mutant(
        "the syphon reads a lane without patience",
        _RULES,
        "        return self._since is not None and now - self._since >= self._patience",
        "        return self._since is not None",
        tests=("tests/core/test_lanes.py",),
    ),
    Mutant(
        "the syphon reads a lane while the primary takes no messages",
        _RULES,
        "        return LaneStep.READ if primary_answers and is_open else LaneStep.WAIT",
        "        return LaneStep.READ if self.may_read(now) else LaneStep.WAIT",
        tests=("tests/core/test_lanes.py",),
    ),
    Mutant(
        "a lane that failed is tried again as late as other backlog queues",
        _ROTATION,
        "        if index < self._shared:\n            return self._retry_interval\n",
        "        return self._retry_interval\n",
        tests=("tests/core/test_rotation.py",),
    ),
    Mutant(
        "a receiver that is left keeps what it holds at the other side",
        _CONTINUITY,
        'name=f"close {side.source}") for side in self._sides)',
        'name=f"close {side.source}") for side in self._sides[:1])',
        tests=("tests/runner/test_continuity.py",),
    ),
    Mutant(
        "a consumer keeps no locks of what it gave",
        _CONSUMER,
        "            self._locks.keep(found)\n",
        "",
        tests=("tests/runner/test_consumer.py",),
    ),
    Mutant(
        "a consumer gives more than its prefetch",
        _CONSUMER,
        "            while self._prefetch and len(self._held) >= self._prefetch:",
        "            while False:",
        tests=("tests/runner/test_consumer.py",),
    ),
    Mutant(
        "a consumer that is closed does not wait for settlements",
        _CONSUMER,
        "                while self._settling:",
        "                while False:",
        tests=("tests/runner/test_consumer.py",),
    ),
    Mutant(
        "what waits behind a message that is handled loses its lock",
        _RULES,
        "    return min(_RENEWED, max(1.0, left / 2))",
        "    return HELD",
        tests=("tests/runner/test_continuity.py",),
    ),
)
