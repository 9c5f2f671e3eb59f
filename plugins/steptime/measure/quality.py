"""Check a measured run before it is published: its steps (`step_checks`), and the run as a whole."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from steptime.clusters.base import JobState, JobStatus
from steptime.logs.log_completeness import named_steps
from steptime.logs.training_log import Problem, TrainingLog
from steptime.measure.step_checks import check_rows, step_limits
from steptime.plug_points import CHECKS
from steptime.recipes.models import Mode, NamedRecipe, Run
from steptime.store.run_models import Check, Measurement, Verdict, make_check
from steptime.store.run_records import EarlierAttempt
from steptime.wording import counted


class FinishedRun(NamedTuple):
    """A run that has ended, with everything that the quality checks need."""

    run: Run
    status: JobStatus
    log: TrainingLog
    measurement: Measurement | None
    earlier_attempts: Sequence[EarlierAttempt] = ()
    """Earlier jobs of the same run that were given up."""
    origin: str | None = None
    """Archive, folder or log that it was imported from; see `Provenance.origin`."""
    fabric: str | None = None
    """The network between the nodes of its cluster, from the cluster's file."""


def validate(
    run: Run,
    status: JobStatus,
    log: TrainingLog,
    measurement: Measurement | None,
    *,
    earlier_attempts: Sequence[EarlierAttempt] = (),
    origin: str | None = None,
    fabric: str | None = None,
) -> Verdict:
    """Run all quality checks (`plug_points.CHECKS`) on a run, in order; a failed check does not raise.

    Args:
        run: the planned run.
        status: how its job ended.
        log: what was read from its log.
        measurement: its numbers; None if nothing can be measured.
        earlier_attempts: earlier jobs of the same run that were given up.
        origin: the archive, folder or log that the run was imported from; None if steptime submitted it.
        fabric: the network between the nodes, from the cluster's file; None if the file has none.

    Raises SystemFailure if Great Expectations itself fails, UserError if `config/expectations/steps.yaml` has
    a mistake.
    """
    finished = FinishedRun(run, status, log, measurement, earlier_attempts, origin, fabric)
    return Verdict(checks=tuple(check for name in CHECKS.names() for check in CHECKS.load(name)(finished)))


def steps(finished: FinishedRun) -> Iterator[Check]:
    """Check that the logged steps are complete, as planned and plausible; a log without steps fails."""
    run, log = finished.run, finished.log
    if log.steps:
        yield from check_rows(run, log.steps)
        yield _no_step_trained_twice(run, log)
        if run.recipe.launcher is None:  # a program of one's own was given its batch
            yield _batch_size_stated(log)
    else:
        expected = f"every step of the window {run.window} is in the log"
        yield make_check("window_complete", False, expected, f"{log.path} has no line of a training step")


def job_succeeded(finished: FinishedRun) -> Iterator[Check]:
    """Check that the cluster reports success."""
    status = finished.status
    exit_code = "" if status.exit_code is None else f" with exit code {status.exit_code}"
    reason = f" ({status.reason})" if status.reason not in ("", f"exit code {status.exit_code}") else ""
    actual = f"its state is '{status.state.value}'{exit_code}{reason}"
    yield make_check("job_succeeded", status.state is JobState.SUCCEEDED, "the job succeeded", actual)


def log_without_failure(finished: FinishedRun) -> Iterator[Check]:
    """Check that the log shows no failure; steps that were trained twice have a check of their own."""
    fatal = [problem for problem in finished.log.problems if problem.fatal and not _has_own_check(problem)]
    actual = "it names this: " + "; ".join(problem.message.rstrip(".") for problem in fatal)
    yield make_check("log_without_failure", not fatal, "the log names no failure", actual)


def _has_own_check(problem: Problem) -> bool:
    """Return whether a problem is about steps that were trained twice.

    `_no_step_trained_twice` checks these: they matter only within the window.
    """
    return problem.kind == "duplicate_steps" and bool(problem.steps)


def _no_step_trained_twice(run: Run, log: TrainingLog) -> Check:
    """Check that no step of the window was trained again after a restart; repeated lines are fine."""
    window = range(run.window.first, run.window.last + 1)
    again = {step for problem in log.problems if problem.kind == "duplicate_steps" for step in problem.steps}
    inside = sorted(again.intersection(window))
    expected = "no step of the window was trained twice"
    if not inside and again:
        expected += f" (a restart trained {named_steps(sorted(again))} again, outside of it)"
    if any(problem.kind == "repeated_lines" for problem in log.problems):
        expected += " (lines that several ranks repeated count once)"
    actual = (
        f"a restart trained {named_steps(inside)} again, so that times of two attempts are mixed"
        if inside
        else ""
    )
    return make_check("no_step_trained_twice", not inside, expected, actual)


