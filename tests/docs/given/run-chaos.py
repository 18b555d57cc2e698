"""The reader's own package: its server."""

import sys
from types import ModuleType

from pairmq.testing.servers import ServerProcess


class MyServer(ServerProcess):
    def __init__(self):
        super().__init__(["my-server"], ready=lambda: True)
        self.port = 1234


for name in ("pairmq_mine", "pairmq_mine.testing"):
    sys.modules[name] = ModuleType(name)
sys.modules["pairmq_mine.testing"].MyServer = MyServer
