"""Options that commands share, the settings that they make, and the journal that a command keeps.

What a pair and its brokers are made of is imported where a command begins to use them, here and in the commands: it
takes longer than the help of a command, or the report of a wrong option, should.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Option

from pairmq.cli._values import CommandFailed, Duration, positive
from pairmq.model import ConfigurationError, Entity, EntityKind, FailureKind, FailureReason, Source, TransportError

if TYPE_CHECKING:
    from pairmq.core import PairOptions
    from pairmq.observe.journal import Journal
    from pairmq.pair import Pair, Settings
    from pairmq.transport import Transport

T = TypeVar("T")

_BROKERS = "Brokers"
_BEHAVIOUR = "Behaviour of the pair"
_UNUSED = "unused://"

EntityName = Annotated[str, Option("--entity", "-e", metavar="NAME", help="Queue or topic on the primary.")]
Kind = Annotated[EntityKind, Option("--kind", help="Kind of the entity.")]
Json = Annotated[bool, Option("--json", help="Write JSON on stdout, for programs.")]


def _option(kind: Any, *flags: str, panel: str | None = _BEHAVIOUR, **given: Any) -> Any:
    return Annotated[kind | None, Option(*flags, rich_help_panel=panel, **given)]


def _time(flag: str, text: str) -> Any:
    return Annotated[float | None, Duration(flag, text, rich_help_panel=_BEHAVIOUR)]


_PRIMARY = _option(str, "--primary", panel=_BROKERS, metavar="URL", help="The primary; else PAIRMQ_PRIMARY.")
_SECONDARY = _option(str, "--secondary", panel=_BROKERS, metavar="URL", help="The secondary; else PAIRMQ_SECONDARY.")
_CONFIG = _option(
    str,
    "--config",
    panel=_BROKERS,
    metavar="FILE",
    help="TOML file with a table 'pair'; else the one that PAIRMQ_CONFIG names.",
)
_JOURNAL = _option(
    str, "--journal", panel=None, metavar="DIR", help="Journal every event in this directory; else PAIRMQ_JOURNAL."
)
_ATTEMPT = _time("--attempt-timeout", "Time limit of one operation at a broker. Default 10s.")
_ORDERING = _option(
    str,
    "--ordering",
    metavar="none|session",
    help="Keep the order of each session through an outage. Default none.",
)

PRIMARY_ONLY: Mapping[str, Any] = {"primary": _PRIMARY, "config": _CONFIG, "attempt_timeout": _ATTEMPT}
"""Options of commands that need the primary and nothing else."""

RECEIVING: Mapping[str, Any] = {
    **PRIMARY_ONLY,
    "secondary": _option(
        str,
        "--secondary",
        panel=_BROKERS,
        metavar="URL",
        help="Only for the pair's name in the journal; else PAIRMQ_SECONDARY.",
    ),
    "journal": _JOURNAL,
}
"""Options of commands that receive from the primary."""

BACKLOG: Mapping[str, Any] = {
    "primary": _PRIMARY,
    "secondary": _SECONDARY,
    "config": _CONFIG,
    "backlog_queue_count": _option(int, "--backlog-queues", metavar="N", help="Backlog queues, 1 to 1000. Default 10."),
    "backlog_name_template": _option(
        str, "--backlog-name-template", metavar="TEXT", help="Name of backlog queues, with {primary} and {index}."
    ),
    "attempt_timeout": _ATTEMPT,
}
"""Options of commands that look at both brokers."""

SENDING: Mapping[str, Any] = {
    **BACKLOG,
    "journal": _JOURNAL,
    "ordering": _ORDERING,
    "failover_interval": _time("--failover-interval", "Time that an entity may fail before failover. Default 10s."),
    "ping_primary_interval": _time("--ping-interval", "Between two pings of a failed-over entity. Default 60s."),
    "backlog_retry_interval": _time(
        "--backlog-retry-interval", "Until a backlog queue that failed is retried. Default 30s."
    ),
    "send_timeout": _time("--send-timeout", "Time limit of one send, retries included. Default 60s."),
    "close_grace": _time("--close-grace", "Closing waits this long for messages in flight. Default 5s."),
    "while_failing": _option(
        str,
        "--while-failing",
        metavar="wait|raise",
        help="Retry a failing send until failover, or fail it immediately. Default wait.",
    ),
    "failover_on_busy": _option(bool, "--failover-on-busy", help="Let throttling count toward failover. Default no."),
}
"""Options of commands that send through a pair."""

SYPHON: Mapping[str, Any] = {
    **BACKLOG,
    "journal": _JOURNAL,
    "ordering": _ORDERING,
    "ping_primary_interval": _time("--ping-interval", "Longest wait between probes of a destination. Default 60s."),
    "close_grace": SENDING["close_grace"],
    "syphon_receive_wait": _time("--receive-wait", "One long poll at a backlog queue. Default 15min."),
    "syphon_batch": _option(int, "--batch", metavar="N", help="Messages per receive. Default 100."),
    "syphon_max_rate": _option(
        float, "--max-rate", parser=positive, metavar="R", help="Move at most R messages a second."
    ),
    "ttl_policy": _option(
        str,
        "--ttl-policy",
        metavar="restore|elapse",
        help="Restart the time-to-live of moved messages, or count the time in the backlog. Default restore.",
    ),
    "allowed_entities": _option(
        list[str],
        "--allow",
        metavar="PATTERN",
        help="Deliver only to entities of these patterns; repeatable. Default all.",
    ),
}
"""Options of commands that run the syphon."""


@dataclass(frozen=True, slots=True)
class PairArguments:
    """What the shared options of one command line say; everything left out comes from environment and file."""

    primary: str | None = field(default=None, repr=False)
    secondary: str | None = field(default=None, repr=False)
    config: str | None = None
    journal: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def settings(self, **forced: Any) -> Settings:
        """Both URLs and all options; ``forced`` wins over everything."""
        return self._settings(self.secondary, **forced)

    def primary_settings(self) -> Settings:
        """The primary's URL and all options; a secondary is not asked for. Raises as `settings`."""
        try:
            return self.settings()
        except ConfigurationError:
            pass  # no secondary, or another error that is reported anyway
        return self._settings(self.secondary or _UNUSED)

    def _settings(self, secondary: str | None, **forced: Any) -> Settings:
        from pairmq.pair import load_settings

        return load_settings(
            primary=self.primary,
            secondary=secondary,
            journal=self.journal,
            config=self.config,
            overrides={**self.options, **forced},
        )


