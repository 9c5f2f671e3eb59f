"""A workload that names the backend Megatron-Bridge, from the plan to the checks of its result."""

from pathlib import Path

import pytest
from printed_tables import config_with
from staged import staged_files

from steptime.clusters.base import JobState
from steptime.clusters.jobscript import job_spec
from steptime.logs.reader import read_log
from steptime.measure.metrics import measure
from steptime.measure.quality import validate
from steptime.recipes.planning import PlanRequest, plan
from steptime.staging.checking import require_trainable

from .conftest import end_of

ROOT = Path(__file__).parents[2]


@pytest.mark.trainer
@pytest.mark.timeout(1500)
async def test_it_trains_by_the_job_script_and_its_result_is_valid(
    local,
    make_config,
    config_folder,
    bridge_python,
    monkeypatch,
):
    config = config_with(ROOT / "tests" / "data" / "bridge", config_folder)
    monkeypatch.setenv("STEPTIME_CONFIG_DIR", str(config))
    run = plan(PlanRequest(workload="bridge-llama", gpus="2", max_steps=4, window="2:3")).runs[0]
    require_trainable([run])
    staged = staged_files(bridge_python, str(ROOT))
    spec = job_spec(run, staged, make_config(), identity="d/r/c", started=1_700_000_000)
    job = await local.submit(spec)
    status = await end_of(local, job.name, deadline_s=900)
    assert status.state is JobState.SUCCEEDED, Path(job.log_path).read_text()
    log = read_log(job.log_path, max_steps=run.max_steps)
    measured = measure(run, log)
    verdict = validate(run, status, log, measured)
    assert (log.format, len(log.steps)) == ("megatron_bridge", run.max_steps)
    assert verdict.valid, verdict.reason
