"""What a server tells about itself: connection strings and self."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

_EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not bound


@dataclass(frozen=True, slots=True)
class Announcement:
    """How to reach a server.

    Args:
        host: the address that it listens on.
        port: of AMQP.
        admin_port: of the administration over HTTP.
        tls_port: of AMQP over TLS, if any.
        admin_tls_port: of the administration over HTTPS, if any.
        key_name: the name of the key to use.
        key: the key; in everything that this class gives, as clients need it.
        ca_file: the authority of the server's certificate, where it made its own.
        data: where it keeps its data; None for one that keeps it in memory.
    """

    host: str
    port: int
    admin_port: int
    tls_port: int | None
    admin_tls_port: int | None
    key_name: str
    key: str = field(repr=False)
    ca_file: Path | None = None
    data: Path | None = None

    @property
    def connection_string(self) -> str:
        """For clients of AMQP without TLS, in the form of the development emulator."""
        return self._connection_string(self.port)

    @property
    def admin_connection_string(self) -> str:
        """For clients of the administration without TLS."""
        return self._connection_string(self.admin_port)

    @property
    def url(self) -> str:
        """For PairMQ: over TLS where the server has it for both ports and made the certificate itself."""
        options: dict[str, str]
        port = self.port
        if self.ca_file is not None and self.tls_port is not None and self.admin_tls_port is not None:
            port = self.tls_port
            options = {
                "tls-ca": str(self.ca_file),
                "admin": f"https://{self._name}:{self.admin_tls_port}",
            }
        else:
            options = {
                "emulator": "true",
                "admin": f"http://{self._name}:{self.admin_port}",
            }
        login = f"{quote(self.key_name, safe='')}:{quote(self.key, safe='')}"
        return f"sb://{login}@{self._name}:{port}/?{urlencode(options, safe=':/[]')}"

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs; a port that the server doesn't have is null."""
        return {
            "host": self.host,
            "port": self.port,
            "admin_port": self.admin_port,
            "tls_port": self.tls_port,
            "admin_tls_port": self.admin_tls_port,
            "connection_string": self.connection_string,
            "admin_connection_string": self.admin_connection_string,
            "url": self.url,
            "ca_file": None if self.ca_file is None else str(self.ca_file),
            "data": None if self.data is None else str(self.data),
        }

    def lines(self) -> list[str]:
        """All of it, for people."""
        ports = [f"amqp://{self._name}:{self.port}"]
        if self.tls_port is not None:
            ports.append(f"amqps://{self._name}:{self.tls_port}")
        administration = [f"http://{self._name}:{self.admin_port}"]
        if self.admin_tls_port is not None:
            administration.append(f"https://{self._name}:{self.admin_tls_port}")
        told = [
            f"connection string: {self.connection_string}",
            f"for administration: {self.admin_connection_string}",
            f"for PairMQ: {self.url}",
            f"serves: {' '.join([*ports, *administration])}",
        ]
        if self.ca_file is not None:
            told.append(f"authority of its certificate: {self.ca_file}")
        told.append(f"data: {'in memory, gone when it ends' if self.data is None else self.data}")
        return told

    @property
    def _name(self) -> str:
        # What listens everywhere can be reached here; an IPv6 address stands in brackets before a port.
        if self.host in _EVERYWHERE:
            return "localhost"
        return f"[{self.host}]" if ":" in self.host else self.host

    def _connection_string(self, port: int) -> str:
        return (
            f"Endpoint=sb://{self._name}:{port};"
            f"SharedAccessKeyName={self.key_name};SharedAccessKey={self.key};UseDevelopmentEmulator=true"
        )
