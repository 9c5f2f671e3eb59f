"""Plans that the trainer refuses, in one sentence and before it imports torch, which is missing here."""

import functools
import json
from pathlib import Path

import pytest

from steptime.recipes.models import Mode, Parallelism
from trainer.__main__ import parser, prepare_training
from trainer.ending import Ending
from trainer.errors import TrainerError
from trainer.launch import Launch
from trainer.progress import Progress
from trainer.versions import TRIED

from .jobs import light_trainer, loading, mixture, planned, write_run

NEMO, MEGATRON_CORE = TRIED["nemo"], TRIED["megatron_core"]


def _refusal(path, ranks=1):
    launch = Launch(
        rank=0,
        world_size=ranks,
        local_world_size=ranks,
        threads=1,
        by_launcher=ranks > 1,
        on_one_host=True,
    )
    with pytest.raises(TrainerError) as refused:
        prepare_training(parser().parse_args([str(path)]), launch, Ending(path.parent, launch, Progress()))
    return str(refused.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot read the planned run"),
        ("{", "is not JSON"),
        ('{"schema_version": 2}', "this trainer reads 1"),
    ],
)
def test_broken_file(tmp_path, content, reason):
    path = tmp_path / "run.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    line = _refusal(path)
    assert reason in line
    assert str(path) in line


MISSING = object()
RANKS = "recipe.parallelism."
IMPOSSIBLE = [
    ("llama3.1", {"mode": MISSING}, "lacks the field 'mode'"),
    ("llama3.1", {"max_steps": "20"}, "max_steps is '20', not of type int"),
    ("llama3.1", {"first_step": 20}, "first_step 20 has to be between 0 and"),
    ("llama3.1", {"mode": "fast"}, "unknown mode 'fast': this trainer has performance"),
    ("llama3.1", {"performance.trainer.cuda_graphs": True}, "is for GPUs, and the plan is for the CPU"),
    ("llama3.1", {"checkpoint_path": "x"}, "a checkpoint_load needs a path"),
    ("llama3.1", {"recipe.model.architecture": "gpt5"}, "it has: llama, nemotron4, nemotron_h"),
    (
        *("llama3.1", {"recipe.micro_batch_size": 3}),
        "global_batch_size 8 cannot be divided by micro_batch_size × data parallel 3",
    ),
    ("llama3.1", {f"{RANKS}tensor": 3}, "num_attention_heads 8 cannot be divided by tensor parallel 3"),
    (
        *("llama3.1", {f"{RANKS}pipeline": 2, f"{RANKS}first_stage_layers": 2}),
        "num_layers 2 minus 2 in the first and last stage leaves 0, which the other 1 pipeline stages cannot",
    ),
    ("nemotron-h", {"recipe.model.hybrid": None}, "'nemotron_h' needs the sizes of its Mamba layers"),
    ("nemotron-h", {"recipe.model.hybrid.pattern": "M*-M"}, "for each of 8 layers"),
    ("nemotron-h", {f"{RANKS}tensor": 8}, "mamba_num_groups 4 cannot be divided by tensor parallel 8"),
    ("nemotron-h", {f"{RANKS}virtual_pipeline": 2}, "have no interleaved pipeline"),
    ("mixture", {"recipe.backend": "nemo"}, "the backend nemo has no gpt models: choose the backend"),
    ("mixture", {"recipe.model.architecture": "gpt5"}, "megatron_bridge; it has: gpt, llama, nemotron_h"),
    (
        *("mixture", {"recipe.backend": "nemo", "recipe.model.architecture": "llama"}),
        "the backend nemo has no moe: leave it out, or choose the backend megatron_bridge",
    ),
    (
        "mixture",
        {
            **{f"{RANKS}pipeline": 2, f"{RANKS}data": 2, "recipe.model.mtp_num_layers": 1},
            "recipe.model.moe.num_dense_layers": 1,
        },
        "the first pipeline stage has 1 layers and none with experts",
    ),
    (
        *("llama3.1", {"recipe.model.megatron_fields": {"qk_layernorm": True}}),
        "the backend nemo has no megatron_fields: leave it out",
    ),
    (
        *("mixture", {f"{RANKS}tensor": 2, f"{RANKS}data": 1, f"{RANKS}expert": 1}),
        "a mixture of experts with tensor parallel 2 needs sequence parallelism",
    ),
    (
        *("mixture", {f"{RANKS}expert": 1, f"{RANKS}expert_tensor": 2}),
        "a mixture of experts with tensor parallel 2 needs sequence parallelism, which the CPU",
    ),
]
"""The workload, changes in its plan by the path of the field, and the reason."""


