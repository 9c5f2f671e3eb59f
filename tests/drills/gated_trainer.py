"""The stand-in trainer of the Airflow tests, which stops in the middle of its steps at a gate of the drill.

STAND_IN_GATE names the gate: the trainer writes its process id to `<gate>.arrived` and goes on when there is
no `<gate>.closed`.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "airflow"))

import stand_in_trainer

_LAST_STEP_BEFORE = 9
_print = stand_in_trainer.say


def say(line):
    _print(line)
    if f"| global_step: {_LAST_STEP_BEFORE} " in line:
        _wait_at(os.environ["STAND_IN_GATE"])


def _wait_at(gate):
    with Path(f"{gate}.arrived").open("a") as arrived:
        arrived.write(f"{os.getpid()}\n")
    while Path(f"{gate}.closed").exists():
        time.sleep(0.05)


if __name__ == "__main__":
    stand_in_trainer.say = say
    sys.exit(stand_in_trainer.main())
