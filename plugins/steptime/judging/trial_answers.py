"""What a trial says: where it stands by its runs in the store, in a sentence and in a row per variant."""

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from steptime.errors import UserError, one_line, unknown_value
from steptime.judging.judgements import read_judgement
from steptime.judging.missing_cells import rejection_causes
from steptime.judging.series import Series, series_runs
from steptime.judging.trials import Observation, RoundDifference, TrialState, VariantState, decide
from steptime.recipes.models import Run, TrialPosition, TrialRules
from steptime.recipes.notation import format_hours
from steptime.recipes.trials import list_trials
from steptime.store.columns import BY_NAME, Column
from steptime.store.ledger import LedgerJob, jobs_of
from steptime.store.run_queries import Store
from steptime.store.run_records import parse_record
from steptime.wording import counted


def _of_results(name: str, heading: str = "") -> Column:
    column = BY_NAME[name]
    return replace(column, heading=heading or column.heading, priority=0, shared=False)


def _percent(name: str, heading: str, description: str, unit: str = "") -> Column:
    return Column(name, "number", description, heading=heading, unit=unit, decimals=1, priority=0)


_NUMBERS = (
    _of_results("step_time_mean_s"),
    _of_results("tokens_per_s"),
    _of_results("mfu_percent"),
    _of_results("peak_memory_gib", "memory"),
    _of_results("price_per_million_tokens", "price/M tokens"),
)
"""Columns of results of which a trial's answer has the median of each variant."""
COLUMNS = (
    Column("variant", "text", "Name of the variant.", priority=0),
    Column("status", "text", "Where it stands, or how it left.", priority=0),
    Column("runs", "integer", "Valid runs that count.", priority=0),
    _percent("difference_percent", "slower", "How much slower it is than the one compared with.", "%"),
    _percent("low_percent", "from", "Lower end of the interval of this difference, once runs bound it."),
    _percent("high_percent", "to", "Upper end of the interval."),
    Column("compared_with", "text", "The variant that it is compared with.", heading="than", priority=0),
    *_NUMBERS,
    Column(
        "gpu_hours", "number", "GPU-hours of all its jobs.", heading="GPU-hours", priority=0, significant=3
    ),
    Column("left_round", "integer", "After which round it left.", heading="left in round", priority=0),
    Column("cause", "text", "Why it cannot run.", priority=0),
)
"""Columns of a trial's answer, a row for each variant."""
_TENFOLD_PERCENT = 900.0
"""An interval from below zero to ten times as slow bounds nothing: that of one run of unknown noise."""
_VALID = "valid"
_LONGEST_CAUSE = 200


class RoundRun(NamedTuple):
    """What is known of a variant in a round of a trial."""

    variant: str
    round: int
    position: int
    """Number of the trial's runs that are planned before it."""
    row: Mapping[str, Any] | None
    """The row of its newest job in the store; None as long as that has none."""
    cannot_run_cause: str | None
    """Why the variant cannot run: its training failed, or the cluster refused it; None otherwise."""
    gpu_hours: float
    """GPU-hours of all its jobs so far."""
    nodes: tuple[str, ...]
    """Nodes of its newest job, by the cluster's own names, which those in the training's log may not be."""


@dataclass(frozen=True)
class TrialAnswer:
    """Where a trial stands, and the runs by which it does."""

    rules: TrialRules
    state: TrialState
    runs: tuple[RoundRun, ...]

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of all jobs so far."""
        return sum(run.gpu_hours for run in self.runs)

    @property
    def sentence(self) -> str:
        """The answer for people: `ring` is 2.3 % slower than `default` (1.1 to 3.5 %), after 6 rounds, …."""
        return " ".join(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """The sentences of the answer; the first one says what is shown."""
        return list(_sentences(self))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each variant, also for those that were left out; numbers are medians of valid runs."""
        known = [_row(variant, self.runs) for variant in self.state.variants]
        left_out = [
            {**dict.fromkeys(known[0]), "variant": name, "status": "left out", "runs": 0, "cause": cause}
            for name, cause in self.rules.left_out.items()
        ]
        return known + left_out

    @property
    def content(self) -> dict[str, Any]:
        """The answer as JSON."""
        state = self.state
        return {
            "trial": self.rules.trial,
            "answer": self.sentence,
            "ended": state.ended,
            "reason": state.reason,
            "best": state.best,
            "within_percent": state.within_percent,
            "least_difference_percent": self.rules.least_difference_percent,
            "rounds": state.round,
            "gpu_hours": self.gpu_hours,
            "same_nodes": self.rules.same_nodes,
            "open_pairs": [list(pair) for pair in state.open_pairs],
            "further_rounds": state.further_rounds,
            "further_runs": state.further_runs,
            "variants": self.rows,
            "by_round": [found._asdict() for found in state.by_round if _is_bounded(found)],
        }


