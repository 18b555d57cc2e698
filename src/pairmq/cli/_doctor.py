"""``pairmq doctor``: finds what would go wrong, before it does."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import stat
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pairmq.cli._backlog import MISSING, see_outbox
from pairmq.cli._common import (
    BACKLOG,
    Json,
    PairArguments,
    at_broker,
    backlog_queues,
    connection_advice,
    entity_of,
    examples,
    outbox_of,
    with_pair,
    within,
)
from pairmq.cli._output import FAIL, OK, WARN, put_json, say
from pairmq.cli._signals import Stop, run_async
from pairmq.cli._status import BrokerLook, see_broker
from pairmq.cli._values import grouped, plural, printable, short_duration, without_secrets
from pairmq.core import Diversion, PairOptions, backlog_queue_name, divert
from pairmq.core.rotation import unfit
from pairmq.model import (
    ConfigurationError,
    Entity,
    EntityKind,
    FailureKind,
    FailureReason,
    Message,
    Source,
    TransportError,
)
from pairmq.pair import Settings, SwitchAction, check_available, misspelt_variables, transports_at
from pairmq.pipeline import PipelineUnavailable
from pairmq.pipeline.session import check_java, check_packages
from pairmq.plugins import registry
from pairmq.runner import Agreement, SwitchWriter, backlog_properties, find_agreement
from pairmq.transport import ConfirmRisk, Transport, counts_of

EPILOG = examples("pairmq doctor --config pair.toml", "pairmq doctor --json")


@with_pair(BACKLOG)
def doctor(pair: PairArguments, json: Json = False) -> int:
    """Check installation, settings, both brokers and the backlog queues, and say what to do about each problem.

    What the secondary lets this user do is tried out, with a queue that is deleted again; where it may not delete it, a
    warning names it. Where it may not create one, an existing backlog queue is used, from which a message may be
    received and released.

    Exit status: 0 when nothing fails (warnings are allowed), 1 when something does.
    """

    async def run(stop: Stop) -> int:
        findings: list[Finding] = []
        async for finding in all_checks(pair):
            findings.append(finding)
            if not json:
                _show(finding)
        failed = [finding for finding in findings if finding.grade is Grade.FAIL]
        if json:
            put_json({"ok": not failed, "findings": [finding.as_json() for finding in findings]}, indent=2)
        elif failed:
            say(f"{len(failed)} of {len(findings)} checks failed", style=FAIL)
        return 1 if failed else 0

    return run_async(run)


def _show(finding: Finding) -> None:
    say(f"{finding.grade.value:<5} {finding.subject}: {printable(finding.text)}", style=_STYLES[finding.grade])
    if finding.advice:
        say(f"      → {printable(finding.advice)}")


_SLOW = 0.5  # s: a broker that answers slower than this makes every send slow
_UNMOVED = 60.0  # s: a syphon that works moves what is in the outbox in milliseconds
_ROOM = 0.95  # share of the primary's largest message that the backlog should take
_TRIAL_LASTS = 600.0  # s until the broker itself deletes a queue of a doctor that was killed, where it can
_TAKES, _TAKES_HINT = "secondary takes messages", "see what keeps it from that: sends can't be diverted meanwhile"
_TRIALS = range(1000, 10_000)  # numbers of such queues, which no pair has
_WANTED = ("probes", "dead_letter", "lock_renewal", "time_to_live", "scheduling", "durable")


_DISCLAIMED = {"time_to_live": "a time-to-live", "scheduling": "a schedule"}


class Grade(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


_STYLES = {Grade.OK: OK, Grade.WARN: WARN, Grade.FAIL: FAIL}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and what to do about it."""

    grade: Grade
    subject: str
    text: str
    advice: str = ""

    def as_json(self) -> dict[str, Any]:
        return {"grade": self.grade.value.lower(), "subject": self.subject, "text": self.text, "advice": self.advice}


_ok, _warn, _fail = partial(Finding, Grade.OK), partial(Finding, Grade.WARN), partial(Finding, Grade.FAIL)