def pair_name(settings: Settings) -> str:
    """The pair's name in the journal; empty without a secondary. Raises `ConfigurationError`."""
    if settings.secondary == _UNUSED:
        return ""
    from pairmq.pair import transports_at

    return ">".join(transport.endpoint.name for transport in transports_at(settings.primary, settings.secondary))


def with_pair(shared: Mapping[str, Any]) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the shared options; it gets their values as its argument ``pair``."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        own = inspect.signature(command, eval_str=True)
        kept = [parameter for name, parameter in own.parameters.items() if name != "pair"]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in shared.items()
        ]
        keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in kept]

        @functools.wraps(command)
        def wrapper(**given: Any) -> int:
            values = {name: given.pop(name) for name in shared}
            urls = {name: values.pop(name, None) for name in ("primary", "secondary", "config", "journal")}
            if isinstance(values.get("allowed_entities"), list):
                values["allowed_entities"] = tuple(values["allowed_entities"]) or None
            return command(pair=PairArguments(**urls, options=values), **given)

        wrapper.__signature__ = inspect.Signature([*keywords, *added], return_annotation=int)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {p.name: p.annotation for p in (*keywords, *added)} | {"return": int}
        del wrapper.__dict__["__wrapped__"]  # or its signature would be looked at instead
        return wrapper

    return decorate


def examples(*lines: str) -> str:
    return "\n\n".join(("Examples:", *(f"  {line}" for line in lines)))


def entity_of(name: str, kind: EntityKind = EntityKind.QUEUE) -> Entity:
    try:
        return Entity(name, kind)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def source_of(name: str, subscription: str | None, dead_letter: bool) -> Source:
    """The source that a user named. Raises as `entity_of`."""
    entity = entity_of(name, EntityKind.QUEUE if subscription is None else EntityKind.TOPIC)
    try:
        return Source(entity, subscription, dead_letter)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def transport_of(url: str) -> Transport:
    """The transport of a URL; no IO. Raises `ConfigurationError`."""
    from pairmq.plugins import registry

    return registry.transport(url)