def known_noise_percent(run: Run) -> float | None:
    """Return the standard deviation of single runs of a trial's configuration by their history, in percent.

    None if there are too few runs to judge another one by. Raises SystemFailure if the store fails.
    """
    store = Store()
    if not store.exists():
        return None
    series = Series.from_run(run.model_copy(update={"trial": None}))
    newest = store.results(limit=1, **series.key)
    judgement = read_judgement(store, newest[0]) if newest else None
    if judgement is None or not judgement.series_state.against.suffices:
        return None
    return 100 * judgement.series_state.against.deviation


def read_answer(store: Store, dag_id: str, dag_run_id: str) -> TrialAnswer | None:
    """Return where the trial of a DAG run stands, also while it runs.

    None if it has no result yet that the store's user may read, or is no trial. Raises SystemFailure if the
    store fails.
    """
    rows = store.list_runs(dag_id, dag_run_id)
    if not any(row["trial"] for row in rows):
        return None
    rules, runs = round_runs(store, rows, jobs_of(store.url, dag_id, dag_run_id))
    return None if rules is None else TrialAnswer(rules, trial_state(rules, runs), runs)


def newest_trial(store: Store, trial: str) -> tuple[str, str]:
    """Return the id of the DAG and the run id of a trial's newest DAG run that has a result.

    Raises UserError if no run of the trial has a result yet, or there is no such trial.
    """
    newest = store.results(trial=trial, include_rejected=True, limit=1)
    if not newest and trial not in list_trials():
        raise unknown_value("trial", trial, list_trials())
    if not newest or newest[0]["dag_id"] is None or newest[0]["dag_run_id"] is None:
        raise UserError(
            f"no run of the trial '{one_line(trial)}' has a result yet: 'steptime trial run' starts it, and "
            "its DAG run in Airflow shows how far it is, or why it failed."
        )
    return newest[0]["dag_id"], newest[0]["dag_run_id"]


def round_runs(
    store: Store, rows: Sequence[Mapping[str, Any]], jobs: Iterable[LedgerJob]
) -> tuple[TrialRules | None, tuple[RoundRun, ...]]:
    """Return the rules of a trial and what is known of its runs, by round.

    Args:
        store: has the records of the runs.
        rows: the store's runs of the trial's DAG run, rejected ones included.
        jobs: the jobs of that DAG run in the job ledger, oldest first.

    The rules are None, and there are no runs, if neither rows nor jobs are of a trial.
    """
    by_name = {row["job_name"]: row for row in rows}
    positions: dict[str, TrialPosition] = {}
    for name, content in store.records(list(by_name)).items():
        record = parse_record(content)
        if record is not None and record.run.trial is not None:
            positions[name] = record.run.trial
    in_ledger = {job.name: job for job in jobs if job.run.trial is not None}
    positions |= {name: job.run.trial for name, job in in_ledger.items() if job.run.trial is not None}
    rejected = {name: row for name, row in by_name.items() if row["state"] != _VALID}
    statuses = store.job_statuses(list(by_name))
    failed = [
        name
        for name in rejected
        if (status := statuses.get(name)) is not None
        and status.state == "failed"
        and not status.cluster_fault
    ]
    causes = rejection_causes(store, [rejected[name] for name in failed])
    begun = {name: row["submitted_at"] for name, row in by_name.items()}
    begun |= {name: job.created_at for name, job in in_ledger.items()}
    names: dict[tuple[int, str], list[str]] = {}
    for name in sorted(positions, key=lambda name: begun[name]):
        names.setdefault((positions[name].round, positions[name].variant), []).append(name)
    runs = []
    for (number, variant), of_run in sorted(names.items(), key=lambda item: positions[item[1][-1]].index):
        newest = of_run[-1]
        row, job = by_name.get(newest), in_ledger.get(newest)
        runs.append(
            RoundRun(
                variant=variant,
                round=number,
                position=positions[newest].index,
                row=row,
                cannot_run_cause=causes.get(newest) or _refusal(row, job),
                nodes=statuses[newest].nodes if newest in statuses else (),
                gpu_hours=sum(_gpu_hours(by_name.get(name), in_ledger.get(name)) for name in of_run),
            )
        )
    rules = next((position.rules for position in reversed(positions.values())), None)
    return rules, tuple(runs)


