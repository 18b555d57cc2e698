"""What can be done to a RabbitMQ server in a chaos run (`pairmq.testing.chaos`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import ClassVar

from pairmq.testing.chaos.broker import KILL, PAUSE, ChaosBroker, FaultKind, ServerBroker
from pairmq.testing.chaos.plan import ENTITIES
from pairmq_rabbitmq.testing import RabbitCluster, RabbitServer

_USER, _PASSWORD = "app", "app"
_POLICY = "pairmq-chaos"
_REJECTS = {"overflow": "reject-publish"}
_SET_LIMIT = (
    f'ok = rabbit_auth_backend_internal:set_user_limits(<<"{_USER}">>, #{{<<"max-connections">> => 0}}, <<"pairmq">>)'
)
_CLEAR_LIMIT = (
    f'ok = rabbit_auth_backend_internal:clear_user_limits(<<"{_USER}">>, <<"max-connections">>, <<"pairmq">>)'
)
_LOCK = 10  # s; with the usual minute, a few failed completions would last as long as a run waits for its end
_START_TIMEOUT = 600.0  # s, on a busy machine: without its server a run has no verdict


class RabbitChaos(ServerBroker):
    """A rabbitmq-server that keeps its data, with a separate user for the clients.

    Its own faults: ``memory-alarm`` (publishers are blocked), ``down`` (the broker stops, its virtual machine stays),
    ``drop-clients`` (closed by an operator), ``refuse-clients`` (open connections stay), ``queue-full`` (all queues
    reject new messages: reject-publish), ``password`` (changed, and all clients are disconnected), ``permissions`` (to
    write, revoked), ``user-limit`` (the user may open no connection, and all clients are disconnected). A ``server`` of
    the caller is reset, and kept in the end.
    """

    attempt_timeout: ClassVar[float] = 1.0
    faults: ClassVar[tuple[FaultKind, ...]] = (
        KILL,
        PAUSE,
        FaultKind("memory-alarm", 0.2, 6.0),
        FaultKind("down", 0.2, 4.0),
        FaultKind("drop-clients", 0.1, 0.1),
        FaultKind("refuse-clients", 0.2, 4.0),
        FaultKind("queue-full", 0.3, 5.0),
        FaultKind("password", 0.2, 3.0),
        FaultKind("permissions", 0.2, 3.0),
        FaultKind("user-limit", 0.2, 3.0),
    )

    def __init__(self, server: RabbitServer | None = None) -> None:
        self._borrowed = server is not None
        self._server = server = server or RabbitServer(start_timeout=_START_TIMEOUT)
        super().__init__(
            server,
            {
                "down": (self._go_down, self._come_up),
                "memory-alarm": (server.block, server.unblock),
                "refuse-clients": (server.refuse_clients, server.accept_clients),
                "queue-full": (partial(self._limit_queues, {"max-length": 1}), partial(self._limit_queues, {})),
                "password": (self._change_password, partial(server.change_password, _USER, _PASSWORD)),
                "permissions": (
                    partial(server.set_permissions, _USER, write=""),
                    partial(server.set_permissions, _USER),
                ),
                "user-limit": (self._forbid_connections, partial(server.erl, _CLEAR_LIMIT)),
                "drop-clients": (server.drop_clients, lambda: None),
            },
        )

    def start(self) -> None:
        """Start it, and create the clients' user."""
        super().start()
        self._server.add_user(_USER, _PASSWORD)
        # Long before a limit: a busy queue learns of both at once, and drops all messages beyond it.
        self._limit_queues({})

    @property
    def url(self) -> str:
        """The address for the clients' user."""
        return f"{self._server.url_for(_USER, _PASSWORD)}?lock_duration={_LOCK}"

    def count(self, queue: str) -> int:
        """The ready messages, and those delivered and not acknowledged, as counted by the queue itself."""
        return sum(self._server.queues().get(queue, (0, 0)))

    def close(self) -> None:
        """End it, or reset a borrowed one."""
        if self._borrowed:
            self._server.reset()
        else:
            super().close()

    def _go_down(self) -> None:
        self._server.settle()  # it loses queues that were created a moment ago, as `kill` says
        self._server.go_down()

    def _come_up(self) -> None:
        if self._server.erl("rabbit:is_running()") != "true":
            self._server.come_up()

    def _limit_queues(self, limits: Mapping[str, int]) -> None:
        self._server.set_policy(_POLICY, ".*", {**_REJECTS, **limits})

    def _change_password(self) -> None:
        self._server.change_password(_USER, "changed by an operator")
        self._server.drop_clients()

    def _forbid_connections(self) -> None:
        self._server.erl(_SET_LIMIT)
        self._server.drop_clients()


class RabbitClusterChaos(ChaosBroker):
    """Three nodes of a cluster, whose queues are quorum queues; each node is behind a proxy.

    Its faults strike the nodes in turn: ``kill-node``, ``pause-node``, ``isolate-node`` (nothing passes between it and
    the others, so that it pauses when it has noticed), and ``move-leader`` of a queue.
    """

    attempt_timeout: ClassVar[float] = 2.0
    faults: ClassVar[tuple[FaultKind, ...]] = (
        FaultKind("kill-node", 0.2, 4.0),
        FaultKind("pause-node", 0.2, 8.0),
        FaultKind("isolate-node", 0.2, 12.0),
        FaultKind("move-leader", 0.1, 0.1),
    )

    def __init__(self) -> None:
        self._cluster = RabbitCluster(net_ticktime=5, divisible=True)
        self._turn = 0

    def start(self) -> None:
        self._cluster.start()

    @property
    def url(self) -> str:
        return f"{self._cluster.url}?queue_type=quorum"

    def apply(self, fault: str) -> None:
        self._turn += 1
        node = self._cluster.nodes[self._turn % 3]
        match fault:
            case "kill-node":
                node.kill()
            case "pause-node":
                node.pause()
            case "isolate-node":
                self._cluster.isolate(node)
            case "move-leader":
                self._cluster.move_leader(ENTITIES[self._turn % len(ENTITIES)], node)
            case _:
                raise ValueError(f"a cluster knows no fault {fault!r}")

    def cure(self, fault: str) -> None:
        """Start the node again, let it go on or reach the others, and wait until all are one cluster."""
        self._cluster.start()

    def heal(self) -> None:
        self._cluster.start()

    def count(self, queue: str) -> int:
        """The ready messages, and those delivered and not acknowledged, as counted by the queue's leader."""
        leader = self._cluster.leader_of(queue) or self._cluster.nodes[0]
        return sum(leader.queues().get(queue, (0, 0)))

    def close(self) -> None:
        self._cluster.close()


# The names by which `pairmq.testing.chaos` makes them: ``rabbitmq``, ``rabbitmq:cluster``.
chaos_broker, cluster = RabbitChaos, RabbitClusterChaos