async def all_checks(pair: PairArguments) -> AsyncIterator[Finding]:
    """Run all checks; those that depend on a failed one are omitted."""
    yield _ok("python", f"{platform.python_version()} on {platform.system()}")
    for finding in _plugins():
        yield finding
    # Java takes a moment to report its version.
    yield await asyncio.to_thread(_pipeline)
    for name, meant in misspelt_variables(os.environ):
        yield _warn("environment", f"unknown variable {name}", f"did you mean {meant}?")
    for finding in _file(pair.config or os.environ.get("PAIRMQ_CONFIG")):
        yield finding
    try:
        settings = pair.settings()
        transports = transports_at(settings.primary, settings.secondary)
    except ConfigurationError as error:
        yield _fail("settings", without_secrets(str(error)), "fix it, and run this again")
        return
    for finding in _settings(settings, *transports):
        yield finding
    primary, secondary = transports
    limit = settings.options.attempt_timeout
    async with primary, secondary:
        reachable = {}
        for side, transport in (("primary", primary), ("secondary", secondary)):
            seen = await see_broker(transport, limit)
            reachable[side] = seen.error is None
            yield _broker(side, transport, seen)
            if reachable[side]:
                yield _capabilities(side, transport)
                for risk in await _risks(transport, None, limit):
                    yield _warn(f"{side} keeps", risk.text, risk.advice)
        yield _carried(primary)
        if all(reachable.values()):
            yield _size(primary, secondary)
            async for finding in _one_broker(primary, secondary, settings.options, limit):
                yield finding
        if reachable["secondary"]:
            agreement = await find_agreement(primary.endpoint, secondary, settings.options, limit, everywhere=True)
            for finding in _agreement(agreement):
                yield finding
            async for finding in _held(primary, secondary, limit):
                yield finding
            async for finding in _queues(primary, secondary, settings.options, limit, agreement):
                yield finding
            for finding in await _rights(primary, secondary, settings.options, limit):
                yield finding
            async for finding in _outbox(primary, secondary, limit, primary_answers=reachable["primary"]):
                yield finding


def _plugins() -> Iterator[Finding]:
    for plugin in registry.check():
        name = f"plugin {plugin.name}"
        if plugin.error:
            yield _fail(name, plugin.error, f"reinstall or remove {plugin.distribution or 'it'}")
        else:
            schemes = [f"{scheme}://" for record in plugin.transports for scheme in record.schemes]
            yield _ok(name, f"{plugin.distribution or 'registered manually'}: {', '.join(schemes) or 'observers'}")
    for conflict in registry.conflicts():
        yield _fail("plugins", conflict)
    if not registry.plugins:
        yield _fail("plugins", "none installed", "pip install pairmq-redis, or another one")


def _pipeline() -> Finding:
    """Whether Spark can make tables of a journal here; nothing else needs Spark."""
    if importlib.util.find_spec("pyspark") is None:
        return _ok("pipeline", "PySpark is not installed: tables of a journal can't be built here")
    try:
        check_packages()
        java = check_java()
    except PipelineUnavailable as error:
        advice = "`pairmq pipeline` can't run until then; nothing else needs it"
        return _warn("pipeline", str(error), advice)
    return _ok("pipeline", f"PySpark {importlib.metadata.version('pyspark')} on Java {java}")


def _file(path: str | None) -> Iterator[Finding]:
    """Whether others can read the passwords in the settings file; a file that can't be read is an error of its own."""
    try:
        if not path or not stat.S_IMODE(os.stat(path).st_mode) & stat.S_IROTH:
            return
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError):
        return
    if without_secrets(text) != text:
        shown = without_secrets(path)
        yield _warn(
            "settings file",
            f"every user of this machine can read {shown}, and the passwords in it",
            f"chmod o= {shown}, and let the service's group read it",
        )


def _settings(settings: Settings, primary: Transport, secondary: Transport) -> Iterator[Finding]:
    yield _ok("settings", f"{primary.endpoint} backed by {secondary.endpoint}{_changed(settings.options)}")
    ends = primary.endpoint, secondary.endpoint
    hosts = [{address[1:2] for address in end.addresses} for end in ends]
    if ends[0].is_same_broker(ends[1]):
        yield _fail("settings", "primary and secondary are the same broker", "pair two that can fail independently")
    elif hosts[0] & hosts[1]:
        yield _warn(
            "settings",
            "primary and secondary are on the same host",
            "both fail with the host: use another one in production",
        )
    options = settings.options
    try:
        check_available(options, secondary)
    except ConfigurationError as error:
        yield _fail("settings", str(error), "no program can open the pair: fix it")
    if options.attempt_timeout >= options.send_timeout:
        yield _warn(
            "settings",
            f"attempt_timeout ({options.attempt_timeout:g} s) reaches send_timeout ({options.send_timeout:g} s)",
            "an unresponsive primary would leave no time for the backlog: lower attempt_timeout",
        )
    if options.while_failing == "wait" and options.failover_interval >= options.send_timeout:
        yield _warn(
            "settings",
            f"failover_interval ({options.failover_interval:g} s) reaches send_timeout ({options.send_timeout:g} s)",
            "sends would end before failover is engaged: raise send_timeout",
        )


