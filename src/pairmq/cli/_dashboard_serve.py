"""What the commands that serve a dashboard share: where, with which token, and how they tell it."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pairmq.cli._errors import BadUsage, file_problem, printable
from pairmq.cli._output import note, put_json, warn
from pairmq.model import ConfigurationError, Entity
from pairmq.pair import Pair

if TYPE_CHECKING:
    from pairmq.dashboard import Address, Brokers

VARIABLE = "PAIRMQ_DASHBOARD_TOKEN"
_LONGEST_FILE = 4096


@dataclass(frozen=True, slots=True)
class Serving:
    """Where and how a dashboard is to be served.

    Args:
        host: the address to listen at.
        port: the port; 0 for any free one.
        option: the option that names the port, for errors.
        token_option: the one that names the token's file, likewise.
        token_file: holds the operators' token; else the variable does, else it is made at random.
        read_only: nobody may act.
        allowed_hosts: further names under which it may be called.
        entities: that are probed.
    """

    host: str
    port: int
    option: str
    token_option: str
    token_file: str | None = None
    read_only: bool = False
    allowed_hosts: Sequence[str] = ()
    entities: Sequence[Entity] = ()

    async def begin(self, stack: AsyncExitStack, of: Pair | Brokers) -> tuple[Address, bool]:
        """Serve until the stack ends.

        Returns:
            Where, and whether the token was made here, so that nobody knows it yet.

        Raises:
            BadUsage: it can't be served so; the text names the option.
        """
        check_dashboard()
        from pairmq.dashboard import serving

        if not logging.getLogger("pairmq").isEnabledFor(logging.INFO):
            # Anyone who can reach the port could write lines on stderr otherwise.
            logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
        token = self._token()
        try:
            address = await stack.enter_async_context(
                serving(
                    of,
                    host=self.host,
                    port=self.port,
                    token=token,
                    read_only=self.read_only,
                    allowed_hosts=self.allowed_hosts,
                    entities=self.entities,
                )
            )
        except ConfigurationError as error:
            text = str(error)
            option = self.option
            if text.startswith("the dashboard's token"):
                option = VARIABLE if self.token_file is None else self.token_option
            raise BadUsage(f"{option}: {text}") from None
        return address, token is None

    def tell(self, address: Address, made: bool, *, json: bool = False) -> None:
        """Say where the dashboard is, on stderr or as JSON on stdout; warn where others can listen in."""
        from pairmq.dashboard import is_loopback

        if json:
            put_json({"url": address.url, "token": address.token if made else None})
        else:
            note(f"dashboard: {address.operator_url if made else address.url}")
        if not is_loopback(self.host):
            warn("the dashboard is not encrypted, its token neither: let a proxy with TLS stand before it")

    def _token(self) -> str | None:
        if self.token_file is None:
            return os.environ.get(VARIABLE) or None
        try:
            with Path(self.token_file).open("rb") as file:
                return file.read(_LONGEST_FILE).decode().strip()
        except OSError as error:
            raise BadUsage(f"{self.token_option}: {file_problem(self.token_file, error)}") from None
        except UnicodeDecodeError:
            raise BadUsage(f"{self.token_option}: {printable(self.token_file)}: it is no text") from None


def check_dashboard() -> None:
    """Raise `BadUsage` where a package is missing that the dashboard needs."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise BadUsage(f"the dashboard needs {' and '.join(missing)}: pip install 'pairmq[dashboard]'")


def address_of(text: str) -> tuple[str, int]:
    """Read ``8765``, ``127.0.0.1:8765`` or ``[::1]:8765``.

    Raises:
        BadUsage: it is none of these.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if "/" in text or not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 65536):
        raise BadUsage("--dashboard: write it as PORT or HOST:PORT, like 127.0.0.1:8765; the port is 0 to 65535")
    return host, int(port)
