"""Whether a run's numbers may be used: every check of a finished run, before it goes into the results.

The steps are judged by Great Expectations (`row_checks`); the run as a whole in plain Python here.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from steptime.clusters.base import JobState, JobStatus
from steptime.logs.completeness import named_steps
from steptime.logs.models import Problem, TrainingLog
from steptime.plug_points import CHECKS
from steptime.recipes.models import Mode, NamedRecipe, Run
from steptime.results.measurement import Measurement
from steptime.results.models import Check, Verdict
from steptime.results.record import EarlierAttempt
from steptime.results.row_checks import check_rows, judge, step_limits


class FinishedRun(NamedTuple):
    """What checks judge."""

    run: Run
    status: JobStatus
    log: TrainingLog
    measurement: Measurement | None
    earlier_attempts: Sequence[EarlierAttempt] = ()
    """Jobs of the same run that had to be given up before."""


def validate(
    run: Run,
    status: JobStatus,
    log: TrainingLog,
    measurement: Measurement | None,
    *,
    earlier_attempts: Sequence[EarlierAttempt] = (),
) -> Verdict:
    """Run all checks on one run (`plug_points.CHECKS`), in their order; a failed one never raises.

    Raises SystemFailure if Great Expectations itself fails, UserError for a broken
    `config/expectations/steps.yaml`.
    """
    finished = FinishedRun(run, status, log, measurement, earlier_attempts)
    return Verdict(checks=tuple(check for name in CHECKS.names() for check in CHECKS.load(name)(finished)))


def steps(finished: FinishedRun) -> Iterator[Check]:
    """Check the log's steps; a log without any fails a check."""
    run, log = finished.run, finished.log
    if log.steps:
        yield from check_rows(run, log.steps)
        yield _no_step_trained_twice(run, log)
        yield _batch_size_stated(log)
    else:
        expected = f"every step of the window {run.window} is in the log"
        yield judge("window_complete", False, expected, f"{log.path} has no line of a training step")


def job_succeeded(finished: FinishedRun) -> Iterator[Check]:
    """Check that the cluster reports success."""
    status = finished.status
    exit_code = "" if status.exit_code is None else f" with exit code {status.exit_code}"
    reason = f" ({status.reason})" if status.reason else ""
    found = f"its state is '{status.state.value}'{exit_code}{reason}"
    yield judge("job_succeeded", status.state is JobState.SUCCEEDED, "the job succeeded", found)


def log_without_failure(finished: FinishedRun) -> Iterator[Check]:
    """Check that the log names no failure, apart from those that have a check of their own."""
    fatal = [problem for problem in finished.log.problems if problem.fatal and not _has_own_check(problem)]
    found = "it names " + "; ".join(f"{problem.kind}: {problem.message.rstrip('.')}" for problem in fatal)
    yield judge("log_without_failure", not fatal, "the log names no failure", found)


def _has_own_check(problem: Problem) -> bool:
    """Doubled steps that the log names: a check of their own, because only those of the window matter."""
    return problem.kind == "duplicate_steps" and bool(problem.steps)


def _no_step_trained_twice(run: Run, log: TrainingLog) -> Check:
    """Lines that several ranks repeat are harmless and named; a step that a restart trained again is not."""
    window = range(run.window.first, run.window.last + 1)
    again = {step for problem in log.problems if problem.kind == "duplicate_steps" for step in problem.steps}
    inside = sorted(again.intersection(window))
    expected = "no step of the window was trained twice"
    if not inside and again:
        expected += f" (a restart trained {named_steps(sorted(again))} again, outside of it)"
    if any(problem.kind == "repeated_lines" for problem in log.problems):
        expected += " (lines that several ranks repeated count once)"
    found = (
        f"a restart trained {named_steps(inside)} again, so that times of two attempts are mixed"
        if inside
        else ""
    )
    return judge("no_step_trained_twice", not inside, expected, found)


def _batch_size_stated(log: TrainingLog) -> Check:
    """Older log formats have only one of the two; a log with neither cannot show its batch size."""
    fields = ("global_batch_size", "consumed_samples")
    stated = any(getattr(step, field) is not None for step in log.steps for field in fields)
    return judge(
        "batch_size_stated",
        stated,
        "the log states a global batch size or consumed samples",
        "no step line has either",
    )


