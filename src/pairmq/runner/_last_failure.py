"""How a broker failed last, as it is remembered for the sends that end for lack of it."""

from __future__ import annotations

from collections.abc import Iterable

from pairmq.model import TransportError


def remembered(failure: TransportError) -> TransportError:
    """The same failure without its trace, which would hold the messages of the attempt for as long as it is kept.

    Args:
        failure: as a transport raised it.
    """
    return TransportError(str(failure), failure.kind, failure.reason, maybe_applied=failure.maybe_applied)


def besides(failure: TransportError | None, causes: Iterable[BaseException]) -> TransportError | None:
    """What a remembered failure adds to a send's own ones; None when one of them says the same.

    Args:
        failure: None when there is none.
        causes: of one send.
    """
    if failure is None:
        return None
    said = repr(failure)
    return None if any(repr(cause) == said for cause in causes) else failure
