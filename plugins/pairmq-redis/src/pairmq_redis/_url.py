"""What a broker URL says: where the server is, how to log in, and the options of its query.

No error here repeats a value that may be secret: a bad URL is explained by its part's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from pairmq.model import ConfigurationError
from pairmq.transport import (
    ENDPOINT_OPTIONS,
    LOOPBACK,
    TLS_OPTIONS,
    BrokerUrl,
    Endpoint,
    TlsOptions,
    bracketed,
    checked_name,
    chosen_endpoint,
    endpoint_with_default_name,
    is_local_address,
)

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
_SENTINEL_FORM = "redis+sentinel://host:port,host:port/master/db or rediss+sentinel://…"
_CLUSTER_FORM = "redis+cluster://host:port,host:port or rediss+cluster://…"
_SENTINEL_OPTIONS = ("sentinel_login",)
_REDIS_OPTIONS = ("connect_timeout", "poll_interval", "wait_replicas", "wait_timeout", *ENDPOINT_OPTIONS)
_FAKEREDIS_OPTIONS = ("poll_interval", *ENDPOINT_OPTIONS)


@dataclass(frozen=True, slots=True)
class RedisUrl:
    endpoint: Endpoint
    host: str  # name or address; of a broker on fakeredis its name, behind sentinels that of the master for them
    port: int = DEFAULT_PORT
    db: int = 0
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)  # None to log in without one
    tls: TlsOptions | None = None
    wait_replicas: int = 0  # replicas that must have a write before it counts as confirmed
    wait_timeout: float = 1.0  # seconds to wait for them
    # Seconds after which a waiting receiver looks for messages that became available unannounced.
    poll_interval: float = 1.0
    connect_timeout: float = 5.0  # seconds for connecting and logging in
    # Whom to ask where the master is; empty where it is at ``host`` and ``port``.
    sentinels: tuple[tuple[str, int], ...] = ()
    sentinel_login: bool = False  # whether they require the same login as the servers
    cluster: tuple[tuple[str, int], ...] = ()  # nodes of a cluster to begin with; empty for a single server


def parse_redis_url(url: str) -> RedisUrl:
    """Read ``redis://`` or ``rediss://[user[:password]@]host[:port][/db][?options]``.

    With ``+sentinel`` it has the hosts and ports of several sentinels, and the name of their master before the
    database; with ``+cluster`` those of several nodes, and no database.

    Raises `ConfigurationError`, which says which part is wrong and why, without secrets.
    """
    sentinels: tuple[tuple[str, int], ...] = ()
    nodes: tuple[tuple[str, int], ...] = ()
    _, _, form = url[: url.find("://")].lower().partition("+")
    behind_sentinels = form == "sentinel"
    if behind_sentinels:
        read = BrokerUrl(url, _SENTINEL_FORM, "redis+sentinel", "rediss+sentinel", several=True)
    elif form == "cluster":
        read = BrokerUrl(url, _CLUSTER_FORM, "redis+cluster", "rediss+cluster", several=True)
    else:
        read = BrokerUrl(url, "redis://host:port/db or rediss://…", "redis", "rediss")
    tls = read.scheme.startswith("rediss")
    options = read.options(*_REDIS_OPTIONS, *(TLS_OPTIONS if tls else ()), *(_SENTINEL_OPTIONS * behind_sentinels))
    if behind_sentinels:
        sentinels, port = read.hosts(DEFAULT_SENTINEL_PORT), 0
        host, db = _service(read)
        endpoint = _group_endpoint(read.scheme, sentinels, f"{host}/{db}", f"{host}-{db}")
    elif form == "cluster":
        _check_path(read)
        if read.parts.path not in ("", "/", "/0"):
            raise ConfigurationError(f"{read.where} names a database: a cluster has only one, leave it out")
        nodes, port = read.hosts(DEFAULT_PORT), 0
        host, db = nodes[0][0], 0
        endpoint = _group_endpoint(read.scheme, nodes, "", "cluster")
    else:
        host, port, db = read.host(), read.port(DEFAULT_PORT), _db(read, read.parts.path.strip("/"))
        identity = ("redis", "127.0.0.1" if host in LOOPBACK else host, str(port), str(db))
        endpoint = _endpoint(identity, host, f"{read.scheme}://{bracketed(host)}:{port}/{db}")
    return RedisUrl(
        endpoint=chosen_endpoint(endpoint, options, read.where),
        host=host,
        port=port,
        db=db,
        username=read.decoded(read.parts.username, "user name") or None,
        password=read.decoded(read.parts.password, "password") or None,
        tls=options.tls() if tls else None,
        wait_replicas=int(options.number("wait_replicas", 0, 0, 100, whole=True)),
        wait_timeout=options.number("wait_timeout", 1000, 1, 60_000, whole=True) / 1000,
        poll_interval=options.number("poll_interval", 1.0, 0.01, 60),
        connect_timeout=options.number("connect_timeout", 5.0, 0.01, 300),
        sentinels=sentinels,
        sentinel_login=options.choice("sentinel_login", "none", "same") == "same",
        cluster=nodes,
    )


def parse_fakeredis_url(url: str) -> RedisUrl:
    """Read ``fakeredis://name[?options]``; raises as `parse_redis_url`."""
    read = BrokerUrl(url, "fakeredis://name", "fakeredis")
    broker = read.decoded(read.parts.netloc, "name")  # hostname would be in lower case
    if not broker or "@" in read.parts.netloc or read.parts.path not in ("", "/"):
        raise ConfigurationError(f"{read.where} does not name one broker: write it as {read.form}")
    options = read.options(*_FAKEREDIS_OPTIONS)
    name = checked_name(broker, f"the name of {read.where}")
    endpoint = Endpoint(name, ("fakeredis", name), f"fakeredis://{name}")
    return RedisUrl(
        endpoint=chosen_endpoint(endpoint, options, read.where),
        host=broker,
        poll_interval=options.number("poll_interval", 1.0, 0.01, 60),
    )


