"""Each family's tiny size trains, saves and loads, and takes the same steps however it is spread over ranks.

The tokens can be learned (trainer/data.py), so that a falling loss has a meaning.
"""

import functools
import itertools
import math
import re

import pytest

from steptime.logs.reader import read_log
from steptime.recipes.models import Mode, Parallelism

from .jobs import loading, planned

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

WITH_BAR = "nemotron4-340b-24.11"
"""A Nemotron4 whose steps are logged by NeMo's progress bar."""
FAMILIES = (WITH_BAR, "nemotron-h")
"""The families without Llama, which is in test_training.py."""
SAVED_AT = 5
END = 7
GBS = 4
ROUNDING = 2e-6
"""Relative tolerance in float32, as ranks and tensor-parallel halves sum in other orders."""
DATA_2 = Parallelism(data=2)
SPREAD = {"tensor": Parallelism(tensor=2, data=1), "pipeline": Parallelism(pipeline=2, data=1)}

LOADS = {f"loaded, {name}": parallelism for name, parallelism in SPREAD.items()}
IN_TEST_ALL = (
    *((WITH_BAR, "saved"), (WITH_BAR, "tensor"), (WITH_BAR, "pipeline")),
    *((WITH_BAR, "loaded, tensor"), (WITH_BAR, "loaded, pipeline")),
    *(("nemotron-h", "tensor"), ("nemotron-h", "loaded, pipeline")),
)
"""Cases left out of `make test`, which has the hybrid in stages, and loads it into tensor-parallel ranks."""


def _cases(families, names):
    """Return each family with each training."""
    return [
        pytest.param(*case, marks=[pytest.mark.exhaustive] if case in IN_TEST_ALL else [])
        for case in itertools.product(families, names)
    ]


@pytest.fixture(scope="module")
def trainings(train, tmp_path_factory):
    """Return a function that returns a training, `trainings(family, name)`, and runs it when first asked."""

    @functools.cache
    def made(family, name):
        of_family = {"workload": family, "gbs": GBS}
        if name == "one rank":
            run = planned(**of_family, max_steps=END)
        elif name == "saved":
            mode = Mode.CHECKPOINT_SAVE
            run = planned(2, **of_family, parallelism=DATA_2, max_steps=SAVED_AT, mode=mode)
        elif name in LOADS:
            checkpoints = made(family, "saved").checkpoints
            run = loading(checkpoints, SAVED_AT, END, **of_family, parallelism=LOADS[name])
        else:
            run = planned(2, **of_family, parallelism=SPREAD[name], max_steps=SAVED_AT)
        return train(run, tmp_path_factory.mktemp(family))

    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_it_trains_and_learns(trainings, family):
    one_rank = trainings(family, "one rank")
    assert one_rank.exit_code == 0, one_rank.log
    assert list(one_rank.losses) == list(range(END))
    assert one_rank.losses[0] == pytest.approx(math.log(4096), abs=0.2)
    assert one_rank.losses[END - 1] < one_rank.losses[0] - 0.4
    assert one_rank.record("result")["state"] == "completed"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_pipeline_reads_the_log_whole(trainings, family):
    trained = trainings(family, "one rank")
    log = read_log(trained.folder / "log.out", max_steps=END)
    assert log.problems == ()
    assert [step.global_step for step in log.steps] == list(range(END))
    assert (log.started, log.ended) == (trained.record("start"), trained.record("result"))
    assert "Traceback" not in trained.log
    assert len(trained.log.splitlines()) < 40


def test_the_release_of_24_11_logs_by_nemos_progress_bar(trainings):
    trained = trainings(WITH_BAR, "one rank")
    text = (trained.folder / "log.out").read_bytes().decode()
    bars = [bar for bar in re.split("[\r\n]+", text) if bar.startswith("Epoch 0: ") and "train_step" in bar]
    assert re.fullmatch(
        r"Epoch 0: : 100%\|\S+\| 7/7 \[\d\d:\d\d<\d\d:\d\d, .*global_step=6\.000, .*reduced_train_loss=\d.*, "
        r"train_step_timing in s=[\d.e-]+, consumed_samples=28\.00\]",
        bars[-1],
    ), bars[-1]
    log = read_log(trained.folder / "log.out", max_steps=END)
    assert {step.global_step: step.step_time_s for step in log.steps} == pytest.approx(
        {step["global_step"]: step["step_time_s"] for step in trained.history},
        rel=5e-3,  # the bar has three digits
    )


