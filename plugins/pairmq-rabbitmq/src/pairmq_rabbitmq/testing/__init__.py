"""Real RabbitMQ servers for tests: on free ports of this machine, separate from everything else that runs here.

Each server has its own port mapper (epmd), Erlang cookie, node name and directories, so that any number of them run
side by side and none meets a RabbitMQ that the system runs. A boot takes seconds: tests share servers through a
`RabbitPool`, and most of them can stop a server with `RabbitServer.go_down` instead of a kill.
"""

from pairmq.testing.servers import start_together
from pairmq_rabbitmq.testing._harness import RabbitHarness
from pairmq_rabbitmq.testing._server import RabbitCluster, RabbitPool, RabbitServer, pool

__all__ = ["RabbitCluster", "RabbitHarness", "RabbitPool", "RabbitServer", "pool", "start_together"]