def _batch_size_stated(log: TrainingLog) -> Check:
    """Check that steps state a batch size or consumed samples; older formats have only one of these."""
    fields = ("global_batch_size", "consumed_samples")
    stated = any(getattr(step, field) is not None for step in log.steps for field in fields)
    return make_check(
        "batch_size_stated",
        stated,
        "the log states a global batch size or consumed samples",
        "no step line has either",
    )


def parallelism_as_planned(finished: FinishedRun) -> Iterator[Check]:
    """Check that the trainer recorded the planned GPUs, parallelism, batch, sequence length and layers."""
    if not _by_trainer(finished):
        return  # Megatron-Bridge is given both, and its steps state the batch, which has a check of its own
    expected = "parallelism and batch are as planned"
    if finished.log.started is None:
        actual = "the log has no 'steptime.start' record"
        yield make_check("parallelism_as_planned", False, expected, actual)
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
    yield make_check("parallelism_as_planned", not differing, expected, f"the trainer set up {differing}")


def _by_trainer(finished: FinishedRun) -> bool:
    """Return whether steptime's own trainer ran, which records what it does.

    Megatron-Bridge does not, nor do NVIDIA's scripts, whose runs may be imported.
    """
    log = finished.log
    by_others = finished.origin is not None and log.started is None and log.ended is None
    recipe = finished.run.recipe
    return not (recipe.launcher is not None or isinstance(recipe.model, NamedRecipe) or by_others)


def _differences(planned: dict[str, Any], record: dict[str, Any]) -> str:
    """Return `data_parallel 1 instead of the planned 2, …`; empty if the record agrees."""
    return ", ".join(
        f"{name} {record.get(name, '(not stated)')} instead of the planned {value}"
        for name, value in planned.items()
        if record.get(name) != value
    )


def launched_as_published(finished: FinishedRun) -> Iterator[Check]:
    """Check that NUMA binding and vboost were set as in the publication; a failure is only a warning."""
    if not _by_trainer(finished):
        return
    launch = (finished.log.started or {}).get("launch") or {}
    published, ranks = finished.run.performance, finished.run.recipe.gpus
    if published.ranks_per_numa_node is not None:
        bound = launch.get("numa_bound_ranks", 0)
        holds = "every rank was bound to a NUMA node, as in the publication"
        actual = f"{bound} of {ranks} were (the cluster's numa_binding and the job's log show why)"
        yield make_check("numa_binding_as_published", bound == ranks, holds, actual, severity="warning")
    if published.vboost:
        holds = "the GPUs' vboost was set, as in the publication"
        actual = "it was not (the cluster's vboost and the job's log show why)"
        yield make_check(
            "vboost_as_published", launch.get("vboost") is True, holds, actual, severity="warning"
        )


def training_completed(finished: FinishedRun) -> Iterator[Check]:
    """Check that the trainer recorded a finished training; other programs write no such record."""
    if not _by_trainer(finished):
        return
    expected = "the trainer recorded its end as completed"
    if finished.log.ended is None:
        yield make_check("training_completed", False, expected, "the log has no 'steptime.result' record")
        return
    state = finished.log.ended.get("state")
    yield make_check("training_completed", state == "completed", expected, f"it recorded '{state}'")


def measured_over_window(finished: FinishedRun) -> Iterator[Check]:
    """Check that exactly the steps of the window were measured."""
    run, measurement = finished.run, finished.measurement
    steps = run.window.last - run.window.first + 1
    expected = f"the step time is measured over the window {run.window} of {counted(steps, 'step')}"
    if measurement is None:
        yield make_check("measured_over_window", False, expected, "there is no measurement")
        return
    passed = measurement.window == run.window and measurement.steps_in_window == steps
    actual = f"it is over {measurement.steps_in_window} of the window {measurement.window}"
    yield make_check("measured_over_window", passed, expected, actual)


def first_attempt(finished: FinishedRun) -> Iterator[Check]:
    """Warn if earlier jobs of the run were given up: only the run's last job is measured."""
    earlier = finished.earlier_attempts
    if not earlier:
        return
    before = " and ".join(
        f"job {attempt.job.job_id} ({': '.join(filter(None, (attempt.status.state, attempt.status.reason)))})"
        for attempt in earlier
    )
    actual = f"this is attempt {len(earlier) + 1}, after {before}"
    yield make_check("first_attempt", False, "the run's first job was its last", actual, severity="warning")