def _changed(options: PairOptions) -> str:
    usual = PairOptions()
    changed = [
        f"{entry.name}={getattr(options, entry.name)!r}"
        for entry in fields(options)
        if getattr(options, entry.name) != getattr(usual, entry.name)
    ]
    return f"; {', '.join(changed)}" if changed else "; all options at their defaults"


def _broker(side: str, transport: Transport, seen: BrokerLook) -> Finding:
    if seen.error is not None:
        advice = "fix that at the broker, or correct its URL"
        if seen.reason in (FailureReason.CONNECTION, FailureReason.TIMEOUT):
            advice = connection_advice(seen.error)
        elif seen.reason is FailureReason.UNAUTHORIZED:
            advice = "correct user and password in its URL, or what this user may do there"
        return _fail(side, at_broker(transport, Exception(seen.error)), advice)
    text = f"{transport.endpoint} answers {seen.answer}"
    if seen.seconds > _SLOW:
        return _warn(side, text, "every send takes at least that long: use a nearer broker")
    return _ok(side, text)


def _capabilities(side: str, transport: Transport) -> Finding:
    capabilities = transport.capabilities
    missing = [name.replace("_", "-") for name in _WANTED if not getattr(capabilities, name)]
    subject = f"{side} capabilities"
    if missing:
        consequence = (
            "its messages are lost when its process ends" if "durable" in missing else "see the transport's docs"
        )
        return _warn(subject, f"lacks: {', '.join(missing)}", consequence)
    return _ok(subject, "all that a pair uses")


def _carried(primary: Transport) -> Finding:
    """Which messages the pair never carries, as the primary could not hold them (SPEC 3.8)."""
    refused = [text for name, text in _DISCLAIMED.items() if not getattr(primary.capabilities, name)]
    if refused:
        text = f"no messages with {' or '.join(refused)}: the primary does not keep it"
        return _warn("pair carries", text, "they are refused in every state: send them without it")
    return _ok("pair carries", "messages with a time-to-live and with a schedule")


def _size(primary: Transport, secondary: Transport) -> Finding:
    """Whether the largest message of the primary fits the secondary in its backlog form (SPEC 3.8)."""
    most, room = primary.capabilities.max_message_bytes, secondary.capabilities.max_message_bytes
    if room is None:
        return _ok("message size", "its transport does not know the secondary's limit")
    sample = Message(message_id="0" * 32)
    envelope = divert(sample, Diversion(Entity("e" * 100), datetime.now(UTC), "0" * 32, 1, True))
    needed = secondary.measure(envelope) - primary.measure(sample)
    largest = room - needed
    if most is None or largest < _ROOM * most:
        own = "of any size" if most is None else f"up to {grouped(most)} bytes"
        text = f"the primary takes messages {own}, the backlog up to about {grouped(largest)} bytes"
        return _warn("message size", text, "larger ones are refused during an outage: keep them smaller")
    text = f"up to about {grouped(min(most, largest))} bytes, unless the brokers are configured for less"
    return _ok("message size", text)


async def _risks(transport: Transport, queue: Entity | None, limit: float) -> Sequence[ConfirmRisk]:
    """What the broker may lose after confirming it; an unavailable one is reported elsewhere."""
    if not transport.capabilities.durable:
        return ()  # said of the transport already
    try:
        return await within(limit, transport.admin.confirm_risks(queue))
    except TransportError as error:
        text = f"{at_broker(transport, error)}: the durability of its confirms is unknown"
        return (ConfirmRisk(text, "check its settings yourself"),)


async def _one_broker(
    primary: Transport, secondary: Transport, options: PairOptions, limit: float
) -> AsyncIterator[Finding]:
    """Whether two addresses may lead to one broker, which shows once a program has made the backlog queues; and whether
    the brokers have exchanged their roles before what was diverted was moved."""
    queue = backlog_queues(primary, options)[0]
    with contextlib.suppress(TransportError):  # what can't be asked is reported elsewhere
        if await within(limit, primary.admin.exists(queue)) and await within(limit, secondary.admin.exists(queue)):
            exchanged = await find_agreement(secondary.endpoint, primary, options, limit)
            if exchanged.conflict is not None or not exchanged.record.configurations:
                yield _warn(
                    "settings",
                    f"the primary holds backlog queue {queue}, too",
                    "both addresses may lead to one broker: pair two that can fail independently; if they do not, "
                    "delete the queues there once they are empty and no other pair uses them",
                )
    diverted = await counts_of(primary, backlog_queues(secondary, options), limit)
    left = sum(depth.counts.pending for depth in diverted if depth.counts is not None)
    if left:
        yield _warn(
            "stranded messages",
            f"the primary holds {plural(left, 'message')} that {'was' if left == 1 else 'were'} diverted to it while "
            "the two brokers had each other's role: no syphon of this pair moves them",
            "`pairmq syphon --until-empty` with the two URLs exchanged does",
        )