def pair_of(settings: Settings, syphon_queues: Collection[int] | None = None) -> Pair:
    """The pair, not yet open; its syphon drains all queues if none are named. Raises `ConfigurationError`."""
    from pairmq.pair import Pair

    return Pair.connect(
        settings.primary,
        settings.secondary,
        options=settings.options,
        journal=settings.journal,
        observers=settings.observers,
        syphon_queues=syphon_queues,
    )


def transports_of(settings: Settings) -> tuple[Transport, Transport]:
    """The transports of a pair's two brokers; no IO. Raises `ConfigurationError`, also when they are one broker."""
    from pairmq.pair import check_distinct, transports_at

    transports = transports_at(settings.primary, settings.secondary)
    check_distinct(*transports)
    return transports


def backlog_queues(primary: Transport, options: PairOptions) -> tuple[Entity, ...]:
    """The backlog queues of a primary, by their index; lanes that the options name come last. Raises as `entity_of`."""
    from pairmq.runner import named_queues

    return named_queues(primary, options)


def outbox_of(primary: Transport, secondary: Transport) -> Entity | None:
    """The queue of a pair's outbox; None if the secondary can't have one."""
    from pairmq.runner import outbox_queue
    from pairmq.transport import Transactional

    return outbox_queue(primary) if isinstance(secondary, Transactional) else None


async def within(seconds: float, operation: Awaitable[T]) -> T:
    """Await an operation of a broker under a time limit. Raises `TransportError` when it does not end in time."""
    try:
        async with asyncio.timeout(seconds):
            return await operation
    except TimeoutError:
        text = f"no answer within {seconds:g} s"
        raise TransportError(text, FailureKind.UNAVAILABLE, FailureReason.TIMEOUT) from None


async def timed(seconds: float, operation: Awaitable[object]) -> tuple[float, TransportError | None]:
    """How long an operation of a broker took, and its failure, if any."""
    started = time.monotonic()
    error = None
    try:
        await within(seconds, operation)
    except TransportError as failure:
        error = failure
    return time.monotonic() - started, error


def at_broker(transport: Transport, error: BaseException) -> str:
    """A broker's failure as text that names the broker once."""
    text = str(error) or type(error).__name__
    return text if transport.endpoint.url in text else f"{transport.endpoint}: {text}"


def failed_at(transport: Transport, error: TransportError) -> CommandFailed:
    """A broker's failure as a command's error: the text of `at_broker`, with advice if the connection was refused."""
    text = at_broker(transport, error)
    if error.reason is FailureReason.CONNECTION:
        text = f"{text.rstrip('.?')}: {connection_advice(text)}"
    return CommandFailed(text)


def connection_advice(failure: str) -> str:
    """What to do about a broker that can't be connected to, by what is said of it."""
    if "certificate" in failure.lower():
        return "renew the certificate, or correct the host or the TLS files in the URL"
    if "WRONG_VERSION_NUMBER" in failure:  # OpenSSL's name for a peer that speaks no TLS
        return "this port takes no TLS: correct the port or the scheme in the URL"
    return "start the broker, or correct its URL"


@asynccontextmanager
async def used(transport: Transport) -> AsyncIterator[None]:
    """Have a transport open; its failures are the command's, as `failed_at` describes them."""
    async with transport:
        try:
            yield
        except TransportError as error:
            raise failed_at(transport, error) from error


@asynccontextmanager
async def opened(pair: Pair) -> AsyncIterator[Pair]:
    """Have a pair open; where its secondary refuses that, the error says which broker it was."""
    try:
        await pair.open()
    except TransportError as error:
        raise failed_at(pair.secondary, error) from error
    async with pair:
        yield pair


_LONGEST = 10.0  # s that the end of a command waits for its journal


def journal_package() -> ModuleType:
    """Import the journal's package, which takes longer than a command that needs none of it should."""
    try:
        from pairmq.observe import journal
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(error)) from error
    return journal


@contextmanager
def kept_journal(directory: str | None) -> Iterator[Journal | None]:
    """Give a command the journal in a directory, and close it in the end; None for none."""
    if directory is None:
        yield None
        return
    journal = journal_package().Journal(directory)
    try:
        yield journal
    finally:
        journal.close(_LONGEST)
