"""Training in the image of release 24.11: the arguments of NeMo 1's program, and the result from its log.

The image is not available here: a stand-in reads the command line by Hydra, as the program does.
"""

import json
from pathlib import Path

import pytest
import yaml

from steptime.clusters.base import JobState, JobStatus
from steptime.logs.reader import read_log
from steptime.measure.metrics import measure
from steptime.measure.quality import validate
from steptime.recipes.models import Parallelism, ProfileWindow
from steptime.recipes.planning import PlanRequest, plan
from trainer import nemo1
from trainer.launch import Launch
from trainer.nemo1 import CONFIG, overrides
from trainer.run import read_run

from .jobs import light_trainer, write_run

PROGRAM = Path(__file__).parent / "programs" / "nemo_1.py"
WITH_STAND_IN = f"""
import sys
from pathlib import Path
from trainer import nemo1
from trainer.__main__ import main
nemo1.PROGRAM = Path("{PROGRAM}")
sys.exit(main())
"""


def planned(**options):
    request = {"workload": "nemotron4-340b-24.11", "gpu_type": "h100", "size": "340b", "gpus": "128"}
    return plan(PlanRequest.model_validate(request | options)).runs[0]


def on_one_gpu(run):
    recipe = run.recipe.model_copy(update={"parallelism": Parallelism(data=1)})
    settings = run.performance.trainer.model_copy(update={"tp_comm_overlap": False})
    performance = run.performance.model_copy(update={"trainer": settings})
    return run.model_copy(update={"recipe": recipe, "performance": performance})


def test_the_plan_decides_nothing_that_the_file_says(tmp_path):
    """Only a profile is an exception: otherwise one of two values would have to be wrong."""
    launch = Launch(
        rank=0, world_size=128, local_world_size=8, threads=1, by_launcher=True, on_one_host=False
    )
    (path,) = write_run(planned(), tmp_path)
    decided = {override.split("=")[0][2:] for override in overrides(read_run(Path(path)), launch, tmp_path)}
    assert decided.isdisjoint(dict(nemo1._flat(yaml.safe_load(CONFIG.read_text()))))


@pytest.mark.parametrize("tensor", [8, 1])
def test_each_value_of_the_plan_has_its_key(tmp_path, tensor):
    run = on_one_gpu(planned(profile=True))  # without what needs tensor parallelism
    spread = Parallelism(tensor=tensor, pipeline=4, data=4, virtual_pipeline=2)
    recipe = run.recipe.model_copy(update={"parallelism": spread, "micro_batch_size": 2})
    window = ProfileWindow(first_step=45, last_step=50, ranks=(0, 3))
    run = run.model_copy(update={"recipe": recipe, "profile": window, "seed": 7})
    launch = Launch(
        rank=0, world_size=128, local_world_size=8, threads=1, by_launcher=True, on_one_host=False
    )
    (path,) = write_run(run, tmp_path)
    told = dict(each[2:].split("=", 1) for each in overrides(read_run(Path(path)), launch, tmp_path))
    model = run.recipe.model
    expected = {
        "trainer.devices": 8,
        "trainer.num_nodes": 16,
        "trainer.max_steps": run.max_steps,
        "model.num_layers": model.num_layers,
        "model.hidden_size": model.hidden_size,
        "model.ffn_hidden_size": model.ffn_hidden_size,
        "model.num_attention_heads": model.num_attention_heads,
        "model.num_query_groups": model.num_query_groups,
        "model.override_vocab_size": model.vocab_size,
        "model.encoder_seq_length": model.seq_length,
        "model.seed": 7,
        "model.micro_batch_size": 2,
        "model.global_batch_size": run.recipe.global_batch_size,
        "model.tensor_model_parallel_size": tensor,
        "model.pipeline_model_parallel_size": 4,
        "model.virtual_pipeline_model_parallel_size": 2,
        "model.context_parallel_size": 1,
        "model.sequence_parallel": tensor > 1,
        "model.overlap_p2p_comm": True,
        "model.batch_p2p_comm": False,
        "model.nsys_profile.start_step": 45,
        "model.nsys_profile.end_step": 50,
        "model.nsys_profile.ranks": "[0,3]",
    }
    assert {name: told[name] for name in expected} == {name: str(value) for name, value in expected.items()}


def test_an_image_that_has_it_not_is_told(tmp_path):
    ended = light_trainer(write_run(on_one_gpu(planned()), tmp_path), tmp_path)
    assert ended.returncode == 1
    assert ended.stdout.startswith(
        "trainer: /opt/NeMo/examples/nlp/language_modeling/megatron_gpt_pretraining.py is missing in image "
        "nvcr.io/nvidia/nemo:24.09: choose an image with NeMo 1."
    )


@pytest.mark.trainer
@pytest.mark.timeout(1500)
def test_its_log_becomes_a_valid_result(train, tmp_path):
    """test_rows.py compares all arguments of the program with upstream's."""
    folder = tmp_path / "it's a $(folder), [with] what = 'shells\\' \\and Hydra\\' read\\"
    folder.mkdir()
    run = on_one_gpu(planned(profile=True))
    program = folder / "with_stand_in.py"
    program.write_text(WITH_STAND_IN, encoding="utf-8")
    done = train(run, folder, program=str(program))
    assert done.exit_code == 0, done.log
    config = json.loads((folder / "config.json").read_text())
    assert config["exp_manager"]["explicit_log_dir"] == str(folder / "results")
    assert config["model"]["optim"]["lr"] == 1e-4  # from the file
    assert config["model"]["global_batch_size"] == run.recipe.global_batch_size  # from the plan
    assert config["model"]["data"]["data_prefix"] == []
    assert config["model"]["nsys_profile"]["ranks"] == [*range(8)]
    log = read_log(folder / "log.out", max_steps=50)
    assert (log.format, len(log.steps), log.problems) == ("tqdm", 50, ())
    verdict = validate(run, JobStatus(state=JobState.SUCCEEDED, exit_code=0), log, measure(run, log))
    # This alone fails, as the stand-in's step times are of 128 GPUs, and here is one.
    assert [check.name for check in verdict.checks if not check.passed] == ["mfu_possible"]
    assert verdict.valid
