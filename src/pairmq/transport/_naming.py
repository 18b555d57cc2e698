"""Names and identities of brokers: no two brokers have the same one, or they would share backlog queues (SPEC 13.3)."""

from __future__ import annotations

import hashlib
import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from pairmq.model import MAX_PATH_LENGTH, ConfigurationError, Entity
from pairmq.transport._values import Endpoint

ENDPOINT_OPTIONS: Final = ("identity", "name")
"""Options that every broker's URL knows; see `chosen_endpoint`."""

_READABLE = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DIGEST = re.compile(r"--[0-9a-f]{12}$")
_LONGEST = 48  # characters before a digest: some brokers cut off what they report about queues of longer names
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback")


def endpoint_with_default_name(
    identity: tuple[str, ...],
    url: str,
    readable: str,
    *,
    unique: bool = True,
    local: bool = False,
    former: Sequence[str] = (),
) -> Endpoint:
    """Make the endpoint of a broker whose URL gives no name; no IO but to learn this machine's name, once.

    Args:
        identity: as in `Endpoint`.
        url: as in `Endpoint`.
        readable: what people should read in the name, such as ``host-port``.
        unique: no other identity of this product has this readable part. It is the whole name then, if it needs no
            change to be a segment of a path; otherwise a digest of the identity follows.
        local: the address means another broker on every machine, as ``localhost`` or a file's path does.
        former: names that queues of this broker may have, as those of a process with the URL of one node of a cluster.

    Returns:
        The endpoint. Its name depends on the identity alone, and for a local address on the machine.
    """
    scope = ""
    if local:
        host, scope = _machine()
        readable = f"{host}-{readable}"
    if unique and not local and _READABLE.fullmatch(readable) and not _DIGEST.search(readable):
        name = readable
    else:
        digest = hashlib.sha256("\0".join((*identity, scope)).encode(errors="surrogateescape")).hexdigest()[:12]
        plain = re.sub(r"[^A-Za-z0-9._]+", "-", readable)[:_LONGEST].strip("-.")
        name = f"{plain or identity[0]}--{digest}"
    return Endpoint(name, identity, url, scope, tuple(dict.fromkeys(old for old in former if old and old != name)))


def chosen_endpoint(default: Endpoint, options: Mapping[str, str], where: str) -> Endpoint:
    """Apply the name and the identity given in the URL to an endpoint.

    Two endpoints of one product with the same identity in their URLs are the same broker, at any addresses: a broker
    behind a proxy for each process, or with several ports. A name alone has no such meaning.

    Args:
        default: derived from the URL's address.
        options: the URL's; ``name`` and ``identity`` are used.
        where: the origin of the options, such as ``the redis:// URL``, for errors.

    Returns:
        The endpoint; the default if neither is given.

    Raises:
        ConfigurationError: one of them can't be a segment of a path.
    """
    found = default
    by_default = (*default.identity, *((default.scope,) if default.scope else ()))
    if "identity" in options:
        stated = checked_name(options["identity"], f"the option identity of {where}")
        # No address and no broker's name has a question mark.
        identity = (default.identity[0], f"?identity={stated}")
        former = (default.name, *default.former_names)
        plain = endpoint_with_default_name(identity, default.url, stated, unique=False, former=former)
        found = replace(plain, address=default.identity, nodes=default.nodes, by_default=by_default)
    if "name" in options:
        name = checked_name(options["name"], f"the option name of {where}")
        former = tuple(dict.fromkeys(old for old in (found.name, default.name) if old != name))
        found = replace(found, name=name, scope="", former_names=former, by_default=by_default)
    return found


def checked_name(name: str, what: str) -> str:
    """Return the name if it can be a segment of the backlog queues' paths (SPEC 5.1).

    Args:
        name: from a URL.
        what: its place there, for the error.

    Raises:
        ConfigurationError: it can't; the text does not repeat it.
    """
    problem = "holds one of / { }" if any(letter in "/{}" for letter in name) else None
    try:
        Entity(name)
    except ValueError:
        problem = "is not a valid segment of a queue path"
    if not name or len(name) > MAX_PATH_LENGTH:
        problem = f"has {len(name)} characters, and 1 to {MAX_PATH_LENGTH} are allowed"
    if problem:
        raise ConfigurationError(f"{what} {problem}: use letters, digits, - and .")
    return name


def is_local_address(host: str) -> bool:
    """Whether a host's name or address means another machine on every machine: ``localhost``, ``127.0.0.0/8``, ``::1``.

    Args:
        host: without brackets.
    """
    plain = host.lower().rstrip(".")
    if plain in _LOCAL_NAMES or plain.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(plain)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return bool(mapped.is_loopback or mapped.is_unspecified)


@lru_cache(maxsize=1)
def _machine() -> tuple[str, str]:
    """This machine's name, and a text that no other machine has, as far as either can be known.

    Both the name and the number count: machines made from one image share the number, and many are named alike.
    """
    host = socket.gethostname() or "host"
    number = ""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            number = Path(path).read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if number:
            break
    # The number is confidential: systemd requires that only a digest of it leaves the machine.
    digest = hashlib.sha256(f"pairmq\0{host}\0{number}".encode(errors="surrogateescape")).hexdigest()[:12]
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", host.partition(".")[0])[:24].strip("-.") or "host"
    return plain, f"{plain}-{digest}"
