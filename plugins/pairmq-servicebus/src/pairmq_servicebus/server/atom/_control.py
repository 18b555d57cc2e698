"""What tests tell a server below ``/$control/``: faults, dropped connections, counters.

Only clients on this machine are heard, and only with the namespace's key: a page in a browser could call it otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from pairmq_servicebus.server.broker import BrokerError

PREFIX = "$control/"

_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ControlHandlers:
    """What the control endpoint does.

    Args:
        set_faults: adds the rules of a list that was JSON; raises `ValueError` for what is no list of rules.
        clear_faults: ends all faults.
        operations: counts operations by kind.
        drop_connections: resets the clients' connections and tells how many there were.
        queues: gives each queue's path with its counts of messages.
        create_queue: makes a queue of this path, with the defaults.
        delete_queue: deletes it.
        clear: deletes all queues and topics.
    """

    set_faults: Callable[[object], None]
    clear_faults: Callable[[], None]
    operations: Callable[[], Mapping[str, int]]
    drop_connections: Callable[[], int]
    queues: Callable[[], Mapping[str, Mapping[str, int]]]
    create_queue: Callable[[str], None]
    delete_queue: Callable[[str], None]
    clear: Callable[[], None]


class ControlError(Exception):
    """A request that the control endpoint refuses.

    Args:
        status: of HTTP.
        detail: a sentence.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


async def control(request: web.Request, what: str, handlers: ControlHandlers) -> web.Response:
    """Answer a request.

    Args:
        request: it; somebody else has checked who sends it.
        what: the path below the prefix.
        handlers: what to do.

    Returns:
        A JSON object.

    Raises:
        ControlError: there is nothing of that name, or the body is not what it should be.
    """
    call = (request.method, what.strip("/").lower())
    if call == ("POST", "faults"):
        rules = await _json(request)
        try:
            handlers.set_faults(rules)
        except ValueError as error:
            raise ControlError(400, str(error)) from None
        return web.json_response({})
    if call == ("DELETE", "faults"):
        handlers.clear_faults()
        return web.json_response({})
    if call == ("GET", "operations"):
        return web.json_response(dict(handlers.operations()))
    if call == ("POST", "connections/drop"):
        return web.json_response({"dropped": handlers.drop_connections()})
    if call == ("GET", "queues"):
        return web.json_response({path: dict(counts) for path, counts in handlers.queues().items()})
    if call == ("DELETE", "entities"):
        handlers.clear()
        return web.json_response({})
    path = what.strip("/").partition("/")[2]
    if call[1].startswith("queues/") and request.method in ("PUT", "DELETE"):
        try:
            (handlers.create_queue if request.method == "PUT" else handlers.delete_queue)(path)
        except BrokerError as error:
            raise ControlError(409, str(error)) from None
        return web.json_response({})
    raise ControlError(404, f"The control endpoint has no {request.method} {what}.")


async def _json(request: web.Request) -> object:
    body = await request.read()
    if len(body) > _MAX_BYTES:
        raise ControlError(413, f"The body has {len(body)} bytes; at most {_MAX_BYTES} are read.")
    try:
        content: object = json.loads(body)
    except (ValueError, RecursionError):
        raise ControlError(400, "The body is no JSON.") from None
    return content
