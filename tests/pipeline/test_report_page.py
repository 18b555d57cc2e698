"""The page: nothing in it runs or loads, whatever the journal says, and it stays small."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa
import pytest

from journal_by_hand import PAIR, START
from pairmq.pipeline.reporting import report
from tables_by_hand import SCHEMAS, hour, message, outage, process, reads, side, write_tables

HOSTILE = "</title></style><script>alert('x')</script><img src=//evil.example onerror=x()>\x00\x1b[31m\u202e{{7*7}}"
SHORT = "<script>x()</script>"  # stands whole where long names are cut
PASSWORD = "hunter2-planted"
BROWSER_LIMIT = 90  # s: it starts within one, but for a busy machine

TAGS = frozenset(
    {"html", "head", "meta", "title", "style", "body", "header", "main", "footer", "section", "h1", "h2", "h3", "p"}
    | {"b", "span", "div", "dl", "dt", "dd", "ul", "li", "a", "code", "figure", "figcaption", "details", "summary"}
    | {"table", "thead", "tbody", "tr", "th", "td", "svg", "g", "rect", "line", "text", "tspan", "path", "circle"}
)


class Elements(HTMLParser):
    """All elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A report of tables in which every text is hostile."""
    folder = tmp_path_factory.mktemp("hostile")
    names = {"pair": HOSTILE, "entity": HOSTILE}
    rows = [message(f"m{at}", at=at, **names, sent_by=HOSTILE, backlog_queue=HOSTILE) for at in range(50)]
    rows.append(message(HOSTILE, "lost", at=51, **names))
    rows.append(message("short", at=51.5, entity=SHORT))
    rows.append(message("odd", HOSTILE, at=52, **names))
    tables = write_tables(
        folder / "tables",
        reconciliation=rows,
        episodes=[
            outage(at=10, over=12, up=30, ended=40, **names)
            | {"process": HOSTILE, "cause": HOSTILE, "failure_kind": HOSTILE, "open_because": HOSTILE}
        ],
        availability=[hour(primary=51, **names), hour(SHORT, primary=1)],
        consumers=[reads(HOSTILE, primary=1, watched=9.0)],
        cost=[side(HOSTILE, sends=1)],
        processes=[process(HOSTILE, last=60, missing=1, ended="killed")],
        bad=[{"path": HOSTILE, "problem": f"amqp://user:{PASSWORD}@broker:5672 says {HOSTILE}"}],
    )
    return report(tables)


def test_nothing_in_the_page_runs_or_loads(hostile):
    elements = Elements(hostile.page.read_text())
    assert {tag for tag, _ in elements.found} <= TAGS
    for tag, attributes in elements.found:
        assert not [name for name in attributes if name.startswith("on") or name in ("style", "src")], (tag, attributes)
        assert (attributes.get("href") or "#").startswith("#")


def test_a_hostile_text_is_shown_as_the_text_that_it_is(hostile):
    text = Elements(hostile.page.read_text()).text
    assert "<script>alert('x')</script>" in text
    assert text.count(SHORT) >= 2  # beside its states and in the table of availability
    assert r"\x00\x1b[31m\u202e{{7*7}}" in text


def test_no_character_of_the_page_steers_anything(hostile):
    page = hostile.page.read_text()
    assert not [each for each in page if not each.isprintable() and each not in "\n\N{NARROW NO-BREAK SPACE}"]


def test_a_planted_password_is_in_neither_file(hostile):
    assert PASSWORD not in hostile.page.read_text()
    assert PASSWORD not in hostile.document.read_text()


def test_what_looks_like_a_login_is_not_shown(tmp_path):
    texts = [
        f"amqp://user:{PASSWORD}@broker:5672 is unavailable",
        f"amqp://user:{PASSWORD}/with@signs@broker",
        f"amqp://user:{PASSWORD}{'y' * 5000}@broker",  # the end of the login is beyond what is looked at
        f"Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey={PASSWORD}",
    ]
    tables = write_tables(
        tmp_path / "tables",
        reconciliation=[message(text, "lost", at=at, pair=text, entity=text) for at, text in enumerate(texts)],
        episodes=[outage(text, at=1, over=2, up=3, ended=4, pair=text) for text in texts],
        availability=[hour(text, primary=1, pair=text) for text in texts],
        processes=[process(text, last=60, missing=1, ended="killed") for text in texts],
        bad=[{"path": text, "problem": text} for text in texts],
    )
    page = report(tables).page.read_text()
    assert PASSWORD not in page
    assert page.count("SharedAccessKey=…") >= 5


def test_the_document_has_ids_exactly_as_they_were(hostile):
    told = json.loads(hostile.document.read_text())
    assert told["faults"]["lost"]["messages"][0]["message_id"] == HOSTILE


def test_the_policy_lets_only_the_pages_own_style_apply(hostile):
    page = hostile.page.read_text()
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    (policy,) = [each["content"] for tag, each in Elements(page).found if "http-equiv" in each]
    rules = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert policy == rules


def test_every_plot_has_a_name_and_a_table_that_says_the_same(hostile):
    elements = Elements(hostile.page.read_text()).found
    plots = [each for tag, each in elements if tag == "svg" and "course" in (each.get("class") or "")]
    assert plots
    assert all(each["role"] == "img" and each["aria-label"] for each in plots)
    summaries = re.findall(r"<summary>(.*?)</summary>", hostile.page.read_text())
    assert summaries.count("The same as a table") == len(plots)
    others = [each for tag, each in elements if tag == "svg" and "bar" in (each.get("class") or "").split()]
    assert others
    assert all(each["aria-hidden"] == "true" for each in others)  # the row beside it says it in numbers


def many_messages(count: int, fault_from: int) -> pa.Table:
    schema = SCHEMAS["reconciliation"]
    at = pa.array(((START + np.arange(count)) * 1e6).astype("int64")).cast(pa.timestamp("us"))
    known = {
        "pair": pa.array([PAIR] * count),
        "entity": pa.array([f"queue-{number % 500}" for number in range(count)]),
        "message_id": pa.array([f"{number:0200d}" for number in range(count)]),
        "verdict": pa.array(["delivered"] * fault_from + ["lost"] * (count - fault_from)),
        **dict.fromkeys(("called_at", "accepted_at"), at),
    }
    columns = [known.get(field.name, pa.nulls(count, field.type)) for field in schema]
    return pa.table(columns, schema=schema)


def test_a_page_of_very_much_is_small_and_says_what_it_leaves_out(tmp_path):
    minutes = 1_000_000
    tables = write_tables(
        tmp_path / "tables",
        reconciliation=many_messages(20_000, 10_000),
        episodes=[
            outage(f"queue-{number % 500}", at=number * 6000, over=number * 6000 + 10, up=number * 6000 + 60 + number)
            for number in range(10_000)
        ],
        availability=[hour(f"queue-{number}", primary=40) for number in range(500)],
        consumers=[reads(f"queue-{number}", primary=40, watched=1.0 * number) for number in range(500)],
        processes=[process(f"p{number}", last=60.0 * minutes, ended="killed") for number in range(1000)],
    )
    written = report(tables)
    page = written.page.read_text()
    assert len(page) < 1_000_000
    assert written.document.stat().st_size < 1_000_000
    text = " ".join(Elements(page).text.replace("\N{NARROW NO-BREAK SPACE}", " ").split())
    assert "9 900 more: SELECT * FROM 'reconciliation/*.parquet' WHERE verdict = 'lost'" in text
    assert "The longest 25 of 10 000" in text
    assert "The 8 entities that were out longest are drawn, of 500" in text
    assert "480 more are in the table availability" in text
    assert "480 more are in the table consumers" in text


# In a real browser: the program is installed by scripts/system-packages.sh.


def browser(tmp_path, page: str, width: int, *more: str) -> tuple[str, str]:
    """What a browser makes of a page: its elements, and what it complains about."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "no chromium: run scripts/system-packages.sh"
    file = tmp_path / f"page-{width}.html"
    file.write_text(page)
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0", "--disable-extensions"]
    command += [f"--window-size={width},1000", *more, "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BROWSER_LIMIT, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.real_server
@pytest.mark.timeout(3 * BROWSER_LIMIT)
def test_a_browser_has_nothing_to_complain_about(hostile, tmp_path):
    shown, complaints = browser(tmp_path, hostile.page.read_text(), 1024)
    assert complaints == ""
    assert "is lost" in shown


@pytest.mark.real_server
@pytest.mark.timeout(3 * BROWSER_LIMIT)
def test_nothing_sticks_out_of_the_page_on_narrow_and_on_wide_screens(hostile, tmp_path):
    # In frames, as a window may not be made as narrow as a telephone.
    inner = re.sub(r"<meta http-equiv=[^>]*>", "", hostile.page.read_text())
    frames = [f'<iframe width="{width}" height="900" srcdoc="{html.escape(inner)}"></iframe>' for width in (360, 1600)]
    measuring = (
        "<script>onload = () => document.body.dataset.widths = JSON.stringify([...document.querySelectorAll('iframe')]"
        ".map(each => each.contentDocument.documentElement.scrollWidth))</script>"
    )
    shown, _ = browser(tmp_path, f"<!doctype html><body>{''.join(frames)}{measuring}", 1700)
    (told,) = re.findall(r'data-widths="([^"]*)"', shown)
    narrow, wide = json.loads(told)
    assert narrow <= 360
    assert wide <= 1600
