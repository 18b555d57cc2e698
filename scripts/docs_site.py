"""What the documentation's site needs beyond MkDocs: the menu, diagrams, links that lead out of docs (see mkdocs.yml).

The pages are written for two readers: one looks at the files in the repository, the other at the site. So a link leads
to a file, wherever that is, and is turned here into one that the site has.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs_diagram import drawn
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

SECTIONS = {
    "Tutorial": "tutorial",
    "How to": "how-to",
    "Reference": "reference",
    "Explanation": "explanation",
    "Contributing": "contributing",
    "Decisions": "adr",
}

OUTSIDE = {
    **{
        readme.relative_to(ROOT).as_posix(): f"reference/transports/{name}.md"
        for readme in sorted(ROOT.glob("plugins/*/README.md"))
        for name in [readme.parent.name.removeprefix("pairmq-").removeprefix("_")]
    },
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing/how-to.md",
    "SECURITY.md": "contributing/security.md",
}
"""Files elsewhere in the repository that are pages of the site, too."""

ENTRY = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<page>[^)#]+\.md)\)", re.MULTILINE)
GROUP = re.compile(r"^## (?P<title>.+)$", re.MULTILINE)
DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE_OR_LINK = re.compile(
    r"^(?P<indent> *)(?P<fence>```+).*?^(?P=indent)(?P=fence) *$"
    r"|(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?P<target>[^)\s]+)\)"
    r"|`[^`\n]+`",
    re.MULTILINE | re.DOTALL,
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Make the menu of the lists in the folders' first pages."""
    docs = Path(config.docs_dir)
    menu: list[Any] = [{"Home": "index.md"}]
    for title, folder in SECTIONS.items():
        first = docs / folder / "index.md"
        menu.append({title: [f"{folder}/index.md", *_listed(first.read_text(encoding="utf-8"), docs, folder)]})
    menu.append({"Changelog": OUTSIDE["CHANGELOG.md"]})
    config.nav = menu
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages whose text stands elsewhere in the repository."""
    for source, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make of a page for the repository one of the site: its links, its diagrams, and the list of the decisions."""
    uri = page.file.src_uri
    if uri == "index.md":
        page.meta["hide"] = ["navigation"]  # it is alone in its menu
    if uri == "adr/index.md":
        markdown += "\n" + "\n".join(f"- [{title}]({name})" for title, name in _decisions(Path(config.docs_dir)))
    markdown = DIAGRAM.sub(lambda match: drawn(match[1]), markdown)
    source = next((path for path, generated in OUTSIDE.items() if generated == uri), f"docs/{uri}")
    return _links_of_the_site(markdown, source, uri)


def _listed(text: str, docs: Path, folder: str) -> list[Any]:
    """The menu of a folder: its lists, each under its heading; what stands before the first heading is in none."""
    if folder == "adr":
        return [{title: f"adr/{name}"} for title, name in _decisions(docs)]
    first, *groups = GROUP.split(text)
    menu: list[Any] = _entries(first, folder)
    for title, body in zip(groups[::2], groups[1::2], strict=True):
        if entries := _entries(body, folder):
            menu.append({title: entries})
    return menu


def _entries(text: str, folder: str) -> list[Mapping[str, str]]:
    return [
        {match["title"].replace("`", ""): _in_site(f"docs/{folder}/index.md", match["page"]) or match["page"]}
        for match in ENTRY.finditer(text)
    ]


def _decisions(docs: Path) -> list[tuple[str, str]]:
    pages = sorted(path for path in (docs / "adr").glob("*.md") if path.name != "index.md")
    return [(page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "), page.name) for page in pages]


def _in_site(source: str, target: str) -> str | None:
    """The site's page of a link's target, from the root of the site; None if it has none."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path == "README.md":
        return "index.md"
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path != "docs" and not path.startswith("docs/"):
        return None
    inside = posixpath.relpath(path, "docs")
    return posixpath.join(inside, "index.md") if (ROOT / path).is_dir() else inside


def _links_of_the_site(markdown: str, source: str, uri: str) -> str:
    """Rewrite the links of a page's prose; one that the site has no page for becomes plain text."""

    def rewritten(match: re.Match[str]) -> str:
        path, hash_, anchor = (match["target"] or "").partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        page = _in_site(source, path)
        if page is None:
            return match["text"]
        relative = posixpath.relpath(page, posixpath.dirname(uri) or ".")
        return f"{match['image']}[{match['text']}]({relative}{hash_}{anchor})"

    return CODE_OR_LINK.sub(rewritten, markdown)
