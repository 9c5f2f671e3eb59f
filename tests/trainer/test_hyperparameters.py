"""The learning rate, which on GPUs equals the one in the documents' sample logs."""

from pathlib import Path

import pytest

from steptime.recipes.planning import PlanRequest, plan
from trainer.hyperparameters import learning_rate
from trainer.run import read_run

from .jobs import write_run


@pytest.mark.parametrize(
    ("options", "step", "printed"),
    [
        ({"workload": "llama3.1", "size": "8b", "gpu_type": "h100"}, 49, "7.496e-06"),
        ({"workload": "nemotron4", "size": "15b", "gpu_type": "h100"}, 49, "4.491e-06"),
        ({"workload": "nemotron4", "size": "15b", "gpu_type": "h100"}, 5000, "4.5e-05"),
        ({"workload": "nemotron4", "size": "tiny", "gpu_type": "cpu"}, 49, "0.0003"),
    ],
)
def test_the_rate_of_a_step(tmp_path, options, step, printed):
    run = plan(PlanRequest.model_validate(options)).runs[0]
    (path,) = write_run(run, tmp_path)
    assert f"{learning_rate(read_run(Path(path)), step):.4g}" == printed
