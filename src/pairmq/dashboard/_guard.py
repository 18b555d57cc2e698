"""Access control: a token, a session cookie, and checks of a request's origin."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Collection

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from pairmq.model import ConfigurationError

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
        try:
            ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return True

    def is_token(self, told: object) -> bool:
        """Whether the token is right; in constant time for wrong ones."""
        return isinstance(told, str) and _same(told, self.token)

    def knows_token(self, request: Request) -> bool:
        scheme, _, told = request.headers.get("authorization", "").partition(" ")
        if scheme.casefold() == "bearer" and self.is_token(told.strip()):
            return True
        return _same(request.cookies.get(self._cookie_name, ""), self._cookie)

    def may_read(self, request: Request) -> bool:
        return self.open_to_read or self.knows_token(request)

    def is_ours(self, request: Request) -> bool:
        """Whether a request that changes something was made by the page itself, or by a program.

        A browser lets another site send a form or a simple request with the cookie of this one, but no header of this
        name, and identifies the origin of a request.
        """
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


def _checked(token: str) -> str:
    if not _SHORTEST <= len(token) <= _LONGEST:
        raise ConfigurationError(
            f"the dashboard's token has {len(token)} characters: it must have {_SHORTEST} to {_LONGEST}"
        )
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ConfigurationError("the dashboard's token must be of printable ASCII characters, without spaces")
    return token


def _same(told: str, known: str) -> bool:
    # JSON can hold a lone surrogate, which is a wrong token like any other.
    return hmac.compare_digest(told.encode("utf-8", "surrogatepass"), known.encode())


def _host_of(header: str) -> str:
    """The name in a Host header, without its port: ``[::1]:80``, ``name:80``, ``name``."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() and ":" in header else header


def _path_of(request: Request) -> str:
    return f"{request.scope.get('root_path', '').rstrip('/')}/"
