"""Entities and their paths."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from pairmq.model import MAX_PATH_LENGTH, Entity, EntityKind

# What a path takes is what Python calls printable: nothing of the categories C and Z, but the space.
_LETTERS = st.characters(exclude_categories=("C", "Z"), include_characters=" ", exclude_characters="*?[]\\/")


def entity_paths(*, max_length: int = 60) -> st.SearchStrategy[str]:
    """Paths that `pairmq.Entity` takes: segments of any printable letters, divided by ``/``.

        @given(entity_paths())
        def test_a_path_becomes_a_file_name(path): ...

    Args:
        max_length: characters, 1 to 260; a broker with a lower limit tells it in its transport's capabilities.

    Raises:
        ValueError: ``max_length`` is out of its range.
    """
    if not 1 <= max_length <= MAX_PATH_LENGTH:
        raise ValueError(f"max_length is {max_length}: 1 to {MAX_PATH_LENGTH} are allowed")
    segments = st.text(_LETTERS, min_size=1, max_size=max_length).filter(lambda segment: segment not in (".", ".."))
    joined = st.lists(segments, min_size=1, max_size=5).map("/".join)
    return joined.filter(lambda path: len(path) <= max_length)


def entities(
    *, kinds: Iterable[EntityKind] = EntityKind, paths: st.SearchStrategy[str] | None = None
) -> st.SearchStrategy[Entity]:
    """Queues and topics.

        @given(entities(kinds=[EntityKind.QUEUE]))
        def test_every_queue_has_a_line_in_my_report(queue): ...

    Args:
        kinds: of which shapes; both when left out.
        paths: their paths, `entity_paths` when left out.
    """
    return st.builds(Entity, entity_paths() if paths is None else paths, st.sampled_from(tuple(kinds)))
