"""Summaries in one sentence, for the logs of tasks and for notifications, and tables as text."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from steptime.judging.findings import Comparison
from steptime.logs.training_log import TrainingLog
from steptime.recipes.models import Run
from steptime.store.run_models import Measurement, Verdict
from steptime.wording import first_names

_RUNS_NAMED = 4


def summarize_log(run: Run, log: TrainingLog, measurement: Measurement | None) -> str:
    """Sum up a run's log: `tiny·fp32·2: 0.1213 s a step in steps 10:19, 20 steps in its log`.

    `measurement` is None if nothing could be measured.
    """
    steps = f"{len(log.steps)} steps in its log"
    if measurement is None:
        return f"{run.label}: nothing can be measured, {steps}"
    mfu = "" if measurement.mfu_percent is None else f", MFU {measurement.mfu_percent:.3g} %"
    where = "" if measurement.window is None else f" in steps {measurement.window}"
    return f"{run.label}: {measurement.step_time_mean_s:.4g} s a step{where}{mfu}, {steps}"


def summarize_verdict(run: Run, verdict: Verdict) -> str:
    """Summarize a run's checks: `tiny·fp32·2 is valid: 12 checks passed, 1 warned (mfu_possible)`."""
    passed = sum(check.passed for check in verdict.checks)
    warning = [check.name for check in verdict.checks if not check.passed and check.severity == "warning"]
    warns = f", {len(warning)} warned ({', '.join(warning)})" if warning else ""
    if verdict.valid:
        return f"{run.label} is valid: {passed} checks passed{warns}"
    failed = ", ".join(check.name for check in verdict.failures)
    return (
        f"{run.label} is rejected: {len(verdict.failures)} checks failed ({failed}), {passed} passed{warns}"
    )


def summarize_runs(planned: Sequence[str], rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Sum up how many planned runs are valid, the step times of the first few, and which are missing.

    Args:
        planned: labels of the planned runs.
        rows: stored rows of the runs that have results, by label.
    """
    valid = [label for label in planned if rows.get(label, {}).get("state") == "valid"]
    missing = [label for label in planned if label not in valid]
    times = [
        f"{label} {rows[label]['step_time_mean_s']:.4g} s"
        for label in valid
        if rows[label]["step_time_mean_s"]
    ]
    count = f"all {len(planned)}" if not missing else f"{len(valid)} of {len(planned)}"
    sentence = f"{count} runs have valid results"
    sentence += f": {first_names(times, _RUNS_NAMED)}" if times else ""
    return sentence + (f"; without: {first_names(missing, _RUNS_NAMED)}" if missing else "")


def summarize_sweep(compared: Comparison, runs: Sequence[str], missing: Sequence[str]) -> str:
    """Summarize a sweep's findings, and name its runs without a valid result."""
    parts = [compared.sentence] if compared.cells else []
    if missing:
        parts.append(
            f"{len(missing)} of {len(runs)} runs without a valid result: {first_names(missing, _RUNS_NAMED)}"
        )
    return "; ".join(parts) or f"all {len(runs)} runs have valid results, none of which is judged"


def as_text(rows: Sequence[Mapping[str, Any]], *, title: str) -> str:
    """Format rows as a text table, with the first row's columns, and floats with four digits."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in rows[0] if rows else ():
        table.add_column(name, justify="right" if any(_is_number(row[name]) for row in rows) else "left")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    text = io.StringIO()
    Console(file=text, width=160).print(table)
    return "\n" + "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
