"""Check the steps of a log: rules of Great Expectations for their table.

Great Expectations names the rows that break a rule; the sentences, with the values as logged, are made here.
"""

import functools
import logging
import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from pydantic import PositiveFloat, model_validator

from steptime.errors import SystemFailure, unknown_value
from steptime.frozen import Frozen
from steptime.logs.log_completeness import named_steps
from steptime.logs.training_log import Step
from steptime.recipes.config_files import FieldError, load_yaml_model
from steptime.recipes.gpus import gpu_types
from steptime.recipes.models import Collective, Run
from steptime.settings import config_file
from steptime.store.run_models import Check, Severity, make_check
from steptime.wording import first_names

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
            limits = getattr(self, name)
            if "default" not in limits:
                raise ValueError(f"{name} needs the key 'default', the limit for all other GPU types")
            known = ("default", *gpu_types())
            for gpu_type in limits:
                if gpu_type not in known:
                    refusal = str(unknown_value("GPU type", gpu_type, known)).removesuffix(".")
                    raise FieldError(refusal, name, gpu_type)
        return self

    def of(self, name: str, gpu_type: str) -> float:
        """Return the threshold `name` for a GPU type, or the default if the type has none of its own."""
        by_type: dict[str, float] = getattr(self, name)
        return by_type.get(gpu_type, by_type["default"])


def step_limits() -> StepLimits:
    """Load the thresholds from `config/expectations/steps.yaml`. Raises UserError if it has a mistake."""
    return load_yaml_model(config_file("expectations/steps.yaml"), StepLimits)


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
    has_loss = _has_loss(run, steps)
    rules = tuple(
        rule for rule in (*_rules(run), *_steadiness(run, steps)) if has_loss or rule.field != "loss"
    )
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


def _has_loss(run: Run, steps: Sequence[Step]) -> bool:
    """Return whether losses are checked: not if a user's program prints none, as a pipeline's first stage."""
    if isinstance(run.recipe.model, Collective):
        return False
    return run.recipe.launcher is None or any(step.loss is not None for step in steps)


def _rules(run: Run) -> tuple[_RowRule, ...]:
    # Before its first import, which logs some two hundred lines at level INFO into the task's log.
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
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
    """Return the rule for the warning about a noisy window.

    The result is empty if the window has fewer than two step times, or one that is not finite.
    """
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
    """Return, for each broken rule, the global steps that break it or the observed value, by rule name."""
    import great_expectations

    batch = _batches().get_batch({"dataframe": _table(run, steps)})
    for rule in rules:
        for expectation in rule.expectations:
            expectation.meta = {"rule": rule.name}
    expectations = [expectation for rule in rules for expectation in rule.expectations]
    outcome = batch.validate(
        great_expectations.ExpectationSuite("steps", expectations=expectations),
        result_format={"result_format": "COMPLETE", "unexpected_index_column_names": ["global_step"]},
    )
    broken: dict[str, list[Any]] = {}
    for result in outcome.results:
        if result.success:
            continue
        name, values = result.expectation_config.meta["rule"], result.result
        if "unexpected_index_list" in values:
            rows = [int(row["global_step"]) for row in values["unexpected_index_list"]]
            broken[name] = sorted({*broken.get(name, []), *rows})
        elif "observed_value" in values:
            broken[name] = [values["observed_value"]]
        else:
            raise SystemFailure(
                f"Great Expectations cannot evaluate '{name}': {_reasons(result.exception_info)}."
            )
    return broken


@functools.cache
def _batches() -> Any:
    """Return what makes batches of tables, made once: each new context writes its settings as YAML."""
    import great_expectations
    from great_expectations.data_context.types.base import ProgressBarsConfig

    # This module sets its own level, and says how to switch its progress bars off.
    logging.getLogger(ProgressBarsConfig.__module__).setLevel(logging.WARNING)
    context = great_expectations.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = ProgressBarsConfig(globally=False)
    asset = context.data_sources.add_pandas("training_log").add_dataframe_asset("steps")
    return asset.add_batch_definition_whole_dataframe("steps")


def _reasons(exceptions: dict[str, Any]) -> str:
    """Return the errors of all metrics that an expectation needed."""
    return "; ".join(
        str(exception["exception_message"])
        for exception in exceptions.values()
        if isinstance(exception, dict)
    )


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


def _finding(rule: _RowRule, run: Run, steps: Sequence[Step], violations: list[Any]) -> str:
    """Return what broke the rule, with the values of the log."""
    numbers = sorted(step.global_step for step in steps)
    if rule.name == "window_complete":
        missing = sorted({*range(run.window.first, run.window.last + 1)} - {*numbers})
        return f"{named_steps(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    if rule.name == "steps_once":
        return f"{named_steps(violations)} {'is' if len(violations) == 1 else 'are'}"
    if rule.name == "steps_as_planned":
        return f"they run from {numbers[0]} to {numbers[-1]}"
    if rule.name == "step_times_steady":
        return f"it is {violations[0]:.4g} s"
    values = {step.global_step: getattr(step, rule.field) for step in steps}
    shown = [f"{_as_logged(values[step])} at global step {step}" for step in violations]
    return f"found {first_names(shown, _SHOWN)}"


def _as_logged(value: float | None) -> str:
    return "none" if value is None else f"{value:.10g}"
