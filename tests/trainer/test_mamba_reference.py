"""The Mamba mixer in plain torch, against the recurrence that defines it."""

import json
from pathlib import Path

import pytest

from .jobs import WarmTrainer

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]


def test_it_is_the_recurrence(warm_trainer: WarmTrainer, tmp_path: Path) -> None:
    """Outputs and gradients, where the length is a multiple of the chunk, is none, and is below one."""
    program = Path(__file__).parent / "programs" / "compare_mamba.py"
    done = warm_trainer.run(str(program), [], folder=tmp_path)
    assert done.exit_code == 0, done.log
    errors = json.loads(done.log.splitlines()[-1])
    assert set(errors["scans"]) == {"12 by 4", "13 by 4", "3 by 8"}
    for error in errors["scans"].values():
        assert set(error) == {"y", "x", "dt", "a", "b", "c"}
        assert max(error.values()) < 1e-12  # float64
    assert errors["mixer"] < 1e-12
