"""Conformance harnesses whose server is far: 150 ms each way, more by chance, and half a second now and then."""

from __future__ import annotations

from urllib.parse import urlsplit

from pairmq.testing import TcpProxy
from pairmq.testing.conformance import Server, ServerHarness

DELAY, JITTER = 0.15, 0.02  # s
STALL, BETWEEN = 0.5, 5.0  # s


class FarHarness(ServerHarness):
    """To be put before a product's harness in the bases of a class.

    Attributes:
        lock_duration: long enough for some round trips of a busy machine.
    """

    lock_duration = 5.0

    def __init__(self) -> None:
        super().__init__()
        self._link: TcpProxy | None = None

    def clear(self, server: Server) -> str:
        """As the product's, at the link's address."""
        url = super().clear(server)
        host, port = urlsplit(url).hostname, urlsplit(url).port
        assert host is not None
        assert port is not None
        if self._link is None:
            self._link = TcpProxy(host, port)
            self._link.start()
            self._link.slow(delay=DELAY, jitter=JITTER, stall=STALL, stall_interval=BETWEEN)
        self._link.redirect(host, port)
        return self._link.rewrite(url)

    def close(self) -> None:
        """Close the link, too."""
        if self._link is not None:
            self._link.close()
        super().close()
