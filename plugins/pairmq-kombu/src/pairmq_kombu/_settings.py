"""A pair's settings from those of a Kombu connection."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final
from urllib.parse import quote, urlencode

from pairmq import ConfigurationError, PairOptions
from pairmq.sync import Pair

TABLE: Final = "pairmq"
"""The entry of ``broker_transport_options`` (``transport_options`` in Kombu) that holds a pair's settings."""

_SOURCES = ("primary", "secondary", "config", "journal")
_KNOWN = (*_SOURCES, *(entry.name for entry in fields(PairOptions)))
_TLS_FILES = {"ca_certs": "ssl_ca_certs", "certfile": "ssl_certfile", "keyfile": "ssl_keyfile"}
_LOGINS = (None, "PLAIN", "AMQPLAIN")


@dataclass(frozen=True, slots=True)
class PairSettings:
    """What makes a pair; two connections with equal settings share one.

    Args:
        arguments: of `pairmq.sync.Pair.connect`, by name and in order; URLs may hold passwords.
    """

    arguments: tuple[tuple[str, Any], ...] = field(repr=False)

    def connect(self, **more: Any) -> Pair:
        """Make the pair, and open nothing. Raises `ConfigurationError`."""
        return Pair.connect(**{**dict(self.arguments), **more})


def pair_settings(client: Any, default_port: int) -> PairSettings:
    """Read the settings of a connection.

    Args:
        client: a `kombu.Connection`.
        default_port: of the primary, where the connection has none.

    Raises:
        ConfigurationError: they can't make a pair; says which and what to do.
    """
    table = (client.transport_options or {}).get(TABLE) or {}
    if not isinstance(table, Mapping):
        raise ConfigurationError(f"the transport option {TABLE!r} must hold a table of the pair's settings")
    unknown = sorted(str(name) for name in table if name not in _KNOWN)
    if unknown:
        raise ConfigurationError(
            f"unknown {', '.join(unknown)} in the transport option {TABLE!r}: known are {', '.join(_KNOWN)}"
        )
    arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    primary = arguments.get("primary") or _primary(client, default_port)
    if not isinstance(primary, str) or not primary.lower().startswith(("amqp://", "amqps://")):
        raise ConfigurationError("the primary of a pair for Kombu must be RabbitMQ: amqp:// or amqps://")
    arguments["primary"] = primary
    return PairSettings(tuple(sorted(arguments.items())))


def check_connection(client: Any) -> None:
    """Refuse a connection that can't be a pair's.

    Raises:
        ConfigurationError: says why, and what to write instead.
    """
    if "://" in (client.hostname or ""):
        raise ConfigurationError(
            "write the primary's URL with pairmq:// in the place of amqp://, or with pairmqs:// in that of amqps://; "
            "other brokers than RabbitMQ can be the secondary, not the primary"
        )
    if len(client.alt or ()) > 1:
        raise ConfigurationError(
            "a pairmq:// URL has no alternates: name the second broker as 'secondary' in the transport option "
            f"{TABLE!r}, or in PAIRMQ_SECONDARY"
        )


def _primary(client: Any, default_port: int) -> str:
    """Write the connection's own broker as a URL for the pair."""
    if callable(client.password) or client.login_method not in _LOGINS:
        raise ConfigurationError(
            "a pair logs in with user name and password: name the primary as 'primary' in the transport option "
            f"{TABLE!r}, with a login of its own"
        )
    scheme, options = ("amqps", _tls_options(client.ssl)) if client.ssl else ("amqp", {})
    host = client.hostname or "127.0.0.1"
    login = f"{quote(client.userid or 'guest', safe='')}:{quote(client.password or 'guest', safe='')}"
    address = f"{f'[{host}]' if ':' in host else host}:{client.port or default_port}"
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}://{login}@{address}/{quote(client.virtual_host or '/', safe='')}{query}"


def _tls_options(given: Any) -> dict[str, str]:
    """Certificate and host name are checked unless that is switched off; py-amqp by ``ssl=True`` checks the former."""
    if not isinstance(given, Mapping):
        return {}
    options = {}
    for name, value in given.items():
        if name in _TLS_FILES:
            options[_TLS_FILES[name]] = str(value)
        elif name == "cert_reqs":
            options["ssl_cert_reqs"] = "none" if value == ssl.CERT_NONE else "required"
        elif name != "server_hostname" or value is not None:
            raise ConfigurationError(
                f"a pair has no equal of the TLS setting {name!r}: name the primary as 'primary' in the transport "
                f"option {TABLE!r}, with ssl_ca_certs and its like in the URL"
            )
    return options
