"""The dashboard as an ASGI application, and who may use it: a token, a session cookie, a request's origin."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from importlib.resources import files
from typing import Any, Self

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pairmq.core.switch import alike
from pairmq.dashboard._history import History
from pairmq.dashboard._looks import Brokers, Looks, Watched, shown
from pairmq.dashboard._view import MOST_ROWS, Query, View
from pairmq.model import ConfigurationError, Entity, EntityKind, EntityState, FailureReason, PairMQError, TransportError
from pairmq.model.events import Event
from pairmq.pair import Pair, SwitchAction

MARK = "x-pairmq-dashboard"
"""A header that the page's own script sends with what changes anything; no other site's page can send it."""

_SHORTEST, _LONGEST = 16, 512


class Guard:
    """Decides what a request may do.

    The dashboard may be called by ``allowed_hosts``, besides ``localhost`` and IP addresses; a site that makes its own
    name lead here (DNS rebinding) is refused so. ``*`` is for any.
    """

    def __init__(self, token: str | None, *, open_to_read: bool, allowed_hosts: Collection[str] = ()) -> None:
        self.token = secrets.token_urlsafe(24) if token is None else _checked(token)
        self.open_to_read = open_to_read
        self._hosts = frozenset(host.casefold() for host in allowed_hosts)
        # The cookie is not the token: it is valid in this process only, while it runs. Its name is this process's too,
        # as a browser sends a cookie to every port of a host.
        key = secrets.token_bytes(32)
        self._cookie = hmac.new(key, self.token.encode(), hashlib.sha256).hexdigest()
        self._cookie_name = f"pairmq-{secrets.token_hex(4)}"

    def host_is_ours(self, connection: HTTPConnection) -> bool:
        """Whether the request's host is this server's, against DNS rebinding."""
        host = _host_of(connection.headers.get("host", "")).casefold()
        if "*" in self._hosts or host in self._hosts or host == "localhost" or host.endswith(".localhost"):
            return True
        return is_address(host)

    def is_token(self, given: object) -> bool:
        """Whether the token is right; in constant time for wrong ones."""
        return isinstance(given, str) and _same(given, self.token)

    def knows_token(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.casefold() == "bearer" and self.is_token(given.strip()):
            return True
        return _same(request.cookies.get(self._cookie_name, ""), self._cookie)

    def may_read(self, request: Request) -> bool:
        return self.open_to_read or self.knows_token(request)

    def is_ours(self, request: Request) -> bool:
        """Whether the page or a program made it: another site's request has the cookie, but not the header."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("origin")
        if origin is not None:
            place = origin.partition("://")[2]
            # A proxy may call this server by another name than browsers call the proxy.
            if place != request.headers.get("host") and _host_of(place).casefold() not in self._hosts:
                return False
        return request.headers.get(MARK) == "1"

    def let_in(self, request: Request, response: Response) -> None:
        response.set_cookie(
            self._cookie_name,
            self._cookie,
            path=_path_of(request),
            # Where a proxy ends TLS, only the page knows.
            secure="https" in (request.url.scheme, request.headers.get("origin", "").partition("://")[0]),
            httponly=True,
            samesite="strict",
        )

    def let_out(self, request: Request, response: Response) -> None:
        response.delete_cookie(self._cookie_name, path=_path_of(request), httponly=True, samesite="strict")


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _checked(token: str) -> str:
    if not _SHORTEST <= len(token) <= _LONGEST:
        raise ConfigurationError(
            f"the dashboard's token has {len(token)} characters: it must have {_SHORTEST} to {_LONGEST}"
        )
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigurationError("the dashboard's token must be of printable ASCII characters, without spaces")
    return token


def _same(given: str, known: str) -> bool:
    # JSON can hold a lone surrogate, which is a wrong token like any other.
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), known.encode())