def _agreement(agreement: Agreement) -> Iterator[Finding]:
    """Whether all processes of the pair have the same settings (SPEC 13)."""
    subject = "processes of the pair"
    if agreement.conflict is not None:
        yield _fail(subject, agreement.conflict, "no program can open the pair")
        return
    for stray in agreement.stranded:
        yield (_fail if stray.certain else _warn)("stranded messages", str(stray))
    for text in agreement.differences:
        yield _warn(subject, text)
    if agreement.unread is not None:
        yield _warn(subject, agreement.unread)
    if not agreement.differences and agreement.unread is None:
        known = agreement.own in agreement.record.configurations
        text = "those seen so far have these settings" if known else "no process of this release has opened it so far"
        yield _ok(subject, text)


async def _queues(
    primary: Transport, secondary: Transport, options: PairOptions, limit: float, agreement: Agreement
) -> AsyncIterator[Finding]:
    """Whether the backlog queues are what SPEC 5.2 and 8.2 ask for."""
    queues, wanted = backlog_queues(primary, options), backlog_properties(options)
    missing, sound = [], 0
    risky: dict[ConfirmRisk, list[Entity]] = {}
    unusable: dict[str, list[Entity]] = {}
    for queue in queues:
        try:
            actual = await within(limit, secondary.admin.properties(queue))
        except TransportError as error:
            if error.reason is FailureReason.NOT_FOUND:
                missing.append(queue)
                continue
            yield _fail(f"backlog queue {queue}", at_broker(secondary, error), "look at the secondary")
            return
        risks = await _risks(secondary, queue, limit)
        for risk in risks:
            risky.setdefault(risk, []).append(queue)
        why = unfit(actual, ordered=wanted.single_consumer)
        differences = wanted.differences(actual)
        if why is not None:
            unusable.setdefault(why, []).append(queue)
        elif differences:
            advice = "an existing queue is left unchanged: change it at the broker if needed"
            if actual.unread:
                advice = "look at them at the broker"
            risky.setdefault(ConfirmRisk("; ".join(differences), advice), []).append(queue)
        elif not risks:
            sound += 1
    for why, those in unusable.items():
        advice = "change its policy or settings, or drain and delete it: a program of the pair creates it again"
        yield _fail(_subject(those), f"nothing is diverted to a queue that {why}", advice)
    for risk, those in risky.items():
        yield _warn(_subject(those), risk.text, risk.advice)
    if missing:
        text = f"{plural(len(missing), 'queue')} of {len(queues)} missing, the first is {missing[0]}"
        if agreement.own in agreement.record.configurations:
            text += ", and a program with these settings has created them: they were deleted since"
            yield _fail("backlog queues", text, "restart a program of the pair: it creates them again")
        else:
            yield _warn("backlog queues", text, MISSING)
    if sound:
        yield _ok("backlog queues", f"{sound} of {len(queues)} as they should be")


def _subject(queues: Sequence[Entity]) -> str:
    return f"backlog queue {queues[0]}" if len(queues) == 1 else f"{len(queues)} backlog queues"


async def _rights(primary: Transport, secondary: Transport, options: PairOptions, limit: float) -> list[Finding]:
    """Whether this user may do what an outage takes: create backlog queues, send to them, receive and settle."""
    subject, admin = "rights at secondary", secondary.admin
    number = _TRIALS[uuid.uuid4().int % len(_TRIALS)]
    queue = entity_of(backlog_queue_name(options.backlog_name_template, primary.endpoint.name, number))
    like = f"queues named like {queue}"
    found: list[Finding] = []
    try:
        wanted = replace(backlog_properties(options), auto_delete_after=_TRIAL_LASTS)
        made = await within(limit, admin.create(queue, wanted))
    except TransportError as error:
        if error.kind is not FailureKind.REFUSED:
            return [_fail(_TAKES, at_broker(secondary, error), _TAKES_HINT)]
        made, text = False, f"this user can't create queues: {at_broker(secondary, error)}"
        try:
            queues = backlog_queues(primary, options)
            missing = [each for each in queues if not await within(limit, admin.exists(each))]
        except TransportError as another:
            return [_fail(subject, at_broker(secondary, another), "look at the secondary")]
        if missing:
            advice = f"let this user create {like}, or create all backlog queues for it"
            return [
                _fail(subject, f"sends can't be diverted to {plural(len(missing), 'missing queue')}: {text}", advice)
            ]
        advice = f"let this user create {like}, or be ready to create them again should they be deleted"
        found, queue, like = [_warn(subject, text, advice)], queues[0], f"queues named like {queues[0]}"
    try:
        failed = await _tried(secondary, queue, limit, own=made, ordered=options.ordering != "none")
    finally:
        if made:
            try:
                await within(limit, admin.delete(queue))
            except TransportError as error:
                text = f"{queue}, which this check has made, may be left: {at_broker(secondary, error)}"
                found.append(_warn(subject, text, "delete it"))
    if failed is not None:
        text, right = failed
        found.append(
            _fail(_TAKES, text, _TAKES_HINT) if right is None else _fail(subject, text, f"let this user {right} {like}")
        )
    return found or [_ok(subject, "this user may create backlog queues, send to them, and move what they hold")]


