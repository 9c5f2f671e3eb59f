"""Forked CPU ranks: failures, signals and exit codes, as the job that starts them sees these."""

import json
import signal

import pytest

from steptime.logs.reader import read_log

from .jobs import Trained, light_trainer, planned, start_trainer, write_run

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

PROGRAM = """
import os, signal, sys, threading
from pathlib import Path
from trainer import cpu_ranks

def meet(launch, ending):
    import torch
    torch.distributed.init_process_group("gloo")
    ranks = torch.ones(())
    torch.distributed.all_reduce(ranks)
    # In one write, as the ranks share the log: an unbuffered `print` writes pieces.
    os.write(1, f"rank {launch.rank} of {launch.world_size} met {int(ranks)}\\n".encode())

def fail(launch, ending):
    if launch.rank == 1:
        raise RuntimeError("no luck")
    threading.Event().wait()


def killed(launch, ending):
    meet(launch, ending)
    if launch.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()


def group_terminated(launch, ending):
    meet(launch, ending)
    if launch.rank == 1:
        os.killpg(0, signal.SIGTERM)
    threading.Event().wait()


def terminated_while_importing(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait()


def terminate_after_the_fork():
    def rank(*_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.environ["RANK"] == "1":
            os.kill(os.getppid(), signal.SIGTERM)
        threading.Event().wait()
    cpu_ranks._rank = rank


def terminated_within_the_fork():
    left = [signal.SIGTERM]
    def send():
        if left:
            os.kill(os.getpid(), left.pop())
    def rank(*_):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threading.Event().wait()
    cpu_ranks._rank = rank
    os.register_at_fork(after_in_parent=send)


def terminated_between_two_forks():
    from multiprocessing.process import BaseProcess
    start = BaseProcess.start
    def start_and_terminate(self):
        start(self)
        BaseProcess.start = start
        os.kill(os.getpid(), signal.SIGTERM)
    def rank(*_):
        threading.Event().wait()
    cpu_ranks._rank = rank
    BaseProcess.start = start_and_terminate


def terminated_while_a_thread_starts():
    from torch.distributed.elastic.multiprocessing.tail_log import TailLog
    def start(self):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait()
        except BaseException:
            raise KeyError("as in threading.Thread.start, if the thread has begun")
    TailLog.start = start

if __name__ == "__main__":
    os.setpgid(0, 0)
    if sys.argv[1] == "run.json":
        if sys.argv[2] == "import":
            cpu_ranks.prepare_training = terminated_while_importing
        else:
            cpu_ranks.prepare_training = lambda *_: meet
            globals()[sys.argv[2]]()
        sys.argv[2:] = []
        sys.exit(cpu_ranks.main())
    try:
        code = cpu_ranks.launch_ranks(2, "start", Path(), globals()[sys.argv[1]])
    except cpu_ranks.Stopped as stopped:
        code = stopped.exit_code
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        sys.exit(code)
    sys.exit("a rank still runs")
"""


def _ran(warm_trainer, folder, *what):
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    return warm_trainer.run(str(program), [*what], folder=folder)


def test_a_failing_rank_ends_the_others_and_its_reason_is_reported(warm_trainer, tmp_path):
    done = _ran(warm_trainer, tmp_path, "fail")
    assert done.exit_code == 2, done.log
    result = done.record("result")
    assert (result["state"], result["error"]) == ("failed", "rank 1 failed: no luck")
    assert read_log(tmp_path / "log.out").problems[0].message == "rank 1 failed: no luck"


def test_a_killed_rank_ends_the_others_and_is_named(warm_trainer, tmp_path):
    done = _ran(warm_trainer, tmp_path, "killed")
    assert done.exit_code == 128 + signal.SIGKILL, done.log
    messages = [problem.message for problem in read_log(tmp_path / "log.out").problems]
    assert "local rank 1 ended with exit code -9 (SIGKILL, most often for lack of memory)" in messages


def test_a_signal_ends_all_ranks_and_is_recorded_once(warm_trainer, tmp_path):
    """The signal reaches the launcher and the ranks, as with `kill` of a process group."""
    done = _ran(warm_trainer, tmp_path, "group_terminated")
    assert done.exit_code == 128 + signal.SIGTERM, done.log
    result = done.record("result")
    assert result["state"] == "terminated"
    assert result["error"] == "the training was ended from outside, by SIGTERM."


@pytest.mark.parametrize(
    "when",
    [
        *("import", "terminated_within_the_fork", "terminate_after_the_fork"),
        *("terminated_between_two_forks", "terminated_while_a_thread_starts"),
    ],
)
def test_a_job_terminated_before_its_ranks_train_leaves_one_record(warm_trainer, tmp_path, when):
    write_run(planned(2), tmp_path)
    ended = _ran(warm_trainer, tmp_path, "run.json", when)
    assert ended.exit_code == 128 + signal.SIGTERM, ended.log
    assert (ended.record("result")["state"], ended.record("result")["ranks"]) == ("terminated", 2)
    assert ended.log.count("steptime.result ") == 1


NAMES_GPUS = """
import torch
from trainer.cpu.cpu_as_cuda import cpu_as_cuda
with cpu_as_cuda():
    for gpu in ("cuda", "cuda:0", torch.device("cuda", 1)):
        print("made on", torch.zeros(1, device=gpu).device, "moved to", torch.zeros(1).to(gpu).device)
"""


def test_each_name_of_a_gpu_is_the_cpu(warm_trainer, tmp_path):
    program = tmp_path / "names_gpus.py"
    program.write_text(NAMES_GPUS, encoding="utf-8")
    done = warm_trainer.run(str(program), [], folder=tmp_path)
    assert done.exit_code == 0, done.log
    assert done.log.splitlines()[-3:] == ["made on cpu moved to cpu"] * 3


def test_a_plan_that_cannot_be_trained_is_refused_before_the_imports(tmp_path):
    run = planned(2)
    model = run.recipe.model.model_copy(update={"architecture": "bert"})
    write_run(run.model_copy(update={"recipe": run.recipe.model_copy(update={"model": model})}), tmp_path)
    refused = light_trainer(["run.json"], tmp_path, module="trainer.cpu_ranks")
    line, result = refused.stdout.splitlines()
    assert refused.returncode == 1
    assert line.startswith("trainer: this trainer has no model family 'bert'")
    assert json.loads(result.removeprefix("steptime.result "))["ranks"] == 2


@pytest.mark.exhaustive
def test_a_job_takes_torchruns_steps(trainer_python, tmp_path):
    """Each of the jobs imports NeMo, which takes 60 s of CPU in total."""
    started = {
        "forked": ["-m", "trainer.cpu_ranks"],
        "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "trainer"],
    }
    losses = []
    for name, start in started.items():
        (folder := tmp_path / name).mkdir()
        arguments = [*write_run(planned(2, max_steps=4), folder), "--history", "history.jsonl"]
        ended = start_trainer([trainer_python, *start], arguments, cwd=folder)
        assert ended.returncode == 0, ended.stdout
        job = Trained(exit_code=0, log=ended.stdout, folder=folder)
        assert job.record("start")["imports_s"] > 1
        losses.append(job.losses)
    assert losses[0] == losses[1]
