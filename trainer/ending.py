"""How a run ends: one line of JSON, `steptime.result`, written by rank 0 whatever ends it.

A rank that fails writes the reason to a file before it ends. Rank 0 then loses its connections or gets the
launcher's SIGTERM. Thanks to the file it logs the original cause, and not these consequences.
"""

import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trainer.errors import TrainerError, TrainingFailure
from trainer.launch import Launch
from trainer.progress import Progress
from trainer.spec import NEMO
from trainer.versions import untried, versions

FOLDER = "ended"
"""Name of the folder below the job's folder; it has a folder for each launch of the job."""

State = Literal["completed", "failed", "terminated"]
LONGEST_MESSAGE = 500
REMEDY = "take more ranks, a smaller micro batch, or more tensor or pipeline parallelism"
_NOT_ALLOCATED = re.compile(r"can't allocate memory: you tried to allocate (?P<size>\d+ bytes)")
"""torch's error message if the CPU's memory is used up."""
_NOT_ON_GPU = re.compile(r"(?:CUDA|HIP)\b.*?out of memory(?:\. Tried to allocate (?P<size>[\d.]+ \w+))?")


@dataclass(frozen=True)
class RankFailure:
    """Why and with which exit code a rank failed."""

    rank: int
    error: str
    exit_code: int
    peak_memory_bytes: int


