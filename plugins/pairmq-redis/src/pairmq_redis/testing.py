"""A real Redis server for tests, on a free port of this machine, with its data in a temporary directory."""

from __future__ import annotations

import secrets
import shutil
import socket
from pathlib import Path
from urllib.parse import quote

from pairmq.testing.conformance import Server, ServerHarness
from pairmq.testing.servers import ServerProcess, free_port

_ANSWER_WITHIN = 30.0
"""Seconds: a server that writes to a busy disk may not respond for some."""


class RedisServer(ServerProcess):
    """A redis-server process that keeps its data over `kill` and `restart`.

    Args:
        appendfsync: when a write reaches the disk: ``always`` (before it is confirmed), ``everysec`` or
        ``no``. password: the default user's; none when left out. port: TCP port; a free one when left out.
        directory: where it keeps data and log; a temporary one, removed at the end, when left out. options:
        more of its command line, such as ``("--maxmemory", "1mb")``.

    Raises:
        FileNotFoundError: there is no redis-server; the text says how to get it.
    """

    def __init__(
        self,
        *,
        appendfsync: str = "always",
        password: str | None = None,
        port: int | None = None,
        directory: Path | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise FileNotFoundError("redis-server is not on PATH: apt-get install redis-server")
        self.port = port or free_port()
        self.password = password
        login = f":{quote(password, safe='')}@" if password else ""
        self.url = f"redis://{login}127.0.0.1:{self.port}/0"
        command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", appendfsync, "--daemonize", "no"]
        if password:
            command += ["--requirepass", password]
        super().__init__(
            [*command, *options], ready=self._answers, directory=directory, start_timeout=60.0, name="redis-server"
        )

    def command(self, *arguments: str) -> str:
        """Send one command as a bare client and return the raw reply's first line; for what a test does to a
        server.

        Args:
            arguments: the command and its arguments, in ASCII.
        """
        with socket.create_connection(("127.0.0.1", self.port), timeout=_ANSWER_WITHIN) as connection:
            if self.password:
                self._call(connection, "AUTH", self.password)
            return self._call(connection, *arguments)

    def flush(self) -> None:
        """Delete all data."""
        self.command("FLUSHALL")

    @staticmethod
    def _call(connection: socket.socket, *arguments: str) -> str:
        parts = "".join(f"${len(argument.encode())}\r\n{argument}\r\n" for argument in arguments)
        connection.sendall(f"*{len(arguments)}\r\n{parts}".encode())
        with connection.makefile("rb") as replies:
            return replies.readline().decode(errors="replace").strip()

    def _answers(self) -> bool:
        return self.command("PING") == "+PONG"


class RedisHarness(ServerHarness):
    """A redis-server for the conformance suite, one for the whole run, with a password; it syncs every write."""

    time_limit = 100.0

    def start(self) -> Server:
        """Start the server."""
        self._redis = RedisServer(password=secrets.token_hex(8) + "/ä")
        self._redis.start()
        return self._redis

    def clear(self, server: Server) -> str:
        """Delete all data."""
        self._redis.flush()
        # Abandoned messages wake other receivers after this interval.
        return f"{self._redis.url}?poll_interval=0.2&connect_timeout=30"

    async def refuse_writes(self) -> bool:
        """Make it run out of memory."""
        await self.by_hand(lambda: self._redis.command("CONFIG", "SET", "maxmemory", "1"))
        return True

    async def restore(self) -> None:
        """Start it again, and give it memory."""
        await super().restore()
        await self.by_hand(lambda: self._redis.command("CONFIG", "SET", "maxmemory", "0"))
