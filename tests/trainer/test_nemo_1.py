"""Training in the image of release 24.11: what NeMo 1's program is asked for, and what its log becomes.

The image cannot be had here: a stand-in for its program reads the command line as the program does, by Hydra.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from steptime.clusters.base import JobState, JobStatus
from steptime.logs.reader import read_log
from steptime.recipes.models import Parallelism, Run
from steptime.recipes.planning import PlanRequest, plan
from steptime.results.metrics import measure
from steptime.results.quality import validate
from trainer import nemo1
from trainer.launch import Launch
from trainer.nemo1 import CONFIG, overrides
from trainer.run import read_run

from .jobs import light_trainer, start_trainer, write_run

PROGRAM = Path(__file__).parent / "programs" / "nemo_1.py"
WITH_STAND_IN = (
    "import sys; from pathlib import Path; from trainer import nemo1; from trainer.__main__ import main; "
    "nemo1.PROGRAM = Path(sys.argv.pop(1)); sys.exit(main())"
)


def planned(**asked: Any) -> Run:
    request = {"workload": "nemotron4-340b-24.11", "gpu_type": "h100", "size": "340b", "gpus": "128"}
    return plan(PlanRequest.model_validate(request | asked)).runs[0]


def on_one_gpu(run: Run) -> Run:
    recipe = run.recipe.model_copy(update={"parallelism": Parallelism(data=1)})
    settings = run.performance.trainer.model_copy(update={"tp_comm_overlap": False})
    performance = run.performance.model_copy(update={"trainer": settings})
    return run.model_copy(update={"recipe": recipe, "performance": performance})


def given(run: Run, folder: Path) -> dict[str, str]:
    """Every value that the program gets, as Hydra's overrides are written: the file's, then the plan's."""
    launch = Launch(
        rank=0, world_size=128, local_world_size=8, threads=1, by_launcher=True, on_one_host=False
    )
    (path,) = write_run(run, folder)
    pairs = [override.split("=", 1) for override in overrides(read_run(Path(path)), launch, folder)]
    assert len(dict(pairs)) == len(pairs)
    named = {key: nemo1._as_hydra(value) for key, value in nemo1._flat(yaml.safe_load(CONFIG.read_text()))}
    return named | {key.removeprefix("++"): value for key, value in pairs}


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_documents_settings_are_asked_for(tmp_path: Path, dtype: str) -> None:
    asked = given(planned(dtype=dtype), tmp_path)
    expected = {
        "trainer.num_nodes": "16",
        "trainer.devices": "8",
        "trainer.max_steps": "50",
        "model.tensor_model_parallel_size": "8",
        "model.pipeline_model_parallel_size": "8",
        "model.virtual_pipeline_model_parallel_size": "12",
        "model.micro_batch_size": "1",
        "model.global_batch_size": "32",  # two for each node
        "model.num_layers": "96",
        "model.hidden_size": "18432",
        "model.override_vocab_size": "256000",
        "model.encoder_seq_length": "4096",
        "model.activation": "'squared-relu'",
        "model.data.data_impl": "'mock'",
        "model.optim.betas": "[0.9,0.95]",
        "model.ub_tp_comm_overlap": "True",
        "model.fp8": str(dtype == "fp8"),
        "exp_manager.explicit_log_dir": f"'{tmp_path}/results'",
    }
    assert expected.items() <= asked.items()
    assert asked["model.nsys_profile.enabled"] == "False"


def test_the_plan_decides_nothing_that_the_file_says(tmp_path: Path) -> None:
    """But for a profile: else one of two values would have to be wrong."""
    launch = Launch(
        rank=0, world_size=128, local_world_size=8, threads=1, by_launcher=True, on_one_host=False
    )
    (path,) = write_run(planned(), tmp_path)
    decided = {one.split("=")[0][2:] for one in overrides(read_run(Path(path)), launch, tmp_path)}
    assert decided.isdisjoint(dict(nemo1._flat(yaml.safe_load(CONFIG.read_text()))))


@pytest.mark.parametrize(("dtype", "split_ag"), [("bf16", "0"), ("fp8", "1")])
def test_its_jobs_have_the_releases_environment(dtype: str, split_ag: str) -> None:
    """As nemotron/configure.sh of dgxc-benchmarking v24.11.1 exports it for 340b, on H100."""
    assert planned(dtype=dtype).performance.environment == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "HYDRA_FULL_ERROR": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NVTE_ASYNC_AMAX_REDUCTION": "1",
        "NVTE_BWD_LAYERNORM_SM_MARGIN": "8",
        "NVTE_DP_AMAX_REDUCE_INTERVAL": "0",
        "NVTE_FUSED_ATTN": "0",
        "NVTE_FWD_LAYERNORM_SM_MARGIN": "8",
        "NVTE_UB_SPLIT_AG": split_ag,
        "TORCH_NCCL_AVOID_RECORD_STREAMS": "1",
    }


def test_an_image_that_has_it_not_is_told(tmp_path: Path) -> None:
    ended = light_trainer(write_run(on_one_gpu(planned()), tmp_path), tmp_path)
    assert ended.returncode == 1
    assert ended.stdout.startswith(
        "trainer: /opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py is missing in image "
        "nvcr.io/nvidia/nemo:24.09: choose an image with NeMo 1."
    )


@pytest.mark.trainer
@pytest.mark.timeout(1500)
def test_its_log_becomes_a_valid_result(trainer_python: str, tmp_path: Path) -> None:
    folder = tmp_path / "it's a $(folder), [with] what = 'shells\\' \\and Hydra\\' read\\"
    folder.mkdir()
    run = on_one_gpu(planned())
    done = start_trainer(
        [trainer_python, "-c", WITH_STAND_IN], [str(PROGRAM), *write_run(run, folder)], cwd=folder
    )
    assert done.returncode == 0, done.stdout
    (folder / "log.out").write_bytes(done.stdout.encode())
    config = json.loads((folder / "config.json").read_text())
    assert config["exp_manager"]["explicit_log_dir"] == str(folder / "results")
    assert config["model"]["optim"]["lr"] == 1e-4  # of the file
    assert config["model"]["global_batch_size"] == run.recipe.global_batch_size  # of the plan
    assert config["model"]["data"]["data_prefix"] == []
    log = read_log(folder / "log.out", max_steps=50)
    assert (log.format, len(log.steps), log.problems) == ("tqdm", 50, ())
    verdict = validate(run, JobStatus(state=JobState.SUCCEEDED, exit_code=0), log, measure(run, log))
    # Only that: the stand-in's step times are of 128 GPUs, and here is one.
    assert [check.name for check in verdict.checks if not check.passed] == ["mfu_possible"]
    assert verdict.valid
