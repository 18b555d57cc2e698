"""The settings of a local Service Bus server."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Only for the annotation: the settings are read before, and without, the broker.
    from servicebus_local.broker import Broker

STANDARD_MESSAGE_BYTES = 256 * 1024
"""The largest message of the Standard tier (Service Bus documentation: quotas)."""

PREMIUM_MESSAGE_BYTES = 100 * 1024 * 1024
"""The largest message of the Premium tier over AMQP (Service Bus documentation: quotas)."""

DEFAULT_KEY_NAME = "RootManageSharedAccessKey"
"""The name of the key that the service makes with each namespace."""

_HIGHEST_PORT = 65_535


class SettingsError(ValueError):
    """A server can't run like that; the text says why, without keys."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate and its key, as PEM files.

    Args:
        certificate: the server's, followed by those between it and the authority.
        key: the private key, not encrypted.
    """

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Where a server listens, which clients it accepts and what it keeps.

    Args:
        host: the address to listen on: an IP address or a name.
        port: TCP port of AMQP without TLS; 0 takes a free one.
        admin_port: TCP port of the administration over HTTP; 0 takes a free one.
        tls: what `tls_port` and `admin_tls_port` show; needed for both.
        tls_port: TCP port of AMQP over TLS; none when left out; 0 takes a free one.
        admin_tls_port: TCP port of the administration over HTTPS; none when left out; 0 takes a free one.
        data: the directory that keeps entities and messages over restarts; in memory when left out.
        keys: the name of each shared access key to the key; without any, every name and key is accepted.
        accept_any_token: whether bearer tokens and unknown kinds of authorization are accepted, unchecked.
        max_message_bytes: the largest message, with its properties.
        control: whether faults can be set and connections dropped over HTTP; only on a loopback address.
        namespace: the name of the namespace that the server says it is.
        prepare: called with the broker before the first client comes; makes the entities that shall be there.

    Raises:
        SettingsError: a port, a size or a combination that can't work.
    """

    host: str = "127.0.0.1"
    port: int = 5672
    admin_port: int = 5300
    tls: TlsFiles | None = None
    tls_port: int | None = None
    admin_tls_port: int | None = None
    data: Path | None = None
    keys: Mapping[str, str] = field(default_factory=dict, repr=False)
    accept_any_token: bool = False
    max_message_bytes: int = STANDARD_MESSAGE_BYTES
    control: bool = False
    namespace: str = "local"
    prepare: Callable[[Broker], None] | None = None

    def __post_init__(self) -> None:
        for name in ("port", "admin_port", "tls_port", "admin_tls_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port <= _HIGHEST_PORT:
                raise SettingsError(f"{name} is {port}; a TCP port is 0 (a free one) to {_HIGHEST_PORT}")
        taken = [port for port in (self.port, self.admin_port, self.tls_port, self.admin_tls_port) if port]
        if len(taken) != len(set(taken)):
            raise SettingsError("each of the server's ports must be another one")
        if self.tls is None and (self.tls_port is not None or self.admin_tls_port is not None):
            raise SettingsError("a TLS port needs a certificate and its key")
        if self.max_message_bytes < 1:
            raise SettingsError(f"max_message_bytes is {self.max_message_bytes}; it must be at least 1")
        if self.control and not self.loopback:
            raise SettingsError(f"the control endpoint is for loopback addresses only, not for {self.host}")
        # A copy, so that the keys can't change while the server runs.
        object.__setattr__(self, "keys", MappingProxyType(dict(self.keys)))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; of names only ``localhost`` counts, as others may mean anything."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def connection_string(host: str, port: int, key_name: str, key: str) -> str:
    """What a client connects with to a port without TLS, in the form of the development emulator."""
    return (
        f"Endpoint=sb://{host}:{port};SharedAccessKeyName={key_name};SharedAccessKey={key};UseDevelopmentEmulator=true"
    )
