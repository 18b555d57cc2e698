"""``pairmq send``: every line of the input becomes a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from typer import Option

from pairmq.cli._common import SENDING, EntityName, Kind, PairArguments, entity_of, examples, pair_of, with_pair
from pairmq.cli._lines import LineSource
from pairmq.cli._send_job import Outputs, SendJob, Template
from pairmq.cli._signals import run_async
from pairmq.cli._values import BadUsage, Duration, positive
from pairmq.model import MAX_PRIORITY, EntityKind, Message

EPILOG = examples(
    "pairmq send --entity orders --input orders.txt --failed left.txt",
    "tail -F app.log | pairmq send --entity log --json > receipts.jsonl",
    "tail -n +1502 in.txt | pairmq send --entity orders --id-prefix run7 --first-line 1502",
    "find . -print0 | pairmq send --entity files --null --id-prefix run7",
)


@with_pair(SENDING)
def send(
    pair: PairArguments,
    entity: EntityName,
    kind: Kind = EntityKind.QUEUE,
    input: Annotated[str, Option("--input", "-i", metavar="FILE", help="Messages, one per line; - is stdin.")] = "-",
    null: Annotated[bool, Option("--null", "-0", help="A NUL ends a message, not a line end.")] = False,
    create: Annotated[bool, Option("--create", help="Create the entity on the primary if it is missing.")] = False,
    json: Annotated[bool, Option("--json", help="Write one receipt or error per line on stdout, as JSON.")] = False,
    receipts: Annotated[
        str | None, Option("--receipts", metavar="FILE", help="Write the same lines to a file.")
    ] = None,
    failed: Annotated[
        str | None, Option("--failed", metavar="FILE", help="Write the lines that were not accepted to a file.")
    ] = None,
    id_prefix: Annotated[
        str | None,
        Option(
            "--id-prefix",
            metavar="TEXT",
            help="Message ids TEXT-1, TEXT-2 … by line, the same in every run; random when omitted.",
        ),
    ] = None,
    first_line: Annotated[
        int,
        Option(
            "--first-line",
            metavar="N",
            min=1,
            help="Number of the input's first line, in ids, receipts and messages; no line is skipped. Default 1.",
        ),
    ] = 1,
    session_id: Annotated[str | None, Option("--session-id", metavar="TEXT", help="Session of all messages.")] = None,
    content_type: Annotated[
        str | None, Option("--content-type", metavar="TYPE", help="Media type of all bodies.")
    ] = None,
    content_encoding: Annotated[
        str | None, Option("--content-encoding", metavar="TEXT", help="Encoding of all bodies, gzip for one.")
    ] = None,
    priority: Annotated[
        int | None, Option("--priority", metavar="N", min=0, max=MAX_PRIORITY, help="Priority of all messages.")
    ] = None,
    ttl: Annotated[float | None, Duration("--ttl", "Time-to-live of all messages.")] = None,
    max_rate: Annotated[
        float | None, Option("--max-rate", parser=positive, metavar="R", help="Send at most R messages a second.")
    ] = None,
    window: Annotated[int, Option("--window", metavar="N", min=1, max=100_000, help="Messages in flight.")] = 1000,
) -> int:
    """Send each line of a file or of stdin as a message, through failover and back.

    An empty line is an empty message. Progress and a summary go to stderr.
    Exit status: 0 when all were accepted, 1 when not, 130 or 143 when a signal stopped it.
    """
    target = entity_of(entity, kind)
    shared: dict[str, Any] = {
        "session_id": session_id,
        "content_type": content_type,
        "content_encoding": content_encoding,
        "priority": priority,
        "time_to_live": ttl,
    }
    template = _template(id_prefix, shared)
    settings = pair.settings()
    opened = pair_of(settings)
    lines = LineSource(input, b"\0" if null else b"\n")
    with Outputs(lines, json=json, receipts=receipts, failed=failed, separator=b"\0" if null else b"\n") as outputs:
        job = SendJob(
            opened,
            target,
            lines,
            template,
            outputs,
            create=create,
            window=window,
            first_line=first_line,
            max_rate=max_rate,
        )
        return run_async(job.run, graceful=True)


def _template(id_prefix: str | None, shared: Mapping[str, Any]) -> Template:
    """What all messages share, checked before the first line is read."""
    if id_prefix is not None and not 1 <= len(id_prefix) <= 100:
        raise BadUsage(f"--id-prefix has {len(id_prefix)} characters: 1 to 100 are allowed")
    try:
        sample = Message(message_id=id_prefix, **shared)
    except (ValueError, TypeError) as error:
        raise BadUsage(str(error)) from None
    return Template(id_prefix, sample)