def _refusal(row: Mapping[str, Any] | None, job: LedgerJob | None) -> str | None:
    """Return why the cluster refused the newest job of a run; None if it took it."""
    if row is not None or job is None or job.job_id is not None or job.state != "failed":
        return None
    if job.run.cluster_options != job.request.cluster_options:
        return None  # refused on the nodes of the round's other runs
    return one_line(job.reason, at_most=_LONGEST_CAUSE)


def _gpu_hours(row: Mapping[str, Any] | None, job: LedgerJob | None) -> float:
    if row is not None and row["gpu_hours"] is not None:
        return float(row["gpu_hours"])
    if job is None or job.ended_at is None:
        return 0.0
    return job.gpus * max(0.0, job.ended_at - (job.started_at or job.ended_at)) / 3600


def trial_state(rules: TrialRules, runs: Collection[RoundRun], *, complete: int | None = None) -> TrialState:
    """Return where a trial stands.

    Args:
        rules: the trial's rules.
        runs: what is known of its runs.
        complete: the number of rounds whose runs have all ended; a run of them without a result counts as
            ended without one. None if that is not known: then the last round with a run counts only if all
            of its variants have a result.
    """
    by_round: dict[int, dict[str, RoundRun]] = {}
    for run in runs:
        by_round.setdefault(run.round, {})[run.variant] = run
    last = max(by_round, default=0) if complete is None else complete
    observations: list[Observation] = []
    for number in range(1, last + 1):
        here = by_round.get(number, {})
        is_over = complete is not None or number < last
        observations += [
            _observation(name, number, here.get(name))
            for name in rules.variants
            if is_over or (name in here and _has_ended(here[name]))
        ]
    spent = sum(run.gpu_hours for run in runs if run.round <= last)
    if spent + sum(rules.gpu_hours_of_run.values()) <= rules.gpu_hours_max:
        return _decide(rules, observations)
    spent = 0.0
    for number in range(1, last + 1):
        spent += sum(run.gpu_hours for run in by_round.get(number, {}).values())
        so_far = [seen for seen in observations if seen.round <= number]
        state = _decide(rules, so_far)
        next_round = sum(rules.gpu_hours_of_run[name] for name in state.still_in)
        if not state.ended and state.round == number and spent + next_round > rules.gpu_hours_max:
            return _decide(rules, so_far, budget_used_up=True)
    return _decide(rules, observations)


def _has_ended(run: RoundRun) -> bool:
    return run.row is not None or run.cannot_run_cause is not None


def _decide(
    rules: TrialRules, observations: Sequence[Observation], *, budget_used_up: bool = False
) -> TrialState:
    return decide(
        rules.variants,
        observations,
        least_difference_percent=rules.least_difference_percent,
        known_noise_percent=rules.known_noise_percent,
        rounds_max=rules.rounds_max,
        budget_used_up=budget_used_up,
        stop_when=rules.stop_when,
    )


def _observation(variant: str, number: int, run: RoundRun | None) -> Observation:
    seconds = None
    if run is not None and run.row is not None and run.row["state"] == _VALID:
        seconds = next((judged.seconds for judged in series_runs([run.row])), None)
        if seconds is not None:  # per sample, as the variants may have different batches
            seconds /= run.row["global_batch_size"]
    cause = run.cannot_run_cause if run is not None and seconds is None else None
    return Observation(variant, number, seconds, cause)


