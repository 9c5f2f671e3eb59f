"""What the store keeps of a run: its submission, how it ended, its numbers and its verdict."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from steptime.clusters.base import Job, JobStatus, StagedFiles
from steptime.frozen import Frozen
from steptime.logs.training_log import TrainingLog
from steptime.recipes.models import Run, Window
from steptime.recipes.request import PlanRequest


def _column(description: str, **options: Any) -> dict[str, Any]:
    """Return the arguments of a field's `store.columns.Column`, besides its name and kind."""
    return {"description": description, **options}


class Measurement(Frozen):
    """Throughput, MFU and more for one step time, which was measured in a log or given by the user.

    `mfu_percent` 62.5 means 62.5 %. Unknown numbers are None. If the user gave the step time, all numbers
    about the measurement window are None; for a log without a plan, the rates that need one, such as the MFU.
    """

    window: Window | None = None
    steps_in_window: Annotated[int | None, _column("Steps of the window that have a step time.")] = None
    step_time_mean_s: Annotated[
        float,
        _column("Mean step time of the window.", heading="step time", unit="s", priority=0, in_events=True),
    ]
    step_time_std_s: Annotated[
        float | None,
        _column(
            "Sample standard deviation of the step times (n - 1); empty for a single step.",
            heading="± std",
            unit="s",
            priority=3,
            decimals_of="step_time_mean_s",
        ),
    ] = None
    step_time_median_s: Annotated[
        float | None, _column("Median step time of the window.", heading="median step time", unit="s")
    ] = None
    steady_steps: Annotated[
        str | None,
        _column(
            "First and last of the steady steps: the last 20 of the run, or its window if that is longer.",
            heading="steady",
            unit="steps",
        ),
    ] = None
    steady_step_time_s: Annotated[
        float | None,
        _column(
            "Median step time of the steady steps: what a run is judged by.",
            heading="steady step time",
            unit="s",
            in_events=True,
        ),
    ] = None
    steady_step_time_iqr_s: Annotated[
        float | None, _column("Interquartile range of the steady steps.", heading="steady IQR", unit="s")
    ] = None
    wall_time_median_s: Annotated[
        float | None,
        _column(
            "Median time from the end of a step to the end of the next, if the trainer logged it.",
            heading="wall time",
            unit="s",
            priority=5,
        ),
    ] = None
    published_step_time_s: Annotated[
        float | None,
        _column(
            "Published step time of the same recipe at this GPU count and batch size; empty if none.",
            heading="published",
            unit="s",
            priority=4,
        ),
    ] = None
    step_time_over_published: Annotated[
        float | None,
        _column(
            "Mean step time over the published one: above 1 is slower.",
            heading="against published",
            as_change=True,
            priority=2,
            decimals=3,
            in_events=True,
        ),
    ] = None
    tokens_per_s: Annotated[
        float | None,
        _column("Tokens of a step / mean step time.", heading="tokens/s", priority=2, decimals=2),
    ] = None
    tokens_per_s_per_gpu: Annotated[
        float | None,
        _column(
            "Tokens per second of each GPU.", heading="tokens/s/GPU", priority=2, decimals=2, in_events=True
        ),
    ] = None
    mfu_percent: Annotated[
        float | None,
        _column(
            "Model flops utilization by the formula in `flops_formula`.",
            heading="MFU",
            unit="%",
            priority=1,
            significant=3,
            decimals=2,
            in_events=True,
        ),
    ] = None
    model_tflops_per_gpu: Annotated[
        float | None,
        _column(
            "Model flops by the formula in `flops_formula`, over step time and GPUs.",
            heading="model TFLOPS/GPU",
        ),
    ] = None
    tflops_per_gpu_logged: Annotated[
        float | None,
        _column(
            "Mean of the TFLOPS per GPU that the trainer logged in the window.",
            heading="TFLOPS/GPU logged",
            priority=6,
        ),
    ] = None
    tflops_per_gpu_logged_std: Annotated[
        float | None,
        _column(
            "Sample standard deviation of the logged TFLOPS (n - 1); empty for a single step.",
            heading="± std of TFLOPS/GPU",
            priority=8,
            significant=2,
        ),
    ] = None
    peak_memory_gib: Annotated[
        float | None,
        _column(
            "Largest GPU memory that a step of the log states.",
            heading="peak memory",
            unit="GiB",
            priority=7,
            significant=3,
            decimals=1,
        ),
    ] = None
    gpu_power_mean_w: Annotated[
        float | None,
        _column(
            "Mean power of a GPU in the window, as nvidia-smi shows it.",
            heading="GPU power",
            unit="W",
            significant=3,
            decimals=0,
        ),
    ] = None
    energy_per_step_j: Annotated[
        float | None,
        _column(
            "Energy that all GPUs take for a step, without CPUs, network and cooling.",
            heading="energy per step",
            unit="J",
        ),
    ] = None
    joules_per_token: Annotated[
        float | None,
        _column("The same energy over the tokens of a step.", heading="energy per token", unit="J"),
    ] = None
    bus_bandwidth_gb_s: Annotated[
        float | None,
        _column(
            "Bus bandwidth of a collective's largest message, as nccl-tests defines it.",
            heading="bus bandwidth",
            unit="GB/s",
            priority=1,
            significant=3,
            in_events=True,
        ),
    ] = None
    peak_tflops_per_gpu: Annotated[
        float | None,
        _column(
            "Peak that the MFU is relative to; empty on CPUs, which have no MFU.",
            heading="peak per GPU",
            unit="TFLOPS",
        ),
    ] = None
    days_per_1t_tokens: Annotated[
        float | None,
        _column("Days that training on 10¹² tokens would take.", heading="1T tokens take", unit="days"),
    ] = None
    checkpoint_save_s: Annotated[
        float | None,
        _column(
            "Duration of the last save, from its start until it was whole on disk.",
            heading="save",
            unit="s",
            priority=3,
            significant=3,
            in_events=True,
        ),
    ] = None
    checkpoint_blocked_s: Annotated[
        float | None,
        _column(
            "How long training waited for that save; shorter if it was asynchronous.",
            heading="save blocked",
            unit="s",
            priority=3,
            significant=3,
            in_events=True,
        ),
    ] = None
    checkpoint_load_s: Annotated[
        float | None,
        _column(
            "Duration of the last load of a checkpoint.",
            heading="load",
            unit="s",
            priority=3,
            significant=3,
            in_events=True,
        ),
    ] = None
    flops_formula: str | None = None
    flops_per_sample: float | None = None
    flops_source: str | None = None
    """Whether the model's flops are stated by the publication or computed by its formula."""
    peak_source: str | None = None
    """The document that states the peak, or what measured it."""


