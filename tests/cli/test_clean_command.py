"""`steptime clean` as people and programs call it; what it removes is tested in tests/clusters."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steptime.cli import app
from steptime.errors import UserError


@pytest.fixture(autouse=True)
def old_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a log of long ago, in a state folder of the test's own."""
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    folder = tmp_path / "logs-collected" / "far" / "pretrain-1"
    folder.mkdir(parents=True)
    (folder / "log.out").write_text("step\n" * 200_000)
    os.utime(folder / "log.out", (1.7e9, 1.7e9))
    return folder


def test_a_dry_run_shows_what_would_go(old_copy: Path) -> None:
    shown = CliRunner().invoke(app, ["clean", "--dry-run"], catch_exceptions=False)

    assert "copy of a log" in shown.stdout
    assert "2023-11-1" in shown.stdout
    assert shown.stderr == "1 would be removed, 1.0 MB\n"
    assert old_copy.exists()


@pytest.mark.parametrize("age", ["12w", "1d"])
def test_what_is_old_is_removed_and_told(old_copy: Path, age: str) -> None:
    arguments = ["clean", "--older-than", age, "--format", "json"]
    shown = CliRunner().invoke(app, arguments, catch_exceptions=False)

    [row] = json.loads(shown.stdout)["removed"]
    assert (row["name"], row["path"], row["size_bytes"]) == ("pretrain-1", str(old_copy), 1_000_000)
    assert shown.stderr == "1 removed, 1.0 MB\n"
    assert not old_copy.exists()


@pytest.mark.parametrize(
    ("age", "sentence"),
    [
        ("yesterday", "--older-than 'yesterday' is not an age: write 30d or 12w."),
        ("-3d", "'-3d' is not an age"),
        ("12h", "--older-than '12h' is too short: write 1d or more."),
        ("0d", "'0d' is too short"),
    ],
)
def test_an_age_that_cannot_be_removes_nothing(old_copy: Path, age: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        CliRunner().invoke(app, ["clean", f"--older-than={age}"], catch_exceptions=False)
    assert old_copy.exists()