@pytest.mark.parametrize(("workload", "changes", "reason"), IMPOSSIBLE, ids=[each[2] for each in IMPOSSIBLE])
def test_plan_that_cannot_be(tmp_path, workload, changes, reason):
    mixed = workload == "mixture"
    run = mixture(Parallelism(data=2, expert=2)) if mixed else planned(workload=workload)
    content = json.loads(run.model_dump_json())
    for field, value in changes.items():
        *parents, name = field.split(".")
        part = functools.reduce(dict.__getitem__, parents, content)
        part.update({name: value})
        if value is MISSING:
            del part[name]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert reason in _refusal(path)


def test_other_number_of_ranks_than_planned(tmp_path):
    run = planned(4, parallelism=Parallelism(tensor=2, data=2))
    (path,) = write_run(run, tmp_path)
    assert (
        "2 rank(s) were started, but the plan needs 4 (tensor 2 × pipeline 1 × context 1 × data 2)"
        in _refusal(Path(path), ranks=2)
    )


@pytest.mark.service
def test_only_rank_0_speaks(tmp_path):
    (path,) = write_run(planned(4), tmp_path)
    ended = light_trainer([path], tmp_path, RANK="1", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    assert (ended.returncode, ended.stdout) == (1, "")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "there is no checkpoint at"),
        ({}, "it has no folder weights/"),
        ({"one": (), "two": ()}, "holds 2 checkpoints; name one of them: one, two"),
        ({"one": ("metadata.json",)}, "weights/ has no *.distcp file"),
        ({"one": ("__0_0.distcp",), "one-unfinished": None}, "is unfinished"),
    ],
)
def test_checkpoint_that_cannot_be_loaded(tmp_path, content, reason):
    checkpoints = tmp_path / "checkpoints"
    if content is not None:
        checkpoints.mkdir()
    for name, files in (content or {}).items():
        if files is None:
            (checkpoints / name).touch()
            continue
        weights = checkpoints / name / "weights"
        weights.mkdir(parents=True)
        for file in files:
            (weights / file).touch()
    (path,) = write_run(loading(checkpoints, 6, 7), tmp_path)
    assert reason in _refusal(Path(path))


@pytest.mark.service
def test_mode_is_the_pipelines(tmp_path):
    """A plan from the pipeline is read whole: the trainer fails for lack of NeMo, not before."""
    for mode in (Mode.PERFORMANCE, Mode.CHECKPOINT_SAVE):
        (path,) = write_run(planned(mode=mode), tmp_path)
        ended = light_trainer([path], tmp_path)
        assert ended.returncode == 1
        assert "trainer: NeMo is not installed here: run in an image of NeMo" in ended.stdout


def _install(folder, **packages):
    """Install only the metadata of packages, where the trainer of `light_trainer` looks first."""
    for name, version in packages.items():
        information = folder / "package" / f"{name}-{version}.dist-info"
        information.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (information / "METADATA").write_text(metadata, encoding="utf-8")


@pytest.mark.service
@pytest.mark.parametrize("nemo", ["1.23.0", "2.8.0"])
def test_releases_of_nemo_that_it_is_not_written_for(tmp_path, nemo):
    _install(tmp_path, nemo_toolkit=nemo, megatron_core=MEGATRON_CORE)
    (path,) = write_run(planned(), tmp_path)
    ended = light_trainer([path], tmp_path)
    line, result = ended.stdout.splitlines()
    assert (ended.returncode, line) == (
        1,
        f"trainer: NeMo {nemo} is installed here, but this trainer supports NeMo 2.2 to 2.7: "
        "choose another image.",
    )
    assert result.startswith('steptime.result {"schema": 1, ')


@pytest.mark.service
@pytest.mark.parametrize(
    ("nemo", "megatron_core", "remark"),
    [
        (NEMO, MEGATRON_CORE, None),
        (
            NEMO,
            "0.10.0",
            f"NeMo {NEMO} with Megatron-Core 0.10.0 is installed, and this trainer was tried with {NEMO} and "
            f"{MEGATRON_CORE} only",
        ),
    ],
)
def test_releases_that_were_not_tried_are_told(tmp_path, nemo, megatron_core, remark):
    """The remark appears at the start, and again beside an error that another API may have caused."""
    _install(tmp_path, nemo_toolkit=nemo, megatron_core=megatron_core)
    (path,) = write_run(planned(), tmp_path)
    ended = light_trainer([path], tmp_path)
    assert ended.returncode == 2
    assert (f"steptime: {remark}.\n" in ended.stdout) == (remark is not None)
    failed = "trainer: rank 0 failed: No module named 'lightning'"
    told = f"{failed}; {remark}: choose another image if their API differs.\n" if remark else f"{failed}\n"
    assert told in ended.stdout
