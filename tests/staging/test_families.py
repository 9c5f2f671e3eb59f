"""What the pipeline believes of the trainer, against the trainer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steptime.errors import UserError
from steptime.plug_points import MODEL_FAMILIES
from steptime.recipes.models import Run
from steptime.recipes.planning import PlanRequest, plan
from steptime.staging.families import NEMO_1_IMAGES, require_trainable


def test_the_trainer_has_every_architecture_of_the_recipes() -> None:
    trainer = "import json; from trainer.families import FAMILIES; print(json.dumps(sorted(FAMILIES)))"
    told = subprocess.run(
        [sys.executable, "-c", trainer],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )

    assert sorted(MODEL_FAMILIES.built_in) == json.loads(told.stdout)


NEMO_1 = "nvcr.io/nvidia/nemo:24.09"


def planned(image: str | None, **asked: Any) -> tuple[Run, ...]:
    """The runs of a plan, in that image."""
    request = {"workload": "nemotron4", "size": "340b", "gpu_type": "h100", "gpus": "512", **asked}
    return tuple(
        run.model_copy(update={"recipe": run.recipe.model_copy(update={"image": image})})
        for run in plan(PlanRequest.model_validate(request)).all_runs
    )


@pytest.mark.parametrize("image", [NEMO_1, "nvcr.io/nvidia/nemo:25.02.01", None])
def test_nemotron4_is_trained_in_any_image(image: str | None) -> None:
    require_trainable(planned(image))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"workload": "llama3.1", "size": "70b"},
            r"llama3.1-25.04 70b cannot be trained in image \S+/nemo:24\.09",
        ),
        (
            {"checkpoint": True},
            r"nemotron4-25.04 340b saves and loads no checkpoint in image \S+/nemo:24\.09",
        ),
    ],
)
def test_nemo_1_is_asked_for_nothing_else(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        require_trainable(planned(f"registry.example/{NEMO_1}", **asked))


def test_both_sides_know_the_same_images() -> None:
    from trainer.nemo1 import IMAGES

    assert set(IMAGES) == NEMO_1_IMAGES
