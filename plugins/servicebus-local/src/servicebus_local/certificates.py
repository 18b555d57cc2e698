"""A certificate under an authority of its own, for a local server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import trustme

from servicebus_local.settings import TlsFiles


@dataclass(frozen=True, slots=True)
class OwnAuthority:
    """What a server shows and what its clients need."""

    tls: TlsFiles
    ca_file: Path


def make_certificate(directory: Path, *hosts: str) -> OwnAuthority:
    """Make an authority and a certificate of it; the authority's own key is forgotten at once."""
    authority = trustme.CA(organization_name="servicebus-local")
    certificate = authority.issue_cert(*hosts)
    directory.mkdir(parents=True, exist_ok=True)
    made = OwnAuthority(
        TlsFiles(certificate=directory / "certificate.pem", key=directory / "key.pem"), directory / "ca.pem"
    )
    write_private(made.tls.key, certificate.private_key_pem.bytes())
    made.tls.certificate.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    made.ca_file.write_bytes(authority.cert_pem.bytes())
    return made


def write_private(path: Path, content: bytes) -> None:
    """Write or replace a file that only its owner can read, complete or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    beside.replace(path)
