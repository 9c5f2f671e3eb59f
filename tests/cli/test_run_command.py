"""What `steptime run` refuses before anything is triggered; following is in tests/service."""

import sys
from pathlib import Path

import pytest

from steptime.cli import main


@pytest.fixture(autouse=True)
def no_airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPTIME_HOME", str(tmp_path))
    for name in ("URL", "USER", "PASSWORD"):
        monkeypatch.delenv(f"STEPTIME_AIRFLOW_{name}", raising=False)


def steptime(monkeypatch: pytest.MonkeyPatch, arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["steptime", *arguments.split()])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("run llama4", "unknown workload 'llama4'"),
        ("run llama3.1 --size tny", "unknown size 'tny' of llama3.1-25.04: did you mean 'tiny'?"),
        ("run llama3.1 --gpus 3", "3"),
        ("run llama3.1 --max-steps many", "--max-steps"),
        ("run llama3.1 --max-steps 0", "max_steps 0"),
        ("run llama3.1 --window 5", "window '5'"),
        ("run llama3.1 --cluster moon", "unknown cluster 'moon'"),
        ("run llama3.1 --env TP_COMM_OVERLAP", "--env 'TP_COMM_OVERLAP' is not of the form NAME=VALUE"),
        ("run llama3.1 --size 8b --gpu-type h100 --gpus 8", "has cpu, not h100"),
        ("run llama3.1 --wat", "--wat"),
        ("run llama3.1 --url http://127.0.0.1:1", "--url needs a user"),
        ("run llama3.1 --url http://127.0.0.1:1 --user ada", "the password of 'ada' is missing"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, sentence: str
) -> None:
    assert steptime(monkeypatch, arguments) == 1
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.err.startswith("steptime: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_without_an_airflow_it_says_how_to_start_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert steptime(monkeypatch, "run llama3.1") == 2
    assert "start it with 'steptime up'" in capsys.readouterr().err


def test_a_dry_run_shows_the_plan_and_needs_no_airflow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert steptime(monkeypatch, "run llama3.1 --gpus 1,2 --dry-run --format csv") == 0
    planned = capsys.readouterr().out
    assert steptime(monkeypatch, "plan llama3.1 --gpus 1,2 --format csv") == 0
    assert capsys.readouterr().out == planned
