"""Shared access signatures: who may come in.

The form is in the Service Bus documentation, "Service Bus access control with Shared Access Signatures": the
signature is HMAC-SHA256 of the percent-encoded resource and the expiry, under the policy's key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping
from urllib.parse import parse_qsl, unquote_plus, urlsplit

_PREFIX = "SharedAccessSignature "
_MOST_TOKENS = 1000
"""Of one client."""


class Authorizer:
    """Checks tokens; all, without keys, are accepted. ``any_token`` accepts any other token, too."""

    def __init__(self, keys: Mapping[str, str], *, any_token: bool = False) -> None:
        self._keys = keys
        self._any = any_token or not keys

    @property
    def open(self) -> bool:
        return not self._keys

    def check(self, token: str, resource: str, now: float) -> str | None:
        """What is wrong with a token for a resource (a URI or path), without its secrets; None if it is good."""
        if not self._keys:
            return None
        if not token.startswith(_PREFIX):
            return None if self._any else "the token is not a shared access signature"
        # The fields are taken apart by hand: the resource must stay as it was signed.
        parts = dict(part.partition("=")[::2] for part in token[len(_PREFIX) :].split("&"))
        decoded = dict(parse_qsl(token[len(_PREFIX) :]))
        try:
            scope, signature, expiry, name = parts["sr"], decoded["sig"], int(decoded["se"]), decoded["skn"]
        except (KeyError, ValueError):
            return "the shared access signature lacks one of sr, sig, se and skn"
        key = self._keys.get(name)
        if key is None:
            return "no policy of that name"
        digest = hmac.new(key.encode(), f"{scope}\n{expiry}".encode(), hashlib.sha256).digest()
        if not hmac.compare_digest(base64.b64encode(digest), signature.replace(" ", "+").encode()):
            return "the signature is wrong"
        if expiry <= now:
            return "the token has expired"
        if not _covers(_path(unquote_plus(scope)), _path(resource)):
            return "the token is for something else"
        return None


class Grants:
    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._tokens: dict[str, str] = {}  # audience -> token

    def put(self, token: str, audience: str) -> str | None:
        """Keep a token in place of an older one for the same audience; returns what is wrong with it, or None."""
        problem = self._authorizer.check(token, audience, time.time())
        if problem is None:
            self._tokens.pop(audience, None)
            if len(self._tokens) >= _MOST_TOKENS:
                del self._tokens[next(iter(self._tokens))]
            self._tokens[audience] = token
        return problem

    def check(self, path: str) -> str | None:
        """Return why a client may not have a link to an entity; None if it may."""
        if self._authorizer.open:
            return None
        problem: str | None = "no token was put for it"
        for token in reversed(self._tokens.values()):
            problem = self._authorizer.check(token, path, time.time())
            if problem is None:
                return None
        return problem


def _path(resource: str) -> str:
    parts = urlsplit(resource if "://" in resource else f"sb://host/{resource.lstrip('/')}")
    return parts.path.strip("/").lower()


def _covers(scope: str, path: str) -> bool:
    return not scope or path == scope or path.startswith(scope + "/")
