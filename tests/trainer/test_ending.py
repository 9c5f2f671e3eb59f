"""How a run ends and which rank reports it: real processes without torch that hang, fail or are ended."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from steptime.recipes.models import Mode
from trainer import ending
from trainer.ending import Ending, this_start
from trainer.errors import TrainerError, TrainingFailure, check_loss
from trainer.launch import Launch
from trainer.progress import Progress
from trainer.run import read_run
from trainer.watchdog import HangLimits

from .jobs import ROOT, light_trainer, planned, write_run

PROGRAM = Path(__file__).parent / "programs" / "end.py"
HANG_S = 120


class Rank:
    """One process of `ranks`, all started by the same launcher."""

    def __init__(self, folder, how, rank=0, ranks=1, start="one"):
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), how],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "TORCHELASTIC_RUN_ID": start,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def kill(self):
        self.process.kill()
        self.process.communicate()

    def wait_until_it_waits(self):
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "waiting\n"

    def end(self):
        output, _ = self.process.communicate(timeout=HANG_S)
        return self.process.returncode, output


@pytest.fixture
def start(tmp_path):
    """Yield a function that starts a rank."""
    ranks = []

    def _start(how, rank=0, ranks_of_job=1, start="one"):
        ranks.append(Rank(tmp_path, how, rank, ranks_of_job, start))
        return ranks[-1]

    yield _start
    for rank in ranks:
        rank.kill()


def _result(output):
    (line,) = [line for line in output.splitlines() if line.startswith("steptime.result ")]
    return json.loads(line.removeprefix("steptime.result "))


@pytest.mark.service
def test_a_signal_reaches_a_rank_that_waits_in_c(start):
    rank = start("wait")
    rank.wait_until_it_waits()
    rank.process.send_signal(signal.SIGTERM)
    code, output = rank.end()
    assert code == 128 + signal.SIGTERM
    result = _result(output)
    assert (result["state"], result["error"]) == (
        "terminated",
        "the training was ended from outside, by SIGTERM.",
    )
    assert result["peak_memory_bytes"] > 1e6
    assert (result["ranks"], result["global_step"], result["steps_trained"]) == (1, None, 0)


@pytest.mark.service
def test_rank_0_tells_why_another_rank_has_failed(start):
    waiting = start("wait", 0, 2)
    waiting.wait_until_it_waits()
    assert start("fail", 1, 2).end() == (2, "")
    code, output = waiting.end()
    assert code == 2
    assert output.splitlines()[0] == "trainer: rank 1 failed: the disk is gone"
    result = _result(output)
    assert (result["state"], result["error"]) == ("failed", "rank 1 failed: the disk is gone")


@pytest.mark.service
def test_a_reason_left_by_an_earlier_start_does_not_count(start):
    assert start("fail", 1, 2, start="one").end()[0] == 2
    later = start("wait", 0, 2, start="two")
    later.wait_until_it_waits()
    with pytest.raises(subprocess.TimeoutExpired):
        later.process.wait(timeout=1.5)  # the watchdog looks every second
    later.process.terminate()
    assert _result(later.end()[1])["state"] == "terminated"


@pytest.mark.parametrize("peak", [1, 2**60])
def test_the_peak_memory_is_that_of_the_rank_that_had_most(tmp_path, capsys, peak):
    launch = Launch(rank=0, world_size=2, local_world_size=2, threads=1, by_launcher=True, on_one_host=True)
    progress = Progress()
    own = progress.own_peak_memory()
    Ending(tmp_path, launch, progress).failed_by(ending.RankFailure(1, "the disk is gone", 2, peak))
    assert _result(capsys.readouterr().out)["peak_memory_bytes"] == pytest.approx(max(own, peak), rel=0.5)


def test_the_peak_that_all_ranks_have_compared_counts(tmp_path, capsys):
    launch = Launch(rank=0, world_size=2, local_world_size=2, threads=1, by_launcher=True, on_one_host=True)
    for highest, peak in ((None, 5), (9, 9)):
        Ending(
            tmp_path / str(peak), launch, Progress(own_peak_memory=lambda: 5, highest_memory_bytes=highest)
        ).completed()
        result = _result(capsys.readouterr().out)
        assert (result["peak_memory_bytes"], result["peak_memory_of_all_ranks"]) == (
            peak,
            highest is not None,
        )


@pytest.mark.parametrize("loss", ["nan", "-inf"])
def test_a_loss_that_is_not_finite_ends_the_training(loss):
    check_loss(7, 1e30)
    with pytest.raises(TrainingFailure, match=f"^the loss of step 7 is {loss}: training diverged"):
        check_loss(7, float(loss))


@pytest.mark.service
def test_a_hang_shows_where_every_rank_stands(start, monkeypatch):
    monkeypatch.setenv("STACKS_WITHIN_S", "60")  # it ends as soon as both have written theirs
    ranks = [start("hang", rank, 2) for rank in (0, 1)]
    (code, output), (other_code, other_output) = [rank.end() for rank in ranks]
    assert (code, other_code) == (2, 2)
    for rank, text in enumerate((output, other_output)):
        assert f"rank {rank}: stacks, innermost call first:\n" in text
        line = 1 + PROGRAM.read_text(encoding="utf-8").splitlines().index(
            "    never.acquire()  # never returns"
        )
        assert f'  File "{PROGRAM}", line {line} in wait_for_another_rank\n' in text
    result = _result(output)
    assert result["state"] == "failed"
    assert result["error"].startswith("the training hangs: no step has ended within ")
    assert result["error"].endswith(" s of the start; the stacks of 2 ranks are in the log.")
    assert "steptime.result" not in other_output


@pytest.mark.service
def test_a_hang_names_the_rank_that_does_not_answer(start):
    stopped = start("hang", 1, 2)
    stopped.process.send_signal(signal.SIGSTOP)
    alone = start("hang", 0, 2)
    code, output = alone.end()
    assert code == 2
    assert _result(output)["error"].endswith("the stacks of 1 ranks are in the log, but none of rank 1.")


@pytest.mark.service
def test_a_forked_process_has_its_signals_to_itself(start):
    code, output = start("fork").end()
    assert code == 0
    assert f"child ended by -{signal.SIGTERM.value}\n" in output
    assert _result(output)["state"] == "completed"


@pytest.mark.service
def test_a_fork_after_the_watch_holds_no_signal_back(start):
    """The launcher of CPU ranks forks then, and what its handler raises would be lost within the fork."""
    code, output = start("fork_twice").end()
    assert (code, output) == (0, "held back: True\nheld back: False\n")


@pytest.mark.service
def test_what_cannot_be_written_hides_no_reason(start, tmp_path):
    (tmp_path / "ended").touch()
    code, output = start("fail").end()
    assert code == 2
    assert _result(output)["error"] == "rank 0 failed: the disk is gone"
    assert f"trainer: cannot write to ended{os.sep}one.0: Not a directory" in output


@pytest.mark.service
def test_a_refused_plan_has_its_result(tmp_path):
    ended = light_trainer([str(tmp_path / "gone.json")], tmp_path)
    said, _ = ended.stdout.splitlines()
    result = _result(ended.stdout)
    assert said == f"trainer: {result['error']}"
    assert (result["state"], result["experiment"]) == ("failed", None)
    assert (tmp_path / "ended" / "run" / "result.json").read_text() in ended.stdout.replace(
        "steptime.result ", ""
    )


@pytest.mark.parametrize(
    ("mode", "steps", "limit"),
    [
        ("performance", 20, 1800.0),
        ("checkpoint_save", 0, 1800.0),
        ("checkpoint_save", 20, math.inf),
        ("checkpoint_load", 0, math.inf),
        ("checkpoint_load", 1, 1800.0),
    ],
)
def test_a_checkpoint_may_take_as_long_as_the_job(tmp_path, mode, steps, limit):
    loads = {"checkpoint_path": "/saved", "first_step": 20, "max_steps": 22}
    fields = loads if mode == "checkpoint_load" else {"max_steps": 20}
    (path,) = write_run(planned(mode=Mode(mode), **fields), tmp_path)
    progress = Progress(run=read_run(Path(path)))
    for step in range(steps):
        progress.step_ended(progress.run.first_step + step if progress.run else step)
    assert HangLimits().of(progress) == limit


def test_limits_follow_the_usual_step():
    limits = HangLimits.read({"STEPTIME_HANG_FLOOR_S": "7"})
    progress = Progress()
    assert limits.of(progress) == 42.0  # before the second step
    progress.steps_trained = 2
    progress.wall_times_s.extend([2.0, 0.5, 1.0])
    assert limits.of(progress) == 30.0
    progress.wall_times_s.extend([0.1] * 4)
    assert limits.of(progress) == 7.0
    assert HangLimits.read({}).of(progress) == 300.0


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "a/b", "TORCHELASTIC_RESTART_COUNT": "2"}, "a_b.2"),
        ({"SLURM_JOB_ID": "7"}, None),  # of a batch script, not of one of srun's tasks
        ({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_RESTART_COUNT": "1"}, "7.0.1"),
    ],
)
def test_the_ranks_of_a_start_share_a_name(environment, name):
    assert this_start(environment) == name


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (TrainerError("no."), 1, "no."),
        (TrainingFailure("NaN."), 2, "NaN."),
        (RuntimeError(), 2, "rank 3 failed: RuntimeError"),
        (
            # As torch 2.7 words it.
            RuntimeError(
                "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.11 GiB of "
                "which 1.12 GiB is free. Process 1234 has 77.98 GiB memory in use."
            ),
            2,
            "the GPU memory of rank 3 does not suffice: 2.50 GiB could not be allocated, and its peak was 99 "
            "bytes; take more ranks, a smaller micro batch, or more tensor or pipeline parallelism.",
        ),
    ],
)
def test_an_exception_is_one_sentence(error, code, expected):
    assert ending.sentence(error, 3, 99) == expected
    assert ending.exit_code(error) == code
