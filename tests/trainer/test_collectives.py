"""Collective operations by gloo, between two ranks of the process that has torch imported."""

import argparse
import json
from types import SimpleNamespace

import pytest

from steptime.logs.reader import read_log
from trainer.collectives import COLLECTIVES, Measurements

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
def test_other_collectives_than_those_of_a_job(warm_trainer, collective, tmp_path):
    """Each has its own processes: a second group in them could connect to the first group's addresses."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    options = ["--cycles=2", "--max-bytes=65536"]
    done = warm_trainer.run(str(program), [collective, *options], folder=tmp_path)
    assert done.exit_code == 0, done.log
    log = read_log(tmp_path / "log.out", max_steps=2)
    assert (len(log.steps), log.collective and log.collective["collective"]) == (2, collective)


def test_a_cycle_is_a_step_and_the_record_has_the_medians(capsys):
    arguments = argparse.Namespace(cycles=3, max_bytes=4_000_000_000)
    measured = Measurements("all_reduce", SimpleNamespace(world_size=4), arguments)  # type: ignore[arg-type]
    for small_s, large_s in ((0.1, 1.5), (0.3, 1.0), (0.2, 4.0)):
        measured.add(2_000_000_000, small_s, last=False)
        measured.add(4_000_000_000, large_s, last=True)
    measured.emit()
    *steps, record = capsys.readouterr().out.splitlines()
    assert steps == [
        f"Training epoch 0, iteration {step}/2 | global_step: {step} | train_step_timing in s: {seconds}"
        for step, seconds in enumerate(("1.5", "1", "4"))
    ]
    assert json.loads(record.removeprefix("steptime.collective ")) == {
        "schema": 1,
        "collective": "all_reduce",
        "ranks": 4,
        "messages": [
            {"bytes": 2_000_000_000, "time_s": 0.2, "bus_bandwidth_gb_s": pytest.approx(15)},
            {"bytes": 4_000_000_000, "time_s": 1.5, "bus_bandwidth_gb_s": pytest.approx(4)},
        ],
    }
