"""Run:ai's own client against the stand-in, so that this is not only what ours takes for Run:ai."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from stand_ins.runai import RunaiStandIn

from steptime.clusters.runai.cluster import RunaiCluster
from steptime.clusters.runai.config import workload_name


@pytest.mark.slow
async def test_runais_own_client_talks_to_the_stand_in(
    runai: RunaiCluster, runai_server: RunaiStandIn, make_gated: Callable[..., Any]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # their source has invalid escapes
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
