"""Brokers that are far: a program that delays what passes between them and their clients, and how to start it.

Usage of the program: SECONDS-EACH-WAY PORT... It prints its own ports, and ends with its standard input.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from pairmq.testing.proxy import TcpProxy


@contextmanager
def far(urls: Sequence[str], round_trip: float) -> Iterator[list[str]]:
    """The addresses of brokers over such a link, also where the round trip is 0: its program costs as much then."""
    ports = [str(urlsplit(url).port) for url in urls]
    command = [sys.executable, __file__, str(round_trip / 2), *ports]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:  # noqa: S603  # ours
        near = (program.stdout.readline() if program.stdout is not None else "").split()
        yield [url.replace(f":{port}", f":{its}") for url, port, its in zip(urls, ports, near, strict=True)]
        program.communicate("")


def main() -> None:
    """Be the link."""
    delay, *ports = sys.argv[1:]
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy("127.0.0.1", int(port))) for port in ports]
        for proxy in proxies:
            proxy.slow(delay=float(delay))
        print(*(proxy.port for proxy in proxies), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
