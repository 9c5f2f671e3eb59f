"""What `steptime run` needs before anything is triggered; following is in tests/service."""

import pytest
from called import steptime

pytestmark = pytest.mark.usefixtures("here")


def test_without_an_airflow_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert steptime("run", "llama3.1") == 2
    assert "start it with 'steptime up'" in capsys.readouterr().err


def test_a_dry_run_shows_the_plan_and_needs_no_airflow(capsys: pytest.CaptureFixture[str]) -> None:
    request = ("llama3.1", "--gpus", "1,2", "--format", "csv")
    assert steptime("run", *request, "--dry-run") == 0
    planned = capsys.readouterr().out
    assert steptime("plan", *request) == 0
    assert capsys.readouterr().out == planned
