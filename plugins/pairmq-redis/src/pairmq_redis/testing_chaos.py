"""What can be done to a Redis server in a chaos run (`pairmq.testing.chaos`)."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from pairmq.model import Entity
from pairmq.testing.chaos.broker import KILL, PAUSE, FaultKind, ServerBroker
from pairmq.testing.chaos.plan import ENTITIES
from pairmq.testing.servers import ServerError, free_port
from pairmq_redis._keys import EntityKeys
from pairmq_redis.testing import RedisCluster, RedisSentinels, RedisServer

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
        command = self._server.command
        config, permit = partial(command, "CONFIG", "SET"), partial(command, "ACL", "SETUSER", "default")
        super().__init__(
            self._server,
            {
                "password": (self._change_password, self._restore_password),
                "permissions": (partial(permit, "-@write"), partial(permit, "+@all")),
                "out-of-memory": (partial(config, "maxmemory", "1"), partial(config, "maxmemory", "0")),
                "replica": (
                    lambda: command("REPLICAOF", "127.0.0.1", str(free_port())),
                    partial(command, "REPLICAOF", "NO", "ONE"),
                ),
                "drop-clients": (self._drop_clients, lambda: None),
            },
        )

    def _drop_clients(self) -> None:
        self._server.command("CLIENT", "KILL", "TYPE", "normal")

    def _change_password(self) -> None:
        self._server.command("CONFIG", "SET", "requirepass", _OTHER_PASSWORD)
        self._server.password = _OTHER_PASSWORD
        self._drop_clients()

    def _restore_password(self) -> None:
        self._server.command("CONFIG", "SET", "requirepass", "")
        self._server.password = None

    def count(self, queue: str) -> int:
        """The length of the queue's stream, and the number of scheduled messages."""
        return _count(self._server, queue)


class _Group(ServerBroker):
    """Several servers that clients learn of from each other, so that no proxy can be put before them.

    Faults that strike one of the masters take them in turn.
    """

    def __init__(self, group: RedisCluster | RedisSentinels, wait_replicas: int) -> None:
        super().__init__(group)
        self._group = group
        self._options = f"?wait_replicas={wait_replicas}&wait_timeout=500"
        self._turn = 0

    @property
    def url(self) -> str:
        """The address with all servers; what their replicas do not have is not confirmed."""
        return self._group.url + self._options

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """None."""
        return ()

    def apply(self, fault: str) -> None:
        self._turn += 1
        match fault:
            case "kill-master":
                self._master().kill()
            case "pause-master":
                self._master().pause()
            case _:
                super().apply(fault)

    def cure(self, fault: str) -> None:
        """End it, and wait until all agree."""
        self._group.start()

    def _masters(self) -> list[RedisServer]:
        return [each for each in self._group.servers if each.running and each.role == "master"]

    def _master(self) -> RedisServer:
        masters = self._masters()
        return masters[self._turn % len(masters)]


class SentinelsChaos(_Group):
    """A master with two replicas, behind three sentinels.

    Its faults: ``kill-master``, ``pause-master``, ``kill-replica``, ``kill-sentinel``, ``demote``, and
    ``isolate-master``: nothing passes between it, with one sentinel, and the others; clients reach the one side or the
    other, in turn.
    """

    faults: ClassVar[tuple[FaultKind, ...]] = (
        FaultKind("kill-master", 0.2, 6.0),
        FaultKind("pause-master", 0.2, 6.0),
        FaultKind("isolate-master", 0.2, 6.0),
        FaultKind("kill-replica", 0.2, 4.0),
        FaultKind("kill-sentinel", 0.2, 4.0),
        FaultKind("demote", 0.1, 0.1),
    )

    def __init__(self) -> None:
        self._sentinels = RedisSentinels(divisible=True)
        super().__init__(self._sentinels, wait_replicas=2)

    def apply(self, fault: str) -> None:
        match fault:
            case "kill-replica":
                next(server for server in self._sentinels.servers if server.role == "slave").kill()
            case "isolate-master":
                self._turn += 1
                sentinel = self._sentinels.sentinels[self._turn % 3]
                self._sentinels.isolate(self._master(), sentinel, with_clients=self._turn % 2 == 0)
            case "kill-sentinel":
                self._sentinels.sentinels[self._turn % 3].kill()
            case "demote":
                with contextlib.suppress(ServerError):  # a moment after another promotion the sentinels refuse it
                    self._sentinels.demote()
            case _:
                super().apply(fault)

    def count(self, queue: str) -> int:
        return _count(self._sentinels.master, queue)


class ClusterChaos(_Group):
    """A Redis Cluster of three masters, with a replica each.

    Its faults: ``kill-master``, ``pause-master``, ``demote``, ``move`` (a queue's slot, while in use), and ``kill`` and
    ``pause`` for all nodes.
    """

    faults: ClassVar[tuple[FaultKind, ...]] = (
        KILL,
        PAUSE,
        FaultKind("kill-master", 0.2, 6.0),
        FaultKind("pause-master", 0.2, 6.0),
        FaultKind("demote", 0.1, 0.1),
        FaultKind("move", 0.1, 0.1),
    )

    def __init__(self) -> None:
        self._cluster = RedisCluster(replicas=1)
        super().__init__(self._cluster, wait_replicas=1)

    def apply(self, fault: str) -> None:
        path = ENTITIES[self._turn % len(ENTITIES)]
        match fault:
            case "demote":
                self._turn += 1
                self._cluster.demote(path)
            case "move":
                owner = self._cluster.owner(path)
                self._cluster.move(path, next(each for each in self._masters() if each is not owner), pause=0.05)
                self._turn += 1
            case _:
                super().apply(fault)

    def count(self, queue: str) -> int:
        return _count(self._cluster.owner(queue), queue)


def _count(server: RedisServer, queue: str) -> int:
    keys = EntityKeys(Entity(queue))
    total = 0
    for key in (keys.stream, keys.waiting):
        with contextlib.suppress(ValueError):
            total += int(server.command("XLEN", key.decode()).removeprefix(":"))
    return total


# The names by which `pairmq.testing.chaos` makes them: ``redis``, ``redis:cluster``, ``redis:sentinels``.
chaos_broker, cluster, sentinels = RedisChaos, ClusterChaos, SentinelsChaos