@pytest.mark.parametrize(
    ("family", "parameters"),
    [
        # Embedding, output 4096·256 each; per layer attention 3·256² (half the heads have keys and values of
        # their own), MLP 2·256·1024, two norms with bias; a last norm.
        (WITH_BAR, 2 * 4096 * 256 + 2 * (3 * 256**2 + 2 * 256 * 1024 + 4 * 256) + 2 * 256),
        # Norms without bias. Mamba: z, x, b, c, dt of 512, 512, 4·32, 4·32, 8; a convolution of 4 with bias
        # over x, b, c; three numbers a head; the gated norm; the way out.
        (
            "nemotron-h",
            2 * 4096 * 256
            + 3 * (256 * (2 * 512 + 2 * 128 + 8) + 5 * (512 + 2 * 128) + 3 * 8 + 512 + 512 * 256 + 256)
            + 2 * (3 * 256**2 + 256)
            + 3 * (2 * 256 * 1024 + 256)
            + 256,
        ),
    ],
)
def test_its_parameters_are_all_there(trainings, family, parameters):
    assert trainings(family, "one rank").record("start")["num_parameters"] == parameters


@pytest.mark.parametrize(("family", "spread"), _cases(FAMILIES, ["saved", *SPREAD]))
def test_every_parallelism_takes_the_same_steps(trainings, family, spread):
    """From the same seed, two data-, tensor- or pipeline-parallel ranks start with the weights of one."""
    trained, one_rank = trainings(family, spread), trainings(family, "one rank")
    assert trained.exit_code == 0, trained.log
    started, expected = trained.record("start"), SPREAD.get(spread, DATA_2)
    assert (started["tensor_parallel"], started["pipeline_parallel"], started["data_parallel"]) == (
        expected.tensor,
        expected.pipeline,
        expected.data,
    )
    assert started["num_parameters"] == one_rank.record("start")["num_parameters"]
    assert trained.losses == pytest.approx(
        {step: one_rank.losses[step] for step in range(SAVED_AT)}, rel=ROUNDING
    )


@pytest.mark.parametrize(("family", "training"), _cases(FAMILIES, LOADS))
def test_a_load_continues_as_if_uninterrupted(trainings, family, training):
    """Tensor- or pipeline-parallel ranks load the checkpoint of two data-parallel ones."""
    loaded, one_rank = trainings(family, training), trainings(family, "one rank")
    assert loaded.exit_code == 0, loaded.log
    started, expected = loaded.record("start"), LOADS[training]
    assert (started["tensor_parallel"], started["pipeline_parallel"]) == (expected.tensor, expected.pipeline)
    # The first loss depends on weights and data, the second also on the optimizer's state and learning rate.
    assert loaded.losses == pytest.approx(
        {step: one_rank.losses[step] for step in range(SAVED_AT, END)}, rel=ROUNDING
    )


@pytest.mark.parametrize(("family", "training"), _cases(FAMILIES, ["saved", "loaded, tensor"]))
def test_a_checkpoint_is_measured(trainings, family, training):
    trained = trainings(family, training)
    (measured,) = trained.record("result")["checkpoints"]
    (checkpoint,) = trainings(family, "saved").checkpoints.iterdir()
    size = sum(file.stat().st_size for file in (checkpoint / "weights").iterdir())
    assert (measured["kind"], measured["size_bytes"]) == ("save" if training == "saved" else "load", size)
    # Weights and two moments of Adam, 4 bytes each, and little else.
    numbers = 3 * trained.record("start")["num_parameters"]
    assert size == pytest.approx(4 * numbers, rel=0.05)
    (timing,) = read_log(trained.folder / "log.out").checkpoints
    assert measured["blocked_s"] == measured["duration_s"]
    assert timing.duration_s is not None
    # NeMo's line has only a part of it, rounded.
    assert timing.duration_s - 0.01 <= measured["duration_s"] <= timing.duration_s + 5
    assert measured["gb_per_s"] == pytest.approx(size / measured["duration_s"] / 1e9)
