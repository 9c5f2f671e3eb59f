"""What a training gets on GPUs and not on the CPU: seeds, userbuffers, and the workers for samples."""

import json
from pathlib import Path

import pytest

from steptime.recipes.planning import PlanRequest, plan

from .jobs import write_run

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def told(warm_trainer, tmp_path_factory):
    """Return what the program prints for a row that a document has."""
    folder = tmp_path_factory.mktemp("on_gpus")
    (run,) = plan(PlanRequest(workload="nemotron4", gpu_type="h100", size="15b", gpus="16")).runs
    program = Path(__file__).parent / "programs" / "on_gpus.py"
    done = warm_trainer.run(str(program), write_run(run, folder), folder=folder)
    assert done.exit_code == 0, done.log
    return json.loads(done.log.splitlines()[-1])


def test_pipeline_stages_draw_from_seeds_of_their_own(told):
    """Otherwise all stages after the first would start with equal layers."""
    first, again, other = told["first numbers"]
    assert first == again
    assert len({tuple(numbers) for numbers in first}) == len(first) == 3
    assert other[0] == first[1]  # as in NeMo, 100 from stage to stage


def test_userbuffers_meet_by_nccl_where_nothing_started_mpi(told):
    assert told["bootstrap"] == {"with MPI": None, "without": "nccl"}


def test_tokens_are_uniform_as_upstreams(told):
    assert told["tokens"]["mean"] == pytest.approx(0.5, abs=0.02)
    assert told["tokens"]["counting"] < 0.001


def test_samples_are_made_as_in_upstreams_runs(told):
    """These are the defaults of NeMo's MockDataModule at v2.2.1, v2.3.1, v2.4.0 and r2.5.0."""
    assert (told["workers"], told["pinned"]) == (8, True)
    assert told["first samples"] is True
