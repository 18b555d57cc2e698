"""The pair of an ASGI application: its life, and a readiness check without any framework."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeAlias

from pairmq import ConfigurationError, Entity, Pair, PairMQError, Readiness

Answer: TypeAlias = tuple[int, dict[str, Any]]

NO_CACHE: Final = {"Cache-Control": "no-store"}


def answer(found: Readiness | PairMQError) -> Answer:
    """Make the HTTP status, 200 or 503, and the body, JSON without secrets, of what `Pair.check` returned or raised."""
    if isinstance(found, Readiness):
        return (200 if found.ready else 503), found.as_json()
    return 503, {"ready": False, "reasons": [f"{type(found).__name__}: {found}"]}


Event: TypeAlias = MutableMapping[str, Any]

_STATE = "pairmq_pair"


@asynccontextmanager
async def open_pair(app: Any, make: Callable[[], Pair] = Pair.connect) -> AsyncIterator[Pair]:
    """Hold a pair open for an application; to be used inside its lifespan.

    Args:
        app: has a ``state`` that takes attributes, as those of Starlette and FastAPI have.
        make: makes the pair; by default from the ``PAIRMQ_*`` variables.

    Yields:
        The open pair, which `pair_of` finds, and `get_pair` also in applications that are mounted below this one; it is
        closed at the end.

    Raises:
        ConfigurationError: the pair can't work.
        TransportError: the secondary refuses to let the backlog queues be made.
    """
    async with make() as pair:
        # A request to a mounted application names that one as its application, and the outermost router as its router.
        holders = [app.state, app.router] if hasattr(app, "router") else [app.state]
        # An application that a test client starts again while it runs has its former pair again afterwards.
        former = [getattr(holder, _STATE, None) for holder in holders]
        for holder in holders:
            setattr(holder, _STATE, pair)
        try:
            yield pair
        finally:
            for holder, held in zip(holders, former, strict=True):
                setattr(holder, _STATE, held)


def pair_lifespan(make: Callable[[], Pair] = Pair.connect) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Make the ``lifespan`` of an application that holds a pair and nothing else.

    Args:
        make: makes the pair, once for each start; by default from the ``PAIRMQ_*`` variables.
    """

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        async with open_pair(app, make):
            yield

    return lifespan


def pair_of(app: Any) -> Pair:
    """Give the pair that `open_pair` holds for an application.

    Raises:
        ConfigurationError: it holds none, or is not running.
    """
    return _first(app.state)


def pair_of_scope(scope: Event) -> Pair:
    """Give the pair of the application that serves a connection, or of the one that it is mounted in.

    Raises:
        ConfigurationError: none of them holds one, or is running.
    """
    return _first(scope["app"].state, scope.get("router"))


def _first(*holders: Any) -> Pair:
    for holder in holders:
        pair = getattr(holder, _STATE, None)
        if isinstance(pair, Pair):
            return pair
    raise ConfigurationError(
        "the application has no pair: give lifespan=pair_lifespan(…) to it, or to the one that it is mounted in, and "
        "start that"
    )


async def ask(pair: Callable[[], Pair], entities: tuple[str | Entity, ...], timeout: float) -> Answer:
    """Check a pair and make the answer of it; whatever is wrong with the pair is an answer, too."""
    try:
        return answer(await pair().check(*entities, timeout=timeout))
    except PairMQError as error:
        return answer(error)


class ReadinessApp:
    """An ASGI application that answers every GET and HEAD with the readiness of a pair; to be mounted.

    Args:
        pair: gives the pair, as ``lambda: pair_of(app)``.
        entities: paths of queues, or entities; without any, all that this process has used.
        timeout: seconds that each side has to answer.
    """

    def __init__(self, pair: Callable[[], Pair], *entities: str | Entity, timeout: float = 5.0) -> None:
        self._pair = pair
        self._entities = entities
        self._timeout = timeout

    async def __call__(
        self,
        scope: Event,
        receive: Callable[[], Awaitable[Event]],
        send: Callable[[Event], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"a readiness check is asked for by HTTP, not by {scope['type']}")
        if scope["method"] in ("GET", "HEAD"):
            status, found = await ask(self._pair, self._entities, self._timeout)
        else:
            status, found = 405, {"reasons": ["GET and HEAD only"]}
        body = json.dumps(found).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **NO_CACHE}
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
