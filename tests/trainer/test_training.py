"""Real trainings with NeMo on the CPU, checked by the numbers in their logs and records."""

import gzip
import json
import math
import re

import pytest

from steptime.logs.reader import read_log
from steptime.recipes.models import Mode, Parallelism, Performance, ProfileWindow, TrainerSettings
from trainer.versions import TRIED

from .jobs import loading, planned

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

SAVED_AT = 6
END = 8
GBS = 4
"""Equal for all numbers of ranks, so that all runs see the same batches."""
ROUNDING = 2e-6
"""Relative tolerance in float32, as ranks and tensor-parallel halves sum in other orders."""

DATA_2 = Parallelism(data=2)
ASYNCHRONOUS = Performance(trainer=TrainerSettings(async_save=True))


def _two_ranks(**fields):
    return planned(2, parallelism=DATA_2, gbs=GBS, **fields)


@pytest.fixture(scope="module")
def one_rank(train, tmp_path_factory):
    return train(planned(gbs=GBS, max_steps=END), tmp_path_factory.mktemp("one_rank"))


COUNTS_FILES = """
import os, sys
from pathlib import Path
from trainer.cpu_ranks import main
if __name__ == "__main__":
    rglob = Path.rglob
    def noted(self, pattern):
        # In one write, as the ranks share the log.
        os.write(1, f"rank {os.environ['RANK']} looks at the files of the checkpoint\\n".encode())
        return rglob(self, pattern)
    Path.rglob = noted
    sys.exit(main())
"""


@pytest.fixture(scope="module")
def saved(train, tmp_path_factory):
    """Return a run of two ranks that save asynchronously; test_families.py has synchronous checkpoints."""
    folder = tmp_path_factory.mktemp("saved")
    program = folder / "counts_files.py"
    program.write_text(COUNTS_FILES, encoding="utf-8")
    run = _two_ranks(max_steps=SAVED_AT, mode=Mode.CHECKPOINT_SAVE, performance=ASYNCHRONOUS)
    return train(run, folder, program=str(program))


def test_one_rank_trains_the_planned_steps_and_learns(one_rank):
    assert one_rank.exit_code == 0, one_rank.log
    lines = one_rank.step_lines
    assert [int(line["global_step"]) for line in lines] == list(range(END))
    assert lines[-1]["where"] == "Training epoch 0, iteration 7/7"
    assert lines[-1]["consumed_samples"] == "32"
    assert {line["global_batch_size"] for line in lines} == {"4"}
    assert one_rank.losses[0] == pytest.approx(math.log(4096), abs=0.2)
    assert one_rank.losses[END - 1] < one_rank.losses[0] - 0.4
    assert all(float(line["train_step_timing in s"]) > 0 for line in lines)
    assert all(int(line["max_memory_allocated"]) > 100e6 for line in lines)


def test_its_lines_are_the_rounded_history(one_rank):
    # 24·2·256·(256·1.5 + 128) attention, 36·768·256 MLP, 6·4096·256 output, for 128 tokens of a sample.
    flops = GBS * 128 * (24 * 256 * (256 * 1.5 + 128) + 36 * 768 * 256 + 6 * 4096 * 256)
    for line, exact in zip(one_rank.step_lines, one_rank.history, strict=True):
        assert float(line["reduced_train_loss"]) == pytest.approx(exact["loss"], rel=5e-4)
        assert float(line["train_step_timing in s"]) == pytest.approx(exact["step_time_s"], rel=5e-4)
        tflops = flops / exact["step_time_s"] / 1e12
        assert float(line["TFLOPS_per_GPU"]) == pytest.approx(tflops, rel=5e-4)


def test_its_lines_have_the_wall_time_from_step_to_step(one_rank):
    """It is longer than NeMo's own time, which omits what lies between steps; the first step has none."""
    assert "wall_step_timing in s" not in one_rank.step_lines[0]
    assert one_rank.history[0]["wall_time_s"] is None
    walls = [step["wall_time_s"] for step in one_rank.history[1:]]
    printed = [float(line["wall_step_timing in s"]) for line in one_rank.step_lines[1:]]
    assert printed == pytest.approx(walls, rel=5e-4)
    assert all(step["wall_time_s"] > step["step_time_s"] for step in one_rank.history[1:])
    result = one_rank.record("result")
    assert sum(walls) < result["training_s"] - one_rank.history[0]["step_time_s"]


def test_records_say_what_ran(one_rank):
    started, ended = one_rank.record("start"), one_rank.record("result")
    assert (started["schema"], started["device"], started["world_size"]) == (1, "cpu", 1)
    # Embedding, output 4096·256 each; per layer attention 3·256², SwiGLU 3·256·768, two norms; a last norm.
    assert started["num_parameters"] == 2 * 4096 * 256 + 2 * (3 * 256**2 + 3 * 256 * 768 + 2 * 256) + 256
    assert {name: started["versions"][name] for name in TRIED} == TRIED
    assert len(started["node_names"]) == 1
    assert started["imports_s"] > 0
    assert started["launch"] == {"numa_bound_ranks": 0, "vboost": False}
    assert (ended["state"], ended["global_step"], ended["steps_trained"]) == ("completed", END - 1, END)
    assert ended["peak_memory_bytes"] == pytest.approx(
        float(one_rank.step_lines[-1]["max_memory_allocated"]), rel=0.2
    )
    assert ended["training_s"] >= sum(step["step_time_s"] for step in one_rank.history)