def parallelism_as_planned(finished: FinishedRun) -> Iterator[Check]:
    """Check what the trainer recorded of its set-up against the plan."""
    if not _by_trainer(finished):
        return  # Megatron-Bridge is given both, and its steps state the batch, which has a check of its own
    expected = "parallelism and batch are as planned"
    if finished.log.started is None:
        found = "the log has no 'steptime.start' record"
        yield judge("parallelism_as_planned", False, expected, found)
        return
    recipe = finished.run.recipe
    planned = {
        "world_size": recipe.gpus,
        "tensor_parallel": recipe.parallelism.tensor,
        "pipeline_parallel": recipe.parallelism.pipeline,
        "context_parallel": recipe.parallelism.context,
        "data_parallel": recipe.parallelism.data,
        "expert_parallel": recipe.parallelism.expert or 1,
        "micro_batch_size": recipe.micro_batch_size,
        "global_batch_size": recipe.global_batch_size,
        "seq_length": recipe.model.seq_length,
        "num_layers": recipe.model.num_layers,
    }
    differing = _differences(planned, finished.log.started)
    yield judge("parallelism_as_planned", not differing, expected, f"the trainer set up {differing}")


def _by_trainer(finished: FinishedRun) -> bool:
    """Whether the shipped trainer ran, which leaves records of what it did; Megatron-Bridge leaves none."""
    return not isinstance(finished.run.recipe.model, NamedRecipe)


def _differences(planned: dict[str, Any], record: dict[str, Any]) -> str:
    """`data_parallel 1 instead of the planned 2, …`; empty if the record agrees."""
    return ", ".join(
        f"{name} {record.get(name, '(not stated)')} instead of the planned {value}"
        for name, value in planned.items()
        if record.get(name) != value
    )


def launched_as_published(finished: FinishedRun) -> Iterator[Check]:
    """Check what the publication did to its machines before training; its numbers need it."""
    if not _by_trainer(finished):
        return
    launch = (finished.log.started or {}).get("launch") or {}
    published, ranks = finished.run.performance, finished.run.recipe.gpus
    if published.ranks_per_numa_node is not None:
        bound = launch.get("numa_bound_ranks", 0)
        holds = "every rank was bound to a NUMA node, as in the publication"
        found = f"{bound} of {ranks} were (the cluster's numa_binding and the job's log show why)"
        yield judge("numa_binding_as_published", bound == ranks, holds, found, severity="warning")
    if published.vboost:
        holds = "the GPUs' vboost was set, as in the publication"
        found = "it was not (the cluster's vboost and the job's log show why)"
        yield judge("vboost_as_published", launch.get("vboost") is True, holds, found, severity="warning")


def training_completed(finished: FinishedRun) -> Iterator[Check]:
    """Check that the trainer recorded its end; other programs are judged by job and last step alone."""
    if not _by_trainer(finished):
        return
    expected = "the trainer recorded its end as completed"
    if finished.log.ended is None:
        yield judge("training_completed", False, expected, "the log has no 'steptime.result' record")
        return
    state = finished.log.ended.get("state")
    yield judge("training_completed", state == "completed", expected, f"it recorded '{state}'")


def measured_over_window(finished: FinishedRun) -> Iterator[Check]:
    """Check that all steps of the window were measured, and no others."""
    run, measurement = finished.run, finished.measurement
    steps = run.window.last - run.window.first + 1
    expected = f"the step time is measured over the window {run.window} of {steps} step{'s' * (steps > 1)}"
    if measurement is None:
        yield judge("measured_over_window", False, expected, "there is no measurement")
        return
    passed = measurement.window == run.window and measurement.steps_in_window == steps
    found = f"it is over {measurement.steps_in_window} of the window {measurement.window}"
    yield judge("measured_over_window", passed, expected, found)


def first_attempt(finished: FinishedRun) -> Iterator[Check]:
    """Check that no earlier job was given up: only the last counts, but readers should know of the others."""
    earlier = finished.earlier_attempts
    if not earlier:
        return
    before = " and ".join(
        f"job {attempt.job.job_id} ({': '.join(filter(None, (attempt.status.state, attempt.status.reason)))})"
        for attempt in earlier
    )
    found = f"this is attempt {len(earlier) + 1}, after {before}"
    yield judge("first_attempt", False, "the run's first job was its last", found, severity="warning")


