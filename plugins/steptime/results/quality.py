"""Check a measured run before it is published.

Great Expectations checks the table of steps and names the rows that break a rule; the sentences, with the
values as logged, are made here. The run as a whole is checked in plain Python.
"""

import logging
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Self

from pydantic import PositiveFloat, model_validator

from steptime.clusters.base import JobState, JobStatus
from steptime.errors import SystemFailure
from steptime.frozen import Frozen
from steptime.logs.completeness import named_steps
from steptime.logs.models import Problem, Step, TrainingLog
from steptime.plug_points import CHECKS
from steptime.recipes.config_files import load_yaml_model
from steptime.recipes.models import Collective, Mode, NamedRecipe, Run
from steptime.results.models import Check, Measurement, Verdict
from steptime.results.record import EarlierAttempt
from steptime.settings import config_dir


class FinishedRun(NamedTuple):
    """A run that has ended, with everything that the quality checks need."""

    run: Run
    status: JobStatus
    log: TrainingLog
    measurement: Measurement | None
    earlier_attempts: Sequence[EarlierAttempt] = ()
    """Earlier jobs of the same run that were given up."""
    origin: str | None = None
    """What it was imported from; see `Provenance.origin`."""
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
    reason = f" ({status.reason})" if status.reason else ""
    found = f"its state is '{status.state.value}'{exit_code}{reason}"
    yield make_check("job_succeeded", status.state is JobState.SUCCEEDED, "the job succeeded", found)


def log_without_failure(finished: FinishedRun) -> Iterator[Check]:
    """Check that the log shows no failure; steps that were trained twice have a check of their own."""
    fatal = [problem for problem in finished.log.problems if problem.fatal and not _has_own_check(problem)]
    found = "it names " + "; ".join(f"{problem.kind}: {problem.message.rstrip('.')}" for problem in fatal)
    yield make_check("log_without_failure", not fatal, "the log names no failure", found)


def _has_own_check(problem: Problem) -> bool:
    """Return whether a problem is steps trained twice, which matter only within the window."""
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
    found = (
        f"a restart trained {named_steps(inside)} again, so that times of two attempts are mixed"
        if inside
        else ""
    )
    return make_check("no_step_trained_twice", not inside, expected, found)


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
        found = "the log has no 'steptime.start' record"
        yield make_check("parallelism_as_planned", False, expected, found)
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
    """Return whether the shipped trainer ran, which records what it does.

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
        found = f"{bound} of {ranks} were (the cluster's numa_binding and the job's log show why)"
        yield make_check("numa_binding_as_published", bound == ranks, holds, found, severity="warning")
    if published.vboost:
        holds = "the GPUs' vboost was set, as in the publication"
        found = "it was not (the cluster's vboost and the job's log show why)"
        yield make_check(
            "vboost_as_published", launch.get("vboost") is True, holds, found, severity="warning"
        )


def training_completed(finished: FinishedRun) -> Iterator[Check]:
    """Check that the trainer recorded a complete end; other programs have no such record."""
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
    expected = f"the step time is measured over the window {run.window} of {steps} step{'s' * (steps > 1)}"
    if measurement is None:
        yield make_check("measured_over_window", False, expected, "there is no measurement")
        return
    passed = measurement.window == run.window and measurement.steps_in_window == steps
    found = f"it is over {measurement.steps_in_window} of the window {measurement.window}"
    yield make_check("measured_over_window", passed, expected, found)


def first_attempt(finished: FinishedRun) -> Iterator[Check]:
    """Warn if earlier jobs of the run were given up: only the run's last job is measured."""
    earlier = finished.earlier_attempts
    if not earlier:
        return
    before = " and ".join(
        f"job {attempt.job.job_id} ({': '.join(filter(None, (attempt.status.state, attempt.status.reason)))})"
        for attempt in earlier
    )
    found = f"this is attempt {len(earlier) + 1}, after {before}"
    yield make_check("first_attempt", False, "the run's first job was its last", found, severity="warning")