async def _tried(
    secondary: Transport, queue: Entity, limit: float, *, own: bool, ordered: bool
) -> tuple[str, str | None] | None:
    """What does not work with a queue, and the right that was refused for it; another's queue gets no message."""
    sender, receiver = secondary.sender(queue), secondary.receiver(Source(queue))
    text, right = "sends can't be diverted", "send to"
    try:
        if own:
            await within(limit, sender.send(Message(b"", message_id=uuid.uuid4().hex)))
        else:
            await within(limit, secondary.admin.probe(queue))
        text, right = "a syphon with this user can't move the backlog back", "receive and settle messages of"
        deliveries = await within(limit, receiver.receive(1, limit / 2 if own else 0.0))
        if own:
            if not deliveries:
                raise TransportError("what was sent does not arrive", FailureKind.UNAVAILABLE)
            await within(limit, receiver.complete(deliveries[0]))
        if ordered:
            text, right = "sends whose order is kept would always be diverted", "see how far messages are settled of"
            await within(limit, secondary.admin.positions(queue))
    except TransportError as error:
        return f"{text}: {at_broker(secondary, error)}", right if error.kind is FailureKind.REFUSED else None
    finally:
        await receiver.close()
        await sender.close()
    return None


async def _held(primary: Transport, secondary: Transport, limit: float) -> AsyncIterator[Finding]:
    """What operators hold: a hold that was forgotten diverts for good, and everything else looks well (SPEC 13.4)."""
    try:
        found = await SwitchWriter(primary.endpoint, secondary, limit).status()
    except (TransportError, ConfigurationError) as error:
        yield _warn("held entities", f"could not be read: {error}", "run `pairmq switch status`")
        return
    for entity, decision in found.decisions:
        if decision.action is SwitchAction.HOLD:
            age = short_duration(max(0.0, time.time() - decision.at))
            kind = " --kind topic" if entity.kind is EntityKind.TOPIC else ""
            yield _warn(
                "held entities",
                f"{entity} has been held for {age}, by {decision.host}, process {decision.pid}: its sends are diverted",
                f"`pairmq switch resume {shlex.quote(entity.path)}{kind}` ends that",
            )


async def _outbox(
    primary: Transport, secondary: Transport, limit: float, *, primary_answers: bool
) -> AsyncIterator[Finding]:
    """Whether a syphon moves what applications have stored in their transactions (SPEC 12.3)."""
    seen = await see_outbox(secondary, outbox_of(primary, secondary), limit)
    if seen is None:
        return
    if seen.error is not None:
        yield _fail("outbox", seen.error, "look at the secondary")
    elif seen.counts is None:
        yield _ok("outbox", f"no queue {seen.queue} yet: a program that opens the pair creates it")
    elif seen.oldest is None or seen.oldest <= _UNMOVED:
        yield _ok("outbox", str(seen))
    elif primary_answers:
        text = f"{seen}: no syphon moves them"
        advice = (
            "run `pairmq syphon`, or enable_syphon=True in one program; if one runs, its log names a destination that "
            "refuses or is held; with ordering='session' it waits for transactions that are open in the database"
        )
        yield _warn("outbox", text, advice)
    else:
        yield _warn("outbox", str(seen), "they are moved once the primary is reachable")
    if seen.counts is not None and seen.counts.dead_letter:
        text = f"{plural(seen.counts.dead_letter, 'message')} dead-lettered: {seen.queue}"
        advice = "`pairmq backlog peek --outbox --dead-letter` shows why, `pairmq backlog requeue --outbox` retries"
        yield _warn("outbox", text, advice)
