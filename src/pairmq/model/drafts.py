"""Records in the making.

A frozen dataclass with slots sets each of its fields by a call of a function. Where many thousands of records a second
are made, that is most of what one costs: a draft has the same slots and can be written to, and becomes the record by a
change of its class.
"""

from __future__ import annotations

from typing import Any


def draft_of(record: Any) -> Any:
    """Make the class of drafts for a frozen dataclass with slots and without bases, with none of its checks.

    Set **all** of an instance's fields, then its ``__class__`` to the record's class.
    """
    return type(f"{record.__name__}Draft", (), {"__slots__": record.__slots__})
