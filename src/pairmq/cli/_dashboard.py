"""``pairmq dashboard``: a page that shows both brokers and the backlog.

Where a dashboard is served, with which token, and what is printed of it is the same for ``pairmq syphon --dashboard``.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from pairmq.cli._common import BACKLOG, Json, Kind, PairArguments, entity_of, examples, transports_of, with_pair
from pairmq.cli._output import note, put_json, warn
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._values import BadUsage, file_problem, printable
from pairmq.model import ConfigurationError, Entity, EntityKind

if TYPE_CHECKING:
    from pairmq.dashboard import Address, Brokers
    from pairmq.pair import Pair

EPILOG = examples(
    "pairmq dashboard --config pair.toml",
    "pairmq dashboard --entity orders --port 0",
    "pairmq dashboard --host 10.0.0.5 --token-file /etc/pairmq/token",
)


@with_pair(BACKLOG)
def dashboard(
    pair: PairArguments,
    entity: Annotated[
        list[str] | None, Option("--entity", "-e", metavar="NAME", help="Probe and show it; repeatable.")
    ] = None,
    kind: Kind = EntityKind.QUEUE,
    host: Annotated[
        str,
        Option("--host", metavar="HOST", help="Listen at this address; beyond loopback every request needs the token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, Option("--port", metavar="N", min=0, max=65535, help="Listen at this port; 0 for any free one.")
    ] = 8765,
    allow_host: Annotated[
        list[str] | None, Option("--allow-host", metavar="NAME", help="Another host name to accept; repeatable.")
    ] = None,
    token_file: Annotated[
        str | None,
        Option(
            "--token-file", metavar="FILE", help="Holds the operators' token; else PAIRMQ_DASHBOARD_TOKEN, else random."
        ),
    ] = None,
    read_only: Annotated[bool, Option("--read-only", help="Disable hold, force and mark.")] = False,
    json: Json = False,
) -> int:
    """Serve a page that shows both brokers, the backlog, and the progress of a drain.

    It moves no messages: 'pairmq syphon --dashboard' does. Exit status: 0 after SIGTERM, 130 after SIGINT.
    """
    check_dashboard()
    from pairmq.dashboard import Brokers

    settings = pair.settings()
    place = Serving(
        host,
        port,
        "--port" if host == "127.0.0.1" else "--host, --port",
        "--token-file",
        token_file,
        read_only,
        tuple(allow_host or ()),
        tuple(entity_of(name, kind) for name in entity or ()),
    )

    async def run(stop: Stop) -> int:
        async with AsyncExitStack() as stack:
            primary, secondary = transports_of(settings)
            for transport in (primary, secondary):
                await stack.enter_async_context(transport)
            place.announce(*await place.begin(stack, Brokers(primary, secondary, settings.options)), json=json)
            await stop.wait()
        return 0 if stop.signal == signal.SIGTERM else stop.exit_status

    return run_async(run, graceful=True)


VARIABLE = "PAIRMQ_DASHBOARD_TOKEN"
_LONGEST_FILE = 4096


@dataclass(frozen=True, slots=True)
class Serving:
    """Where and how a dashboard is to be served, and the options that name port and token's file, for errors."""

    host: str
    port: int
    option: str
    token_option: str
    token_file: str | None = None
    read_only: bool = False
    allowed_hosts: Sequence[str] = ()
    entities: Sequence[Entity] = ()

    async def begin(self, stack: AsyncExitStack, of: Pair | Brokers) -> tuple[Address, bool]:
        """Serve until the stack ends; the address, and whether the token was generated here, and has to be shown."""
        check_dashboard()
        from pairmq.dashboard import serving

        if not logging.getLogger("pairmq").isEnabledFor(logging.INFO):
            # Otherwise any client of the port could write lines to stderr.
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

    def announce(self, address: Address, made: bool, *, json: bool = False) -> None:
        """Say where the dashboard is, on stderr or as JSON on stdout; warn where others can listen in."""
        from pairmq.dashboard import is_loopback

        if json:
            put_json({"url": address.url, "token": address.token if made else None})
        else:
            note(f"dashboard: {address.operator_url if made else address.url}")
        if not is_loopback(self.host):
            warn("the dashboard is not encrypted, its token neither: put a proxy with TLS in front of it")

    def _token(self) -> str | None:
        if self.token_file is None:
            return os.environ.get(VARIABLE) or None
        try:
            with Path(self.token_file).open("rb") as file:
                return file.read(_LONGEST_FILE).decode().strip()
        except OSError as error:
            raise BadUsage(f"{self.token_option}: {file_problem(self.token_file, error)}") from None
        except UnicodeDecodeError:
            raise BadUsage(f"{self.token_option}: {printable(self.token_file)}: not a text file") from None


def check_dashboard() -> None:
    """Raise `BadUsage` where a package is missing that the dashboard needs."""
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise BadUsage(f"the dashboard needs {' and '.join(missing)}: pip install 'pairmq[dashboard]'")


def address_of(text: str) -> tuple[str, int]:
    """Read ``8765``, ``127.0.0.1:8765`` or ``[::1]:8765``."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or "127.0.0.1"
    if "/" in text or not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) < 65536):
        raise BadUsage("--dashboard: write it as PORT or HOST:PORT, like 127.0.0.1:8765; the port is 0 to 65535")
    return host, int(port)
