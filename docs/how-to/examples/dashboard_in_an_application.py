"""A web application that sends through a pair, with the pair's dashboard below /ops/pairmq."""

import contextlib
import os
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from pairmq import Message, Pair
from pairmq.dashboard import Dashboard

pair = Pair.connect(os.environ["PAIRMQ_PRIMARY"], os.environ["PAIRMQ_SECONDARY"])
dashboard = Dashboard(pair, token=os.environ["DASHBOARD_TOKEN"], allowed_hosts=["ops.example.com"])


async def place_order(request: Request) -> PlainTextResponse:
    """Send what is posted; the answer says which broker took it."""
    receipt = await pair.sender("orders").send(Message(await request.body()))
    return PlainTextResponse(f"{receipt.route.value}\n")


@contextlib.asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Open and close the pair and its dashboard with the application."""
    async with pair, dashboard:
        yield


app = Starlette(
    routes=[Route("/orders", place_order, methods=["POST"]), Mount("/ops/pairmq", app=dashboard)],
    lifespan=lifespan,
)