def fabric_used(finished: FinishedRun) -> Iterator[Check]:
    """Check that NCCL uses the network named in the cluster's file, for runs on several nodes."""
    recipe, network = finished.run.recipe, finished.log.network
    several = len(finished.status.nodes) > 1 or recipe.gpus > recipe.gpus_per_node
    if finished.fabric is None or recipe.gpu_type == "cpu" or not several:
        return
    holds = f"NCCL connects the nodes by {finished.fabric}"
    if network is None:
        found = (
            "what it used is unknown: the log has no line 'NCCL INFO Using network', which NCCL_DEBUG=INFO "
            "gives"
        )
        yield make_check("fabric_used", False, holds, found, severity="warning")
        return
    if not network.socket_nodes:
        yield make_check("fabric_used", True, f"{holds} ({network.summary})", "")
        return
    found = f"it fell back to sockets on {network.named_socket_nodes}"
    yield make_check("fabric_used", False, holds, found)


def mfu_possible(finished: FinishedRun) -> Iterator[Check]:
    """Check that the MFU is at most 100 %; a failure is only a warning."""
    mfu_percent = None if finished.measurement is None else finished.measurement.mfu_percent
    if mfu_percent is None:
        return
    found = (
        f"it is {mfu_percent:.1f} %: the peak is too low (on the CPU it is measured at the start, perhaps "
        "beside other work), or the log's step time leaves out a part of the step"
    )
    yield make_check(
        "mfu_possible", mfu_percent <= 100, "the MFU is at most 100 %", found, severity="warning"
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
    found = (
        f"from one end to the next it is {wall_time_s:.4g} s beside a step time of {step_time_s:.4g} s "
        f"({difference:+.1f} %, medians of the window): the log's step time is not all that a step costs"
    )
    yield make_check("wall_time_agrees", abs(difference) <= limit, expected, found, severity="warning")


def checkpoint_saved(finished: FinishedRun) -> Iterator[Check]:
    """Check that a checkpoint was saved after the last step.

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
        found = (
            f"the save lines give iteration {listed}" if iterations else "the log has no checkpoint save line"
        )
        yield make_check("checkpoint_saved", False, expected, found)


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
        stated = [load.iteration for load in loads]
        expected = f"training resumed at global step {run.first_step}"
        found = f"the load lines give iteration {', '.join(map(str, stated)) or 'no number'}"
        yield make_check("resumed_at_saved_step", run.first_step in stated, expected, found)
        return
    samples = run.first_step * run.recipe.global_batch_size
    expected = f"training resumed at global step {run.first_step} with {samples} consumed samples"
    if log.resumed is None:
        found = "the log has no 'steptime.resumed' record"
        yield make_check("resumed_at_saved_step", False, expected, found)
        return
    step, consumed = log.resumed.get("global_step"), log.resumed.get("consumed_samples")
    found = f"it resumed at global step {step} with {consumed} consumed samples"
    yield make_check("resumed_at_saved_step", (step, consumed) == (run.first_step, samples), expected, found)


Severity = Literal["error", "warning"]
_SHOWN = 6  # rows that a sentence names one by one before it counts the rest
_LARGEST = sys.float_info.max  # what is beyond is infinite


class StepLimits(Frozen):
    """Content of `config/expectations/steps.yaml`: thresholds of warnings."""

    step_time_variation_percent: dict[str, PositiveFloat]
    """Largest standard deviation over mean of the window's step times, by GPU type or `default`."""
    wall_time_difference_percent: dict[str, PositiveFloat]
    """Largest difference of the window's median wall time from its median step time, by GPU type or
    `default`."""

    @model_validator(mode="after")
    def _has_default(self) -> Self:
        for name in type(self).model_fields:
            if "default" not in getattr(self, name):
                raise ValueError(f"{name} needs the key 'default', the limit for all other GPU types")
        return self

    def of(self, name: str, gpu_type: str) -> float:
        """Return the threshold `name` for a GPU type, or the default if the type has none of its own."""
        by_type: dict[str, float] = getattr(self, name)
        return by_type.get(gpu_type, by_type["default"])


def step_limits() -> StepLimits:
    """Load the thresholds from `config/expectations/steps.yaml`. Raises UserError if it has a mistake."""
    return load_yaml_model(config_dir() / "expectations" / "steps.yaml", StepLimits)


class _RowRule(NamedTuple):
    name: str
    holds: str
    """What is expected, so that it reads well after `expected that`."""
    expectations: Sequence[Any]
    field: str = "global_step"
    """The field of `Step` whose values are shown for rows that break the rule."""
    severity: Severity = "error"


def check_rows(run: Run, steps: Sequence[Step]) -> tuple[Check, ...]:
    """Check the steps (at least one) against the planned run, in a fixed order.

    Raises SystemFailure if Great Expectations cannot evaluate a check, UserError if the file of thresholds
    has a mistake.
    """
    trains = not isinstance(run.recipe.model, Collective)
    rules = tuple(rule for rule in (*_rules(run), *_steadiness(run, steps)) if trains or rule.field != "loss")
    broken = _evaluate(run, steps, rules)
    return tuple(
        make_check(
            rule.name,
            rule.name not in broken,
            rule.holds,
            _finding(rule, run, steps, broken[rule.name]) if rule.name in broken else "",
            rule.severity,
        )
        for rule in rules
    )


def make_check(name: str, passed: bool, holds: str, found: str, severity: Severity = "error") -> Check:
    """Make a check whose message says what holds, or what was expected and what was found instead."""
    sentence = f"{holds[0].upper()}{holds[1:]}." if passed else f"Expected that {holds}, but {found}."
    return Check(name=name, passed=passed, message=sentence, severity=severity)


def _rules(run: Run) -> tuple[_RowRule, ...]:
    from great_expectations import expectations as gxe

    first, last, gbs = run.first_step, run.max_steps - 1, run.recipe.global_batch_size
    window = list(range(run.window.first, run.window.last + 1))
    return (
        _RowRule(
            "window_complete",
            f"every step of the window {run.window} is in the log",
            [gxe.ExpectColumnDistinctValuesToContainSet(column="global_step", value_set=window)],
        ),
        _RowRule(
            "steps_once",
            "no step is listed twice",
            [gxe.ExpectColumnValuesToBeUnique(column="global_step")],
        ),
        _RowRule(
            "steps_as_planned",
            f"the steps run from {first} to {last}",
            [
                gxe.ExpectColumnMinToBeBetween(column="global_step", min_value=first, max_value=first),
                gxe.ExpectColumnMaxToBeBetween(column="global_step", min_value=last, max_value=last),
            ],
        ),
        _RowRule(
            "step_times_positive_and_finite",
            "every step time is positive and finite",
            _stated_and_finite(gxe, "step_time_s", above=0),
            "step_time_s",
        ),
        _RowRule(
            "losses_finite",
            "every loss is finite",
            _stated_and_finite(gxe, "loss"),
            "loss",
        ),
        _RowRule(
            "global_batch_size_as_planned",
            f"the global batch size is {gbs} in every step that states it",
            [gxe.ExpectColumnValuesToBeInSet(column="global_batch_size", value_set=[gbs])],
            "global_batch_size",
        ),
        _RowRule(
            "consumed_samples_consistent",
            f"consumed samples are (global step + 1) × {gbs} in every step that states them",
            [
                gxe.ExpectColumnPairValuesToBeEqual(
                    column_A="consumed_samples",
                    column_B="planned_samples",
                    ignore_row_if="either_value_is_missing",
                )
            ],
            "consumed_samples",
        ),
    )


def _stated_and_finite(gxe: Any, column: str, above: float | None = None) -> list[Any]:
    """Return expectations that values are stated (a missing one is NaN in the table) and finite."""
    bounds = {"min_value": -_LARGEST if above is None else above, "strict_min": above is not None}
    return [
        gxe.ExpectColumnValuesToNotBeNull(column=column),
        gxe.ExpectColumnValuesToBeBetween(column=column, max_value=_LARGEST, **bounds),
    ]


def _steadiness(run: Run, steps: Sequence[Step]) -> tuple[_RowRule, ...]:
    """Return the warning about a noisy window; none if it has no spread (one step, or an infinite time)."""
    from great_expectations import expectations as gxe
    from great_expectations.expectations.row_conditions import Column

    times = [time for step in steps if _in_window(step, run) and (time := step.step_time_s) is not None]
    if len(times) < 2 or not all(map(math.isfinite, times)):
        return ()
    percent = step_limits().of("step_time_variation_percent", run.recipe.gpu_type)
    largest = percent / 100 * statistics.fmean(times)
    expectation = gxe.ExpectColumnStdevToBeBetween(
        column="step_time_s", max_value=largest, row_condition=Column("in_window") == 1
    )
    return (
        _RowRule(
            "step_times_steady",
            f"the standard deviation of the window's step times is at most {percent:g} % of their mean, "
            f"{largest:.4g} s",
            [expectation],
            severity="warning",
        ),
    )


def _in_window(step: Step, run: Run) -> bool:
    return run.window.first <= step.global_step <= run.window.last


def _evaluate(run: Run, steps: Sequence[Step], rules: Sequence[_RowRule]) -> dict[str, list[Any]]:
    """Return what Great Expectations found by name of the broken rule: global steps, or an observed value."""
    import great_expectations
    from great_expectations.data_context.types.base import ProgressBarsConfig

    # Its own messages do not help a reader of the task's log. One of its modules sets its own level.
    for logger in ("great_expectations", ProgressBarsConfig.__module__):
        logging.getLogger(logger).setLevel(logging.WARNING)
    context = great_expectations.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("training_log").add_dataframe_asset("steps")
    batch = asset.add_batch_definition_whole_dataframe("steps").get_batch({"dataframe": _table(run, steps)})
    for rule in rules:
        for expectation in rule.expectations:
            expectation.meta = {"rule": rule.name}
    expectations = [one for rule in rules for one in rule.expectations]
    outcome = batch.validate(
        great_expectations.ExpectationSuite("steps", expectations=expectations),
        result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["global_step"]},
    )
    broken: dict[str, list[Any]] = {}
    for result in outcome.results:
        if result.success:
            continue
        name, found = result.expectation_config.meta["rule"], result.result
        if "unexpected_index_list" in found:
            rows = [int(row["global_step"]) for row in found["unexpected_index_list"]]
            broken[name] = sorted({*broken.get(name, []), *rows})
        elif "observed_value" in found:
            broken[name] = [found["observed_value"]]
        else:
            raise SystemFailure(
                f"Great Expectations cannot evaluate '{name}': {_reasons(result.exception_info)}."
            )
    return broken