Severity = Literal["error", "warning"]


class Check(Frozen):
    """A data-quality check of a run, and what it found."""

    name: str
    passed: bool
    message: str
    """One sentence: what was expected and, if the check failed, which steps and values violated it."""
    severity: Severity = "error"
    """A failed `warning` is shown beside the result; a failed `error` keeps the run out of the results."""


def make_check(name: str, passed: bool, holds: str, actual: str, severity: Severity = "error") -> Check:
    """Make a check. Its message says what holds if it `passed`, else what was expected, and what is `actual`.

    `holds` is a clause without its full stop: `the window has 10 steps`.
    """
    sentence = f"{holds[0].upper()}{holds[1:]}." if passed else f"Expected that {holds}, but {actual}."
    return Check(name=name, passed=passed, message=sentence, severity=severity)


class Verdict(Frozen):
    """All checks of one run; only a valid run is published."""

    checks: tuple[Check, ...]

    @property
    def valid(self) -> bool:
        """Whether all checks of severity `error` passed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The failed checks that keep the run out of the results."""
        return tuple(check for check in self.checks if not check.passed and check.severity == "error")

    @property
    def warnings(self) -> tuple[Check, ...]:
        """The failed checks that are only shown beside the result."""
        return tuple(check for check in self.checks if not check.passed and check.severity == "warning")

    @property
    def reason(self) -> str | None:
        """The messages of the failures; None for a valid run."""
        return " ".join(check.message for check in self.failures) or None

    @property
    def remarks(self) -> str | None:
        """The messages of the warnings; None if there are none."""
        return " ".join(check.message for check in self.warnings) or None


class LedgerPlan(Frozen):
    """A run that a DAG run's first task has planned and checked, for the tasks that stage and submit it."""

    run: Run
    request: PlanRequest
    """The request for this run alone."""
    options: dict[str, Any]
    """The options that were requested, by the names of `PlanRequest`."""
    sweep: str | None = None
    """The sweep that the run is a cell of; None outside of sweeps."""
    reserves: bool = True
    """Whether it reserves GPU-hours in its cluster's budget."""


class Provenance(Frozen):
    """What is needed to repeat a run, besides its plan."""

    steptime_version: str
    git_commit: str | None
    git_clean: bool | None
    staged: StagedFiles
    options: dict[str, Any] = Field(default_factory=dict)
    """The options that were requested, by the names of `PlanRequest`."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that the job script sets for the training, including the run's own."""
    script: str = ""
    """The job script; empty until the task `parse` reads it from the job's folder."""
    dag_id: str | None = None
    dag_run_id: str | None = None
    task_id: str | None = None
    """The Airflow task that waited for the job; its log shows the training steps."""
    map_index: int | None = None
    sweep: str | None = None
    """The sweep that the run is a cell of; None outside of sweeps."""
    origin: str | None = None
    """Archive, folder or log that the run was imported from; None for a run submitted here."""

    @property
    def dag_run(self) -> str | None:
        """The DAG run as `dag_id/run_id`; None outside of Airflow."""
        return f"{self.dag_id}/{self.dag_run_id}" if self.dag_id and self.dag_run_id else None


class Submission(Frozen):
    """A submitted run: its plan, its request, its job and its provenance."""

    run: Run
    request: PlanRequest
    """The request for this run alone."""
    job: Job
    attempt: PositiveInt
    """Number of this job among the run's jobs, from 1; the job's name ends with it."""
    provenance: Provenance


class Result(Frozen):
    """A measured run: its submission, how it ended, and everything that its log says."""

    submitted: Submission
    status: JobStatus
    measurement: Measurement | None
    """None if nothing can be measured."""
    log: TrainingLog
    record: str
    """The run's record as JSON text without secrets; see `store.run_records`."""

    @property
    def run(self) -> Run:
        """The planned run."""
        return self.submitted.run

    @property
    def job(self) -> Job:
        """The run's last job."""
        return self.submitted.job
