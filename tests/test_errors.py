"""Values as they stand in sentences of errors."""

from pathlib import Path

import pytest

from steptime.errors import one_line


def test_a_long_value_is_cut_and_a_path_is_not():
    path = f"/scratch/{'performance-engineering/' * 8}ssh_config"
    assert one_line("8b" * 60) == "8b" * 39 + "8…"
    assert one_line(path) == path
    assert one_line(Path(path)) == path


@pytest.mark.parametrize("text", ["/" + "x" * 5000, "/\n" * 5000])
def test_what_only_looks_like_a_path_is_cut_in_the_end(text):
    assert len(one_line(text)) == 800
