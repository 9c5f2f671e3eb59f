"""Collective operations by gloo, between two ranks of the process that has torch imported."""

from pathlib import Path

import pytest

from steptime.logs.reader import read_log
from trainer.collectives import COLLECTIVES

from .jobs import WarmTrainer

PROGRAM = """
import sys
from pathlib import Path
from trainer import collectives, cpu_ranks

def measure(*_):
    if collectives.main(sys.argv[1:]):
        raise SystemExit(1)

if __name__ == "__main__":
    sys.exit(cpu_ranks.launch_ranks(2, "start", Path(), measure))
"""


@pytest.mark.trainer
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("collective", sorted(set(COLLECTIVES) - {"all_reduce"}))
def test_other_collectives_than_those_of_a_job(
    warm_trainer: WarmTrainer, collective: str, tmp_path: Path
) -> None:
    """Each has its own processes: a second group in them could connect to the first group's addresses."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    options = ["--cycles=2", "--max-bytes=65536"]
    done = warm_trainer.run(str(program), [collective, *options], folder=tmp_path)
    assert done.exit_code == 0, done.log
    log = read_log(tmp_path / "log.out", max_steps=2)
    assert (len(log.steps), log.collective and log.collective["collective"]) == (2, collective)
