"""What the processes of a pair keep on the secondary, to find out where they disagree (SPEC 13).

The record is a set of *configurations*, one message each, in a small queue beside the backlog queues. Nothing in it is
ever changed: a process that misses its own configuration adds it, and who reads takes all of them together, so that
processes which write at the same moment lose nothing of each other's. What is read is data that others may write to:
it is parsed strictly, and never names a queue that the primary's name is not part of.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple, NoReturn

from pairmq.core.options import OPTION_RANGES, RECORD_QUEUE, PairOptions, backlog_queue_name, lane_name, literal
from pairmq.model import Entity, Message

FORMAT: Final = 1
MAX_ENTRIES: Final = 500
"""Messages of a record that are read."""

MOST_LANES: Final = 200
"""Lanes of patterns that a record names: the rest of its messages is for configurations."""

MOST_FORMATS: Final = 1000
"""That there may ever be: a forged number is shown to people."""

_MAX_BYTES = 16_384
_REMEMBERED = 32  # messages that are not read again
_CONTENT_TYPE = "application/vnd.pairmq-record+json"
_CONFIGURATION = "configuration"
_LANE = "lane"
_LONGEST = 300  # characters of a text in it
_SHOWN = 80
_MOST_OTHERS = OPTION_RANGES["backlog_queue_count"][1]  # queues that a record can add: others may write to it
_USUAL = f"/x-servicebus-transfer/{RECORD_QUEUE}"


class RecordError(ValueError):
    """A message of the record can't be read; the text says why, without its content."""


class NewerError(RecordError):
    """A message that a later release may have written."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What processes of one pair must have in common."""

    name: str  # the primary's name, of which the names of the backlog queues are made
    # The primary's identity, with the machine where its address is another broker on every machine.
    identity: tuple[str, ...]
    template: str  # ``backlog_name_template``
    queues: int  # ``backlog_queue_count``
    ordering: str  # ``ordering``
    continuity: tuple[str, ...] = ()  # ``continuity``

    @classmethod
    def of(cls, name: str, identity: Sequence[str], scope: str, options: PairOptions) -> Configuration:
        """The configuration of this process."""
        whole = tuple(plain(part) for part in (*identity, *((scope,) if scope else ())))
        template, queues = options.backlog_name_template, options.backlog_queue_count
        return cls(name, whole, template, queues, options.ordering, options.continuity)

    @property
    def places(self) -> tuple[Entity, ...]:
        """The queues of the record, 1 or 2: processes that share this primary's name, or its backlog queues, share one.

        None where the primary's name is so long that no queue can have that name.
        """
        by_name = f"{self.name}/{RECORD_QUEUE}"
        by_queues = backlog_queue_name(self.template, self.name, 0, index=RECORD_QUEUE)
        if by_queues.endswith(_USUAL):  # so that the usual template needs one queue only
            by_queues = f"{by_queues.removesuffix(_USUAL)}/{RECORD_QUEUE}"
        try:
            return tuple(Entity(path) for path in dict.fromkeys((by_name, by_queues)))
        except ValueError:
            return ()

    def queue_names(self) -> tuple[str, ...]:
        return tuple(backlog_queue_name(self.template, self.name, index) for index in range(self.queues))

    def lane_names(self) -> tuple[str, ...]:
        """The names of the lanes of queues that ``continuity`` names without a pattern."""
        return tuple(lane_name(self.name, path) for path in literal(self.continuity))

    @property
    def has_patterns(self) -> bool:
        """Whether queues that it does not name may have lanes."""
        return len(literal(self.continuity)) < len(self.continuity)

    def message(self) -> Message:
        """The configuration as a message of the record; equal ones have equal ids."""
        content = {
            "pairmq_record": FORMAT,
            "kind": _CONFIGURATION,
            "primary": {"name": self.name, "identity": self.identity},
            "backlog": {"template": self.template, "queues": self.queues},
            "ordering": self.ordering,
            "continuity": self.continuity,
        }
        return _message(content)

    def lane_message(self, path: str) -> Message:
        """A lane of this primary, of a queue that a pattern of ``continuity`` names, as a message of the record."""
        primary = {"name": self.name, "identity": self.identity}
        return _message({"pairmq_record": FORMAT, "kind": _LANE, "primary": primary, "path": path})


def _message(content: dict[str, object]) -> Message:
    body = json.dumps(content, sort_keys=True, separators=(",", ":")).encode("ascii")
    return Message(body, f"pairmq-{hashlib.sha256(body).hexdigest()[:32]}", content_type=_CONTENT_TYPE)


