"""What the trigger forms of the shipped DAGs begin with and suggest can be run on the default cluster."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from steptime.airflow.params import plan_from_params
from steptime.airflow.sweep.cells import checked_slots
from steptime.recipes.sweep_planning import plan_sweep
from steptime.recipes.sweeps import load_sweep
from steptime.recipes.workloads import list_workloads, load_workload
from steptime.settings import config_dir, shipped

pytestmark = pytest.mark.filterwarnings("default")

_EXAMPLES = re.compile(r"(?:(?P<needs>On|With)(?P<what>[^.]*), f|F)or example: (?P<examples>.+)\.$")
_NEEDS: Mapping[str, Mapping[str, Any]] = {
    "On a Slurm cluster": {"cluster": "mini-slurm"},
    "On a Slurm cluster, with so many nodes": {"cluster": "h100", "size": "8b", "gpus": "128"},
    "On a cluster that runs containers": {"cluster": "mini-slurm"},
    "With one number of GPUs": {"gpus": "1"},
    "With profile": {"profile": True},
    "On GPUs": {"cluster": "h100"},
    "On GPUs, with tensor parallelism": {"cluster": "h100", "size": "70b"},
}
"""What the condition before an example asks for, as params of Llama 3.1."""
_H100 = "name: h100\nkind: slurm\ngpu_type: h100\nconnection: h100\nwork_dir: /work\n"


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The params of every DAG, on a machine of two cores."""
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    bag = DagBag(shipped("dags"), bundle_path=Path(shipped("dags")), bundle_name="tests")
    return {dag_id: dag.params for dag_id, dag in bag.dags.items()}


def check(dag_id: str, values: dict[str, Any]) -> None:
    """What the first task of a DAG checks of its params."""
    workloads = {load_workload(name).dag_id: name for name in list_workloads()}
    if dag_id in workloads:
        plan_from_params(workloads[dag_id], values)
    else:
        checked_slots(plan_sweep(load_sweep(values["sweep"])))


def named_examples(param: Any) -> tuple[str, list[Any]]:
    """The condition of the examples in a description, and the examples."""
    if (named := _EXAMPLES.search(param.description)) is None:
        return "", []
    is_text = "string" in param.schema["type"]
    examples = [text if is_text else json.loads(text) for text in named["examples"].split(", ")]
    return f"{named['needs'] or ''}{named['what'] or ''}", examples


def test_every_example_can_be_run_with_all_else_as_the_form_begins(forms: dict[str, Any]) -> None:
    seen = set()
    for dag_id, params in forms.items():
        for name in params:
            param = params.get_param(name)
            condition, examples = named_examples(param)
            for example in [*param.schema.get("examples", ()), *([] if condition else examples)]:
                check(dag_id, params.dump() | {name: example})
                seen.add(name)

    assert {"gpus", "window", "time_limit", "max_steps", "sweep", "environment"} <= seen


def test_an_example_with_a_condition_can_be_run_where_that_holds(
    forms: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(config_dir(), tmp_path / "config")
    (tmp_path / "config" / "clusters" / "h100.yaml").write_text(_H100)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(tmp_path / "config"))
    params = forms["llama31"]
    seen = set()
    for name in params:
        condition, examples = named_examples(params.get_param(name))
        for example in examples if condition else ():
            check("llama31", params.dump() | {"checkpoint": False, **_NEEDS[condition], name: example})
            seen.add(condition)

    assert seen == set(_NEEDS)


def test_every_form_as_it_begins_can_be_run(forms: dict[str, Any]) -> None:
    for dag_id, params in forms.items():
        if params:
            check(dag_id, params.dump())