def _host_of(header: str) -> str:
    """The name in a Host header, without its port: ``[::1]:80``, ``name:80``, ``name``."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() and ":" in header else header


def _path_of(request: Request) -> str:
    return f"{request.scope.get('root_path', '').rstrip('/')}/"


_log = logging.getLogger("pairmq")

_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_FILES = {
    "/": ("index.html", "text/html"),
    "/dashboard.css": ("dashboard.css", "text/css"),
    "/dashboard.js": ("dashboard.js", "text/javascript"),
    "/parts.js": ("parts.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_LONGEST_BODY = 4096  # bytes of what an operator or a browser says
_FIRST_LOOK = 1.5  # s that the first answer waits for the first looks
_SHORT = 0.005  # s: an answer that takes no longer to make is made whenever it is asked for
_SHARE = 20  # after a longer one, this many times as long passes until the next
_LONGEST_QUESTION = 5.0  # s that an operator waits for one broker
_WORDS: dict[str, SwitchAction] = {
    "hold": SwitchAction.HOLD,
    "force_failover": SwitchAction.FAILOVER,
    "mark_healthy": SwitchAction.RESUME,
}


class Dashboard:
    """A page of a pair, or of two brokers: an ASGI application, to be mounted or served.

    It watches from the moment it is made. It belongs to the event loop of its pair, and what it asks of the brokers is
    polled only while the page is open: nothing of it is on the path of a message.

    Args:
        of: the pair, open or not yet; or two brokers, which are only looked at.
        token: lets operators in (16 to 512 characters); a random one when left out: see `token`.
        read_only: disable hold, force and mark on the page, with or without a token.
        open_to_read: looking needs no token. Without it the page asks for the token first.
        allowed_hosts: names under which it may be called, besides ``localhost`` and IP addresses; ``*`` where the
            application around it checks them.
        entities: entities of the primary that are shown and probed too, used here or not.

    Raises:
        ConfigurationError: the token can't be one.
    """

    def __init__(
        self,
        of: Pair | Brokers,
        *,
        token: str | None = None,
        read_only: bool = False,
        open_to_read: bool = False,
        allowed_hosts: Collection[str] = (),
        entities: Iterable[Entity] = (),
    ) -> None:
        self._guard = Guard(token, open_to_read=open_to_read, allowed_hosts=allowed_hosts)
        self._watched = Watched(of)
        self._operable = self._watched.pair is not None and not read_only
        self._history = History()
        self._looks = Looks(self._watched, tuple(entities))
        self._view = View(self._watched, self._history, self._looks)
        self._kept: dict[Query, tuple[float, dict[str, Any]]] = {}
        self._making = asyncio.Lock()
        self._rested_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None
        # Without the events of single messages, which would cost every send something.
        self._unsubscribe = (
            None if self._watched.pair is None else self._watched.pair.subscribe(self._on_event, per_message=False)
        )
        routes = [Route(path, _file(*each), methods=["GET"]) for path, each in _page_files().items()]
        routes += [
            Route("/api/status", self._status, methods=["GET"]),
            Route("/api/session", self._sign_in, methods=["POST"]),
            Route("/api/session", self._sign_out, methods=["DELETE"]),
            Route("/api/operate", self._operate, methods=["POST"]),
        ]
        self._app = Starlette(routes=routes, exception_handlers={_Refused: _refusal})

    @property
    def token(self) -> str:
        """What lets operators in: as given, or made at random."""
        return self._guard.token

    @property
    def open_to_read(self) -> bool:
        """Whether looking needs no token."""
        return self._guard.open_to_read

    def status(self, *, search: str = "", state: EntityState | None = None, limit: int = 200) -> Mapping[str, Any]:
        """The response of ``GET api/status``, from what was seen so far; without IO.

        Args:
            search: a part of the names of the entities wanted.
            state: only entities in this state.
            limit: how many entities, at most 1000.
        """
        return self._view.status(Query(search, state, max(0, min(limit, MOST_ROWS))))

    async def close(self) -> None:
        """Stop watching; idempotent. What it asks of a broker at this moment is given up."""
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        await self._looks.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._loop is not None and self._loop is not asyncio.get_running_loop():
            raise RuntimeError("a dashboard must be served on the event loop of its pair")
        if scope["type"] == "http" and not self._guard.host_is_ours(Request(scope)):
            text = "unknown host name: use the dashboard's address, or allow the name\n"
            await Response(text, 421, _HEADERS, "text/plain")(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _on_event(self, event: Event) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._history.on_event(event)

    # Answers.

    async def _status(self, request: Request) -> Response:
        if not self._guard.may_read(request):
            raise _Refused(401, "a token is required")
        query = _query_of(request.query_params)
        if self._history.ended is None:
            self._looks.wanted()
            await self._looks.first(_FIRST_LOOK)
        knows = self._guard.knows_token(request)
        access = {"read_only": not self._operable, "operator": knows, "may_operate": knows and self._operable}
        return JSONResponse(await self._recent(query) | {"at": time.time(), "access": access}, headers=_HEADERS)

    async def _recent(self, query: Query) -> dict[str, Any]:
        """The status, kept for a while if it took long: questions must not take the loop's time from sends."""
        async with self._making:
            now = time.monotonic()
            self._kept = {asked: kept for asked, kept in self._kept.items() if now < kept[0]}
            if query in self._kept:
                return self._kept[query][1]
            await asyncio.sleep(max(0.0, self._rested_at - now))
            began = time.monotonic()
            status = self._view.status(query)
            took = time.monotonic() - began
            if took > _SHORT:
                self._rested_at = began + _SHARE * took
                self._kept[query] = (self._rested_at, status)
            return status

    async def _sign_in(self, request: Request) -> Response:
        body = await _json_body(request)
        self._check_ours(request)
        if not self._guard.is_token(body.get("token")):
            raise _Refused(403, "wrong token")
        response = Response(status_code=204, headers=_HEADERS)
        self._guard.let_in(request, response)
        return response

    async def _sign_out(self, request: Request) -> Response:
        self._check_ours(request)
        response = Response(status_code=204, headers=_HEADERS)
        self._guard.let_out(request, response)
        return response

    def _check_ours(self, request: Request) -> None:
        if not self._guard.is_ours(request):
            raise _Refused(403, "this request did not come from the dashboard's own page")

    async def _operate(self, request: Request) -> Response:
        body = await _json_body(request)
        if not self._guard.knows_token(request):
            raise _Refused(401, "a token is required")
        self._check_ours(request)
        pair = self._watched.pair
        if pair is None or not self._operable:
            raise _Refused(403, "this dashboard is read-only")
        word, path, kind = (body.get(name) for name in ("word", "entity", "kind"))
        action = _WORDS.get(word) if isinstance(word, str) else None
        if action is None or not isinstance(path, str) or kind not in tuple(EntityKind):
            raise _Refused(400, f"word must be one of {', '.join(_WORDS)}, entity a path, kind queue or topic")
        syphon = body.get("syphon", False)
        if not isinstance(syphon, bool) or (syphon and word != "hold"):
            raise _Refused(400, "syphon must be true or false, and is only for the word hold")
        if body.get("unknown") is not True:
            await self._check_name(pair, path, EntityKind(kind))
        try:
            async with asyncio.timeout(_LONGEST_QUESTION):
                report = await pair.switch(action, path, kind=kind, syphon=syphon, timeout=0, unknown=True)
            state = pair.state(path, kind=kind)
        except ConfigurationError as error:
            raise _Refused(400, str(error)) from None
        except TimeoutError:
            text = "the secondary, which keeps the decision, does not respond: the outcome is unknown"
            raise _Refused(409, text) from None
        except TransportError as error:
            unsure = "the outcome is unknown" if error.maybe_applied else "nothing has changed"
            raise _Refused(409, f"the secondary, which keeps the decision: {error}; {unsure}") from None
        except PairMQError as error:
            raise _Refused(409, str(error)) from None
        asked_by = "an unknown client" if request.client is None else request.client.host
        done = f"{word}, syphon included," if syphon else word
        _log.info("dashboard: %s of %s %s, requested from %s", done, kind, shown(path), asked_by)
        self._kept.clear()
        processes = {"followed": len(report.followed), "missing": len(report.missing)}
        outcome = {"entity": path, "kind": kind, "state": state.value, "processes": processes}
        return JSONResponse(outcome, headers=_HEADERS)

    async def _check_name(self, pair: Pair, path: str, kind: EntityKind) -> None:
        """Refuse a name that is probably misspelt: it would be a row of an entity that is never sent to."""
        try:
            entity = Entity(path, kind)
            known = (*pair.states(), *self._looks.entities)
            if entity in known:
                return
        except (ValueError, PairMQError):
            return  # what acts on it says what is wrong
        text = f"this process has not used {kind.value} {path}"
        try:
            async with asyncio.timeout(min(_LONGEST_QUESTION, pair.options.attempt_timeout)):
                if await pair.primary.admin.exists(entity):
                    return
        except (TransportError, TimeoutError) as error:
            if isinstance(error, TransportError) and error.reason is FailureReason.CLOSED:
                return
            text += ", and the primary can't be queried for it: to confirm it anyway, add unknown=true"
            raise _Refused(409, text) from None
        meant = "".join(f", but {each.kind} {each.path}" for each in alike(entity, known)[:1])
        why = f"{text}, and the primary has no such entity{meant}: is the name misspelt?"
        raise _Refused(404, f"{why} To confirm it, add unknown=true")


def _page_files() -> dict[str, tuple[bytes, str]]:
    folder = files(__package__).joinpath("page")
    return {path: (folder.joinpath(name).read_bytes(), kind) for path, (name, kind) in _FILES.items()}


def _file(content: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def give(_: Request) -> Response:
        return Response(content, headers=_HEADERS, media_type=kind)

    return give


def _query_of(parameters: Mapping[str, str]) -> Query:
    state, limit = parameters.get("state"), parameters.get("limit", "200")
    if (state and state not in tuple(EntityState)) or not (limit.isdecimal() and limit.isascii() and len(limit) < 9):
        raise _Refused(400, "state must be a state, limit a number")
    return Query(parameters.get("search", "")[:300], EntityState(state) if state else None, min(int(limit), MOST_ROWS))


async def _json_body(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body; empty for anything else, and for oversized bodies."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LONGEST_BODY:
            return {}
    try:
        document = json.loads(bytes(body))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


class _Refused(Exception):
    """A request is answered with a status and an error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


async def _refusal(_: Request, refused: Exception) -> Response:
    status = refused.status if isinstance(refused, _Refused) else 500
    return JSONResponse({"error": shown(str(refused))}, status, _HEADERS)
