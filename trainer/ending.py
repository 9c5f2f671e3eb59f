"""How a run ends: one line of JSON, `steptime.result`, written by rank 0 whatever ends it.

A rank that fails leaves its reason in a file before it ends. So rank 0, which then loses its connections or
gets the launcher's SIGTERM, can log the cause, and not its own trouble.
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

from trainer import failures
from trainer.launch import Launch
from trainer.progress import Progress
from trainer.versions import versions

FOLDER = "ended"
"""Below the job's folder; below it a folder for each start of the job."""

State = Literal["completed", "failed", "terminated"]


@dataclass(frozen=True)
class RankFailure:
    """What ended a rank."""

    rank: int
    error: str
    exit_code: int
    peak_memory_bytes: int


class Ending:
    """The end of this run, as this rank sees it; written once, by whichever thread comes first."""

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
        """NeMo's Trainer copies its callbacks to record them; there is one end."""
        return self

    @property
    def _failure_file(self) -> Path:
        return self.folder / "failure.json"

    @property
    def _result_file(self) -> Path:
        return self.folder / "result.json"

    @property
    def is_recorded(self) -> bool:
        """Whether a process of this start of the job has written how it ended."""
        return self._result_file.exists()

    def completed(self) -> None:
        """Note that all planned steps are done, and saved if that was planned."""
        self._write_once("completed", None)

    def failed(self, error: BaseException) -> int:
        """Leave the reason to the other ranks, and write it as rank 0; return the exit code.

        Called again, or by another thread, it does nothing: the first reason counts.
        """
        code = failures.exit_code(error)
        if self._written:
            return code
        if isinstance(error, (KeyboardInterrupt, SystemExit)):  # Lightning makes a SystemExit of SIGTERM
            self.terminated("SIGINT" if isinstance(error, KeyboardInterrupt) else "SIGTERM")
            return code
        peak = self.progress.own_peak_memory()
        if report := failures.memory_report(error):
            print(report, file=sys.stderr, flush=True)
        own = RankFailure(self.launch.rank, failures.sentence(error, self.launch.rank, peak), code, peak)
        return self.failed_by(self.left_by_another() or own)

    def failed_by(self, failure: RankFailure) -> int:
        """End as failed for a reason that is known; return the exit code."""
        if failure.rank == self.launch.rank:
            self._leave(failure)
        self._write_once("failed", failure)
        return failure.exit_code

    def terminated(self, signal_name: str) -> None:
        """End because the launcher demands it: another rank has failed, or for reasons of its own."""
        failure = self.left_by_another()
        if failure is not None:
            self._write_once("failed", failure)
        else:
            error = f"the training was ended from outside, by {signal_name}."
            self._write_once(
                "terminated", RankFailure(self.launch.rank, error, 0, self.progress.own_peak_memory())
            )

    def left_by_another(self) -> RankFailure | None:
        """Return why another rank has ended, if one has failed."""
        try:
            failure = RankFailure(**json.loads(self._failure_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return failure if failure.rank != self.launch.rank else None

    def _leave(self, failure: RankFailure) -> None:
        """Write the reason, whole, unless another rank has been first."""
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
    """Return a name that the ranks of this start of the job share and no other start has; None if unknown."""
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    if run_id != "none":
        parts = [run_id, environment.get("TORCHELASTIC_RESTART_COUNT", "0")]
    elif "SLURM_STEP_ID" in environment:
        restarts = environment.get("SLURM_RESTART_COUNT", "0")
        parts = [environment.get("SLURM_JOB_ID", "0"), environment["SLURM_STEP_ID"], restarts]
    else:
        return None
    return re.sub(r"[^\w.-]", "_", ".".join(parts)).lstrip(".")