class _Lane(NamedTuple):
    """A lane that some process has used."""

    name: str
    identity: tuple[str, ...]
    path: str


@dataclass(frozen=True, slots=True)
class Record:
    """What was read."""

    configurations: tuple[Configuration, ...] = ()  # each once
    problems: tuple[str, ...] = ()  # why messages could not be read, each sentence once
    copies: int = 0  # messages that say what another one says
    lanes: tuple[_Lane, ...] = ()  # lanes of patterns, each once
    full: bool = False  # it has more messages than are read: nothing is added

    @classmethod
    def read(cls, bodies: Iterable[bytes]) -> Record:
        """Read the messages of a record; what can't be read is a problem and no error."""
        found: dict[Configuration, None] = {}
        lanes: dict[_Lane, None] = {}
        problems: dict[str, None] = {}
        copies = 0
        for body in bodies:
            try:
                entry = _entry(body)
            except RecordError as error:
                problems[str(error)] = None
                continue
            if isinstance(entry, Configuration):
                copies += entry in found
                found[entry] = None
            elif entry is not None:
                copies += entry in lanes
                lanes[entry] = None
        return cls(tuple(found), tuple(problems), copies, tuple(lanes))

    def lane_paths(self, own: Configuration) -> tuple[str, ...]:
        """The queues of this primary whose lanes processes have used by a pattern."""
        return tuple(lane.path for lane in self.lanes if (lane.name, lane.identity) == (own.name, own.identity))

    def other_lanes(self, own: Configuration) -> tuple[str, ...]:
        """Names of lanes of this primary that processes use and this one's options do not name."""
        of_others = (
            name
            for each in self.configurations
            if each.identity == own.identity and each.name == own.name
            for name in each.lane_names()
        )
        mine = set(own.lane_names())
        of_patterns = (lane_name(own.name, path) for path in self.lane_paths(own))
        return _distinct(name for name in chain(of_others, of_patterns) if name not in mine)

    def conflict(self, own: Configuration) -> Configuration | None:
        """The configuration of another primary that has this one's name or backlog queues; None for none."""
        return next((each for each in self.configurations if each.identity != own.identity), None)

    def most_queues(self, own: Configuration) -> int:
        """The largest number of backlog queues that any process of the pair has, of this process's template."""
        return max(
            (each.queues for each in (own, *self.configurations) if each.template == own.template), default=own.queues
        )

    def other_queues(self, own: Configuration) -> tuple[str, ...]:
        """Names of backlog queues of this primary that other processes use and this one does not.

        Of a template that the primary's name is not part of, only this process's own: the record could name any queue
        of the secondary otherwise.
        """
        mine = set(own.queue_names())
        return _distinct(
            name
            for each in self.configurations
            if each.identity == own.identity
            and each.name == own.name
            and (each.template == own.template or "{primary}" in each.template)
            for name in each.queue_names()
            if name not in mine
        )

    def undrained(self, own: Configuration) -> tuple[str, ...]:
        """Names of queues that other processes of this primary divert to, and that this one must not read."""
        return _distinct(
            name
            for each in self.configurations
            if each.identity == own.identity and each.template != own.template and "{primary}" not in each.template
            for name in each.queue_names()
        )

    def differences(self, own: Configuration) -> tuple[str, ...]:
        """Where other processes of the pair have other options than this one, a sentence each."""
        found = []
        counts = sorted({each.queues for each in self.configurations if each.template == own.template} - {own.queues})
        if counts:
            others = " and ".join(map(str, counts))
            found.append(
                f"backlog_queue_count is {own.queues} here and {others} in another process: the syphon drains all of "
                "them; use the same number in all processes"
            )
        for template in dict.fromkeys(each.template for each in self.configurations if each.template != own.template):
            drained = "is still drained by the syphon" if "{primary}" in template else "is not drained from here"
            found.append(
                f"backlog_name_template is {_shown(own.template)} here and {_shown(template)} in another process: what "
                f"is diverted there {drained}; use the same template in all processes"
            )
        for ordering in dict.fromkeys(each.ordering for each in self.configurations if each.ordering != own.ordering):
            found.append(
                f"ordering is {own.ordering!r} here and {ordering!r} in another process: no order is kept between what "
                "they send; use the same ordering in all processes"
            )
        for other in dict.fromkeys(each.continuity for each in self.configurations):
            if other != own.continuity:
                found.append(
                    f"continuity is {_shown(', '.join(own.continuity))} here and {_shown(', '.join(other))} in another "
                    "process: what one diverts to a lane, consumers of the other get only when the primary is back; "
                    "use the same continuity in all processes"
                )
        return tuple(found)


