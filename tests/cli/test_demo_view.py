"""The demo's picture can be read: only what is of less interest is dim."""

from __future__ import annotations

import pytest
from rich.console import Console

from pairmq.cli._backlog import Depths
from pairmq.cli._demo_tally import Tally
from pairmq.cli._demo_view import DemoView, EntityScene, Scene
from pairmq.model import Entity
from pairmq.transport import Depth, QueueCounts


@pytest.fixture
def lines() -> list[list[tuple[str, bool]]]:
    """What is drawn of a scene in an outage, a line each: texts, and whether they are dim."""
    scene = Scene(
        "memory://a",
        "memory://b",
        {Entity("orders"): EntityScene("orders")},
        Tally("run", 10),
        total=10,
        queues=4,
        pace=5.0,
    )
    scene.primary_is(down=True, text="the primary is stopped")
    console = Console(width=100, height=31, color_system="truecolor", force_terminal=True)
    drawn = console.render_lines(DemoView(scene), pad=False)
    return [[(part.text, bool(part.style and part.style.dim)) for part in line] for line in drawn]


def test_an_event_is_not_as_dim_as_its_time(lines: list[list[tuple[str, bool]]]) -> None:
    (line,) = [line for line in lines if any("is stopped" in text for text, _ in line)]
    assert {dim for text, dim in line if "is stopped" in text} == {False}
    assert {dim for text, dim in line if "0.0 s" in text} == {True}


def test_how_much_is_drained_can_be_seen_without_colours() -> None:
    scene = Scene("memory://a", "memory://b", {}, Tally("run", 1), total=1, queues=1, pace=5.0)
    counts = QueueCounts(active=30)
    scene.saw_depths(Depths((Depth(Entity("a/0"), counts),)))
    scene.moved = 10
    console = Console(width=100, height=31, color_system=None)
    drawn = "".join(part.text for line in console.render_lines(DemoView(scene)) for part in line)
    (line,) = [line for line in drawn.split("│") if "in backlog" in line]
    assert 2 * line.count("━") < line.count("─") < 4 * line.count("━")


def test_the_title_of_a_frame_has_not_the_frame_s_colour() -> None:
    scene = Scene("memory://a", "memory://b", {}, Tally("run", 1), total=1, queues=4, pace=5.0)
    console = Console(width=100, height=31, color_system="truecolor", force_terminal=True)
    drawn = [part for line in console.render_lines(DemoView(scene)) for part in line]
    colours = {part.style.color.name for part in drawn if "events" in part.text and part.style and part.style.color}
    assert colours == {"default"}