def _service(read: BrokerUrl) -> tuple[str, int]:
    _check_path(read)
    written, _, db = read.parts.path[1:].partition("/")
    name = read.decoded(written, "master's name")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", name):  # all that Sentinel itself accepts
        raise ConfigurationError(f"{read.where} does not name the master of its sentinels: write it as {read.form}")
    return name, _db(read, db)


def _check_path(read: BrokerUrl) -> None:
    if "@" in read.parts.path:  # what precedes it may be the end of a password
        raise ConfigurationError(f"{read.where} holds '@' behind its hosts: write '@' as %40, '/' as %2F")


def _group_endpoint(scheme: str, group: tuple[tuple[str, int], ...], what: str, plain: str) -> Endpoint:
    """The place of ``what`` at several servers: in any order they are the same."""
    places = sorted(("127.0.0.1" if host in LOOPBACK else host, str(port)) for host, port in group)
    hosts, ports = (",".join(each) for each in zip(*places, strict=True))
    url = f"{scheme}://{','.join(f'{bracketed(host)}:{port}' for host, port in group)}"
    found = endpoint_with_default_name(
        ("redis", hosts, ports, what or "cluster"),
        f"{url}/{what}" if what else url,
        plain,
        unique=False,
        local=any(is_local_address(host) for host, _ in group),
    )
    return replace(found, nodes=tuple(("redis", *place, what or "cluster") for place in places))


def _db(read: BrokerUrl, text: str) -> int:
    if not re.fullmatch(r"[0-9]{0,5}", text):
        raise ConfigurationError(f"the path of {read.where} is not a database number: write /0 or leave it out")
    return int(text or 0)


def _endpoint(identity: tuple[str, ...], host: str, url: str) -> Endpoint:
    place = "-".join(identity[2:])  # port and database: from the right they can be read in one way only
    if is_local_address(host):
        return endpoint_with_default_name(identity, url, place, local=True)
    return endpoint_with_default_name(identity, url, f"{host}-{place}")