def _row(variant: VariantState, runs: Collection[RoundRun]) -> dict[str, Any]:
    rows = [
        run.row
        for run in runs
        if run.variant == variant.variant and run.row is not None and run.row["state"] == _VALID
    ]
    bounds = (variant.low_percent, variant.high_percent) if _is_bounded(variant) else (None, None)
    return {
        "variant": variant.variant,
        "status": variant.status,
        "runs": variant.runs,
        "difference_percent": variant.difference_percent,
        "low_percent": bounds[0],
        "high_percent": bounds[1],
        "compared_with": variant.compared_with,
        **{column.name: _median(row[column.name] for row in rows) for column in _NUMBERS},
        "gpu_hours": sum(run.gpu_hours for run in runs if run.variant == variant.variant),
        "left_round": variant.left_round,
        "cause": variant.cause,
    }


def _is_bounded(found: VariantState | RoundDifference) -> bool:
    """Return whether runs bound a difference, so that its interval is worth showing."""
    low, high = found.low_percent, found.high_percent
    return low is not None and high is not None and (low >= 0 or high < _TENFOLD_PERCENT)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _sentences(answer: TrialAnswer) -> Iterable[str]:
    """Yield the sentences of an answer: what is shown, what cannot run, what is open, and what it took."""
    state = answer.state
    by_status: dict[str, list[VariantState]] = {}
    for variant in state.variants:
        by_status.setdefault(variant.status, []).append(variant)
    said = [_slower(variant) for variant in by_status.get("slower", ())]
    if "within" in by_status and state.best is not None and state.within_percent is not None:
        names = [state.best, *(variant.variant for variant in by_status["within"])]
        said.append(f"{_listed(names)} are within {state.within_percent:.1f} % of each other")
    elif state.reason == "best known":
        least = answer.rules.least_difference_percent
        said.append(f"`{state.best}` is slower than none that is left by more than {least:g} %")
    elif state.reason == "one left" and not said and state.best is not None:
        said.append(f"only `{state.best}` is left")
    when = f"after {counted(state.round, 'round')}" if state.round else "in the first round"
    spent = f"{when}, {format_hours(answer.gpu_hours)} GPU-hours"
    if said:
        yield f"{'; '.join(said)}, {spent}."
    elif state.ended:
        yield f"Nothing is shown {spent}."
    else:
        yield f"Nothing is shown yet {spent}."
    for variant in by_status.get("set aside", ()):
        slower = f"{variant.difference_percent or 0:.0f} % slower in it"
        yield f"`{variant.variant}` was set aside after one run, {slower} (not tested)."
    for variant in by_status.get("cannot run", ()):
        yield f"`{variant.variant}` cannot run: {(variant.cause or 'no run of it was valid').rstrip('.')}."
    if state.open_pairs:
        yield from _open(answer)
    if not state.ended:
        yield "The answer is not known yet."


def _slower(variant: VariantState) -> str:
    return (
        f"`{variant.variant}` is {variant.difference_percent or 0:z.1f} % slower than "
        f"`{variant.compared_with}` ({_interval(variant)})"
    )


def _interval(variant: VariantState) -> str:
    if not _is_bounded(variant):
        return "too few runs to bound it"
    return f"{variant.low_percent or 0:z.1f} to {variant.high_percent or 0:z.1f} %".replace("-", "−")


def _open(answer: TrialAnswer) -> Iterable[str]:
    state = answer.state
    against = [
        f"`{variant.variant}` against `{variant.compared_with}` ({_interval(variant)})"
        for variant in state.variants
        if variant.status == "racing" and variant.compared_with is not None
    ]
    if against:
        yield f"Open: {', '.join(against)}."
    if state.ended:
        ends = {"rounds used up": "rounds_max", "budget used up": "gpu_hours_max"}
        if state.reason in ends:
            yield f"It ended by its {ends[state.reason]}."
        if state.further_runs:
            yield f"Some {state.further_runs} further runs should decide it."


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return f"{', '.join(quoted[:-1])} and {quoted[-1]}"
