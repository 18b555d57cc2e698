"""XML as the administration reads and writes it: foreign documents under limits, own ones as text."""

from __future__ import annotations

import re
from html import escape
from xml.etree.ElementTree import Element, ParseError  # the types; defusedxml parses

from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]
from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

MAX_BYTES = 256 * 1024
"""The largest document that is read; a description or rule of the largest sizes is well below."""

_MAX_DEPTH = 32

# What XML 1.0 has no way to write, not even escaped.
_UNWRITABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class XmlError(ValueError):
    """A document is no XML, or none that is wanted here; the text says so in a sentence."""


def parse(document: bytes) -> Element:
    """Read a document that came from outside: without entities, without a document type, of bounded size and depth."""
    if len(document) > MAX_BYTES:
        raise XmlError(f"The body has {len(document)} bytes; at most {MAX_BYTES} are read.")
    try:
        root: Element = fromstring(document, forbid_dtd=True)
    except ParseError as error:
        raise XmlError(f"The body is not well-formed XML: {error}.") from None
    except DefusedXmlException:
        raise XmlError("The body has a document type or entities, which are not allowed here.") from None
    except (LookupError, ValueError):
        # An unknown encoding, or bytes that are invalid in it.
        raise XmlError("The body's encoding can't be read.") from None
    level = [root]
    for _ in range(_MAX_DEPTH):
        level = [child for parent in level for child in parent]
        if not level:
            return root
    raise XmlError(f"The body's elements are nested more than {_MAX_DEPTH} deep.")


def local_name(element: Element) -> str:
    """The name of an element without its namespace: clients differ in the prefixes and defaults that they write."""
    return element.tag.rpartition("}")[2]


def child(parent: Element, name: str) -> Element | None:
    """The first child of a name, in any namespace."""
    return next((found for found in parent if local_name(found) == name), None)


def child_text(parent: Element, name: str) -> str | None:
    """The text of the first child of a name; None if it is missing or nil."""
    found = child(parent, name)
    if found is None or found.get(f"{{{INSTANCE}}}nil", "").strip() in ("true", "1"):
        return None
    return found.text or ""


def schema_type(element: Element) -> str:
    """The name in an element's ``xsi:type``, without its prefix; empty when it has none."""
    return element.get(f"{{{INSTANCE}}}type", "").rpartition(":")[2]


def text(value: object) -> str:
    """Write a value as the text of an element or attribute; what XML can't hold becomes U+FFFD."""
    # A carriage return as it is would be read as a line feed.
    return escape(_UNWRITABLE.sub("\ufffd", str(value))).replace("\r", "&#13;")


def tag(name: str, value: object) -> str:
    """Write an element that holds a value."""
    return f"<{name}>{text(value)}</{name}>"
