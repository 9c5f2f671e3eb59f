"""Real trainings with Megatron-Bridge on the CPU: the same plans and records as with NeMo."""

import math
import shutil

import pytest

from steptime.errors import UserError
from steptime.logs.reader import read_log
from steptime.recipes.models import Mode, Parallelism, Performance, TrainerSettings
from steptime.staging.checking import require_trainable
from trainer.versions import TRIED_BRIDGE

from .jobs import loading, mixture, planned

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

SAVED_AT = 4
END = 6
GBS = 4
ROUNDING = 2e-6
DATA_2 = Parallelism(data=2)
EXPERTS = Parallelism(data=2, expert=2)


@pytest.fixture(scope="module")
def one_rank(train_on_bridge, tmp_path_factory):
    return train_on_bridge(planned(gbs=GBS, max_steps=END), tmp_path_factory.mktemp("one_rank"))


@pytest.fixture(scope="module", params=[False, True], ids=["synchronous", "asynchronous"])
def saved(request, train_on_bridge, tmp_path_factory):
    settings = Performance(trainer=TrainerSettings(async_save=request.param))
    run = planned(
        2, parallelism=DATA_2, gbs=GBS, max_steps=SAVED_AT, mode=Mode.CHECKPOINT_SAVE, performance=settings
    )
    return train_on_bridge(run, tmp_path_factory.mktemp("saved"))


def test_it_trains_the_planned_steps_and_its_records_say_what_ran(one_rank):
    assert one_rank.exit_code == 0, one_rank.log
    assert list(one_rank.losses) == list(range(END))
    assert one_rank.losses[0] == pytest.approx(math.log(4096), abs=0.2)
    assert one_rank.losses[END - 1] < one_rank.losses[0] - 0.2
    started, ended = one_rank.record("start"), one_rank.record("result")
    assert {name: started["versions"][name] for name in TRIED_BRIDGE[0]} in TRIED_BRIDGE
    assert started["num_parameters"] == 2 * 4096 * 256 + 2 * (3 * 256**2 + 3 * 256 * 768 + 2 * 256) + 256
    assert (ended["state"], ended["global_step"], ended["steps_trained"]) == ("completed", END - 1, END)
    read = read_log(one_rank.folder / "log.out", max_steps=END)
    assert (read.format, read.problems) == ("megatron_bridge", ())
    assert [step.loss for step in read.steps] == pytest.approx(list(one_rank.losses.values()), rel=1e-6)


def test_it_takes_the_same_steps_as_nemo(one_rank, train, tmp_path):
    by_nemo = train(planned(gbs=GBS, max_steps=END), tmp_path)
    assert by_nemo.losses == pytest.approx(one_rank.losses, rel=ROUNDING)
    rates = [[step["learning_rate"] for step in trained.history] for trained in (by_nemo, one_rank)]
    assert rates[0] == pytest.approx(rates[1])


@pytest.mark.parametrize(
    "parallelism",
    [DATA_2, Parallelism(data=1, tensor=2), Parallelism(data=1, pipeline=2)],
    ids=["data 2", "tensor 2", "pipeline 2"],
)
def test_any_parallelism_takes_the_same_steps(train_on_bridge, one_rank, tmp_path, parallelism):
    spread = train_on_bridge(planned(2, parallelism=parallelism, gbs=GBS, max_steps=END), tmp_path)
    assert spread.exit_code == 0, spread.log
    assert spread.losses == pytest.approx(one_rank.losses, rel=ROUNDING)
    started = spread.record("start")
    assert started["num_parameters"] == one_rank.record("start")["num_parameters"]
    assert started["pipeline_parallel"] == parallelism.pipeline
    assert spread.record("rank_times")["clock"] == "cpu_time"


def test_a_checkpoint_is_saved_once_and_measured(saved):
    assert saved.exit_code == 0, saved.log
    (folder,) = [path for path in saved.checkpoints.iterdir() if path.is_dir()]
    assert folder.name == f"iter_{SAVED_AT:07}"
    assert {file.name[:3] for file in folder.glob("*.distcp")} == {"__0", "__1"}  # both ranks write
    (timing,) = read_log(saved.folder / "log.out", max_steps=SAVED_AT).checkpoints
    (measured,) = saved.record("result")["checkpoints"]
    assert timing.kind == "save"
    assert timing.duration_s is not None
    assert timing.duration_s <= measured["duration_s"]
    assert measured["size_bytes"] > 40e6


@pytest.mark.parametrize("parallelism", [DATA_2, Parallelism(data=1, tensor=2)], ids=["data 2", "tensor 2"])
def test_a_load_continues_as_if_uninterrupted(train_on_bridge, one_rank, saved, tmp_path, parallelism):
    run = loading(saved.checkpoints, SAVED_AT, END, parallelism=parallelism, gbs=GBS)
    loaded = train_on_bridge(run, tmp_path)
    assert loaded.exit_code == 0, loaded.log
    assert loaded.record("resumed")["consumed_samples"] == SAVED_AT * GBS
    expected = {step: one_rank.losses[step] for step in range(SAVED_AT, END)}
    assert loaded.losses == pytest.approx(expected, rel=ROUNDING)
    (timing,) = read_log(loaded.folder / "log.out", max_steps=END).checkpoints
    assert (timing.kind, timing.duration_s is not None) == ("load", True)


