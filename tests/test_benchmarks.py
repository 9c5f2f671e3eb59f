"""Each benchmark runs as its docstring says: `python benchmarks/NAME.py`, here with its smallest size."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALLEST = {
    "log_reading": pytest.param(
        ["--only", "noisy", "--megabytes", "1", "--repeats", "1"], marks=pytest.mark.slow
    ),
    "planted_changes": pytest.param(["--planted", "1", "--unchanged", "0"], marks=pytest.mark.exhaustive),
    "planted_mondays": pytest.param(["--half-years", "1"], marks=pytest.mark.exhaustive),
    # Trainings, whose parts other tests of the trainer have.
    "backends": pytest.param(
        ["--ranks", "1", "--repeats", "1"], marks=[pytest.mark.trainer, pytest.mark.exhaustive]
    ),
    "sampling": pytest.param(
        ["--ranks", "1", "--seconds", "1"], marks=[pytest.mark.trainer, pytest.mark.exhaustive]
    ),
    "store_pages": pytest.param(["--runs", "60"], marks=pytest.mark.exhaustive),
    "trial_rates": pytest.param(["--trials", "1", "--only", "2"], marks=pytest.mark.long),
    "triggerer_waits": pytest.param(
        ["--waits", "1", "--interval", "1"], marks=[pytest.mark.slurm, pytest.mark.exhaustive]
    ),
}
_MISSED_GOAL = 2
"""Exit code of a benchmark that misses a goal, as it may on a busy machine."""


def test_every_benchmark_is_started():
    programs = {
        path.stem for path in (ROOT / "benchmarks").glob("*.py") if "\ndef main()" in path.read_text()
    }
    assert programs - {"sampled_training"} == set(SMALLEST)  # that one is started by `sampling`


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(name, *case.values, marks=case.marks) for name, case in SMALLEST.items()],
)
def test_runs_as_its_docstring_says(name, options, tmp_path):
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("AIRFLOW", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *options],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, _MISSED_GOAL), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout
