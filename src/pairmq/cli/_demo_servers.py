"""The demo's own real servers: started in the background, killed and started again, and gone at the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from pairmq.cli._output import note, stderr_console
from pairmq.cli._signals import Stop
from pairmq.cli._values import BadUsage, CommandFailed, printable
from pairmq.plugins import LocalServer, registry

_POLL = 0.05  # s
_LOG_LINES = 20
_BROUGHT_BY = {
    "postgres": "pairmq-postgres",
    "rabbitmq": "pairmq-rabbitmq",
    "redis": "pairmq-redis",
    "servicebus": "pairmq-servicebus[server]",
}


class OwnServer:
    """One server; does all its work in one thread, since a server may end with the thread that started it."""

    def __init__(self, product: str, server: LocalServer) -> None:
        self.product = product
        self.boot_time = 0.0  # s that the first start took
        self.last_words: list[str] = []  # the end of its log when it did not start
        self._server = server
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"pairmq-{product}", initializer=_shield)
        self._starting: Future[None] | None = None

    @property
    def url(self) -> str:
        return self._server.url

    async def stop(self) -> None:
        await asyncio.wrap_future(self._thread.submit(self._server.kill))

    async def restore(self) -> None:
        """Start it, with the data that it kept, unless it runs. Raises `CommandFailed`, with `last_words` set."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        # Kept, since the future that is awaited is done as soon as its task is cancelled.
        self._starting = self._thread.submit(self._server.start)
        try:
            await asyncio.wrap_future(self._starting)
        except (RuntimeError, OSError) as error:
            first, *log = str(error).splitlines() or [type(error).__name__]
            self.last_words = log[-_LOG_LINES:]
            raise CommandFailed(f"the {self.product} server did not start: {first}") from error
        self.boot_time = self.boot_time or loop.time() - began

    async def query(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run SQL as the administrator, of a server that is a database, and return the last statement's rows."""
        ask: Any = getattr(self._server, "query", None)
        if ask is None:
            raise BadUsage(
                f"{self.product} is not a database that an outbox can be in: name postgres as the second one"
            )
        found: list[tuple[Any, ...]] = await asyncio.wrap_future(self._thread.submit(ask, *statements))
        return found

    async def close(self) -> None:
        """End it, though it may be starting at this moment, and remove its data."""
        while self._starting is not None and not self._starting.done():
            # A start that waits for its server ends when the server does.
            await asyncio.to_thread(self._server.kill)
            await asyncio.sleep(_POLL)
        await asyncio.wrap_future(self._thread.submit(self._server.close))
        self._thread.shutdown()

    def discard(self) -> None:
        """Remove its data; for one that was never started."""
        self._server.close()
        self._thread.shutdown()


class OwnServers:
    """Primary and secondary of a run, as a context that ends them; one product is for both."""

    def __init__(self, products: tuple[str, ...]) -> None:
        made: list[OwnServer] = []
        for name in (products[0], products[-1]):
            make = _maker(name)
            try:
                made.append(OwnServer(name, make()))
            except OSError as error:
                for server in made:
                    server.discard()
                raise BadUsage(f"can't start a {name} server: {error}") from None
        self.primary, self.secondary = made

    @property
    def products(self) -> dict[str, str]:
        return {"primary": self.primary.product, "secondary": self.secondary.product}

    async def boot(self, stop: Stop) -> bool:
        """Start both concurrently, and show that they are starting; False after a signal."""
        with _shown(self._doing()):
            await stop.or_result(asyncio.gather(self.primary.restore(), self.secondary.restore()))
        return not stop.asked

    def _doing(self) -> str:
        first, second = self.primary.product, self.secondary.product
        return f"starting 2 {first} servers" if first == second else f"starting a {first} and a {second} server"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.gather(self.primary.close(), self.secondary.close())
        if error[0] is not None:
            for line in (*self.primary.last_words, *self.secondary.last_words):
                note(f"  {printable(line)}")


def products_of(text: str) -> tuple[str, ...]:
    """Read ``rabbitmq`` or ``rabbitmq,redis``."""
    names = tuple(name.strip().lower() for name in text.split(","))
    if len(names) > 2 or not all(names):
        raise BadUsage("--real: name one product for both brokers, or PRIMARY,SECONDARY")
    for name in names:
        _maker(name)
    return names


def _maker(name: str) -> Callable[[], LocalServer]:
    makers = {record.name: record.local_server for record in registry.transports() if record.local_server is not None}
    if name in makers:
        return makers[name]
    text = f"--real: no plugin has a local server of {printable(name)!r}"
    text += f"; plugins with a local server: {', '.join(sorted(makers)) or 'none'}"
    if name in _BROUGHT_BY:
        text += f"; install it with: pip install '{_BROUGHT_BY[name]}'"
    broken = [plugin.name for plugin in registry.plugins if plugin.error]
    if broken:
        text += f"; broken: {', '.join(broken)} (see: pairmq plugins)"
    raise BadUsage(text)


def _shield() -> None:
    # The servers that this thread starts inherit it; what ends them is SIGKILL. Those of PairMQ's own plugins are in
    # process groups of their own, where no terminal's Ctrl-C reaches them; another plugin's may be in the demo's, and a
    # signal to all processes of a service reaches each of them: it would end before everything is counted.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def _shown(text: str) -> contextlib.AbstractContextManager[object]:
    """Show a line while something lasts on a terminal; print it elsewhere."""
    console = stderr_console()
    if console.is_terminal and not console.is_dumb_terminal:
        return console.status(f"{text}…")
    note(f"{text}…")
    return contextlib.nullcontext()
