"""What a broker URL says: the hosts, how to log in, the database, and the options of its query.

No error here repeats a value that may be secret: a bad URL is explained by its part's name.
"""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from pairmq.model import ConfigurationError
from pairmq.transport import (
    ENDPOINT_OPTIONS,
    LOOPBACK,
    BrokerUrl,
    Endpoint,
    UrlOptions,
    bracketed,
    chosen_endpoint,
    endpoint_with_default_name,
    is_local_address,
)

SCHEMES = ("postgresql", "postgres")
DEFAULT_PORT = 5432

_FORM = "postgresql://user:password@host:5432/database"
_TLS_FILES = ("sslcert", "sslkey", "sslrootcert")
_OPTIONS = (
    *("connect_timeout", "host", "listen", "poll_interval", "pool_size", "port", "sslmode"),
    *_TLS_FILES,
    *ENDPOINT_OPTIONS,
)
_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
_POLL, _POLL_ALONE = 5.0, 1.0
"""Seconds between two polls, as a net below notifications, and without any. A syphon has some eleven receivers."""
_MOST_BYTES = 63
"""PostgreSQL cuts longer names silently, and would find another user or database."""

# The planner's statistics of a queue are wrong most of the time: it was empty when they were made, or it is now.
# Only an index gives the first messages without reading all. And by them it takes plans for one call's values to be
# worth their price, which is more than that of the call.
# A receive's second statement has to see what was committed before it, whatever the database's or the role's default.
_SETTINGS = (
    "-c enable_seqscan=off -c enable_bitmapscan=off -c jit=off -c lock_timeout=0 -c statement_timeout=0 "
    r"-c plan_cache_mode=force_generic_plan -c timezone=UTC -c default_transaction_isolation=read\ committed"
)


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    endpoint: Endpoint  # what PairMQ shows of it
    # Each with its port; asked in turn for one that takes writes. Or the directory of a server's Unix socket.
    hosts: tuple[tuple[str, int], ...]
    database: str
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    tls: tuple[tuple[str, str], ...] = ()
    connect_timeout: float = 5.0  # seconds for connecting to one host and logging in
    pool_size: int = 10  # connections at most, besides the one that listens
    poll_interval: float = _POLL  # seconds after which a waiting receiver looks again, whether or not it was notified
    # Whether receivers are notified; not possible behind PgBouncer in transaction mode, where the server keeps nothing
    # for a client between two transactions: no prepared statement either.
    listen: bool = True

    def parameters(self, only: tuple[str, int] | None = None) -> dict[str, Any]:
        """What libpq is given to connect, to all hosts one after the other or to ``only`` one."""
        hosts = self.hosts if only is None else (only,)
        found: dict[str, Any] = {
            "host": ",".join(host for host, _ in hosts),
            "port": ",".join(str(port) for _, port in hosts),
            "dbname": self.database,
            "connect_timeout": max(math.ceil(self.connect_timeout), 1),
            "application_name": "pairmq",
            "client_encoding": "utf8",
            "gssencmode": "disable",
            # A server that takes no writes, as a standby, can't even lock a message.
            "target_session_attrs": "read-write",
            # An unresponsive host is noticed by the time limits of calls; this ends the connection that listens.
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            **dict(self.tls),
        }
        if self.listen:  # PgBouncer refuses settings at the start of a session
            found["options"] = _SETTINGS
        if self.username is not None:
            found["user"] = self.username
        if self.password is not None:
            found["password"] = self.password
        return found

    def check_files(self) -> None:
        """Find a wrong TLS file when the transport is made: libpq would report it at each connection, as an outage.

        Raises `ConfigurationError`: a file can't be read.
        """
        for name, path in self.tls:
            # The system's authorities, and a key in an engine of OpenSSL, are not files.
            if name in _TLS_FILES and path != "system" and not (name == "sslkey" and ":" in path):
                try:
                    with open(path, "rb"):
                        pass
                except (OSError, ValueError) as error:  # its name may hold a null character
                    raise ConfigurationError(
                        f"{self.endpoint.url}: a TLS file can't be used: {name}: {error}"
                    ) from error


