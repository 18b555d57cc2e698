"""What can be done to a local Service Bus server in a chaos run (`pairmq.testing.chaos`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pairmq.testing.chaos.broker import KILL, PAUSE, FaultKind, ServerBroker
from pairmq_servicebus.testing import ServiceBusServer

# By name: the rules of `servicebus_local.faults`, and whether connections are dropped before, so that clients
# have to come through it.
_RULES: Mapping[str, tuple[dict[str, Any], bool]] = {
    "throttled": ({"at": "send", "action": "error", "condition": "com.microsoft:server-busy"}, False),
    "internal-error": ({"at": "send", "action": "error", "condition": "amqp:internal-error"}, False),
    "internal-error-after-all": (
        {"at": "send", "action": "error", "condition": "amqp:internal-error", "apply": True},
        False,
    ),
    "detached": ({"at": "send", "action": "detach", "condition": "amqp:link:detach-forced", "apply": True}, False),
    "silent": ({"at": "send", "action": "silence"}, False),
    "confirmations-lost": ({"at": "send", "action": "silence", "apply": True}, False),
    "dropped-after-the-write": ({"at": "send", "action": "drop", "apply": True, "times": 20}, False),
    "late": ({"at": "send", "action": "delay", "seconds": 0.4, "apply": True}, False),
    "quota": ({"at": "send", "action": "error", "condition": "amqp:resource-limit-exceeded"}, False),
    "disabled": ({"at": "send", "action": "error", "condition": "com.microsoft:entity-disabled"}, False),
    "settlements-lost": ({"at": "settle", "action": "silence"}, False),
    "settlements-late": ({"at": "settle", "action": "delay", "seconds": 0.4, "apply": True}, False),
    "attach-refused": ({"at": "attach", "action": "error", "condition": "com.microsoft:timeout"}, True),
    "tokens-lost": ({"at": "cbs", "action": "silence"}, True),
    "tokens-refused": ({"at": "cbs", "action": "error", "status": 401}, True),
}


class ServiceBusChaos(ServerBroker):
    """A local server that keeps its data on disk.

    Its own faults are rules of its fault plan, by the names above; besides ``struck-dumb`` (a client that sends on an
    open connection never gets another answer) and ``drop-clients``.
    """

    attempt_timeout: ClassVar[float] = 2.0
    faults: ClassVar[tuple[FaultKind, ...]] = (
        KILL,
        PAUSE,
        *(FaultKind(name, 0.3, 5.0) for name in _RULES),
        FaultKind("struck-dumb", 0.3, 5.0),
        FaultKind("drop-clients", 0.1, 0.1),
    )

    def __init__(self) -> None:
        self._server = ServiceBusServer()
        super().__init__(self._server)

    def apply(self, fault: str) -> None:
        server = self._server
        if fault in _RULES:
            rule, anew = _RULES[fault]
            server.fault({"entity": "*", **rule})
            if anew:
                server.drop_connections()
        elif fault == "struck-dumb":
            server.fault({"at": "connection", "action": "silence"})
        elif fault == "drop-clients":
            server.drop_connections()
        else:
            super().apply(fault)

    def cure(self, fault: str) -> None:
        super().cure(fault)
        self._server.heal()
        if fault == "struck-dumb":
            # Such connections stay dumb, as those do that a router has forgotten.
            self._server.drop_connections()

    def count(self, queue: str) -> int:
        """What is active, locked or scheduled."""
        counts = self._server.queues().get(queue, {})
        return counts.get("active", 0) + counts.get("scheduled", 0)


chaos_broker = ServiceBusChaos  # `pairmq.testing.chaos` makes it by this name