def mfu_possible(finished: FinishedRun) -> Iterator[Check]:
    """Check that the MFU is at most 100 %: it is a share of the peak."""
    mfu_percent = None if finished.measurement is None else finished.measurement.mfu_percent
    if mfu_percent is None:
        return
    found = (
        f"it is {mfu_percent:.1f} %: the peak is too low (on the CPU it is measured at the start, perhaps "
        "beside other work), or the log's step time leaves out a part of the step"
    )
    yield judge("mfu_possible", mfu_percent <= 100, "the MFU is at most 100 %", found, severity="warning")


def wall_time_agrees(finished: FinishedRun) -> Iterator[Check]:
    """Check step times against wall times: NeMo's timer stops before the GPU has finished the step."""
    measurement = finished.measurement
    if measurement is None or not measurement.step_time_median_s or not measurement.wall_time_median_s:
        return
    step_time_s, wall_time_s = measurement.step_time_median_s, measurement.wall_time_median_s
    limit = step_limits().of("wall_time_difference_percent", finished.run.recipe.gpu_type)
    difference = 100 * (wall_time_s / step_time_s - 1)
    expected = f"steps follow each other within {limit:g} % of the step time"
    found = (
        f"from one end to the next it is {wall_time_s:.4g} s beside a step time of {step_time_s:.4g} s "
        f"({difference:+.1f} %, medians of the window): the log's step time is not all that a step costs"
    )
    yield judge("wall_time_agrees", abs(difference) <= limit, expected, found, severity="warning")


def checkpoint_saved(finished: FinishedRun) -> Iterator[Check]:
    """Check that the last step was saved.

    NeMo 2.7 counts iterations from 0 (the last global step); the documents' lines have `max_steps`.
    """
    run, log = finished.run, finished.log
    if run.mode is not Mode.CHECKPOINT_SAVE:
        return
    last = run.max_steps - 1
    iterations = [checkpoint.iteration for checkpoint in log.checkpoints if checkpoint.kind == "save"]
    expected = f"a checkpoint was saved after the last step, global step {last}"
    if last in iterations:
        yield judge("checkpoint_saved", True, f"{expected} (iteration {last}, counted from 0)", "")
    elif run.max_steps in iterations:
        yield judge("checkpoint_saved", True, f"{expected} (iteration {run.max_steps}, counted from 1)", "")
    else:
        listed = ", ".join("no number" if number is None else str(number) for number in iterations)
        found = (
            f"the save lines give iteration {listed}" if iterations else "the log has no checkpoint save line"
        )
        yield judge("checkpoint_saved", False, expected, found)


def checkpoint_loaded(finished: FinishedRun) -> Iterator[Check]:
    """Check that a loading run goes on at the step that the saving run ended with."""
    run, log = finished.run, finished.log
    if run.mode is not Mode.CHECKPOINT_LOAD:
        return
    loads = [checkpoint for checkpoint in log.checkpoints if checkpoint.kind == "load"]
    yield judge(
        "checkpoint_loaded", bool(loads), "a checkpoint was loaded", "the log has no checkpoint load line"
    )
    if not _by_trainer(finished):
        stated = [load.iteration for load in loads]
        expected = f"training resumed at global step {run.first_step}"
        found = f"the load lines give iteration {', '.join(map(str, stated)) or 'no number'}"
        yield judge("resumed_at_saved_step", run.first_step in stated, expected, found)
        return
    samples = run.first_step * run.recipe.global_batch_size
    expected = f"training resumed at global step {run.first_step} with {samples} consumed samples"
    if log.resumed is None:
        found = "the log has no 'steptime.resumed' record"
        yield judge("resumed_at_saved_step", False, expected, found)
        return
    step, consumed = log.resumed.get("global_step"), log.resumed.get("consumed_samples")
    found = f"it resumed at global step {step} with {consumed} consumed samples"
    yield judge("resumed_at_saved_step", (step, consumed) == (run.first_step, samples), expected, found)
