"""What the store keeps of a run: what was submitted, how it ended, its numbers, its verdict."""

from typing import Any, Literal

from pydantic import Field, PositiveInt

from steptime.clusters.base import Job, JobStatus, Staged
from steptime.frozen import Frozen
from steptime.logs.models import TrainingLog
from steptime.recipes.models import Run
from steptime.recipes.request import PlanRequest
from steptime.results.measurement import Measurement


class Check(Frozen):
    """One data-quality expectation and what it found."""

    name: str
    passed: bool
    message: str
    """One sentence: what was expected and, if it failed, which rows (global steps) and values broke it."""
    severity: Literal["error", "warning"] = "error"
    """A failed warning is shown beside the result; a failed error keeps the run out of the results."""


class Verdict(Frozen):
    """All checks of one run; only a valid run is published into the results."""

    checks: tuple[Check, ...]

    @property
    def valid(self) -> bool:
        """Whether no check failed, warnings aside."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that keep the run out of the results."""
        return tuple(check for check in self.checks if not check.passed and check.severity == "error")

    @property
    def warnings(self) -> tuple[Check, ...]:
        """What a reader of the number should know, although it counts."""
        return tuple(check for check in self.checks if not check.passed and check.severity == "warning")

    @property
    def reason(self) -> str | None:
        """The failures' sentences; None of a valid run."""
        return " ".join(check.message for check in self.failures) or None

    @property
    def remarks(self) -> str | None:
        """The warnings' sentences."""
        return " ".join(check.message for check in self.warnings) or None


class Provenance(Frozen):
    """What is needed to repeat a run, besides the run itself."""

    steptime_version: str
    git_commit: str | None
    git_clean: bool | None
    staged: Staged
    options: dict[str, Any] = Field(default_factory=dict)
    """What was asked for, by the names of `PlanRequest`."""
    environment: dict[str, str] = Field(default_factory=dict)
    """The variables that the job script sets for the training, the run's own among them."""
    script: str = ""
    """The job script; empty until `parse` reads it from the job's folder."""
    dag_id: str | None = None
    dag_run_id: str | None = None
    task_id: str | None = None
    """The Airflow task that waited for the job: its log shows the training's step lines."""
    map_index: int | None = None
    sweep: str | None = None
    """The sweep that it is a cell of; None outside of sweeps."""
    sweep_run: str | None = None
    """The sweep's own DAG run, `dag_id/run_id`."""

    @property
    def dag_run(self) -> str | None:
        """`dag_id/run_id`."""
        return f"{self.dag_id}/{self.dag_run_id}" if self.dag_id and self.dag_run_id else None


class Submitted(Frozen):
    """A run as it was submitted."""

    run: Run
    request: PlanRequest
    """The request for this run alone."""
    job: Job
    attempt: PositiveInt
    """Counts the jobs of this run; the job's name ends in it."""
    made_by: Provenance


class Result(Frozen):
    """A measured run: what was submitted, how it ended, and everything that its log says."""

    submitted: Submitted
    status: JobStatus
    measurement: Measurement | None
    """None if nothing can be measured."""
    log: TrainingLog
    record: str
    """The run's record as JSON text, without secrets; see `results.record`."""

    @property
    def run(self) -> Run:
        """The planned run."""
        return self.submitted.run

    @property
    def job(self) -> Job:
        """The run's last job."""
        return self.submitted.job
