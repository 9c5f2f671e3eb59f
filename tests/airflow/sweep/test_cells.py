"""What the first tasks of a sweep refuse, pass on and stage."""

import json
import re
import shutil

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from steptime.airflow.base import Refused

from .conftest import SweepTask


def test_a_sweep_keeps_its_plan(check):
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
def test_what_cannot_be_run_starts_nothing(check, asked, sentence):
    with pytest.raises(Refused, match=re.escape(sentence)) as refused:
        check(**asked)
    assert "\n" not in str(refused.value)


def test_each_cluster_and_image_is_staged_once(
    check,
    task,
    make_context,
    staged,
    monkeypatch,
):
    asked = []

    async def stage(cluster, config, run, report):
        asked.append((config.name, run.recipe.image))
        return staged

    monkeypatch.setattr("steptime.airflow.operators.stage", stage)
    runs = [{"workload": ["llama3.1", "nemotron4"], "size": "tiny", "gpus": [1, 2], "checkpoint": True}]
    checked = check(runs=runs)

    planned = task("stage", checked=checked).execute(make_context() | {"ti": SweepTask(map_index=-1)})

    assert asked == [("local", None)]
    cells = [cell["label"] for cell in checked["cells"]]
    assert [each["run"] for each in planned["runs"]] == cells
    pairs = planned["checkpoint_pairs"]
    assert [(each["save"], each["load"]) for each in pairs] == [
        tuple(f"{cell['label']}·checkpoint {does}" for does in ("save", "load"))
        for cell in checked["cells"]
        if cell["jobs"] == 3
    ]
    assert len(pairs) == 2
    assert {planned_run["staged"]["trainer_path"] for planned_run in (*planned["runs"], *pairs)} == {
        staged.trainer_path
    }


def test_later_tasks_do_not_plan_again(
    check,
    task,
    make_context,
    staged,
    home,
    monkeypatch,
):
    """They load the plan that the first task has stored: files of `config/` may change or go meanwhile."""

    async def stage(*_):
        return staged

    monkeypatch.setattr("steptime.airflow.operators.stage", stage)
    runs = [{"workload": "llama3.1", "gpus": [1, 2], "checkpoint": True}]
    checked = check(runs=runs, approval_above_gpu_hours=2)
    assert all("request" not in cell and "planned" not in cell for cell in checked["cells"])
    for folder in ("workloads", "sweeps"):
        path = home.parent / "config" / folder
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    context = make_context() | {"ti": SweepTask(map_index=-1)}

    approve = task("approve", checked=checked)
    with pytest.raises(AirflowSkipException, match=r"at most 1\.17 GPU-hours"):
        approve.execute(context)
    planned = task("stage", checked=checked).execute(context)
    assert len(planned["runs"]) == 2
    json = {"run": planned["runs"][0]["run"], "staged": staged.model_dump(mode="json")}
    submitted = task("performance.submit", **json).execute(
        make_context() | {"ti": SweepTask(task_id="performance.submit", map_index=0)}
    )
    assert submitted["cluster"] == "local"
    with pytest.raises(AirflowFailException, match="2 of 2 runs have no valid result"):
        task("report", checked=checked, confirmed=None).execute(context)
