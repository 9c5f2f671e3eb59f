"""Files that are written: a refusal names the file that was asked for, and no device is replaced."""

import os

import pytest

from steptime.files import write_whole


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="not a regular file") as refusal:
            write_whole(tmp_path / name, "x")
        assert refusal.value.filename == str(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


def test_a_refusal_names_the_file_and_not_its_temporary_name(tmp_path):
    path = tmp_path / ("x" * 250)
    with pytest.raises(OSError, match="File name too long") as refusal:
        write_whole(path, "x")
    assert (refusal.value.filename, refusal.value.filename2) == (str(path), None)
