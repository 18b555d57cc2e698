"""What a broker URL says: where the server is, how to log in, and the options of its query.

No error here repeats a value that may be secret: a bad URL is explained by its part's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast
from urllib.parse import quote

from pairmq.model import ConfigurationError
from pairmq.transport import (
    ENDPOINT_OPTIONS,
    LOOPBACK,
    TLS_OPTIONS,
    BrokerUrl,
    Endpoint,
    TlsOptions,
    UrlOptions,
    bracketed,
    chosen_endpoint,
    endpoint_with_default_name,
    is_local_address,
)

DEFAULT_PORT = 5672
DEFAULT_TLS_PORT = 5671
DEFAULT_LOGIN = "guest"
DEFAULT_HEARTBEAT = 10
# The sooner a node that stopped responding is noticed, the sooner its calls go to another one; under 5 s RabbitMQ's
# guide to heartbeats expects false alarms.
DEFAULT_CLUSTER_HEARTBEAT = 5

Node: TypeAlias = tuple[str, int]
"""The host and port of a server, or of a node of a cluster."""

QueueType = Literal["quorum", "classic"]
"""The queue types that the plugin makes."""

_PORT_IN_NAME = re.compile(r"-([1-9][0-9]{0,4})(?=-|$)")
_FIRST_USER_PORT = 1024
_OPTIONS = ("connect_timeout", "heartbeat", "lock_duration", "management", "queue_type", *ENDPOINT_OPTIONS)
_MANAGEMENT_PORTS = {"http": 15672, "https": 15671}
# User name, password and virtual host travel as AMQP short strings.
_MAX_BYTES = 255
_MAX_VHOST = 127  # characters that the driver accepts: with more, it could never connect


@dataclass(frozen=True, slots=True)
class ManagementUrl:
    """Where the management plugin answers, fit for logs, and how to log in there."""

    url: str
    username: str = field(default=DEFAULT_LOGIN, repr=False)
    password: str = field(default=DEFAULT_LOGIN, repr=False)


@dataclass(frozen=True, slots=True)
class RabbitUrl:
    """A broker URL, read and checked; times are in seconds, and without a queue type each queue has the one that suits
    it."""

    endpoint: Endpoint
    nodes: tuple[Node, ...]
    vhost: str = "/"
    username: str = field(default=DEFAULT_LOGIN, repr=False)
    password: str = field(default=DEFAULT_LOGIN, repr=False)
    tls: TlsOptions | None = None
    connect_timeout: float = 5.0
    heartbeat: int = DEFAULT_HEARTBEAT
    queue_type: QueueType | None = None
    lock_duration: float = 60.0
    management: ManagementUrl | None = None


def parse_rabbitmq_url(url: str) -> RabbitUrl:
    """Read ``amqp://`` or ``amqps://[user[:password]@]host[:port][,host[:port]…][/vhost][?options]``.

    Several hosts are nodes of one cluster. A slash of the virtual host's name is written ``%2F``, no path is the
    virtual host ``/``. Raises `ConfigurationError`, which says which part is wrong and why, without secrets.
    """
    read = BrokerUrl(url, "amqp://host:port/vhost or amqps://…", "amqp", "amqps", several=True)
    tls = read.scheme == "amqps"
    nodes, vhost = read.hosts(DEFAULT_TLS_PORT if tls else DEFAULT_PORT), _vhost(read)
    options = read.options(*_OPTIONS, *(TLS_OPTIONS if tls else ()), url_option="management")
    username = _credential(read, read.parts.username, "user name") or DEFAULT_LOGIN
    password = _credential(read, read.parts.password, "password")
    if password is None:
        password = DEFAULT_LOGIN
    endpoint = _endpoint(read.scheme, nodes, vhost)
    heartbeat = DEFAULT_HEARTBEAT if len(nodes) == 1 else DEFAULT_CLUSTER_HEARTBEAT
    return RabbitUrl(
        endpoint=chosen_endpoint(endpoint, options, read.where),
        nodes=nodes,
        vhost=vhost,
        username=username,
        password=password,
        tls=options.tls() if tls else None,
        connect_timeout=options.number("connect_timeout", 5.0, 0.01, 300),
        heartbeat=int(options.number("heartbeat", heartbeat, 1, 600, whole=True)),
        queue_type=cast(QueueType | None, options.choice("queue_type", "quorum", "classic")),
        lock_duration=options.number("lock_duration", 60.0, 0.1, 1500),
        management=_management(options, username, password),
    )


def _vhost(read: BrokerUrl) -> str:
    text = read.parts.path[1:]
    if "@" in text:
        # What precedes it may be the end of a password with a slash in it.
        text = f"{read.where} holds '@' behind its host: write '@' as %40, and '/' in a password as %2F"
        raise ConfigurationError(text)
    if "/" in text:
        raise ConfigurationError(f"the virtual host of {read.where} holds a slash: write it as %2F")
    vhost = read.decoded(text, "virtual host", most_bytes=_MAX_BYTES) or "/"
    if not vhost.isprintable():
        raise ConfigurationError(f"the virtual host of {read.where} holds a control or unprintable character")
    if len(vhost) > _MAX_VHOST:
        raise ConfigurationError(f"the virtual host of {read.where} has more than {_MAX_VHOST} characters")
    return vhost


def _credential(read: BrokerUrl, text: str | None, what: str) -> str | None:
    return None if text is None else read.decoded(text, what, most_bytes=_MAX_BYTES)


def _endpoint(scheme: str, nodes: tuple[Node, ...], vhost: str) -> Endpoint:
    path = "" if vhost == "/" else quote(vhost, safe="")
    addresses = [("rabbitmq", "127.0.0.1" if host in LOOPBACK else host, str(port), vhost) for host, port in nodes]
    url = f"{scheme}://{','.join(f'{bracketed(host)}:{port}' for host, port in nodes)}/{path}"
    if len(nodes) == 1:
        return _endpoint_of_one(addresses[0], nodes[0][0], url)
    # In whatever order the nodes are written, the cluster is the same one.
    named = sorted(addresses)
    identity = ("rabbitmq", ",".join(each[1] for each in named), ",".join(each[2] for each in named), vhost)
    endpoint = endpoint_with_default_name(
        identity,
        url,
        "-".join(dict.fromkeys(host for _, host, _, _ in named)),
        unique=False,
        local=any(is_local_address(host) for host, _ in nodes),
        former=[_endpoint_of_one(address, address[1], "").name for address in named],
    )
    return replace(endpoint, nodes=tuple(named))


def _endpoint_of_one(identity: tuple[str, ...], host: str, url: str) -> Endpoint:
    _, _, port, vhost = identity
    place = port if vhost == "/" else f"{port}-{vhost}"
    if is_local_address(host):
        return endpoint_with_default_name(identity, url, place, local=True)
    plain = f"{host}-{place}"
    return endpoint_with_default_name(identity, url, plain, unique=_as_read(plain) == (host, port, vhost))


def _as_read(name: str) -> tuple[str, str, str] | None:
    """The one host, port and virtual host that a name stands for; others that would have the same name get a digest.

    ``a-1-5673`` could be the host ``a``, port 1 and virtual host ``5673``, or the host ``a-1`` and port 5673: it stands
    for the likelier one.
    """
    readings = [(name[: at.start()], at[1], name[at.end() + 1 :] or "/") for at in _PORT_IN_NAME.finditer(name)]
    return min(readings, key=lambda each: _unlikely(int(each[1])), default=None)


def _unlikely(port: int) -> int:
    return 0 if port in (DEFAULT_PORT, DEFAULT_TLS_PORT) else 1 if port >= _FIRST_USER_PORT else 2


def _management(options: UrlOptions, username: str, password: str) -> ManagementUrl | None:
    text = options.get("management")
    if text is None:
        return None
    inner = f"{options.where}'s option management"
    read = BrokerUrl(text, "http://host:15672", *_MANAGEMENT_PORTS, what=inner)
    parts = read.parts
    if parts.query or text.endswith("?"):
        raise ConfigurationError(f"{inner} is not an http:// or https:// URL: write it as http://host:15672")
    host, port = read.host(), read.port(_MANAGEMENT_PORTS[read.scheme])
    try:
        parts.path.encode("ascii")
    except UnicodeEncodeError:
        raise ConfigurationError(f"{inner} has a path that is not percent-encoded") from None
    own_user = _credential(read, parts.username, "user name")
    own_password = _credential(read, parts.password, "password")
    return ManagementUrl(
        f"{read.scheme}://{bracketed(host)}:{port}{parts.path.rstrip('/')}",
        username=own_user or username,
        # Another user's password is never the broker URL's.
        password=own_password if own_password is not None else ("" if own_user else password),
    )
