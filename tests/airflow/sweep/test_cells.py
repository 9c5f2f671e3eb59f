"""What the first tasks of a sweep refuse, pass on and stage."""

import json
import re
from typing import Any

import pytest

from steptime.airflow.base import Refused
from steptime.clusters.base import StagedFiles

from .conftest import CheckSweep, MakeTask


def test_a_sweep_keeps_its_plan(check: CheckSweep) -> None:
    checked = check(repeats=2)

    assert checked["sweep"] == "night"
    assert [cell["label"] for cell in checked["cells"]] == [
        "llama3.1·tiny·fp32·1",
        "llama3.1·tiny·fp32·1·repeat 2",
        "llama3.1·tiny·fp32·2",
        "llama3.1·tiny·fp32·2·repeat 2",
    ]
    assert json.loads(json.dumps(checked)) == checked


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"conf": {"sweep": "nigth"}}, "unknown sweep 'nigth': did you mean 'night'"),
        ({"conf": {"sweeps": "night"}}, "unknown parameter 'sweeps': did you mean 'sweep'"),
        ({"gpu_hours_max": 0.1}, "may cost 0.50 GPU-hours, more than its gpu_hours_max of 0.10"),
        (
            {"runs": [{"workload": "llama3.1", "gpus": [1], "environment": {"LD_PRELOAD": "/x.so"}}]},
            "sweep 'night', runs.0 (workload llama3.1, gpus 1, ",
        ),
        ({"exclude": [{"gpus": 4}]}, "exclude.0 (gpus 4) excludes nothing"),
    ],
)
def test_what_cannot_be_run_starts_nothing(check: CheckSweep, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refused, match=re.escape(sentence)) as refused:
        check(**asked)
    assert "\n" not in str(refused.value)


def test_each_cluster_and_image_is_staged_once(
    check: CheckSweep, task: MakeTask, staged: StagedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    async def stage(cluster: Any, config: Any, run: Any, report: Any) -> StagedFiles:
        asked.append((config.name, run.recipe.image))
        return staged

    monkeypatch.setattr("steptime.airflow.operators.stage", stage)
    runs = [{"workload": ["llama3.1", "nemotron4"], "size": "tiny", "gpus": [1, 2], "checkpoint": True}]
    checked = check(runs=runs)

    planned = task("stage", checked=checked).execute({})

    assert asked == [("local", None)]
    cells = [cell["label"] for cell in checked["cells"]]
    assert [one["run"]["cell"] for one in planned["runs"]] == cells
    assert [one["sweep_cell"]["label"] for one in planned["runs"]] == cells
    pairs = planned["checkpoint_pairs"]
    assert [(one["save"]["cell"], one["load"]["mode"]) for one in pairs] == [
        (cell["label"], "checkpoint_load") for cell in checked["cells"] if cell["jobs"] == 3
    ]
    assert len(pairs) == 2
    assert {one["staged"]["trainer_path"] for one in (*planned["runs"], *pairs)} == {staged.trainer_path}
