"""A broker's URL and the options of its query.

No error repeats a value that may be secret: a bad URL is explained by the name of its part.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import ssl
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pairmq.model import ConfigurationError

D = TypeVar("D", int, None)

_log = logging.getLogger("pairmq")

LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))
"""Spellings of this machine's own address that mean the same broker."""

TLS_OPTIONS: Final = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile")
"""The options that `UrlOptions.tls` reads."""

_PLAIN_NUMBER = re.compile(r"[-+.0-9eE]+")
_HOSTS = re.compile(r"[^/?#]*://(?:[^/?#]*@)?([^/?#]*)")
_HOST_AND_PORT = re.compile(r"\[[^][]*\](:[^][]*)?|[^][]*")
_ADDRESS_WITH_ZONE = re.compile(r"([0-9a-f:.]+)%25([A-Za-z0-9._~-]+)")


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """How the server's certificate is checked, and which one is shown to it; None takes the system's."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True

    def context(self, *, for_url: str) -> ssl.SSLContext:
        """Make what checks the server, once, so that a wrong file is reported when the transport is made.

        A file of authorities takes the place of the system's: no other is trusted. Files that were renewed since are
        read again for the next connection.

        Args:
            for_url: the broker's URL without its password, for the error's text.

        Raises:
            ConfigurationError: a file can't be read or holds no certificate or key.
        """
        try:
            made = self._read()
        except ConfigurationError as error:
            raise ConfigurationError(f"{for_url}: {error}") from error.__cause__
        return made if self._stamps() == () else _RenewedContext(self, made)

    def _stamps(self) -> tuple[object, ...]:
        """What changes when a file is written or replaced."""
        stamps: list[object] = []
        for path in (self.ca_certs, self.certfile, self.keyfile):
            if path is not None:
                try:
                    found = os.stat(path)
                    stamps.append((found.st_mtime_ns, found.st_ino, found.st_size))
                except OSError:
                    stamps.append(None)
        return tuple(stamps)

    def _read(self) -> ssl.SSLContext:
        option, file = "ssl_ca_certs", self.ca_certs
        try:
            context = ssl.create_default_context(cafile=self.ca_certs)
            if not self.verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            option, file = "ssl_certfile", self.certfile
            if self.keyfile is not None:
                option, file = f"{option} or ssl_keyfile", f"{file} or {self.keyfile}"
            if self.certfile:
                context.load_cert_chain(self.certfile, self.keyfile, password=_no_passphrase)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; a file name may hold a null character
            raise ConfigurationError(f"a TLS file can't be used: {option}, {file}: {error}") from error
        return context


class _RenewedContext(ssl.SSLContext):
    """Reads its files again once they have changed, as certificates expire while a program runs.

    A connection that is open keeps what it was made with. While the files can't be used, as between the writing of a
    certificate and that of its key, what was read before is.
    """

    def __new__(cls, *_: object) -> _RenewedContext:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, options: TlsOptions, made: ssl.SSLContext) -> None:
        self.check_hostname = made.check_hostname
        self.verify_mode = made.verify_mode
        self._options = options
        self._made = made
        self._stamps = self._warned = options._stamps()

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self._current().wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return self._current().wrap_socket(*arguments, **options)

    def _current(self) -> ssl.SSLContext:
        stamps = self._options._stamps()
        if stamps != self._stamps:
            try:
                self._made = self._options._read()
                self._stamps = stamps
            except ConfigurationError as error:
                if stamps != self._warned:  # once: it is tried again for each connection
                    self._warned = stamps
                    _log.warning("%s: what was read before is used until then", error)
        return self._made


class UrlOptions(dict[str, str]):
    """The options of a URL's query, decoded.

    Args:
        where: what they are options of, for errors: ``the redis:// URL``.
    """

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def number(self, key: str, default: float, least: float, most: float, *, whole: bool = False) -> float:
        """Read a number.

        Raises:
            ConfigurationError: it is not a number within these limits.
        """
        if key not in self:
            return default
        text = self[key]
        try:
            if not _PLAIN_NUMBER.fullmatch(text):  # int and float take spaces, underscores and other scripts' digits
                raise ValueError
            value: float = int(text) if whole else float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:  # not a number is in no range
            kind = "whole number" if whole else "number"
            raise ConfigurationError(f"{self.where}'s option {key} is not a {kind} from {least} to {most}")
        return value

    def choice(self, key: str, first: str, second: str) -> str | None:
        """Read one of two words; None when the option is not given.

        Raises:
            ConfigurationError: it is neither.
        """
        if self.get(key) not in (None, first, second):
            raise ConfigurationError(f"{self.where}'s option {key} is neither {first!r} nor {second!r}")
        return self.get(key)

    def tls(self) -> TlsOptions:
        """Read the `TLS_OPTIONS`.

        Raises:
            ConfigurationError: they contradict each other.
        """
        verify = self.choice("ssl_cert_reqs", "required", "none") != "none"
        if self.get("ssl_keyfile") and not self.get("ssl_certfile"):
            raise ConfigurationError(f"{self.where} has ssl_keyfile without ssl_certfile: give both")
        ca_certs, certfile, keyfile = (self.get(key) or None for key in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"))
        return TlsOptions(ca_certs, certfile, keyfile, verify)


class BrokerUrl:
    """A URL, split into parts that are read strictly.

    Args:
        url: the URL.
        form: how to write one, with its schemes, for errors: ``redis://host:port/db or rediss://…``.
        schemes: those of the transport.
        what: what it is, for errors.
        several: whether it may name several hosts, separated by commas.

    Attributes:
        scheme: in lower case.
        parts: as they are written; of several hosts the first one.
        where: what to call it in errors: ``the redis:// URL``.

    Raises:
        ConfigurationError: it can't be read, or has another scheme or a fragment.
    """

    def __init__(self, url: str, form: str, *schemes: str, what: str = "the broker URL", several: bool = False) -> None:
        # urlsplit drops tabs and line ends silently, so that they are looked for first.
        if any(ord(letter) <= 0x20 or ord(letter) == 0x7F for letter in url):
            raise ConfigurationError(f"{what} holds a space or control character: write it percent-encoded")
        try:
            url.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"{what} holds a lone surrogate: remove it") from None
        self.form = form
        others: list[str] = []
        hosts = _HOSTS.match(url) if several else None
        if hosts is not None:
            first, *others = hosts[1].split(",")
            url = f"{url[: hosts.start(1)]}{first}{url[hosts.end(1) :]}"
        try:
            self.parts: SplitResult = urlsplit(url)
            self._each = [self.parts, *(urlsplit(f"//{other}") for other in others)]
            # Python up to 3.12 drops what is between a bracket and the port.
            if not all(_HOST_AND_PORT.fullmatch(each.netloc.rpartition("@")[2]) for each in self._each):
                raise ValueError
        except ValueError:
            # None of the original text: it may quote the URL with its password.
            raise ConfigurationError(f"{what} can't be read: is an IPv6 address in brackets?") from None
        self.scheme = self.parts.scheme.lower()
        if self.scheme not in schemes or not url[len(self.scheme) :].startswith("://"):
            begins = " or ".join(f"{each}://" for each in schemes)
            raise ConfigurationError(f"{what} does not begin with {begins}: write it as {form}")
        self.where = f"the {self.scheme}:// URL" if what == "the broker URL" else what
        if self.parts.fragment or url.endswith("#"):
            raise ConfigurationError(f"{self.where} holds '#': write it as %23")

    def host(self) -> str:
        """Read the host's name or address, without brackets; an IPv6 zone is decoded: ``fe80::1%eth0``.

        Raises:
            ConfigurationError: it is missing, or can't be one.
        """
        return self._host(self.parts)

    def port(self, default: D) -> int | D:
        """Read the port; the default where none is given.

        Raises:
            ConfigurationError: it is not a number from 1 to 65535.
        """
        return self._port(self.parts, default)

    def hosts(self, default_port: int) -> tuple[tuple[str, int], ...]:
        """Read all hosts, each with its port, in the order in which they are written, without repetitions.

        Raises:
            ConfigurationError: as `host` and `port`.
        """
        return tuple(dict.fromkeys((self._host(each), self._port(each, default_port)) for each in self._each))

    def _host(self, parts: SplitResult) -> str:
        host = (parts.hostname or "").rstrip(".")
        if not host:
            raise ConfigurationError(f"{self.where} names no host: write it as {self.form}")
        zoned = _ADDRESS_WITH_ZONE.fullmatch(host)
        name = zoned[1] if zoned else host
        # A comma would be a list of hosts, which not every broker has; "%" is an escaped name.
        if not name.isprintable() or any(letter in "%,;*'\"<>\\^`{|}" for letter in name):
            raise ConfigurationError(f"the host of {self.where} is not a name or address: name one host")
        return f"{_one_spelling(name)}%{zoned[2]}" if zoned else _one_spelling(name)

    def _port(self, parts: SplitResult, default: D) -> int | D:
        try:
            port = parts.port
        except ValueError:
            port = 0
        if port is None:
            return default
        if not 1 <= port <= 65535:
            what = f"the port of {self.where} is invalid: give a number from 1 to 65535"
            if "," in parts.netloc.rpartition("@")[2]:
                what = f"{self.where} names several hosts: write it as {self.form}"
            elif "@" not in parts.netloc and "@" in f"{parts.path}{parts.query}":  # it is part of the password
                what += ", and write '/' and '?' in a user name or password as %2F and %3F"
            raise ConfigurationError(what)
        return port

    def decoded(self, text: str | None, what: str, *, most_bytes: int | None = None) -> str:
        """Decode a part that is percent-encoded; empty when it is not given.

        Args:
            what: the part, for errors.
            most_bytes: of the decoded part.

        Raises:
            ConfigurationError: it is not UTF-8, holds a control character or is too long.
        """
        try:
            decoded = unquote(text or "", errors="strict")
        except UnicodeDecodeError:
            raise ConfigurationError(f"the {what} of {self.where} is not percent-encoded UTF-8") from None
        if any(ord(letter) < 0x20 for letter in decoded):
            # A null character would end the field in SASL PLAIN, and give the password another beginning.
            raise ConfigurationError(f"the {what} of {self.where} holds a control character")
        if most_bytes is not None and len(decoded.encode()) > most_bytes:
            raise ConfigurationError(f"the {what} of {self.where} has more than {most_bytes} bytes")
        return decoded

    def options(self, *known: str, dashes: bool = False, url_option: str | None = None) -> UrlOptions:
        """Read the query's options.

        Args:
            known: names of the options.
            dashes: an underscore in a name is read as a dash.
            url_option: the one option that may hold ``@``; None where every option may.

        Raises:
            ConfigurationError: an option is unknown, given twice, or not decodable.
        """
        query = self.parts.query
        if url_option and any("@" in each and not each.startswith(f"{url_option}=") for each in query.split("&")):
            # A password with a question mark in it ends up here.
            text = f"{self.where} holds '@' in an option: write '@' as %40, and '?' in a password or key as %3F"
            raise ConfigurationError(text)
        try:
            pairs = parse_qsl(query, keep_blank_values=True, errors="strict")
        except ValueError:
            raise ConfigurationError(f"the options of {self.where} are not percent-encoded UTF-8") from None
        found = UrlOptions(self.where)
        for written, value in pairs:
            key = written.replace("_", "-") if dashes else written
            if key not in known:
                shown = f" {written!r}" if re.fullmatch(r"[a-z_-]{1,40}", written) and "@" not in query else ""
                listed = ", ".join(sorted(known))
                raise ConfigurationError(f"{self.where} has an unknown option{shown}: known are {listed}")
            if key in found:
                raise ConfigurationError(f"{self.where} has the option {key!r} twice")
            found[key] = value
        return found


def _one_spelling(host: str) -> str:
    """Write an IPv6 address in the one way that makes two URLs of one broker equal; names are left alone."""
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)


def bracketed(host: str) -> str:
    """Write a host as a URL holds it: an IPv6 address in brackets, its zone percent-encoded."""
    return f"[{host.replace('%', '%25')}]" if ":" in host else host


def _no_passphrase() -> str:
    # Without this, OpenSSL would ask the terminal, and a service would hang in its start.
    raise ValueError("the key is encrypted, and there is no option for its passphrase: give a plain one")
