"""Requests and the stand-in's answers, held to the models of Run:ai's own generated client (runapy)."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from stand_ins.runai import RunaiStandIn

from steptime.clusters.base import JobSpec
from steptime.clusters.runai.cluster import RunaiCluster
from steptime.clusters.runai.config import workload_name
from steptime.clusters.runai.phases import MEANING

MakeSpec = Callable[..., JobSpec]
MakeGated = Callable[..., Any]
RunaiWith = Callable[..., RunaiCluster]


@pytest.fixture(scope="module")
def models() -> Any:
    """runapy's models; reading a thousand of them takes seconds, and their source has invalid escapes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from runai import models

        return models


def unknown_fields(said: Any, model: BaseModel | list[Any] | None, at: str = "") -> Iterator[str]:
    """Where what was said has fields that its model does not: these models leave such out in silence."""
    if isinstance(said, list) and isinstance(model, list):
        for index, (one, parsed) in enumerate(zip(said, model, strict=True)):
            yield from unknown_fields(one, parsed, f"{at}[{index}]")
    if not isinstance(said, dict) or not isinstance(model, BaseModel):
        return
    names = {field.alias or name: name for name, field in type(model).model_fields.items()}
    for key, value in said.items():
        if key not in names:
            yield f"{at}.{key}"
        else:
            yield from unknown_fields(value, getattr(model, names[key]), f"{at}.{key}")


def check(model: type[BaseModel], said: Any) -> BaseModel:
    parsed = model.model_validate(said)
    assert not list(unknown_fields(said, parsed)), f"{model.__name__} has no such fields"
    return parsed


def test_the_check_sees_what_the_models_let_pass(models: Any) -> None:
    with pytest.raises(AssertionError, match="TrainingCreationRequest has no such fields"):
        check(
            models.TrainingCreationRequest,
            {"name": "a", "projectId": "1", "clusterId": "2", "spec": {"comand": "bash"}},
        )


async def test_every_request_and_answer_fits_runais_models(
    runai_with: RunaiWith, runai_server: RunaiStandIn, make_gated: MakeGated, models: Any
) -> None:
    data = {"claim": "workspace", "path": "/data", "read_only": True}
    pools = {"node_pools": ["h100"], "pvcs": [{"claim": "workspace", "path": "/", "name": "shared"}, data]}
    single, pair = make_gated("single"), make_gated("pair", slots=2)
    async with runai_with(gpus_per_node=1, **pools) as cluster:
        for one in (single, pair):
            await cluster.submit(one.spec)
        await cluster.poll(["single", "pair"])
        (cluster._config.volume.local(str(cluster._config.state)) / "jobs/pair/submitted.json").unlink()
        cluster._known.clear()
        await cluster.find("pair")  # asks for the workload with its spec
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
        ("GET", "/org-unit/projects"),  # runapy has none that fits this answer; the fields are NeMo-Run's
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


def test_the_request_for_a_token_has_the_models_fields(runai_server: RunaiStandIn, models: Any) -> None:
    """Written as runapy itself writes them; Run:ai reads them without regard to case."""
    asked = {"grantType": "app_token", "AppId": "a", "AppSecret": "b"}
    fields = models.TokenRequest.model_fields
    assert {name.lower() for name in asked} <= {
        (field.alias or name).lower() for name, field in fields.items()
    }
    assert models.TokenRequestGrantTypeEnum(asked["grantType"])


def test_every_phase_is_decided(models: Any) -> None:
    assert set(MEANING) == {phase.value for phase in models.Phase}


async def test_runais_own_client_talks_to_the_stand_in(
    runai: RunaiCluster, runai_server: RunaiStandIn, make_gated: MakeGated, models: Any
) -> None:
    """So the stand-in is not only what our own client takes for Run:ai."""
    from runai.api_client import ApiClient
    from runai.configuration import Configuration
    from runai.runai_client import RunaiClient

    job = await runai.submit(make_gated("seen").spec)
    configuration = Configuration(
        client_id=runai_server.application,
        client_secret=runai_server.secret,
        runai_base_url=runai_server.url,
        retry_enabled=False,
    )
    client = RunaiClient(ApiClient(configuration))
    name = workload_name("seen")
    listed = client.workloads.workloads.get_workloads(filter_by=[f"name=={name}"]).data
    assert [workload["id"] for workload in listed["workloads"]] == [job.job_id]
    made = client.workloads.trainings.get_training(job.job_id).data
    assert made["name"] == name
    client.workloads.trainings.suspend_training(job.job_id)
    assert (await runai.poll(["seen"]))["seen"].state == "cancelled"
