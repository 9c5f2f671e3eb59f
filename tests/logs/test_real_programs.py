"""Whole logs of programs other than steptime's trainer, which really trained a tiny model on a CPU.

Only Megatron-LM's log is shortened, by the list of its arguments.
"""

import re
from datetime import datetime
from pathlib import Path

import pytest

from steptime.logs.reader import read_log

LOGS = Path(__file__).parents[1] / "data" / "logs"
TITAN_STEP = re.compile(r"\[titan\] (\S+ \S+),(\d{3}) .*step: *(\d+) ")
MEGATRON_STEP = re.compile(r"iteration +\d+/ +10 .*per iteration \(ms\): ([\d.]+) ")


@pytest.mark.parametrize("name", ["0.2.0-cpu-1rank", "0.2.2-cpu-2ranks", "0.3.0-cpu-2ranks"])
def test_step_times_of_torchtitan_agree_with_its_time_stamps(name):
    path = LOGS / f"log-torchtitan-{name}.out"
    log = read_log(path, max_steps=10)
    assert (log.format, [step.global_step for step in log.steps]) == ("torchtitan", [*range(10)])
    assert log.steps[-1].loss < log.steps[0].loss
    printed = {}
    for match in TITAN_STEP.finditer(path.read_text()):
        at = datetime.fromisoformat(match[1]).timestamp() + int(match[2]) / 1000
        printed.setdefault(int(match[3]), at)
    read = sum(step.step_time_s for step in log.steps if step.global_step >= 4)
    assert read == pytest.approx(printed[10] - printed[4], rel=0.02)


def test_step_times_of_megatron_lm_are_the_printed_ones():
    path = LOGS / "log-megatron-lm-core_v0.16.1-cpu-2ranks.out"
    log = read_log(path, max_steps=10)
    milliseconds = [float(text) for text in MEGATRON_STEP.findall(path.read_text())]
    assert log.format == "megatron_bridge", "Megatron-LM's lines are those of Megatron-Bridge"
    assert len(milliseconds) == 10
    assert [step.step_time_s for step in log.steps] == pytest.approx([ms / 1000 for ms in milliseconds])
    assert (log.steps[-1].global_batch_size, log.steps[-1].loss < log.steps[0].loss) == (8, True)
