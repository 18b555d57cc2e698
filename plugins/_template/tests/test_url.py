"""The broker's URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from pairmq.model import ConfigurationError
from pairmq_template.transport import read_url


def test_a_url_names_the_file_that_a_link_leads_to_now(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    endpoint, path = read_url(f"template://{tmp_path}/link/a.db")
    assert path == tmp_path.resolve() / "real" / "a.db"
    assert endpoint.identity == ("template", str(path))


@pytest.mark.parametrize("url", ["template:a.db", "template:/a.db", "template://a.db", "template://", "template:///"])
def test_a_url_is_refused_unless_it_names_an_absolute_path(url: str) -> None:
    with pytest.raises(ConfigurationError, match="write it as template:///absolute/path"):
        read_url(url)
