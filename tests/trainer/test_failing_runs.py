"""Trainings that really fail: what their logs say, and what the pipeline reads there."""

import json
import re

import pytest

from steptime.logs.reader import read_log
from steptime.recipes.models import Parallelism

from .jobs import planned

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

DIVERGE = """
import sys
from trainer.cpu_ranks import main
if __name__ == "__main__":
    import time
    from trainer import callbacks, hyperparameters
    hyperparameters.LEARNING_RATE = 1e30
    write_step = callbacks.write_step
    def write_late(*arguments, **fields):
        time.sleep(1)  # a rank that ends the run before rank 0 has its line is surely first
        write_step(*arguments, **fields)
    callbacks.write_step = write_late
    sys.exit(main())
"""
LITTLE_MEMORY = """
import resource, sys
from trainer.__main__ import main
if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36))
    print("exit codes", [main([f"{name}.json"]) for name in ("gpu", "bf16", "large")])
"""


def _failed(train, run, folder, program):
    """Return the run, and the first problem that the pipeline reads in its log."""
    path = folder / "program.py"
    path.write_text(program, encoding="utf-8")
    failed = train(run, folder, program=str(path))
    assert failed.exit_code == 2, failed.log
    result = failed.record("result")
    assert result["state"] == "failed"
    assert result["experiment"] == run.experiment
    assert result["ranks"] == run.recipe.gpus
    assert f"trainer: {result['error']}\n" in failed.log
    (kept,) = folder.glob("ended/*/result.json")
    assert json.loads(kept.read_text()) == result
    log = read_log(folder / "log.out", max_steps=run.max_steps)
    assert log.ended == result
    assert (log.problems[0].kind, log.problems[0].message) == ("trainer_failed", result["error"])
    return failed, log.problems[0]


def _two_ranks(**fields):
    return planned(2, parallelism=Parallelism(data=2), gbs=16, **fields)


def test_a_diverging_run_stops_at_the_first_loss_that_is_no_number(train, tmp_path):
    failed, problem = _failed(train, _two_ranks(), tmp_path, DIVERGE)
    match = re.fullmatch(
        r"the loss of step (\d) is (nan|inf): training diverged and was stopped\.", problem.message
    )
    assert match is not None, problem.message
    losses = list(failed.losses.values())
    assert len(losses) == int(match[1]) + 1 == failed.record("result")["steps_trained"]
    assert [str(loss) for loss in losses if loss - loss != 0] == [match[2]]


def test_what_only_the_training_finds(train, tmp_path):
    """These are a missing GPU, an impossible number format, and a model too large for the memory."""
    run = planned()
    recipe = run.recipe
    too_large = recipe.model.model_copy(update={"ffn_hidden_size": 2**30})
    changes = {"gpu": {"gpu_type": "h100"}, "bf16": {"dtype": "bf16"}, "large": {"model": too_large}}
    for name, changed in changes.items():
        changed_run = run.model_copy(update={"recipe": recipe.model_copy(update=changed)})
        (tmp_path / f"{name}.json").write_text(changed_run.model_dump_json(), encoding="utf-8")
    program = tmp_path / "program.py"
    program.write_text(LITTLE_MEMORY, encoding="utf-8")
    failed = train(run, tmp_path, program=str(program))
    assert "exit codes [1, 1, 2]" in failed.log, failed.log
    log = read_log(tmp_path / "log.out")
    assert log.ended is not None
    errors = re.findall(r"^trainer: (.*)$", failed.log, flags=re.MULTILINE)
    assert errors == [
        "the plan is for the GPU type 'h100', but torch finds no CUDA device here: plan for cpu, or run "
        "on a node with GPUs.",
        "this trainer cannot train dtype 'bf16' on cpu; choose one of: fp32.",
        log.ended["error"],
    ]
    # Gate and up projection of the first layer: 2 × 2³⁰ × 256 numbers of 4 bytes.
    assert re.fullmatch(
        r"the memory of rank 0 does not suffice: 2199023255552 bytes could not be allocated, and its peak "
        r"was \d+ bytes; take more ranks, a smaller micro batch, or more tensor or pipeline parallelism\.",
        errors[2],
    )
    assert 1e8 < log.ended["peak_memory_bytes"] < 2**36
    assert log.problems[0].message == errors[2]