def _reasons(exceptions: dict[str, Any]) -> str:
    """Return the errors of all metrics that an expectation needed."""
    return "; ".join(str(one["exception_message"]) for one in exceptions.values() if isinstance(one, dict))


def _table(run: Run, steps: Sequence[Step]) -> Any:
    """Return the steps as a pandas table; values that the log does not state are NaN."""
    import pandas as pd

    def column(field: str) -> Any:
        return pd.Series([getattr(step, field) for step in steps], dtype="float64")

    gbs = run.recipe.global_batch_size
    return pd.DataFrame(
        {
            "global_step": [step.global_step for step in steps],
            "in_window": [int(_in_window(step, run)) for step in steps],
            "planned_samples": [float((step.global_step + 1) * gbs) for step in steps],
        }
        | {field: column(field) for field in ("step_time_s", "loss", "global_batch_size", "consumed_samples")}
    )


def _finding(rule: _RowRule, run: Run, steps: Sequence[Step], found: list[Any]) -> str:
    """Return what broke the rule, with the values of the log."""
    numbers = sorted(step.global_step for step in steps)
    if rule.name == "window_complete":
        missing = sorted({*range(run.window.first, run.window.last + 1)} - {*numbers})
        return f"{named_steps(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if rule.name == "steps_once":
        return f"{named_steps(found)} {'is' if len(found) == 1 else 'are'}"
    if rule.name == "steps_as_planned":
        return f"they run from {numbers[0]} to {numbers[-1]}"
    if rule.name == "step_times_steady":
        return f"it is {found[0]:.4g} s"
    values = {step.global_step: getattr(step, rule.field) for step in steps}
    shown = [f"{_as_logged(values[step])} at global step {step}" for step in found[:_SHOWN]]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"found {', '.join(shown)}{more}"


def _as_logged(value: float | None) -> str:
    return "none" if value is None else f"{value:.10g}"
