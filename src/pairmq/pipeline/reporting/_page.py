"""Fills the template: figures as texts, plots as SVG, and a policy that lets nothing run or load."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import jinja2
import numpy as np
from markupsafe import Markup

from pairmq.pipeline._storage import Place
from pairmq.pipeline.reporting._answers import VERDICTS, Answers, meaning_of, most_out, phases
from pairmq.pipeline.reporting._plots import MOST_ROWS, course, drawn_wider, name_of
from pairmq.pipeline.reporting._svg import bar, power_ticks, reach
from pairmq.pipeline.reporting._values import Findings, Key, Series, Spans
from pairmq.pipeline.reporting._words import clock, date, duration, grouped, moment, percent, period, visible

MOST_ENTITIES = 20
"""Entities in the table of availability."""

FIRST_FAULTS = 10
"""Messages of each fault at the head."""

_TABLE_ROWS = 30  # of the table that says what a plot says


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
    environment.filters |= {each.__name__: each for each in (visible, duration, grouped, moment, percent)}
    style = files(__package__).joinpath("page.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    entities = most_out(findings)
    several = len({key.pair for key in entities}) > 1
    spoken = phases(findings)
    order = {name: number for number, name in enumerate(VERDICTS)}
    verdicts = [(verdict, count, meaning_of(verdict)) for verdict, count in findings.messages.verdicts.items()]
    first, last = findings.programs.first_at, findings.programs.last_at
    return environment.get_template("page.html.j2").render(
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
        phases=spoken,
        scale=power_ticks(
            min((each.p50 for *_, each in spoken), default=1), max((each.longest for *_, each in spoken), default=1)
        ),
        sending=[key for key in entities if key in findings.availability.entities],
        most_entities=MOST_ENTITIES,
        # One of a later version is not known here.
        verdicts=sorted(verdicts, key=lambda each: (order.get(each[0], len(order)), each[0])),
        sides=findings.cost.sides,
        name=lambda key: name_of(key, several),
        bar=bar,
        reach=reach,
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
