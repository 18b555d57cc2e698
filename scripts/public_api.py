"""List every public name of PairMQ and its plugins with its signature; tests/docs/test_public_api.py holds the list.

Run it with: .venv/bin/python scripts/public_api.py [--write]
Public is what docs/reference/api shows, and what the plugins' packages, their `testing` modules and the AMQP engine
export. With --write the list goes to tests/docs/public_api.txt: a line that changes there is a change for users, and
CHANGELOG.md says so.
The source is read, not run: no broker's library has to be installed, and each Python gives the same list.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests" / "docs" / "public_api.txt"
SOURCES = (ROOT / "src", *sorted(ROOT.glob("plugins/*/src")))
BEFORE = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}


def lines() -> list[str]:
    """Read all packages and give the list."""
    loader = griffe.GriffeLoader(search_paths=SOURCES)
    plugins = [each.name for source in SOURCES[1:] for each in sorted(source.iterdir()) if _importable(each)]
    for package in ("pairmq", *plugins):
        loader.load(package)
    loader.resolve_aliases(implicit=True, external=False)
    public = loader.modules_collection
    rooms = [f"{each}.{room}" for each in plugins for room in ("amqp", "testing") if room in public[each].members]
    names = [*_documented(), *plugins, *rooms]
    listed: dict[str, str] = {}  # where an object is defined -> the name under which it was listed
    # A short name first: pairmq.Message is listed in full, pairmq.model.Message as the same.
    each_line = (
        line for name in sorted(names, key=lambda each: each.count(".")) for line in _listed(public, name, listed)
    )
    return sorted(set(each_line))


def _importable(path: Path) -> bool:
    return (path / "__init__.py").exists()


def _documented() -> list[str]:
    """Give the modules and objects that the reference shows, and `pairmq` itself, shown name by name."""
    pages = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
    shown = [name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text("utf-8"), re.MULTILINE)]
    return ["pairmq", *dict.fromkeys(shown)]


def _listed(public: griffe.ModulesCollection, name: str, listed: dict[str, str]) -> Iterator[str]:
    found = public[name]
    if not found.is_module:
        yield from _member(found.parent, found.name, listed)
        return
    for each in _exported(found):
        yield from _member(found, each, listed)


def _exported(module: griffe.Module) -> list[str]:
    """Give `__all__`, or else what the module itself defines without an underscore."""
    if module.exports is not None:
        return [str(each) for each in module.exports if not str(each).startswith("__")]
    return [
        name
        for name, member in module.members.items()
        if not name.startswith("_") and not member.is_alias and not member.is_module
    ]


def _member(module: griffe.Module, name: str, listed: dict[str, str]) -> Iterator[str]:
    path = f"{module.path}.{name}"
    member = module.members.get(name)
    if member is None:  # a module's own __getattr__ makes it
        yield f"{path}: made when asked for"
        return
    try:
        found = member.final_target if isinstance(member, griffe.Alias) else member
    except griffe.AliasResolutionError:  # another package's
        yield f"{path} is {member.target_path}"
        return
    if found.is_module:
        return
    if known := listed.get(found.path):
        if known != path:
            yield f"{path} is {known}"
        return
    listed[found.path] = path
    yield from _object(path, found)


def _object(path: str, found: griffe.Object) -> Iterator[str]:
    if isinstance(found, griffe.Class):
        bases = ", ".join(str(base) for base in found.bases)
        yield f"class {path}({_parameters(found.parameters)}){f' of {bases}' if bases else ''}"
        for name, member in found.members.items():
            if not name.startswith("_") and not isinstance(member, griffe.Alias):
                yield from _object(f"{path}.{name}", member)
    elif isinstance(found, griffe.Function):
        before = "async " if "async" in found.labels else ""
        returns = f" -> {found.returns}" if found.returns is not None else ""
        yield f"{path}: {before}({_parameters(found.parameters)}){returns}"
    elif isinstance(found, griffe.Attribute):
        kind = "property " if "property" in found.labels else ""
        # What a member of an enum is written as: in journals, metrics and the command line's output.
        value = f" = {found.value}" if found.value is not None and _is_enum(found.parent) else ""
        yield f"{path}: {kind}{found.annotation or ''}".rstrip(": ") + value


def _is_enum(parent: griffe.Object | None) -> bool:
    return isinstance(parent, griffe.Class) and any(str(base).startswith("enum.") for base in parent.bases)


def _parameters(parameters: griffe.Parameters) -> str:
    parts: list[str] = []
    last = None
    for each in parameters:
        if each.name in {"self", "cls"} and not parts:
            continue
        if each.kind is griffe.ParameterKind.keyword_only and last not in {
            griffe.ParameterKind.keyword_only,
            griffe.ParameterKind.var_positional,
        }:
            parts.append("*")
        text = BEFORE.get(each.kind, "") + each.name if each.kind else each.name
        if each.annotation is not None:
            text += f": {each.annotation}"
        if each.default is not None and each.kind not in BEFORE:
            text += f" = {each.default}"
        parts.append(text)
        if each.kind is griffe.ParameterKind.positional_only and not _positional_only_follows(parameters, each):
            parts.append("/")
        last = each.kind
    return ", ".join(parts)


def _positional_only_follows(parameters: griffe.Parameters, parameter: griffe.Parameter) -> bool:
    after = list(parameters)[list(parameters).index(parameter) + 1 :]
    return any(each.kind is griffe.ParameterKind.positional_only for each in after)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the list, or write it."""
    parser = argparse.ArgumentParser(description="list the public names with their signatures")
    parser.add_argument("--write", action="store_true", help=f"to {LIST.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    gc.disable()  # all trees of all sources are kept until the end, and would be looked through often
    text = "".join(f"{line}\n" for line in lines())
    if options.write:
        LIST.write_text(text, "utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
