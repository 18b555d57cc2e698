"""What the demo shows: numbers that the run fills in, drawn live on a terminal, as plain lines elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pairmq.cli._backlog import Depths
from pairmq.cli._demo_tally import Fate, Tally, Totals
from pairmq.cli._values import grouped, plural, printable, short_duration
from pairmq.model import Entity, EntityState, events

_BARS = " ▁▂▃▄▅▆▇█"
_LABEL = 9
_FRAME = "bright_black"
_COMPACT_BELOW = 27  # rows
_EXPLAINED = "reported by a receipt, the syphon or the broker"


class DemoView:
    """The live picture of a scene; redrawn at each refresh, in the terminal's size."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        height = options.height or console.size.height
        parts = [self._header(), self._entities(), self._timeline(width)]
        if self._scene.finished:  # leaves room for the verdict
            yield Group(*parts)
            return
        rows = 1 + (3 + len(self._scene.entities)) + 6
        backlog, used = self._backlog(width, compact=height < _COMPACT_BELOW)
        parts.append(backlog)
        rows += used
        # One row stays free: a picture as high as the terminal would scroll it.
        parts.append(self._events(max(1, height - rows - 3)))
        yield Group(*parts)

    def _header(self) -> RenderableType:
        scene = self._scene
        grid = Table.grid(expand=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_column(justify="right", no_wrap=True)
        left = Text.assemble((" PairMQ ", "bold reverse"), "  ", printable(scene.primary))
        left.append("  DOWN" if scene.primary_down else "  up", "bold red" if scene.primary_down else "green")
        left.append(f"   backed by {printable(scene.secondary)}", "dim")
        grid.add_row(left, Text(f"{scene.phase}  {scene.now:5.1f} s ", "bold"))
        return grid

    def _entities(self) -> RenderableType:
        table = Table.grid(expand=True, padding=(0, 1))
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=3)
        table.add_column(no_wrap=True, min_width=21)
        for _ in range(4):
            table.add_column(justify="right", no_wrap=True, ratio=2)
        table.add_row(
            *(Text(title, "dim") for title in ("entity", "state", "→ primary", "→ backlog", "waiting", "delivered"))
        )
        for entity in self._scene.entities.values():
            style = STATE_STYLES[entity.state]
            state = Text.assemble(
                (f"● {entity.state.value.replace('-', ' ').upper():<12}", f"bold {style}"),
                (f"{max(0.0, self._scene.now - entity.since):4.0f} s", "dim"),
            )
            table.add_row(
                Text(printable(entity.name), "bold"),
                state,
                Text(grouped(entity.primary), "green"),
                Text(grouped(entity.backlog), "yellow" if entity.backlog else "dim"),
                Text(grouped(entity.in_flight), "" if entity.in_flight else "dim"),
                Text(grouped(entity.delivered)),
            )
        return _panel(table, "entities")

    def _timeline(self, width: int) -> RenderableType:
        room = max(10, width - _LABEL - 16)
        shown = self._scene.buckets[-room:]
        # The burst at the failover would flatten everything else: bars end at twice the planned pace.
        top = max(1.0, 2 * self._scene.pace * BUCKET)
        counts = self._scene.tally.counts
        rows: Sequence[tuple[str, Callable[[Bucket], int], str, int]] = (
            ("primary", lambda bucket: bucket.primary, "green", counts[Fate.PRIMARY]),
            ("backlog", lambda bucket: bucket.backlog, "yellow", counts[Fate.BACKLOG]),
            ("syphoned", lambda bucket: bucket.moved, "cyan", self._scene.moved),
        )
        table = Table.grid(expand=True)
        table.add_column(width=_LABEL, no_wrap=True)
        table.add_column(no_wrap=True, ratio=1)
        table.add_column(justify="right", no_wrap=True, width=8)
        for label, count, style, total in rows:
            bars = Text("".join(_bar(count(bucket), top) for bucket in shown), style)
            table.add_row(Text(label, style), bars, Text(grouped(total), style))
        outage = Text("".join("━" if bucket.down else "─" for bucket in shown), "bright_black")
        for position, bucket in enumerate(shown):
            if bucket.down:
                outage.stylize("bold red", position, position + 1)
        table.add_row(Text("outage", "red" if self._scene.primary_down else "dim"), outage, Text(""))
        title = f"destination of sends, one column is {BUCKET * 1000:.0f} ms"
        return _panel(table, title)

    def _backlog(self, width: int, *, compact: bool) -> tuple[RenderableType, int]:
        scene = self._scene
        depths = [] if scene.depths is None else [depth.pending or 0 for depth in scene.depths.queues]
        columns = 1 if compact else 2
        rows = -(-scene.queues // columns)
        lines: list[RenderableType] = []
        if compact or rows > 5:
            bars = Text("".join(_bar(depth, max(1, *depths)) for depth in depths), "yellow")
            lines.append(Text.assemble(("queues   ", "dim"), bars))
        else:
            lines.append(
                self._queue_bars(depths, top=max(1, scene.peak * 2 // max(1, scene.queues), *depths), width=width)
            )
        lines.append(self._drain(width))
        used = 2 + 1 + (1 if compact or rows > 5 else rows)
        return _panel(Group(*lines), f"backlog, {plural(scene.queues, 'queue')} on the secondary"), used

    def _queue_bars(self, depths: Sequence[int], *, top: int, width: int) -> RenderableType:
        grid = Table.grid(expand=True, padding=(0, 1))
        for _ in range(2):
            grid.add_column(width=2, no_wrap=True, style="dim")
            grid.add_column(ratio=1, no_wrap=True)
            grid.add_column(width=6, justify="right", no_wrap=True)
            grid.add_column(width=1)
        room = max(6, (width - 34) // 2)
        cells = []
        for index in range(self._scene.queues):
            depth = depths[index] if index < len(depths) else 0
            filled = min(room, -(-depth * room // top)) if depth else 0
            bar = Text("█" * filled, "yellow")
            bar.append("░" * (room - filled), "bright_black")
            cells.append((Text(str(index)), bar, Text(grouped(depth), "yellow" if depth else "dim"), Text("")))
        if len(cells) % 2:
            cells.append((Text(""), Text(""), Text(""), Text("")))
        for left, right in zip(cells[::2], cells[1::2], strict=True):
            grid.add_row(*left, *right)
        return grid

    def _drain(self, width: int) -> RenderableType:
        scene = self._scene
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(width=18, no_wrap=True)
        grid.add_column(ratio=1, no_wrap=True)
        grid.add_column(justify="right", no_wrap=True)
        whole = scene.moved + scene.pending
        share = scene.moved / whole if whole else 0.0
        speed = scene.drain_rate()
        if not whole:
            text = Text("nothing diverted yet", "dim")
        elif not scene.pending:
            text = Text(f"drained {grouped(scene.moved)}", "green")
        elif speed:
            text = Text(f"{share:4.0%}  {short_duration(scene.pending / speed)} left", "cyan")
        else:
            text = Text("waiting for the primary", "yellow")
        room = max(10, width - 18 - 30)
        filled = round(share * room)
        bar = Text("━" * filled, "cyan")
        # Another line, not only another colour, because of NO_COLOR.
        bar.append("─" * (room - filled), "bright_black")
        total = Text.assemble(
            ("in backlog ", "dim"), (grouped(scene.pending), "bold yellow" if scene.pending else "dim")
        )
        grid.add_row(total, bar, text)
        return grid

    def _events(self, rows: int) -> RenderableType:
        lines = []
        for happening in list(self._scene.happenings)[-rows:]:
            # Not a dim line to which the text is added: that would be dim as well.
            line = Text(no_wrap=True, overflow="ellipsis")
            line.append(f"{happening.at:5.1f} s  ", "dim")
            line.append(happening.text, happening.style)
            lines.append(line)
        lines += [Text("")] * (rows - len(lines))
        return _panel(Group(*lines), "events")


class PlainView:
    """The same as lines, for logs: one a second, and each event as it comes."""

    def __init__(self, scene: Scene, console: Console) -> None:
        self._scene = scene
        self._console = console
        self._printed = 0
        self._next = 0.0

    def update(self) -> None:
        scene = self._scene
        fresh = min(scene.happened - self._printed, len(scene.happenings))
        self._printed = scene.happened
        for happening in list(scene.happenings)[len(scene.happenings) - fresh :]:
            self._console.print(f"{happening.at:5.1f} s  {happening.text}", soft_wrap=True)
        if scene.now >= self._next:
            self._next = scene.now + 1.0
            self._console.print(f"{scene.now:5.1f} s  {self._line()}", soft_wrap=True)

    def _line(self) -> str:
        scene = self._scene
        counts = scene.tally.counts
        states = ", ".join(f"{printable(e.name)} {e.state}" for e in scene.entities.values())
        return (
            f"primary {'DOWN' if scene.primary_down else 'up'}; {states}; "
            f"sent {scene.tally.ended}/{scene.total}: primary {counts[Fate.PRIMARY]}, backlog {counts[Fate.BACKLOG]}; "
            f"in backlog {scene.pending}, delivered {scene.tally.delivered}"
            + (f", of these from lanes {scene.tally.from_lanes}" if scene.continuity else "")
        )


def verdict_table(verdict: Totals, *, stopped: bool, from_lanes: int | None = None) -> RenderableType:
    """The account; ``from_lanes`` is None without continuity."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()

    def row(label: str, value: str, style: str = "", remark: str = "") -> None:
        table.add_row(Text(label), Text(value, style), Text(remark, "dim"))

    row("sent", grouped(verdict.sent), "bold")
    row("accepted by the primary", grouped(verdict.accepted_primary), "green")
    row("accepted by the backlog", grouped(verdict.accepted_backlog), "yellow" if verdict.accepted_backlog else "")
    row("refused", grouped(verdict.refused), "red" if verdict.refused else "")
    row("unknown", grouped(verdict.unknown), "red" if verdict.unknown else "")
    seen_by = "a consumer of the primary" if from_lanes is None else "consumers of both brokers"
    row("delivered", grouped(verdict.delivered), "bold", f"distinct messages, seen by {seen_by}")
    if from_lanes is not None:
        row(
            "… by the secondary",
            grouped(from_lanes),
            "green" if from_lanes else "",
            "from the lanes, without the primary",
        )
    if verdict.left_in_backlog:
        row("still in the backlog", grouped(verdict.left_in_backlog), "yellow", "safe, not yet moved to the primary")
    if verdict.unverified:
        row("not verified", grouped(verdict.unverified), "bold yellow", "the primary can't be read now")
    row("lost", grouped(verdict.lost), "bold red" if verdict.lost else "bold green")
    row("duplicated, explained", grouped(verdict.duplicates_explained), "", _EXPLAINED)
    unexplained = verdict.duplicates_unexplained
    row("duplicated, unexplained", grouped(unexplained), "bold red" if unexplained else "bold green")
    row("longest accepted send", short_duration(verdict.longest_send))
    if verdict.ok and not stopped:
        end = Text("\n ✓ every message was accepted and delivered; nothing was lost", "bold green")
    elif verdict.unverified:
        end = Text("\n the primary can't be read: start it, then check for the rest yourself", "bold yellow")
    elif verdict.sound and not stopped:
        end = Text("\n ✗ nothing was lost, but not every message was moved to the primary in time", "bold red")
    elif verdict.sound:
        end = Text("\n stopped early; nothing was lost so far", "bold yellow")
    elif stopped and not verdict.lost and not unexplained:
        end = Text("\n stopped early; nothing was lost, and each sender knows the outcome of its sends", "bold yellow")
    else:
        end = Text("\n ✗ not every message is where it should be", "bold red")
    return Group(Text(""), table, end)


def _bar(value: int, top: float) -> str:
    if value <= 0:
        return " "
    return _BARS[max(1, min(8, round(8 * value / top)))]


def _panel(content: RenderableType, title: str) -> RenderableType:
    # The frame's colour, made dim, would be unreadable.
    return Panel(content, title=Text(title, "dim default"), title_align="left", border_style=_FRAME, padding=(0, 1))


BUCKET = 0.2  # s of one column of the timeline
_KEPT_EVENTS = 200


@dataclass(slots=True)
class EntityScene:
    name: str
    state: EntityState = EntityState.HEALTHY
    since: float = 0.0
    primary: int = 0
    backlog: int = 0
    in_flight: int = 0
    delivered: int = 0


@dataclass(slots=True)
class Bucket:
    """What happened in one column of the timeline."""

    primary: int = 0
    backlog: int = 0
    moved: int = 0
    down: bool = False


@dataclass(slots=True)
class Happening:
    at: float
    text: str
    style: str = ""


@dataclass(slots=True)
class Scene:
    """All that the view draws. Unless the outage is ``staged``, the primary counts as down while an entity fails."""

    primary: str
    secondary: str
    entities: dict[Entity, EntityScene]
    tally: Tally
    total: int
    queues: int
    pace: float
    staged: bool = True
    continuity: bool = False
    finished: bool = False
    now: float = 0.0  # s since the start
    phase: str = "starting"
    primary_down: bool = False
    buckets: list[Bucket] = field(default_factory=lambda: [Bucket()])
    depths: Depths | None = None
    peak: int = 0
    moved: int = 0
    happenings: deque[Happening] = field(default_factory=lambda: deque(maxlen=_KEPT_EVENTS))
    happened: int = 0
    _pings: dict[Entity, int] = field(default_factory=dict)

    def tick(self, now: float) -> None:
        self.now = now
        if not self.staged:
            bad = (EntityState.FAILING, EntityState.FAILED_OVER)
            self.primary_down = any(entity.state in bad for entity in self.entities.values())
        while len(self.buckets) <= int(now / BUCKET):
            self.buckets.append(Bucket(down=self.primary_down))

    def saw_depths(self, depths: Depths) -> None:
        self.depths = depths
        self.peak = max(self.peak, depths.seen)

    def primary_is(self, *, down: bool, text: str) -> None:
        self.primary_down = down
        self.buckets[-1].down = down
        self.add(text, "bold red" if down else "bold green")

    def stopping(self) -> None:
        self.phase = "stopping"

    def add(self, text: str, style: str = "") -> None:
        self.happenings.append(Happening(self.now, printable(text), style))
        self.happened += 1

    @property
    def failed_over(self) -> bool:
        return any(entity.state is EntityState.FAILED_OVER for entity in self.entities.values())

    @property
    def pending(self) -> int:
        """Messages in the backlog when last counted."""
        return 0 if self.depths is None else self.depths.seen

    def drain_rate(self) -> float:
        """Messages a second that the syphon has moved lately."""
        recent: Sequence[Bucket] = self.buckets[-11:-1] or self.buckets
        return sum(bucket.moved for bucket in recent) / (len(recent) * BUCKET)

    def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.SendCompleted):
            entity = self.entities[event.entity]
            if event.outcome is events.SendOutcome.PRIMARY:
                entity.primary += 1
                self.buckets[-1].primary += 1
            elif event.outcome is events.SendOutcome.BACKLOG:
                entity.backlog += 1
                self.buckets[-1].backlog += 1
        elif isinstance(event, events.MessageMoved):
            self.moved += 1
            self.buckets[-1].moved += 1
            if event.maybe_duplicate or event.redelivered or not event.completed:
                self.tally.announced(event.message_id)
        elif isinstance(event, events.StateChanged):
            entity = self.entities[event.entity]
            entity.state, entity.since = event.current, self.now
            text = f"{event.entity}: {event.previous} → {event.current} ({event.cause})"
            if event.diverted:
                text += f", {event.diverted} diverted in {short_duration(event.lasted)}"
            self.add(text, STATE_STYLES[event.current])
        elif isinstance(event, events.ReceiverChanged):
            text = "is read again" if event.open else "can't be read; consumers go on with the other broker"
            self.add(f"{event.entity}: the {event.side} {text}", "green" if event.open else "yellow")
        elif isinstance(event, events.PingCompleted):
            self._saw_ping(event)
        elif isinstance(event, events.RotationChanged):
            back = "is back in use" if event.in_use else f"is out of use: {event.error}"
            self.add(f"backlog queue {event.queue} {back}", "yellow")
        elif isinstance(event, events.DestinationChanged):
            text = "delivers again" if event.open else f"waits: {event.error}"
            self.add(f"syphon to {event.entity} {text}", "cyan" if event.open else "yellow")
        elif isinstance(event, events.MessageDeadLettered):
            self.add(f"dead-lettered {event.message_id}: {event.reason}: {event.description}", "red")
        elif isinstance(event, events.SyphonFailed):
            self.add(f"syphon of {event.queue}: {event.error}", "yellow")
        elif isinstance(event, events.Warned):
            self.add(event.text, "yellow")

    def _saw_ping(self, event: events.PingCompleted) -> None:
        """Failed pings come in series: only the first is reported, and their number."""
        failed = self._pings.get(event.entity, 0)
        if not event.ok:
            self._pings[event.entity] = failed + 1
            if not failed:
                self.add(f"{event.entity}: ping failed: {event.error}", "dim")
            return
        self._pings[event.entity] = 0
        after = f" after {failed} that failed" if failed else ""
        self.add(f"{event.entity}: ping answered in {short_duration(event.elapsed)}{after}", "green")


STATE_STYLES = {
    EntityState.HEALTHY: "green",
    EntityState.FAILING: "yellow",
    EntityState.FAILED_OVER: "red",
    EntityState.DRAINING: "cyan",
}
