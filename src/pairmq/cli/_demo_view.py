"""Draws the demo: live on a terminal, as plain lines elsewhere, and the verdict at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pairmq.cli._demo_scene import BUCKET, STATE_STYLES, Bucket, Scene
from pairmq.cli._demo_tally import Fate, Verdict
from pairmq.cli._errors import printable
from pairmq.cli._values import grouped, plural, short_duration

_BARS = " ▁▂▃▄▅▆▇█"
_LABEL = 9
_FRAME = "bright_black"
_COMPACT_BELOW = 27  # rows
_EXPLAINED = "a receipt, the syphon or the broker said so"


class DemoView:
    """The live picture of a scene; draws itself anew at each refresh, at whatever size the terminal has.

    Args:
        scene: what to draw.
    """

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
        title = f"where sends went, a column is {BUCKET * 1000:.0f} ms"
        return _panel(table, title)

    def _backlog(self, width: int, *, compact: bool) -> tuple[RenderableType, int]:
        scene = self._scene
        depths = (
            [] if scene.depths is None else [0 if d.counts is None else d.counts.pending for d in scene.depths.queues]
        )
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
        # Another line, not only another colour: NO_COLOR takes that away.
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
    """The same as lines, for logs: one a second, and each event as it comes.

    Args:
        scene: what to tell.
        console: where to.
    """

    def __init__(self, scene: Scene, console: Console) -> None:
        self._scene = scene
        self._console = console
        self._told = 0
        self._next = 0.0

    def update(self) -> None:
        """Print what is new."""
        scene = self._scene
        fresh = min(scene.happened - self._told, len(scene.happenings))
        self._told = scene.happened
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
        )


def verdict_table(verdict: Verdict, *, stopped: bool) -> RenderableType:
    """The account of all messages, for people."""
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
    row("delivered", grouped(verdict.delivered), "bold", "different messages, seen by a consumer of the primary")
    if verdict.left_in_backlog:
        row("still in the backlog", grouped(verdict.left_in_backlog), "yellow", "safe, not yet brought home")
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
        end = Text("\n the primary can't be read: start it, and look for the rest yourself", "bold yellow")
    elif verdict.sound and not stopped:
        end = Text("\n ✗ nothing was lost, but not every message was brought home in time", "bold red")
    elif verdict.sound:
        end = Text("\n stopped early; nothing was lost so far", "bold yellow")
    elif stopped and not verdict.lost and not unexplained:
        end = Text(
            "\n stopped early; nothing was lost, and each sender knows what became of its message", "bold yellow"
        )
    else:
        end = Text("\n ✗ not every message is where it should be", "bold red")
    return Group(Text(""), table, end)


def _bar(value: int, top: float) -> str:
    if value <= 0:
        return " "
    return _BARS[max(1, min(8, round(8 * value / top)))]


def _panel(content: RenderableType, title: str) -> RenderableType:
    # The frame's colour, made dim, would be read by nobody.
    return Panel(content, title=Text(title, "dim default"), title_align="left", border_style=_FRAME, padding=(0, 1))