class Ending:
    """Records how this run ended, as seen by this rank; only the first report counts."""

    def __init__(self, output: Path, launch: Launch, progress: Progress):
        start = this_start(os.environ)
        self.folder = output / FOLDER / (start or "run")
        self.launch = launch
        self.progress = progress
        self._writing = threading.Lock()
        self._written = False
        if launch.rank == 0 and start is None:  # another run may have left its files under this name
            for file in (self._failure_file, self._result_file):
                file.unlink(missing_ok=True)

    def __deepcopy__(self, _: dict[int, Any]) -> "Ending":
        """Return this object itself: NeMo's Trainer copies its callbacks, but a run ends only once."""
        return self

    @property
    def _backend(self) -> str:
        return self.progress.run.recipe.backend if self.progress.run else NEMO

    @property
    def _failure_file(self) -> Path:
        return self.folder / "failure.json"

    @property
    def _result_file(self) -> Path:
        return self.folder / "result.json"

    @property
    def is_recorded(self) -> bool:
        """Whether the end of this launch of the job has been recorded; a requeued job is launched again."""
        return self._result_file.exists()

    def completed(self) -> None:
        """Record that all planned steps ended, and that the checkpoint was saved if one was planned."""
        self._write_once("completed", None)

    def failed(self, error: BaseException) -> int:
        """Record an error for the other ranks, and on rank 0 as the end of the run; return the exit code.

        If another rank failed first, its failure is recorded instead. KeyboardInterrupt and SystemExit are
        recorded as signals. Only the first call has an effect, even if several threads call it.
        """
        code = exit_code(error)
        if self._written:
            return code
        if isinstance(error, (KeyboardInterrupt, SystemExit)):  # Lightning makes a SystemExit of SIGTERM
            self.terminated("SIGINT" if isinstance(error, KeyboardInterrupt) else "SIGTERM")
            return code
        peak = self.progress.own_peak_memory()
        if report := memory_report(error):
            print(report, file=sys.stderr, flush=True)
        failure_here = RankFailure(
            self.launch.rank, sentence(error, self.launch.rank, peak, self._backend), code, peak
        )
        return self.failed_by(self.left_by_another() or failure_here)

    def failed_by(self, failure: RankFailure) -> int:
        """Record this failure, of this rank or another, as the end of the run; return its exit code."""
        if failure.rank == self.launch.rank:
            self._leave(failure)
        self._write_once("failed", failure)
        return failure.exit_code

    def terminated(self, signal_name: str) -> None:
        """Record that a signal ended the run, or another rank's failure if there is one."""
        failure = self.left_by_another()
        if failure is not None:
            self._write_once("failed", failure)
        else:
            error = f"the training was ended from outside, by {signal_name}."
            self._write_once(
                "terminated", RankFailure(self.launch.rank, error, 0, self.progress.own_peak_memory())
            )

    def left_by_another(self) -> RankFailure | None:
        """Return the failure that another rank recorded; None if there is none."""
        try:
            failure = RankFailure(**json.loads(self._failure_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return failure if failure.rank != self.launch.rank else None

    def _leave(self, failure: RankFailure) -> None:
        """Write the failure for the other ranks, unless another rank has already done so."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.folder, encoding="utf-8") as file:
                json.dump(asdict(failure), file)
                file.flush()
                os.link(file.name, self._failure_file)  # whole, and only if there is none
        except FileExistsError:
            pass
        except OSError as error:  # a full disk must not hide the reason
            print(f"trainer: cannot write to {self.folder}: {error.strerror}", file=sys.stderr, flush=True)

    def _write_once(self, state: State, failure: RankFailure | None) -> None:
        with self._writing:  # a thread that comes second waits, as it then ends the process
            if not self._written and self.launch.rank == 0:
                self._write(state, failure)
            self._written = True

    def _write(self, state: State, failure: RankFailure | None) -> None:
        if failure is not None:
            print(f"trainer: {failure.error}", file=sys.stderr, flush=True)
        line = json.dumps(self._result(state, failure))
        print(f"steptime.result {line}", flush=True)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._result_file.write_text(line + "\n", encoding="utf-8")
        except OSError as error:
            print(f"trainer: cannot write to {self.folder}: {error.strerror}", file=sys.stderr, flush=True)

    def _result(self, state: State, failure: RankFailure | None) -> dict[str, Any]:
        progress = self.progress
        compared = progress.highest_memory_bytes is not None
        peaks = [progress.highest_memory_bytes or progress.own_peak_memory()]
        if failure is not None:
            peaks.append(failure.peak_memory_bytes)
        began_at = progress.training_began_at
        return {
            "schema": 1,
            "experiment": progress.run.experiment if progress.run else None,
            "state": state,
            "error": failure.error if failure else None,
            "global_step": progress.step,
            "steps_trained": progress.steps_trained,
            "training_s": round(time.perf_counter() - began_at, 3) if began_at else None,
            "peak_memory_bytes": max(peaks),
            "peak_memory_of_all_ranks": compared,
            "checkpoints": [transfer.as_record() for transfer in progress.checkpoints],
            "ranks": self.launch.world_size,
            "node_names": progress.node_names,
            "versions": versions(),
        }


def this_start(environment: Mapping[str, str]) -> str | None:
    """Return an identifier of this launch of the job, equal on all ranks; None without a launcher.

    It is built from the variables of torchrun or srun, which count restarts.
    """
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        parts = [run_id, environment.get("TORCHELASTIC_RESTART_COUNT", "0")]
    elif "SLURM_STEP_ID" in environment:
        restarts = environment.get("SLURM_RESTART_COUNT", "0")
        parts = [environment.get("SLURM_JOB_ID", "0"), environment["SLURM_STEP_ID"], restarts]
    else:
        return None
    return re.sub(r"[^\w.-]", "_", ".".join(parts)).lstrip(".")


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error: 1 if the request is impossible, 2 if the training failed."""
    return error.exit_code if isinstance(error, TrainerError) else TrainingFailure.exit_code


def sentence(error: BaseException, rank: int, peak_memory_bytes: int, backend: str = NEMO) -> str:
    """Describe in one line why the training ended."""
    if isinstance(error, TrainerError):
        return str(error)
    message = " ".join(str(error).split())
    if out_of_memory := _NOT_ON_GPU.search(message):
        return _out_of_memory(f"GPU memory of rank {rank}", out_of_memory["size"], peak_memory_bytes)
    if out_of_memory := _NOT_ALLOCATED.search(message):
        return _out_of_memory(f"memory of rank {rank}", out_of_memory["size"], peak_memory_bytes)
    if isinstance(error, MemoryError):
        return _out_of_memory(f"memory of rank {rank}", None, peak_memory_bytes)
    failed = f"rank {rank} failed: {message[:LONGEST_MESSAGE] or type(error).__name__}"
    if isinstance(error, ImportError | AttributeError | TypeError) and (others := untried(backend)):
        return f"{failed}; {others}: choose another image if their API differs."
    return failed


def _out_of_memory(whose: str, size: str | None, peak_memory_bytes: int) -> str:
    return (
        f"the {whose} does not suffice: {size or 'more'} could not be allocated, and its peak was "
        f"{peak_memory_bytes} bytes; {REMEDY}."
    )


def memory_report(error: BaseException) -> str | None:
    """Return torch's summary of GPU memory after an out-of-memory error; None after any other error."""
    torch = sys.modules.get("torch")  # without it nothing has been allocated
    if torch is None or _NOT_ON_GPU.search(str(error)) is None or not torch.cuda.is_initialized():
        return None
    return str(torch.cuda.memory_summary())