def parse_url(url: str) -> PostgresUrl:
    """Read ``postgresql://[user[:password]@]host[:port][,host[:port]…]/database[?options]``.

    Or, for a Unix socket, ``postgresql://[user[:password]@]/database?host=/directory``, as libpq has it.

    Raises `ConfigurationError`, which says which part is wrong and why, without secrets.
    """
    read = BrokerUrl(url, _FORM, *SCHEMES, several=True)
    if "@" in read.parts.path:  # what precedes it may be the end of a password
        raise ConfigurationError(f"{read.where} holds '@' behind its host: write '@' as %40, '/' as %2F")
    options = read.options(*_OPTIONS)
    hosts = _hosts(read, options)
    database = _name(read, read.parts.path[1:], "database")
    if not database or "/" in read.parts.path[1:]:
        raise ConfigurationError(f"{read.where} does not name one database: write it as {_FORM}, '/' in it as %2F")
    listen = options.choice("listen", "true", "false") != "false"
    return PostgresUrl(
        endpoint=chosen_endpoint(_endpoint(hosts, database), options, read.where),
        hosts=hosts,
        database=database,
        username=_name(read, read.parts.username, "user name") or None,
        password=read.decoded(read.parts.password, "password") or None,
        tls=_tls(options, hosts),
        connect_timeout=options.number("connect_timeout", 5.0, 0.1, 300),
        pool_size=int(options.number("pool_size", 10, 1, 1000, whole=True)),
        poll_interval=options.number("poll_interval", _POLL if listen else _POLL_ALONE, 0.01, 60),
        listen=listen,
    )


def _hosts(read: BrokerUrl, options: UrlOptions) -> tuple[tuple[str, int], ...]:
    directory = options.get("host")
    if not directory:
        if options.get("port"):
            raise ConfigurationError(f"{read.where} has the option port without host: write the port behind the host")
        return read.hosts(DEFAULT_PORT)
    if read.parts.netloc.rpartition("@")[2]:
        raise ConfigurationError(f"{read.where} names a host and has the option host: give one of them")
    if not is_directory(directory) or "," in directory:
        raise ConfigurationError(
            f"the option host of {read.where} is not the absolute path of a socket's directory: write a name or "
            f"address before the database, {_FORM}"
        )
    port = int(options.number("port", DEFAULT_PORT, 1, 65535, whole=True))
    return ((directory.rstrip("/") or "/", port),)


def is_directory(host: str) -> bool:
    """Whether a host is the directory of a Unix socket."""
    return host.startswith("/")


def _is_local(host: str) -> bool:
    return is_directory(host) or is_local_address(host)


def _name(read: BrokerUrl, text: str | None, what: str) -> str:
    return read.decoded(text, what, most_bytes=_MOST_BYTES)


def _tls(options: UrlOptions, hosts: tuple[tuple[str, int], ...]) -> tuple[tuple[str, str], ...]:
    """Check certificates and host names, unless the URL says otherwise or all hosts are this machine."""
    mode = options.get("sslmode") or ("prefer" if all(_is_local(host) for host, _ in hosts) else "verify-full")
    if mode not in _MODES:
        raise ConfigurationError(f"{options.where}'s option sslmode is unknown: known are {', '.join(_MODES)}")
    if options.get("sslkey") and not options.get("sslcert"):
        raise ConfigurationError(f"{options.where} has sslkey without sslcert: give both")
    found = {"sslmode": mode, **{name: options[name] for name in _TLS_FILES if options.get(name)}}
    if mode.startswith("verify") and "sslrootcert" not in found:
        # The libpq in psycopg's wheels does not know where this system keeps its authorities; Python does.
        found["sslrootcert"] = ssl.get_default_verify_paths().cafile or "system"
    return tuple(found.items())


def _endpoint(hosts: tuple[tuple[str, int], ...], database: str) -> Endpoint:
    # In any order they are the same servers.
    places = sorted(("127.0.0.1" if host in LOOPBACK else host, str(port)) for host, port in hosts)
    identity = ("postgresql", ",".join(host for host, _ in places), ",".join(port for _, port in places), database)
    path = f"/{quote(database, safe='')}"
    if is_directory(hosts[0][0]):
        ((directory, number),) = hosts
        url = f"postgresql://{path}?host={quote(directory)}" + (f"&port={number}" if number != DEFAULT_PORT else "")
    else:
        url = "postgresql://" + ",".join(f"{bracketed(host)}:{port}" for host, port in hosts) + path
    local = all(_is_local(host) for host, _ in hosts)
    place = "-".join(port for _, port in places) if local else "-".join("-".join(each) for each in places)
    # Names of databases may hold dashes and digits, so that two brokers could be read in one way.
    found = endpoint_with_default_name(identity, url, f"{place}-{database}", unique=False, local=local)
    each = tuple(("postgresql", host, port, database) for host, port in places)
    return replace(found, nodes=each if len(each) > 1 else ())
