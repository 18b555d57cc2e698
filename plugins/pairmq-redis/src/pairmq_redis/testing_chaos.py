"""What can be done to a Redis server in a chaos run (`pairmq.testing.chaos`)."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from pairmq.model import Entity
from pairmq.testing.chaos.broker import KILL, PAUSE, FaultKind, ServerBroker
from pairmq.testing.servers import free_port
from pairmq_redis._keys import EntityKeys
from pairmq_redis.testing import RedisServer

_HOST = "127.0.0.1"
_OTHER_PASSWORD = "changed by an operator"  # noqa: S105  # of a server that lives for one run


class RedisChaos(ServerBroker):
    """A redis-server that writes every confirmed command to disk.

    Its own faults: ``out-of-memory`` (writes are refused with OOM), ``replica`` (it becomes one, of an unreachable
    master: READONLY), ``password`` (changed, and all clients are disconnected), ``permissions`` (to write, revoked:
    NOPERM), ``drop-clients``.
    """

    faults: ClassVar[tuple[FaultKind, ...]] = (
        KILL,
        PAUSE,
        FaultKind("out-of-memory", 0.2, 4.0),
        FaultKind("replica", 0.2, 4.0),
        FaultKind("password", 0.2, 3.0),
        FaultKind("permissions", 0.2, 3.0),
        FaultKind("drop-clients", 0.1, 0.1),
    )

    def __init__(self) -> None:
        self._server = RedisServer()
        super().__init__(self._server)

    @property
    def url(self) -> str:
        """The server's."""
        return self._server.url

    @property
    def address(self) -> tuple[str, int]:
        """The server's."""
        return _HOST, self._server.port

    def apply(self, fault: str) -> None:
        """Begin one of `faults`."""
        command = self._server.command
        match fault:
            case "out-of-memory":
                command("CONFIG", "SET", "maxmemory", "1")
            case "replica":
                command("REPLICAOF", _HOST, str(free_port()))
            case "password":
                command("CONFIG", "SET", "requirepass", _OTHER_PASSWORD)
                self._server.password = _OTHER_PASSWORD
                command("CLIENT", "KILL", "TYPE", "normal")
            case "permissions":
                command("ACL", "SETUSER", "default", "-@write")
            case "drop-clients":
                command("CLIENT", "KILL", "TYPE", "normal")
            case _:
                super().apply(fault)

    def cure(self, fault: str) -> None:
        """End it."""
        super().cure(fault)
        command = self._server.command
        match fault:
            case "out-of-memory":
                command("CONFIG", "SET", "maxmemory", "0")
            case "replica":
                command("REPLICAOF", "NO", "ONE")
            case "password":
                command("CONFIG", "SET", "requirepass", "")
                self._server.password = None
            case "permissions":
                command("ACL", "SETUSER", "default", "+@all")

    def heal(self) -> None:
        """End everything."""
        for fault in ("password", "permissions", "out-of-memory", "replica"):
            self.cure(fault)

    def count(self, queue: str) -> int:
        """The length of the queue's stream, and the number of scheduled messages."""
        keys = EntityKeys(Entity(queue))
        total = 0
        for key in (keys.stream, keys.waiting):
            reply = self._server.command("XLEN", key.decode())
            with contextlib.suppress(ValueError):
                total += int(reply.removeprefix(":"))
        return total


def chaos_broker() -> RedisChaos:
    """Make one; `pairmq.testing.chaos` looks for this name."""
    return RedisChaos()
