"""What carries the traffic between the nodes of a cluster, and can be interrupted: a proxy for each way between two."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from typing import Final

from pairmq.testing.proxy import TcpProxy
from pairmq_rabbitmq.testing._node import HOST

_PORT_PLEASE: Final = 122  # "Protocol between a node and EPMD" in the description of Erlang's distribution protocol
_ALIVE: Final = 120
_FOUND: Final = b"\x77\0"


class Detour(socketserver.ThreadingTCPServer):
    """A node's own epmd: it passes on what the cluster's says, but names proxies as the ports of the other nodes."""

    daemon_threads = True

    def __init__(self, epmd: int, node: str) -> None:
        super().__init__((HOST, 0), _Request)
        self.epmd = epmd
        self.node = node
        self.proxies: dict[str, TcpProxy] = {}
        """Before each of the others, by its name."""
        threading.Thread(target=self.serve_forever, name=f"epmd of {node}", daemon=True).start()

    @property
    def port(self) -> int:
        """Its TCP port."""
        return int(self.server_address[1])

    def lead_to(self, node: str, port: int) -> None:
        """Put a proxy before another node."""
        self.proxies[node] = TcpProxy(HOST, port)
        self.proxies[node].start()

    def close(self) -> None:
        """End it and its proxies; idempotent."""
        self.shutdown()
        self.server_close()
        for proxy in self.proxies.values():
            proxy.close()


class _Request(socketserver.StreamRequestHandler):
    server: Detour

    def handle(self) -> None:
        mapper = self.server
        size = self.rfile.read(2)
        asked = self.rfile.read(int.from_bytes(size))
        if not asked:
            return
        with contextlib.suppress(OSError), socket.create_connection((HOST, mapper.epmd)) as epmd:
            epmd.sendall(size + asked)
            if asked[0] == _ALIVE:
                self.wfile.write(epmd.recv(64))
                self.rfile.read()  # the node is known for as long as it keeps its connection
                return
            answer = b"".join(iter(lambda: epmd.recv(4096), b""))
            proxy = mapper.proxies.get(asked[1:].decode()) if asked[0] == _PORT_PLEASE else None
            if proxy is not None and answer.startswith(_FOUND):
                answer = _FOUND + proxy.port.to_bytes(2) + answer[4:]
            self.wfile.write(answer)
