"""A real PostgreSQL server for tests, on a free port of this machine, with its data in a temporary directory."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import quote

import psycopg

from pairmq.testing.conformance import Server, ServerHarness
from pairmq.testing.servers import OwnDirectory, ServerError, ServerProcess, free_port
from pairmq_postgres._schema import migrate

_ADMIN = "postgres"
_DATABASE = "queues"
_INSTALL = "is not on PATH: apt-get install postgresql"
_ANSWER_WITHIN = 30


EMPTY: LiteralString = (
    "TRUNCATE pairmq.entity, pairmq.source, pairmq.session, pairmq.message, pairmq.lease RESTART IDENTITY CASCADE"
)
"""Removes all entities and messages."""


class PostgresServer(ServerProcess):
    """A PostgreSQL server that keeps its data over `kill` and `restart`, with PairMQ's tables in the database `queues`.

    PostgreSQL refuses to run as root: a root's tests run it as the user ``postgres``, or else ``nobody``.

    Args:
        settings: more of its settings, such as ``{"max_connections": "20"}``.
        port: TCP port; a free one when left out.
        role: the role of its `url`, which may do nothing but use the tables.
        standby_of: a running server that this one follows from its first start on, with the same logins; it takes
            writes after `promote`.

    Raises:
        FileNotFoundError: PostgreSQL is not installed; the text says how to install it.
    """

    # After a kill its children end a moment later.
    _taken = (*ServerProcess._taken, b"pre-existing shared memory block")

    def __init__(
        self,
        *,
        settings: dict[str, str] | None = None,
        port: int | None = None,
        role: str = "messenger",
        standby_of: PostgresServer | None = None,
    ) -> None:
        program = _program("postgres")
        self._leader = standby_of
        self._own = OwnDirectory("pairmq-postgres-")
        self._home = self._own.path
        self.port = port or free_port()
        self.role: str = role if standby_of is None else standby_of.role
        self.password: str = secrets.token_hex(8) + "/ä" if standby_of is None else standby_of.password
        self._admin_password: str = secrets.token_hex(16) if standby_of is None else standby_of._admin_password
        self.url = self.url_of(self.role, self.password)
        self._as_user = _as_user(self._home)
        command = [*self._as_user, program, "-D", str(self.data), "-k", "", "-h", "127.0.0.1"]
        # In its directory: a killed server would leave a file in /dev/shm, which is small in a container.
        own = {"port": str(self.port), "fsync": "on", "dynamic_shared_memory_type": "mmap"}
        for name, value in {**own, **(settings or {})}.items():
            command += ["-c", f"{name}={value}"]
        super().__init__(command, ready=self._answers, directory=self._home, start_timeout=120.0, name="postgres")

    @property
    def data(self) -> Path:
        return self._home / "data"

    def url_of(self, role: str, password: str) -> str:
        return f"postgresql://{role}:{quote(password, safe='')}@127.0.0.1:{self.port}/{_DATABASE}"

    def parameters(self, database: str = _DATABASE) -> dict[str, Any]:
        """What connects libpq as the superuser."""
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "user": _ADMIN,
            "password": self._admin_password,
            "dbname": database,
            "connect_timeout": _ANSWER_WITHIN,
            "options": "-c default_transaction_read_only=off",
        }

    def query(self, *statements: LiteralString, database: str = _DATABASE) -> list[tuple[Any, ...]]:
        """Run statements as the superuser, and return the last one's rows."""
        with psycopg.connect(**self.parameters(database), autocommit=True) as connection:
            rows: list[tuple[Any, ...]] = []
            for statement in statements:
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
            return rows

    def start(self) -> None:
        """Start it and wait until it is ready; the first time with a new database and its tables."""
        is_new = not self.data.exists()
        if is_new and self._leader is not None:
            self._copy(self._leader)
        elif is_new:
            self._initialize()
        super().start()
        if is_new and self._leader is None:
            self.query(f"CREATE DATABASE {_DATABASE}", database=_ADMIN)
            migrate(self.parameters())
            with psycopg.connect(**self.parameters(), autocommit=True) as connection:
                role, password = psycopg.sql.Identifier(self.role), psycopg.sql.Literal(self.password)
                connection.execute(psycopg.sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, password))
                for grant in GRANTS:
                    connection.execute(psycopg.sql.SQL(grant).format(role))

    def _initialize(self) -> None:
        secret = self._home / "password"
        secret.write_text(self._admin_password)
        secret.chmod(0o644)  # within a directory that only the two users enter
        try:
            self._make_data(
                "initdb", "-U", _ADMIN, "-E", "UTF8", "--locale=C", "-A", "scram-sha-256", f"--pwfile={secret}"
            )
        finally:
            secret.unlink()

    def _copy(self, leader: PostgresServer) -> None:
        to_leader = {**leader.parameters(_ADMIN), "application_name": self.name}
        del to_leader["dbname"], to_leader["options"]
        self._make_data("pg_basebackup", "-R", "-c", "fast", "-d", psycopg.conninfo.make_conninfo(**to_leader))

    def _make_data(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, _program(program), "-D", str(self.data), "--no-sync", *arguments]
        done = subprocess.run(command, cwd=self._home, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            raise ServerError(f"{program} ended with status {done.returncode}\n{done.stdout}{done.stderr}")

    def follow(self, leader: PostgresServer) -> None:
        """Forget all data, and become a standby of a running server that has the same logins at the next start.

        Args:
            leader: that server.
        """
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)
        self._leader = leader

    def promote(self) -> None:
        """Have a standby take writes, and wait until it does.

        Raises:
            psycopg.Error: it is no standby, or can't be asked.
            ServerError: it did not within a minute.
        """
        if self.query("SELECT pg_promote(wait_seconds => 60)") != [(True,)]:
            raise ServerError("PostgreSQL was not promoted within 60 s")

    def set_read_only(self, read_only: bool) -> None:
        """Take no writes of others than the superuser, as a standby does, or take them again; waits until it holds.

        Args:
            read_only: whether.

        Raises:
            ServerError: it did not read its settings.
        """
        value: LiteralString = "on" if read_only else "off"
        self.query(f"ALTER SYSTEM SET default_transaction_read_only = {value}", "SELECT pg_reload_conf()")
        # A new session that sees it was begun after all others got the signal to read it, too.
        deadline = time.monotonic() + _ANSWER_WITHIN
        while self._new_session_is_read_only() != value:
            if time.monotonic() > deadline:
                raise ServerError(f"PostgreSQL did not read its settings within {_ANSWER_WITHIN} s")
            time.sleep(0.02)

    def _new_session_is_read_only(self) -> str:
        with psycopg.connect(**{**self.parameters(), "options": ""}) as connection:
            found = connection.execute("SHOW default_transaction_read_only").fetchone()
        return "" if found is None else str(found[0])

    def kill(self) -> None:
        """End it and all its processes with SIGKILL: what is left of them would keep the next one from starting."""
        self._signal_all(signal.SIGSTOP)
        children = self._children()
        _signal(children, signal.SIGKILL)
        super().kill()

    def pause(self) -> None:
        """Stop it and all its processes."""
        super().pause()
        _signal(self._children(), signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        _signal(self._children(), signal.SIGCONT)
        super().resume()

    def close(self) -> None:
        """End it and remove its data; idempotent."""
        super().close()
        self._own.remove()

    def _signal_all(self, how: signal.Signals) -> None:
        if self.running:
            _signal([self.pid], how)  # the one that would start others, first
            _signal(self._children(), how)

    def _children(self) -> list[int]:
        if not self.running:
            return []
        with contextlib.suppress(OSError):
            return [int(each) for each in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    def _answers(self) -> bool:
        try:
            return self.query("SELECT 1", database=_ADMIN) == [(1,)]
        except psycopg.Error:
            return False


GRANTS: Sequence[LiteralString] = (
    "GRANT USAGE ON SCHEMA pairmq TO {}",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA pairmq TO {}",
    "GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA pairmq TO {}",
)
"""What a role needs that sends, receives and creates queues."""


class PostgresHarness(ServerHarness):
    """A PostgreSQL server for the conformance suite, one for the whole run; its role may not change the tables."""

    time_limit = 100.0

    def start(self) -> Server:
        self._postgres = PostgresServer(settings={"max_connections": "200", "autovacuum": "off"})
        self._postgres.start()
        return self._postgres

    def clear(self, server: Server) -> str:
        self._postgres.query(EMPTY)
        return f"{self._postgres.url}?poll_interval=0.2&connect_timeout=30&sslmode=disable"

    async def refuse_writes(self) -> bool:
        """Make it a server that only reads."""
        await self.by_hand(lambda: self._postgres.set_read_only(True))
        return True

    async def restore(self) -> None:
        """Start it again, and let it write."""
        await super().restore()
        await self.by_hand(lambda: self._postgres.set_read_only(False))


def _program(name: str) -> str:
    """Find a program of PostgreSQL; Debian keeps those of the server in a directory for each version."""
    found = shutil.which(name) or next(
        (str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)), None
    )
    if found is None:
        raise FileNotFoundError(f"{name} {_INSTALL}")
    return found


def _as_user(directory: Path) -> list[str]:
    """What to put before a command so that it does not run as root, and may use the directory."""
    if os.geteuid() != 0:
        return []
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            os.chown(directory, user.pw_uid, user.pw_gid)
            ids = ["--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
            # A change of user clears the signal that ends the server with its parent.
            return ["setpriv", *ids, "--pdeathsig", "KILL", "--"]
    raise FileNotFoundError("PostgreSQL does not run as root, and there is no user 'postgres' or 'nobody'")


def _signal(pids: Iterable[int], how: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)
