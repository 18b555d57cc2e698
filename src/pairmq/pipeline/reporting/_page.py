"""Fills the template: figures as texts, plots as SVG, and a policy that lets nothing run or load."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice

import jinja2
import numpy as np
from markupsafe import Markup

from pairmq.pipeline._storage import Place
from pairmq.pipeline.reporting._answers import VERDICTS, Answers, meaning_of, most_out, phases
from pairmq.pipeline.reporting._plots import MOST_ROWS, course, drawn_wider, name_of
from pairmq.pipeline.reporting._svg import bar, reach, scale_of
from pairmq.pipeline.reporting._values import Findings, Key, Series, Spans
from pairmq.pipeline.reporting._words import clock, date, duration, grouped, moment, percent, period, visible

MOST_ENTITIES = 20
"""Entities in the table of availability."""

FIRST_FAULTS = 10
"""Messages of each fault at the head."""

_TABLE_ROWS = 30  # of the table that says what a plot says


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: its cells, and the plot in it."""

    cells: Sequence[str]
    plot: Markup | None = None
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """The plot of what happened, with the table that says the same."""

    title: str
    drawing: Markup
    note: str
    rows: Sequence[Sequence[str]]


def page(findings: Findings, found: Answers, directory: Place) -> str:
    """Make the page."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(lambda name: files(__package__).joinpath(name).read_text("utf-8")),
    )
    environment.filters |= {"visible": visible, "duration": duration, "grouped": grouped, "moment": moment}
    style = files(__package__).joinpath("page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    entities = most_out(findings)
    several = len({key.pair for key in entities}) > 1
    sending = [key for key in entities if key in findings.availability.entities]
    first, last = findings.programs.first_at, findings.programs.last_at
    return environment.get_template(
        "page.html.j2"
    ).render(
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        style=Markup(style),  # noqa: S704  # our own file
        findings=findings,
        found=found,
        pairs=sorted({visible(key.pair, 60) for key in entities}),
        period=period(first, last) if first is not None and last is not None else "",
        lasted=duration(last - first) if first is not None and last is not None else "",
        faults=[
            (verdict, meaning_of(verdict).text, findings.messages.verdicts[verdict], first)
            for verdict, first in findings.messages.faults.items()
        ],
        first_faults=FIRST_FAULTS,
        plots=_plots(findings, entities, several),
        left_out=max(0, len(entities) - MOST_ROWS),
        latency=_latency(findings),
        availability=[_available(findings, key, several) for key in sending[:MOST_ENTITIES]],
        availability_left_out=max(0, len(sending) - MOST_ENTITIES),
        consumers=[_consumed(findings, key, several) for key in islice(findings.consumers, MOST_ENTITIES)],
        consumers_left_out=max(0, len(findings.consumers) - MOST_ENTITIES),
        verdicts=_verdicts(findings),
        outages=findings.outages.worst,
        name=lambda key: name_of(key, several),
        cost=_cost(findings),
        directory=visible(str(directory), 300),
    )


def _plots(findings: Findings, entities: Sequence[Key], several: bool) -> Sequence[Plot]:
    names = {key: name_of(key, several) for key in entities}
    plots = []
    for title, series in (("", findings.messages.overview), ("The longest outage", findings.messages.close_up)):
        if series is None:
            continue
        grid = series.grid
        rows = [
            key for key in entities if not title or _is_out(findings.outages.spans.get(key), grid.began, grid.ended)
        ]
        drawing = course(series, findings.outages.spans, rows[:MOST_ROWS], names)
        note = f"Each step is {duration(grid.width)}; times are in UTC."
        if len(rows) > MOST_ROWS:
            note += f" The {MOST_ROWS} entities that were out longest are drawn, of {grouped(len(rows))}."
        if drawn_wider(findings.outages.spans, rows[:MOST_ROWS], grid):
            note += " Very short outages are drawn wider than they were."
        if findings.programs.sampled:
            note += " Healthy sends are those that were journalled; not all were."
        plots.append(Plot(title and f"{title}, {date(grid.began)}", drawing, note, _series_rows(series)))
    return plots


def _is_out(spans: Spans | None, began: float, ended: float) -> bool:
    return spans is not None and any(span.began < ended and span.ended > began for span in spans.out)


def _series_rows(series: Series) -> Sequence[Sequence[str]]:
    """What a plot says as a table of not too many rows: slots are put together."""
    grid = series.grid
    together = -(-grid.slots // _TABLE_ROWS)
    rows = []
    for first in range(0, grid.slots, together):
        part = slice(first, first + together)
        counts = [int(each[part].sum()) for each in (series.primary, series.backlog)]
        bad = int(series.refused[part].sum() + series.unknown[part].sum())
        began = grid.began + first * grid.width
        longest = series.longest[part]
        known = longest[~np.isnan(longest)]
        label = clock(began, grid.width * together)
        rows.append(
            (
                label if grid.ended - grid.began < 86_400 else f"{date(began)} {label}",
                *map(grouped, (*counts, bad, int(series.moved[part].sum()), int(series.depth[part].max()))),
                duration(float(known.max())) if len(known) else "–",
            )
        )
    return rows


def _latency(findings: Findings) -> Sequence[Row]:
    found = phases(findings)
    if not found:
        return ()
    scale = scale_of([latency for *_, latency in found])
    return [
        Row(
            (name, grouped(each.sends), *map(duration, (each.p50, each.p95, each.p99, each.longest))),
            reach(each, scale, class_),
        )
        for class_, name, each in found
    ]


def _available(findings: Findings, key: Key, several: bool) -> Row:
    sends = findings.availability.entities[key]
    spans = findings.outages.spans.get(key)
    return Row(
        (
            name_of(key, several),
            percent(sends.availability),
            percent(sends.primary_availability),
            grouped(sends.attempted),
            grouped(sends.backlog),
            grouped(sends.refused + sends.unknown),
            duration(spans.seconds_out) if spans and spans.seconds_out else "–",
        ),
        bar([(name, getattr(sends, name)) for name in ("primary", "backlog", "unknown", "refused")], sends.attempted),
    )


def _consumed(findings: Findings, key: Key, several: bool) -> Row:
    reads = findings.consumers[key]
    at_once, diverted = findings.messages.handled.get(key, (None, None))
    return Row(
        (
            name_of(key, several),
            percent(reads.availability),
            duration(reads.longest_unread) if reads.longest_unread else "–",
            grouped(reads.from_primary),
            grouped(reads.from_secondary),
            *(duration(each.p50 if each else None) for each in (at_once, diverted)),
            *(duration(each.p99 if each else None) for each in (at_once, diverted)),
        ),
        bar(
            [("primary", reads.from_primary), ("backlog", reads.from_secondary)],
            reads.from_primary + reads.from_secondary,
        ),
    )


def _verdicts(findings: Findings) -> Sequence[tuple[str, Row]]:
    order = {name: number for number, name in enumerate(VERDICTS)}
    counts = findings.messages.verdicts
    most = max(counts.values(), default=0)
    rows = []
    for verdict in sorted(counts, key=lambda each: (order.get(each, len(order)), each)):
        meaning = meaning_of(verdict)
        plot = bar([(f"tone-{meaning.tone}", counts[verdict])], most)
        rows.append((meaning.tone, Row((visible(verdict), grouped(counts[verdict])), plot, meaning.text)))
    return rows


def _cost(findings: Findings) -> Sequence[Row]:
    sides = findings.cost.sides
    most = max((side.total for side in sides.values()), default=0)
    return [
        Row(
            (
                visible(name, 40),
                *map(grouped, (side.total, side.sends, side.receives, side.pings)),
                f"{side.price:,.4f}" if findings.cost.priced else "",
            ),
            bar([("primary", side.sends), ("moved", side.receives), ("failing", side.pings)], most),
        )
        for name, side in sorted(sides.items())
    ]
