"""What the pipeline believes of the trainer, against the trainer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from steptime.errors import UserError
from steptime.recipes.models import ModelShape
from steptime.recipes.planning import PlanRequest, plan
from steptime.staging.families import require_trainable


def test_the_trainer_has_every_architecture_of_the_recipes() -> None:
    trainer = "import json; from trainer.families import FAMILIES; print(json.dumps(sorted(FAMILIES)))"
    told = subprocess.run(
        [sys.executable, "-c", trainer],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )

    assert sorted(get_args(ModelShape.model_fields["architecture"].annotation)) == json.loads(told.stdout)


def test_a_run_in_an_image_of_nemo_1_is_refused_plainly() -> None:
    run = plan(PlanRequest(workload="nemotron4-340b-24.11", gpu_type="h100", gpus="128")).runs[0]
    with pytest.raises(
        UserError, match=r"340b cannot be trained on h100: its image \S+/nemo:24\.09 has NeMo 1"
    ):
        require_trainable(run)


@pytest.mark.parametrize("image", ["nvcr.io/nvidia/nemo:25.02.01", None])
def test_a_run_of_the_same_recipe_in_another_image_is_not(image: str | None) -> None:
    run = plan(PlanRequest(workload="nemotron4-340b-24.11", gpu_type="h100", gpus="128")).runs[0]
    require_trainable(run.model_copy(update={"recipe": run.recipe.model_copy(update={"image": image})}))