def test_a_profile_has_the_planned_steps_of_the_planned_ranks(train, tmp_path):
    window = ProfileWindow(first_step=1, last_step=2, ranks=(1,))
    run = _two_ranks(max_steps=4, mode=Mode.PROFILE, profile=window)
    profiled = train(run, tmp_path)
    assert profiled.exit_code == 0, profiled.log
    assert len(profiled.step_lines) == 4
    (report,) = (tmp_path / "torch_profile").iterdir()
    assert report.name == "rank1.json.gz"
    events = json.loads(gzip.decompress(report.read_bytes()))["traceEvents"]
    names = [str(event.get("name")) for event in events]
    assert sum(name.startswith("Optimizer.step#") for name in names) == 2
    assert "gloo:all_reduce" in names


def test_two_ranks_save_at_the_end(one_rank, saved):
    assert saved.exit_code == 0, saved.log
    assert saved.losses == pytest.approx(
        {step: one_rank.losses[step] for step in range(SAVED_AT)}, rel=ROUNDING
    )
    (checkpoint,) = saved.checkpoints.iterdir()  # without a mark of an unfinished one
    assert checkpoint.name == "default--None=0.0000-epoch=0-consumed_samples=24.0"
    files = {file.name for file in (checkpoint / "weights").glob("*.distcp")}
    assert {name[:3] for name in files} == {"__0", "__1"}  # both ranks write
    assert re.search(
        r"Global Checkpoint Save : Rank: 0 : Iteration: 5 : Start time: \d+\.\d+s : Save duration", saved.log
    )


def test_an_asynchronous_save_is_measured_whole(saved):
    looks = [line for line in saved.log.splitlines() if "looks at the files" in line]
    assert set(looks) == {"rank 0 looks at the files of the checkpoint"}
    log = read_log(saved.folder / "log.out", max_steps=SAVED_AT)
    assert log.problems == ()
    (timing,) = log.checkpoints
    (measured,) = saved.record("result")["checkpoints"]
    # NeMo's line ends before the writer starts, and is rounded.
    assert timing.blocked_s is not None
    assert timing.blocked_s - 0.01 <= measured["blocked_s"] <= timing.blocked_s + 5
    assert measured["blocked_s"] < measured["duration_s"]
    assert (timing.asynchronous, timing.duration_s) == (True, measured["duration_s"])
    (checkpoint,) = saved.checkpoints.iterdir()
    assert measured["size_bytes"] == sum(file.stat().st_size for file in (checkpoint / "weights").iterdir())


def test_load_continues_as_if_uninterrupted(train, one_rank, saved, tmp_path):
    run = loading(saved.checkpoints, SAVED_AT, END, parallelism=DATA_2, gbs=GBS)
    loaded = train(run, tmp_path)
    assert loaded.exit_code == 0, loaded.log
    assert loaded.record("resumed") == {
        "checkpoint_path": str(saved.checkpoints),
        "global_step": SAVED_AT,
        "consumed_samples": SAVED_AT * GBS,
    }
    assert "Global Checkpoint Load : Rank : 0 : Start time :" in loaded.log
    assert [line["consumed_samples"] for line in loaded.step_lines] == ["28", "32"]
    assert list(loaded.losses) == [SAVED_AT, SAVED_AT + 1]
    # The first loss depends on weights and data, the second also on the optimizer's state and learning rate.
    for expected, step in zip(one_rank.history[SAVED_AT:], loaded.history, strict=True):
        assert step["loss"] == pytest.approx(expected["loss"], rel=ROUNDING)
        assert step["learning_rate"] == expected["learning_rate"]
    assert (loaded.record("result")["global_step"], loaded.record("result")["steps_trained"]) == (END - 1, 2)


@pytest.mark.parametrize(
    "parallelism",
    [
        Parallelism(tensor=2, pipeline=2, data=1),
        pytest.param(Parallelism(data=4), marks=pytest.mark.exhaustive),
    ],
    ids=["tensor 2 × pipeline 2", "data 4"],
)
def test_other_parallelism_takes_the_same_steps(train, one_rank, saved, tmp_path, parallelism):
    """Weights and the optimizer's state are those of two data-parallel ranks, spread over others."""
    run = loading(saved.checkpoints, SAVED_AT, END, parallelism=parallelism, gbs=GBS)
    spread = train(run, tmp_path)
    assert spread.exit_code == 0, spread.log
    started = spread.record("start")
    assert started["num_parameters"] == one_rank.record("start")["num_parameters"]
    assert started["tensor_parallel"] == parallelism.tensor
    assert started["pipeline_parallel"] == parallelism.pipeline
    assert started["data_parallel"] == parallelism.data
    for step in (SAVED_AT, SAVED_AT + 1):
        assert spread.losses[step] == pytest.approx(one_rank.losses[step], rel=ROUNDING)


def test_checkpoint_of_another_step_is_refused(train, saved, tmp_path):
    refused = train(loading(saved.checkpoints, SAVED_AT + 1, END, gbs=GBS), tmp_path)
    assert refused.exit_code == 1
    assert (
        f"trainer: the checkpoint {saved.checkpoints} continues at step {SAVED_AT}, "
        f"but the plan's first_step is {SAVED_AT + 1}: load one that continues there.\n"
    ) in refused.log
    assert not refused.step_lines