def conflict_text(own: Configuration, other: Configuration) -> str:
    """Say that another primary has this one's name or backlog queues, and what to do."""
    if own.name == other.name:
        what, change = f"name {own.name!r}", "give one of them another name in its URL (?name=…)"
    else:
        what, change = f"template {_shown(own.template)}", "put {primary} into backlog_name_template"
    return (
        f"the secondary keeps backlog queues of the {what} for another primary, "
        f"{_shown(' '.join(other.identity))}, and this one is {_shown(' '.join(own.identity))}: {change}. "
        "Where both are the same broker at two addresses, give the URLs of all "
        "processes one ?identity=…, or one address; then drain the backlog and run 'pairmq backlog adopt'"
    )


def plain(part: str) -> str:
    """A part of an identity as every process writes it, and every reader takes it."""
    if part and part.isprintable() and len(part) <= _LONGEST:
        return part
    return f"{ascii(part)[:_SHOWN]}#{hashlib.sha256(part.encode(errors='surrogatepass')).hexdigest()}"


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    """The first names, each once; no more of them are made: a forged record names half a million."""
    found: dict[str, None] = {}
    for name in names:
        found[name] = None
        if len(found) == _MOST_OTHERS:
            break
    return tuple(found)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


@lru_cache(_REMEMBERED)  # each process reads the same few messages once a minute
def _entry(body: bytes) -> Configuration | _Lane | None:
    """Read one message; None for what a later release of this format may add. Raises `RecordError`."""
    content = content_of(body)
    if content.get("kind") not in (_CONFIGURATION, _LANE):
        return None
    primary = of_type(dict, content.get("primary"))
    identity = tuple(map(text_of, of_type(list, primary.get("identity"))))
    if content.get("kind") == _LANE:
        lane = _Lane(text_of(primary.get("name")), identity, text_of(content.get("path")))
        try:
            Entity(lane_name(lane.name, lane.path))
        except ValueError:
            raise foreign() from None
        return lane
    backlog = of_type(dict, content.get("backlog"))
    queues = backlog.get("queues")
    least, most = OPTION_RANGES["backlog_queue_count"]
    if type(queues) is not int or not least <= queues <= most or not 1 <= len(identity) <= 16:
        raise foreign()
    found = Configuration(
        text_of(primary.get("name")),
        identity,
        text_of(backlog.get("template")),
        queues,
        text_of(content.get("ordering")),
        tuple(map(text_of, of_type(list, content.get("continuity", [])))),
    )
    try:
        # As the options of a process are checked: names of queues will be made of them.
        options = PairOptions(
            backlog_name_template=found.template,
            ordering=found.ordering,  # type: ignore[arg-type]
            continuity=found.continuity,
        )
        for name in (found.queue_names()[-1], *found.lane_names()):
            Entity(name)
        if options.continuity != found.continuity:
            raise foreign()
    except ValueError:
        raise foreign() from None
    return found


def content_of(body: bytes, newest: int = FORMAT) -> dict[str, Any]:
    """Read what all messages of the record have in common, and return the content; `RecordError` for what PairMQ does
    not write, or a release wrote whose format is newer than that."""
    if len(body) > _MAX_BYTES:
        raise RecordError(f"a message of the record has more than {_MAX_BYTES} bytes")
    try:
        content = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise RecordError("a message of the record is not JSON: PairMQ did not write it") from None
    version = of_type(dict, content).get("pairmq_record")
    if type(version) is not int or not 1 <= version <= MOST_FORMATS:
        raise foreign()
    if version > newest:
        raise NewerError(
            f"a message of the record has format {version}, and this release reads {FORMAT}: a newer PairMQ wrote it; "
            "upgrade this process"
        )
    return content  # type: ignore[no-any-return]  # of_type has checked it


def of_type(kind: type, value: Any) -> Any:
    """Return a value of that very type, or raise `RecordError`."""
    if type(value) is not kind:
        raise foreign()
    return value


def text_of(value: Any) -> str:
    """Return a short printable text, or raise `RecordError`."""
    if type(value) is not str or not 0 < len(value) <= _LONGEST or not value.isprintable():
        raise foreign()
    return value


def foreign() -> RecordError:
    """The error of a message that PairMQ did not write."""
    return RecordError("a message of the record is malformed: PairMQ did not write it")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
