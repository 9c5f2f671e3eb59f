"""Plans as the pipeline makes them, and the trainer, started as its job does, until its end."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from steptime.recipes.models import Mode, ModelShape
from steptime.recipes.planning import PlanRequest, plan

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
JOB_TIMEOUT_S = 900


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run of the trainer: its exit code, its whole log, and the exact loss of every step."""

    exit_code: int
    log: str
    folder: Path

    @property
    def history(self):
        lines = (self.folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    @property
    def losses(self):
        return {step["global_step"]: step["loss"] for step in self.history}

    @property
    def step_lines(self):
        """Return NeMo's step lines as fields; the text before the first bar is `where`."""
        lines = [line.split(" | ") for line in self.log.splitlines() if line.startswith("Training epoch ")]
        return [{"where": where, **dict(field.split(": ") for field in fields)} for where, *fields in lines]

    def record(self, kind):
        (line,) = [line for line in self.log.splitlines() if line.startswith(f"steptime.{kind} ")]
        return json.loads(line.removeprefix(f"steptime.{kind} "))

    @property
    def checkpoints(self):
        return self.folder / "code" / "nemo_experiments" / "default" / "checkpoints"


def planned(
    gpus=1,
    *,
    workload="llama3.1",
    parallelism=None,
    gbs=None,
    **fields,
):
    """Return the planned tiny size of a workload on `gpus` ranks, with these fields changed."""
    run = plan(PlanRequest(workload=workload, gpu_type="cpu", size="tiny", gpus=str(gpus))).runs[0]
    changed = {}
    if parallelism:
        changed["parallelism"] = parallelism
    if gbs:
        changed["global_batch_size"] = gbs
    return run.model_copy(update={"recipe": run.recipe.model_copy(update=changed), **fields})


def tiny_of(workload):
    """Return the model of a workload's size for the CPU."""
    model = yaml.safe_load(workload.read_text(encoding="utf-8"))["sizes"]["tiny"]["model"]
    return ModelShape.model_validate_json(json.dumps(model))


MIXTURE = tiny_of(DATA / "mixtures" / "workloads" / "grok1-25.08.yaml")


def mixture(parallelism, shape=MIXTURE, **fields):
    """Return a run of the mixture of experts, or of another model in its place."""
    run = planned(parallelism.world_size, parallelism=parallelism, **fields)
    recipe = run.recipe.model_copy(update={"model": shape, "backend": "megatron_bridge"})
    return run.model_copy(update={"recipe": recipe})


def loading(checkpoint, first_step, max_steps, **fields):
    """Return a run that continues a checkpoint."""
    return planned(
        mode=Mode.CHECKPOINT_LOAD,
        checkpoint_path=str(checkpoint),
        first_step=first_step,
        max_steps=max_steps,
        **fields,
    )


def write_run(run, folder):
    """Write `run.json`; return its path as the trainer's arguments."""
    path = folder / "run.json"
    path.write_text(run.model_dump_json(), encoding="utf-8")
    return [str(path)]


_SHOW_STACKS = {"PYTHONFAULTHANDLER": "1"}
"""Variables by which a process that SIGABRT ends first writes the stacks of its threads."""


def start_trainer(command, arguments, *, cwd, **environment):
    """Run the trainer with only its own package to import; after a hang fail with every process's stacks."""
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=cwd,
        env={**os.environ, **_SHOW_STACKS, "PYTHONPATH": str(_package(cwd)), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=JOB_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)
        output, _ = process.communicate()
        pytest.fail(f"the trainer did not end within {JOB_TIMEOUT_S} s; its log:\n{output}")
    return subprocess.CompletedProcess(process.args, process.returncode, output)


def _package(folder):
    """Return a folder from which the trainer can be imported, and nothing else of the repository."""
    package = folder / "package"
    package.mkdir(exist_ok=True)
    if not (package / "trainer").exists():
        (package / "trainer").symlink_to(ROOT / "trainer")
    return package


class WarmTrainer:
    """A process that has a backend's framework imported and runs programs on request: programs/train_each.py.

    A start takes some 10 s of imports in each rank, longer than a test's training; here they are done once.
    """

    def __init__(self, python, folder, backend="nemo"):
        self._python = python
        self._backend = backend
        self._folder = folder
        self._process = self._start()

    def _start(self):
        with (self._folder / "errors").open("ab") as errors:
            return subprocess.Popen(
                [self._python, str(Path(__file__).parent / "programs" / "train_each.py"), self._backend],
                cwd=self._folder,
                env={
                    **os.environ,
                    **_SHOW_STACKS,
                    "OMP_NUM_THREADS": "1",  # as in a job: threads that exist before a fork may hang it
                    "PYTHONPATH": str(_package(self._folder)),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def train(self, run, folder, program=None):
        """Train a run in a folder, by the launcher of its job or by another program."""
        write_run(run, folder)
        return self.run(program, ["run.json", "--history", "history.jsonl"], folder=folder)

    def run(self, program, arguments, *, folder):
        """Run a program that imports NeMo; after a hang fail with every process's stacks in the log."""
        if self._process.poll() is not None:  # it hung in another test
            self._process = self._start()
        request = {"folder": str(folder), "program": program, "arguments": arguments}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        late = threading.Timer(JOB_TIMEOUT_S, os.killpg, (self._process.pid, signal.SIGABRT))
        late.start()
        try:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            exit_code = self._process.stdout.readline()
        finally:
            late.cancel()
        if not exit_code:
            self._process.wait()
            texts = [
                path.read_text() for path in (self._folder / "errors", folder / "log.out") if path.exists()
            ]
            pytest.fail(f"the trainer did not end within {JOB_TIMEOUT_S} s:\n{chr(10).join(texts)}")
        log = (folder / "log.out").read_text(encoding="utf-8")
        return Trained(exit_code=int(exit_code), log=log, folder=folder)

    def stop(self):
        """End the process and all that a training left."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def light_trainer(arguments, cwd, *, module="trainer", **environment):
    """Run the trainer in this environment, which has no torch: it shows what precedes heavy imports."""
    return start_trainer([sys.executable, "-m", module], arguments, cwd=cwd, **environment)
