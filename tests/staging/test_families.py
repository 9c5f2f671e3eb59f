"""What the pipeline believes of the trainer, against the trainer."""

import json
import subprocess
import sys
from pathlib import Path

from steptime.staging.families import trainable_architectures


def test_the_trainable_architectures_are_the_trainers_own() -> None:
    trainer = "import json; from trainer.families import FAMILIES; print(json.dumps(sorted(FAMILIES)))"
    told = subprocess.run(
        [sys.executable, "-c", trainer],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )

    assert list(trainable_architectures()) == json.loads(told.stdout)
