"""The pair of a FastAPI application: its life, a dependency, and a readiness check."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.requests import HTTPConnection

from pairmq import Entity, Pair
from pairmq_web.asgi import NO_CACHE, ask, open_pair, pair_lifespan, pair_of, pair_of_scope

__all__ = ["get_pair", "open_pair", "pair_lifespan", "pair_of", "readiness_router"]


async def get_pair(connection: HTTPConnection) -> Pair:
    """Give the application's pair, or that of the one that it is mounted in; for ``Depends``, also in web sockets.

    Raises:
        ConfigurationError: none of them holds one.
    """
    return pair_of_scope(connection.scope)


def readiness_router(*entities: str | Entity, path: str = "/ready", timeout: float = 5.0) -> APIRouter:
    """Make the route of a readiness check: 200 when messages move, 503 with the reasons when they don't.

    Args:
        entities: paths of queues, or entities; without any, all that this process has used.
        path: of the route.
        timeout: seconds that each side has to answer.
    """
    router = APIRouter()

    async def ready(connection: HTTPConnection) -> JSONResponse:
        status, found = await ask(lambda: pair_of_scope(connection.scope), entities, timeout)
        return JSONResponse(found, status, NO_CACHE)

    # The annotations are texts here, which FastAPI could not resolve inside a function.
    ready.__annotations__ = {"connection": HTTPConnection, "return": JSONResponse}
    router.add_api_route(path, ready, methods=["GET", "HEAD"], response_model=None, include_in_schema=False)
    return router