def fabric_used(finished: FinishedRun) -> Iterator[Check]:
    """Check that NCCL uses the network named in the cluster's file, for runs on several nodes.

    If the log does not show what NCCL used, that is only a warning.
    """
    recipe, network = finished.run.recipe, finished.log.network
    several = len(finished.status.nodes) > 1 or recipe.gpus > recipe.gpus_per_node
    if finished.fabric is None or recipe.gpu_type == "cpu" or not several:
        return
    holds = f"NCCL connects the nodes by {finished.fabric}"
    if network is None:
        actual = (
            "what it used is unknown: the log has no line 'NCCL INFO Using network', which NCCL_DEBUG=INFO "
            "gives"
        )
        yield make_check("fabric_used", False, holds, actual, severity="warning")
        return
    if not network.socket_nodes:
        yield make_check("fabric_used", True, f"{holds} ({network.summary})", "")
        return
    actual = f"it fell back to sockets on {network.named_socket_nodes}"
    yield make_check("fabric_used", False, holds, actual)


def mfu_possible(finished: FinishedRun) -> Iterator[Check]:
    """Check that the MFU is at most 100 %; a failure is only a warning."""
    mfu_percent = None if finished.measurement is None else finished.measurement.mfu_percent
    if mfu_percent is None:
        return
    actual = (
        f"it is {mfu_percent:.1f} %: the peak is too low, or the logged step time leaves out a part of it"
    )
    yield make_check(
        "mfu_possible", mfu_percent <= 100, "the MFU is at most 100 %", actual, severity="warning"
    )


def wall_time_agrees(finished: FinishedRun) -> Iterator[Check]:
    """Check logged step times against the wall time between steps; a failure is only a warning.

    NeMo's timer stops before the GPU has finished the step.
    """
    measurement = finished.measurement
    if measurement is None or not measurement.step_time_median_s or not measurement.wall_time_median_s:
        return
    step_time_s, wall_time_s = measurement.step_time_median_s, measurement.wall_time_median_s
    limit = step_limits().of("wall_time_difference_percent", finished.run.recipe.gpu_type)
    difference = 100 * (wall_time_s / step_time_s - 1)
    expected = f"steps follow each other within {limit:g} % of the step time"
    actual = (
        f"from one end to the next it is {wall_time_s:.4g} s beside a step time of {step_time_s:.4g} s "
        f"({difference:+.1f} %, medians of the window): the log's step time is not all that a step costs"
    )
    yield make_check("wall_time_agrees", abs(difference) <= limit, expected, actual, severity="warning")


def checkpoint_saved(finished: FinishedRun) -> Iterator[Check]:
    """Check that a run that saves a checkpoint did so after the last step.

    NeMo 2.7 numbers steps from 0, so it logs the last checkpoint as step `max_steps - 1`; earlier releases
    log `max_steps`. Both are accepted.
    """
    run, log = finished.run, finished.log
    if run.mode is not Mode.CHECKPOINT_SAVE:
        return
    last = run.max_steps - 1
    iterations = [checkpoint.iteration for checkpoint in log.checkpoints if checkpoint.kind == "save"]
    expected = f"a checkpoint was saved after the last step, global step {last}"
    if last in iterations:
        yield make_check("checkpoint_saved", True, f"{expected} (iteration {last}, counted from 0)", "")
    elif run.max_steps in iterations:
        yield make_check(
            "checkpoint_saved", True, f"{expected} (iteration {run.max_steps}, counted from 1)", ""
        )
    else:
        listed = ", ".join("no number" if number is None else str(number) for number in iterations)
        actual = (
            f"the save lines give iteration {listed}" if iterations else "the log has no checkpoint save line"
        )
        yield make_check("checkpoint_saved", False, expected, actual)


def checkpoint_loaded(finished: FinishedRun) -> Iterator[Check]:
    """Check that a run that loads a checkpoint resumes right after the last step of the run that saved it."""
    run, log = finished.run, finished.log
    if run.mode is not Mode.CHECKPOINT_LOAD:
        return
    loads = [checkpoint for checkpoint in log.checkpoints if checkpoint.kind == "load"]
    yield make_check(
        "checkpoint_loaded", bool(loads), "a checkpoint was loaded", "the log has no checkpoint load line"
    )
    if not _by_trainer(finished):
        # NeMo's line has no iteration; there the first step that follows tells it.
        following = log.steps[0].global_step if log.steps else None
        stated = [following if load.iteration is None else load.iteration for load in loads]
        expected = f"training resumed at global step {run.first_step}"
        actual = f"the load lines give iteration {', '.join(map(str, stated)) or 'no number'}"
        yield make_check("resumed_at_saved_step", run.first_step in stated, expected, actual)
        return
    samples = run.first_step * run.recipe.global_batch_size
    expected = f"training resumed at global step {run.first_step} with {samples} consumed samples"
    if log.resumed is None:
        actual = "the log has no 'steptime.resumed' record"
        yield make_check("resumed_at_saved_step", False, expected, actual)
        return
    step, consumed = log.resumed.get("global_step"), log.resumed.get("consumed_samples")
    actual = f"it resumed at global step {step} with {consumed} consumed samples"
    yield make_check("resumed_at_saved_step", (step, consumed) == (run.first_step, samples), expected, actual)
