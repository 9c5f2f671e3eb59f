"""Requests and the stand-in's answers, held to the models of Run:ai's own generated client (runapy)."""

import importlib
import importlib.util
import re
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

from steptime.clusters.runai.phases import MEANING
from steptime.clusters.runai.workloads import workload_name


@pytest.fixture(scope="module")
def models():
    """Yield runapy's models by name, each imported on its own: all thousand would take 5 s of CPU."""
    spec = importlib.util.find_spec("runai")
    assert spec is not None
    assert spec.origin is not None
    for name in ("runai", "runai.models"):  # without the packages' own imports
        package = sys.modules[name] = ModuleType(name)
        package.__path__ = [str(Path(spec.origin).parent.joinpath(*name.split(".")[1:]))]

    class ByName:
        def __getattr__(self, name):
            file = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # their source has invalid escapes
                return getattr(importlib.import_module(f"runai.models.{file}"), name)

    yield ByName()
    for name in [name for name in sys.modules if name.partition(".")[0] == "runai"]:
        del sys.modules[name]


def unknown_fields(said, model, at=""):
    """Yield the paths of fields that the model lacks: these models drop such fields silently."""
    if isinstance(said, list) and isinstance(model, list):
        for index, (said_item, parsed) in enumerate(zip(said, model, strict=True)):
            yield from unknown_fields(said_item, parsed, f"{at}[{index}]")
    if not isinstance(said, dict) or not isinstance(model, BaseModel):
        return
    names = {field.alias or name: name for name, field in type(model).model_fields.items()}
    for key, value in said.items():
        if key not in names:
            yield f"{at}.{key}"
        else:
            yield from unknown_fields(value, getattr(model, names[key]), f"{at}.{key}")


def check(model, said):
    parsed = model.model_validate(said)
    assert not list(unknown_fields(said, parsed)), f"{model.__name__} has no such fields"
    return parsed


@pytest.mark.long
async def test_every_request_and_answer_fits_runais_models(runai_with, runai_server, make_gated, models):
    data = {"claim": "workspace", "path": "/data", "read_only": True}
    pools = {"node_pools": ["h100"], "pvcs": [{"claim": "workspace", "path": "/", "name": "shared"}, data]}
    single, pair = make_gated("single"), make_gated("pair", slots=2)
    async with runai_with(gpus_per_node=1, **pools) as cluster:
        for one in (single, pair):
            await cluster.submit(one.spec)
        await cluster.poll(["single", "pair"])
        (cluster._config.volume.local(str(cluster._config.state)) / "jobs/pair/submitted.json").unlink()
        cluster._known.clear()
        await cluster.find("pair")  # asks for the workload and its spec
        runai_server.workload(workload_name("single"))._warn("Failed", "a warning")
        await cluster._client.events(runai_server.workload(workload_name("single")).id)
        await cluster.cancel("pair")
        await cluster.run(["true"])
    requests = {
        ("POST", "/workloads/trainings"): models.TrainingCreationRequest,
        ("POST", "/workloads/distributed"): models.DistributedCreationRequest,
    }
    answers = {
        ("POST", "/token"): models.TokenResponse,
        ("GET", "/workloads"): models.GetWorkloads200Response,
        ("GET", "/workloads/<id>"): models.Workload,
        ("GET", "/workloads/<id>/events"): models.GetWorkloadEvents200Response,
        ("POST", "/workloads/trainings"): models.Training1,
        ("POST", "/workloads/distributed"): models.DistributedWorkload,
        ("GET", "/workloads/distributed/<id>"): models.DistributedWorkload,
    }
    without_a_model = {
        ("GET", "/org-unit/projects"),  # no model of runapy fits this answer; its fields are NeMo-Run's
        ("POST", "/workloads/distributed/<id>/suspend"),
        ("DELETE", "/workloads/trainings/<id>"),
    }
    seen = set()
    for entry in runai_server.journal:
        path = entry.path
        for workload_id in runai_server.workloads:
            path = path.replace(workload_id, "<id>")
        seen.add((entry.method, path))
        if (entry.method, path) in requests:
            check(requests[entry.method, path], entry.request)
        if (entry.method, path) in answers:
            check(answers[entry.method, path], entry.answer)
    assert seen == set(answers) | without_a_model


def test_every_phase_is_decided(models):
    assert set(MEANING) == {phase.value for phase in models.Phase}
