"""Ranks on the CPU as forks of the process that has imported NeMo: what torchrun gives, they have."""

import json
import signal
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from steptime.logs.reader import read_log
from steptime.recipes.models import Parallelism
from trainer.forked_ranks import _first_failure

from .conftest import Train
from .jobs import Trained, WarmTrainer, light_trainer, planned, write_run

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(2400)]

PROGRAM = """
import functools, json, os, signal, sys
from trainer import forked_ranks

def meet():
    import torch
    torch.distributed.init_process_group("gloo")
    ranks = torch.ones(())
    torch.distributed.all_reduce(ranks)
    names = ["RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
    with open(f"rank{os.environ['RANK']}.json", "w") as file:
        json.dump({"ranks": int(ranks), **{name: os.environ[name] for name in names}}, file)
    return 0

def fail():
    if os.environ["RANK"] == "1":
        return 3
    signal.pause()

def killed():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()

def stays():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ["RANK"] == "1":
        return 3
    signal.pause()

def outlived():
    if os.environ["RANK"] == "1":
        if os.fork() == 0:
            signal.pause()  # as a process that writes a checkpoint
        os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()

def alone():
    signal.pause()

def second_fork_fails(fork, forks=[]):
    forks.append(None)
    if len(forks) == 2:
        raise BlockingIOError("no more processes")
    return fork()

def asked():
    if os.environ["RANK"] == "1":
        os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()

def asked_while_importing(*_):
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()

if __name__ == "__main__":
    forked_ranks.GRACE_S = 0.5
    if sys.argv[1] == "run.json":
        forked_ranks.ready = asked_while_importing
        sys.exit(forked_ranks.main())
    if sys.argv[1] == "alone":
        os.fork = functools.partial(second_fork_fails, os.fork)
    try:
        print("exit code", forked_ranks.fork_ranks(2, globals()[sys.argv[1]]), flush=True)
    except BlockingIOError as problem:
        print(problem, flush=True)
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("no rank is left")
"""


def _done(warm_trainer: WarmTrainer, folder: Path, what: str) -> Trained:
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    return warm_trainer.run(str(program), [what], folder=folder)


def test_ranks_have_torchruns_environment_and_meet(warm_trainer: WarmTrainer, tmp_path: Path) -> None:
    done = _done(warm_trainer, tmp_path, "meet")
    assert done.log == "exit code 0\nno rank is left\n"
    for rank in (0, 1):
        assert json.loads((tmp_path / f"rank{rank}.json").read_text()) == {
            **{"ranks": 2, "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"},
            **{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"},
        }


@pytest.mark.parametrize(
    ("what", "exit_code", "shown"),
    [
        ("fail", 3, "local rank 1 ended with exit code 3"),
        ("killed", 128 + signal.SIGKILL, "local rank 1 ended with exit code -9"),
        ("outlived", 128 + signal.SIGKILL, "local rank 1 ended with exit code -9"),
        ("stays", 3, "local rank 1 ended with exit code 3"),
    ],
)
def test_when_one_rank_fails_the_others_are_ended(
    warm_trainer: WarmTrainer, tmp_path: Path, what: str, exit_code: int, shown: str
) -> None:
    done = _done(warm_trainer, tmp_path, what)
    assert done.log.endswith(f"\nexit code {exit_code}\nno rank is left\n"), done.log
    assert read_log(tmp_path / "log.out").problems[0].message == shown


def test_a_rank_that_cannot_be_started_leaves_no_other(warm_trainer: WarmTrainer, tmp_path: Path) -> None:
    assert _done(warm_trainer, tmp_path, "alone").log.endswith("no more processes\nno rank is left\n")


def test_sigterm_ends_all_ranks(warm_trainer: WarmTrainer, tmp_path: Path) -> None:
    assert _done(warm_trainer, tmp_path, "asked").log == "exit code 143\nno rank is left\n"


def test_ended_while_it_imports_it_leaves_the_record_of_the_job(
    warm_trainer: WarmTrainer, tmp_path: Path
) -> None:
    write_run(planned(2), tmp_path)
    ended = _done(warm_trainer, tmp_path, "run.json")
    assert ended.exit_code == 128 + signal.SIGTERM
    assert (ended.record("result")["state"], ended.record("result")["ranks"]) == ("terminated", 2)


def test_a_plan_that_cannot_be_trained_is_refused_before_the_imports(tmp_path: Path) -> None:
    run = planned(2)
    model = run.recipe.model.model_copy(update={"architecture": "bert"})
    write_run(run.model_copy(update={"recipe": run.recipe.model_copy(update={"model": model})}), tmp_path)
    refused = light_trainer(["run.json"], tmp_path, module="trainer.forked_ranks")
    line, result = refused.stdout.splitlines()
    assert refused.returncode == 1
    assert line.startswith("trainer: this trainer has no model family 'bert'")
    assert json.loads(result.removeprefix("steptime.result "))["ranks"] == 2


def test_nemo_logs_as_rank_0_alone_and_imports_are_those_of_its_parent(train: Train, tmp_path: Path) -> None:
    done = train(planned(2, parallelism=Parallelism(data=2), gbs=4, max_steps=1), tmp_path)
    assert done.exit_code == 0, done.log
    assert done.log.count("Experiments will be logged") == 1
    assert done.record("start")["world_size"] == 2


@pytest.mark.exhaustive
def test_a_job_takes_torchruns_steps(train: Train, train_in_job: Train, tmp_path: Path) -> None:
    """Both import NeMo anew: 45 s of CPU."""
    run = planned(2, max_steps=4)
    (forked := tmp_path / "forked").mkdir()
    (torchrun := tmp_path / "torchrun").mkdir()
    jobs = [train_in_job(run, forked), train_in_job(run, torchrun, torchrun=True)]
    assert [job.exit_code for job in jobs] == [0, 0], jobs[0].log + jobs[1].log
    assert jobs[0].losses == jobs[1].losses
    assert all(job.record("start")["imports_s"] > 1 for job in jobs)


def test_a_rank_that_ends_well_while_it_is_looked_at_has_not_failed() -> None:
    """Its exit code is None at one moment and 0 at the next."""
    received, signals = socket.socketpair()

    class Ends(SimpleNamespace):
        looks = 0

        @property
        def exitcode(self) -> int | None:
            self.looks += 1
            return None if self.looks == 1 else 0

    with received, signals:
        signals.send(bytes([signal.SIGCHLD]))
        assert _first_failure([Ends(pid=1)], received) == 0  # type: ignore[list-item]