def test_checkpoints_that_do_not_fit_are_refused(train_on_bridge, saved, tmp_path):
    refused = train_on_bridge(loading(saved.checkpoints, SAVED_AT + 1, END, gbs=GBS), tmp_path)
    assert refused.exit_code == 1
    assert f"continues at step {SAVED_AT}, but the plan's first_step is {SAVED_AT + 1}" in refused.log
    unfinished = tmp_path / "unfinished"
    shutil.copytree(saved.checkpoints, unfinished)
    (unfinished / "latest_train_state.pt").unlink()
    refused = train_on_bridge(loading(unfinished, SAVED_AT, END, gbs=GBS), tmp_path)
    assert refused.exit_code == 1
    assert f"there is no checkpoint of Megatron-Bridge at {unfinished}" in refused.log


def test_experts_on_two_ranks_take_the_same_steps_and_are_saved_and_loaded(train_on_bridge, tmp_path):
    folders = [tmp_path / name for name in ("alone", "save", "load", "other")]
    for folder in folders:
        folder.mkdir()
    alone = train_on_bridge(mixture(Parallelism(data=1), gbs=GBS, max_steps=END), folders[0])
    assert alone.exit_code == 0, alone.log
    assert alone.losses[0] == pytest.approx(math.log(4096), abs=0.2)
    assert alone.losses[END - 1] < alone.losses[0] - 0.1
    # Embedding, output 4096·256 each; per layer attention 3·256², four experts of 3·256·512, their router,
    # two norms; a last norm.
    parameters = 2 * 4096 * 256 + 2 * (3 * 256**2 + 4 * 3 * 256 * 512 + 4 * 256 + 2 * 256) + 256
    assert alone.record("start")["num_parameters"] == parameters
    run = mixture(EXPERTS, gbs=GBS, max_steps=SAVED_AT, mode=Mode.CHECKPOINT_SAVE)
    spread = train_on_bridge(run, folders[1])
    assert spread.exit_code == 0, spread.log
    assert spread.record("start")["expert_parallel"] == 2
    assert spread.losses == pytest.approx({step: alone.losses[step] for step in range(SAVED_AT)}, rel=1e-5)
    load = {
        **{"gbs": GBS, "max_steps": END, "first_step": SAVED_AT, "mode": Mode.CHECKPOINT_LOAD},
        "checkpoint_path": str(spread.checkpoints),
    }
    loaded = train_on_bridge(mixture(EXPERTS, **load), folders[2])
    assert loaded.exit_code == 0, loaded.log
    expected = {step: alone.losses[step] for step in range(SAVED_AT, END)}
    assert loaded.losses == pytest.approx(expected, rel=1e-5)
    refused = train_on_bridge(mixture(Parallelism(data=1), **load), folders[3])
    assert refused.exit_code == 1
    assert (
        f"the checkpoint {spread.checkpoints} was saved with expert parallel 2, but this run has 1: on the "
        "CPU, load it in a run with expert parallel 2."
    ) in refused.log


def test_a_hybrid_takes_the_same_steps_as_nemo_also_over_stages_and_from_a_checkpoint(
    train_on_bridge, train, tmp_path
):
    def trained(name, by, gpus=1, **fields):
        (folder := tmp_path / name).mkdir()
        done = by(planned(gpus, workload="nemotron-h", gbs=GBS, **fields), folder)
        assert done.exit_code == 0, done.log
        return done

    stages = Parallelism(data=1, pipeline=2)
    by_nemo = trained("nemo", train, max_steps=END).losses
    assert trained("bridge", train_on_bridge, max_steps=END).losses == pytest.approx(by_nemo, rel=ROUNDING)
    saved = trained(
        "save", train_on_bridge, 2, parallelism=stages, max_steps=SAVED_AT, mode=Mode.CHECKPOINT_SAVE
    )
    loaded = trained(
        "load",
        train_on_bridge,
        max_steps=END,
        first_step=SAVED_AT,
        mode=Mode.CHECKPOINT_LOAD,
        checkpoint_path=str(saved.checkpoints),
    )
    assert saved.losses | loaded.losses == pytest.approx(by_nemo, rel=ROUNDING)


def test_a_failure_is_recorded(train_on_bridge, tmp_path):
    settings = Performance(trainer=TrainerSettings(learning_rate=1e30, warmup_steps=1))
    failed = train_on_bridge(planned(gbs=GBS, max_steps=END, performance=settings), tmp_path)
    assert failed.exit_code == 2
    assert failed.record("result")["state"] == "failed"
    assert "training diverged and was stopped" in failed.record("result")["error"]


def test_what_it_does_not_build_is_refused_before_staging():
    run = mixture(Parallelism(data=1))
    recipe = run.recipe.model_copy(update={"step_log": "bar"})
    with pytest.raises(UserError, match="the backend megatron_bridge has no step_log: bar: leave it out"):
        require_trainable([run.model_copy(update={"recipe": recipe})])
