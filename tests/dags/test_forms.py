"""The defaults and examples in the trigger forms of the shipped DAGs can be run on their first cluster."""

import json
import re
import shutil

import pytest

from steptime import dag_ids
from steptime.airflow.params import plan_from_params
from steptime.clusters.config import load_cluster
from steptime.errors import UserError
from steptime.recipes.workloads import list_workloads, load_workload
from steptime.settings import config_dir
from steptime.staging.checking import checked_sweep, checked_trial

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("default")]

_EXAMPLES = re.compile(r"(?:(?P<needs>On|With)(?P<what>[^.]*), f|F)or example: (?P<examples>.+)\.$")
_BRIDGE = "With a recipe of Megatron-Bridge"
_NEEDS = {
    "On a Slurm cluster": {"cluster": "mini-slurm"},
    "On a Slurm cluster, with so many nodes": {"cluster": "h100", "size": "8b", "gpus": "128"},
    "On a cluster that runs containers": {"cluster": "mini-slurm"},
    "With one number of GPUs": {"gpus": "1"},
    "With checkpoint or save_checkpoint": {"save_checkpoint": True},
    "With steptime's trainer": {},
    "With profile": {"profile": True},
    "On GPUs": {"cluster": "h100"},
    _BRIDGE: {"cluster": "gb300", "size": "8b"},
    "On GPUs, with tensor parallelism": {"cluster": "h100", "size": "70b"},
}
"""By an example's condition, the params of Llama 3.1 (of 26.08 for Megatron-Bridge) that meet it."""
ALL_DAGS = """
from steptime.airflow.dags import make_dags
from steptime.recipes.workloads import list_workloads

make_dags(list_workloads())
"""
_ON_GPUS = "name: {0}\nkind: slurm\ngpu_type: {0}\nconnection: {0}\nwork_dir: /work\ncontainer: pyxis\n"


@pytest.fixture(scope="module")
def config_with_gpus(tmp_path_factory):
    """Return the shipped configuration, with clusters of H100 and GB300 beside those of the CPU."""
    config = tmp_path_factory.mktemp("with-gpus") / "config"
    shutil.copytree(config_dir(), config)
    for name in ("h100", "gb300"):
        (config / "clusters" / f"{name}.yaml").write_text(_ON_GPUS.format(name))
    return config


@pytest.fixture
def with_gpus(config_with_gpus, monkeypatch):
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config_with_gpus))


@pytest.fixture(scope="module")
def forms_with_gpus(config_with_gpus, dag_file):
    """Return the params of every DAG in that configuration; no test changes them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("STEPTIME_CONFIG_DIR", str(config_with_gpus))
        return read_forms(patched, dag_file)


@pytest.fixture(scope="module")
def dag_file(tmp_path_factory):
    """Return a DAG file that makes the DAGs of all workloads, also of those that no cluster can run."""
    path = tmp_path_factory.mktemp("dags") / "all_dags.py"
    path.write_text(ALL_DAGS)
    return path


def read_forms(monkeypatch, dag_file):
    """Return the params of every DAG, on a machine of two cores."""
    from airflow.dag_processing.dagbag import DagBag

    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    bag = DagBag(dag_file, bundle_path=dag_file.parent, bundle_name="tests")
    return {dag_id: dag.params for dag_id, dag in bag.dags.items()}


def check(dag_id, values):
    """Check params as the first task of a DAG does."""
    workloads = {dag_ids.dag_id(name): name for name in list_workloads()}
    if dag_id in workloads:
        plan_from_params(workloads[dag_id], values)
    elif "sweep" in values:
        checked_sweep(values["sweep"])
    elif "trial" in values:
        checked_trial(values["trial"])
    else:
        load_cluster(values["cluster"])


def named_examples(param):
    """Return the condition of the examples in a description, and the examples."""
    if (named := _EXAMPLES.search(param.description)) is None:
        return "", []
    is_text = "string" in param.schema["type"]
    examples = [text if is_text else json.loads(text) for text in named["examples"].split(", ")]
    return f"{named['needs'] or ''}{named['what'] or ''}", examples


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_example_can_be_run_with_all_else_as_the_form_begins(with_gpus, forms_with_gpus):
    seen = set()
    for dag_id, params in forms_with_gpus.items():
        for name in params:
            param = params.get_param(name)
            condition, examples = named_examples(param)
            for example in [*param.schema.get("examples", ()), *([] if condition else examples)]:
                check(dag_id, params.dump() | {name: example})
                seen.add(name)

    assert {"gpus", "window", "time_limit", "max_steps", "sweep", "environment"} <= seen


def test_an_example_with_a_condition_can_be_run_where_that_holds(with_gpus, forms_with_gpus):
    params = forms_with_gpus["steptime_llama3.1-25.04"]
    seen = set()
    for name in params:
        condition, examples = named_examples(params.get_param(name))
        for example in examples if condition else ():
            dag_id = "steptime_llama3.1-26.08" if condition == _BRIDGE else "steptime_llama3.1-25.04"
            check(dag_id, forms_with_gpus[dag_id].dump() | {**_NEEDS[condition], name: example})
            seen.add(condition)

    assert seen == set(_NEEDS)


def test_a_form_is_accepted_if_only_its_cluster_is_changed(with_gpus, forms_with_gpus):
    changed = 0
    for name in list_workloads():
        workload = load_workload(name)
        form = forms_with_gpus[dag_ids.dag_id(name)].dump()
        for cluster, gpu_type in {"local": "cpu", "h100": "h100", "gb300": "gb300"}.items():
            if gpu_type in workload.gpu_types:
                plan_from_params(name, form | {"cluster": cluster})
                changed += cluster != form["cluster"]
    assert changed


def test_a_family_that_no_cluster_can_run_is_refused_in_one_sentence(monkeypatch, dag_file):
    """The examples in its form are of what it could run."""
    forms = read_forms(monkeypatch, dag_file)
    for_gpus = {name for name in list_workloads() if "cpu" not in load_workload(name).gpu_types}
    for name in for_gpus:
        workload = load_workload(name)
        params = forms[dag_ids.dag_id(name)]
        gpu_types = ", ".join(workload.gpu_types)
        with pytest.raises(UserError) as refused:
            check(dag_ids.dag_id(name), params.dump())
        assert str(refused.value) == (
            f"{name} does not run on cpu, which cluster 'local' has: name a cluster that has one of "
            f"{gpu_types}, or such a GPU type to see a plan."
        )
        (gpus, *_) = params.get_param("gpus").schema["examples"]
        assert int(gpus) in {recipe.gpus for recipe, _ in workload.recipes()}
    assert for_gpus
