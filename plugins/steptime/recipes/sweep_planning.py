"""Plan and check all cells of a sweep before anything is started.

A cell is one performance run at one number of GPUs, with its checkpoint pair if it has one: the smallest
thing that can be started, that fails and that is repeated on its own.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field, PositiveInt

from steptime.errors import BrokenFiles, UserError, one_line
from steptime.frozen import Frozen
from steptime.recipes.models import OptionValue, Run, TrialRules
from steptime.recipes.notation import format_hours
from steptime.recipes.planning import CheckpointPair, Plan, plan, require_runnable
from steptime.recipes.request import PlanRequest, parse_request
from steptime.recipes.sweeps import Sweep, excludes
from steptime.recipes.workloads import load_workload

MOST_CELLS = 1024
"""Most cells of a sweep: Airflow's default limit for mapped tasks."""
_ROUNDING = 1e-6
"""Tolerance for rounding errors of sums, in GPU-hours."""
_CONFIRMATION = "·confirmation "
"""In labels of `confirmation_cells`, stands between the repeated cell's label and the repeat's number."""


class Cell(Frozen):
    """The smallest unit of a sweep that is started and repeated: a run, and its checkpoint pair if any."""

    label: str
    """Name for people, `llama3.1·tiny·fp32·2`, unique in the sweep."""
    sweep: str
    """Name of the sweep."""
    entry: int
    """Index of the entry of the sweep's `runs` that asks for it, from 0."""
    repeat: PositiveInt
    gpus: PositiveInt
    """GPUs of its largest job."""
    jobs: PositiveInt
    gpu_hours_max: float
    """GPU-hours if every job runs into its time limit."""
    planned: Plan = Field(repr=False)
    """The plan of the run and its checkpoint pair, as if they were alone: without the cell's label."""

    @property
    def request(self) -> PlanRequest:
        """The request with every default filled in, for one GPU count and one repeat."""
        return self.planned.request


class SweepPlan(Frozen):
    """The planned cells of a sweep or of a trial, with their limits."""

    sweep: str
    """Name of the sweep or of the trial."""
    cells: tuple[Cell, ...]
    gpu_hours_max: float
    """Most GPU-hours of the cells; a trial ends before it would take more."""
    approval_above_gpu_hours: float | None
    confirm_up_to_gpu_hours: float = 0
    """Most GPU-hours of the sweep, the runs that confirm suspicions included; 0 to confirm none."""
    trial: TrialRules | None = None
    """What the trial compares; None for a sweep."""

    @property
    def title(self) -> str:
        """What it is, with its name: `sweep weekly` or `trial nccl-ring`."""
        return f"{'sweep' if self.trial is None else 'trial'} {self.sweep}"

    @property
    def reserving_cells(self) -> tuple[Cell, ...]:
        """The cells whose GPU-hours are reserved before the start: for a sweep all.

        For a trial, whose later rounds depend on the earlier ones, those that `gpu_hours_max` is enough for.
        """
        sums = itertools.accumulate(cell.gpu_hours_max for cell in self.cells)
        pairs = zip(self.cells, sums, strict=True)
        return tuple(cell for cell, hours in pairs if hours <= self.gpu_hours_max + _ROUNDING)

    @property
    def needs_approval(self) -> bool:
        """Whether a person must approve the sweep before it starts."""
        limit = self.approval_above_gpu_hours
        return limit is not None and self.gpu_hours_max > limit


def plan_sweep(sweep: Sweep, check: Callable[[Plan], None] = require_runnable) -> SweepPlan:
    """Plan the cells of a sweep (runs with their checkpoint pairs), entry by entry.

    Raises UserError, with all reasons, if `check` refuses cells or several combinations contain the same run.
    Raises it also for an exclusion that excludes nothing, a sweep without runs or with more than `MOST_CELLS`
    cells, and a plan above the budget.
    """
    exclusions = _Exclusions(sweep)
    cells = list(_all_cells(sweep, exclusions, check))
    exclusions.require_used()
    if not cells:
        raise UserError(
            f"sweep '{sweep.name}' excludes every run that it asks for: correct exclude, or leave it out."
        )
    total = sum(cell.gpu_hours_max for cell in cells)
    if total > sweep.gpu_hours_max:
        raise UserError(
            f"sweep '{sweep.name}' may cost {format_hours(total)} GPU-hours, more than its gpu_hours_max of "
            f"{format_hours(sweep.gpu_hours_max)}: {_costs(sweep, cells)}; "
            f"shorten it, or raise gpu_hours_max."
        )
    planned = SweepPlan(
        sweep=sweep.name,
        cells=tuple(_with_labels(cells)),
        gpu_hours_max=total,
        approval_above_gpu_hours=sweep.approval_above_gpu_hours,
    )
    if not sweep.confirm:
        return planned
    # If nobody was asked, nothing is added that somebody would have to be asked for.
    unasked = None if planned.needs_approval else sweep.approval_above_gpu_hours
    most = sweep.gpu_hours_max if unasked is None else min(unasked, sweep.gpu_hours_max)
    return planned.model_copy(update={"confirm_up_to_gpu_hours": most})


def confirmation_cells(
    cell: Cell,
    number: int,
    *,
    checkpoint: bool,
    after: int,
    cluster_options: Mapping[str, OptionValue] | None = None,
) -> list[Cell]:
    """Return cells that repeat a cell, to confirm or dismiss the suspicion that its run was slower or faster.

    Args:
        cell: the cell to repeat.
        number: how many repeats.
        checkpoint: whether each also saves and loads a checkpoint.
        after: the largest `repeat` of the sweep's cells; the new cells continue from there.
        cluster_options: replace those of the cell; None keeps them.
    """
    request = cell.request.model_copy(update={"checkpoint": checkpoint})
    if cluster_options is not None:
        request = request.model_copy(update={"cluster_options": dict(cluster_options)})
    (alone,) = plan_cells(plan(request), cell.entry, cell.sweep)
    return [
        alone.model_copy(update={"label": f"{cell.label}{_CONFIRMATION}{index}", "repeat": after + index})
        for index in range(1, number + 1)
    ]


def confirmation_number(label: str, cell: Cell) -> int:
    """Return the number of the confirmation run of `cell` with this label; 0 if the run is another."""
    number = label.removeprefix(f"{cell.label}{_CONFIRMATION}")
    return 0 if number == label else int(number)


def cell_plan(cell: Cell) -> Plan:
    """Return the plan of a cell: one performance run, and its checkpoint pair if it has one."""
    planned = cell.planned

    def name_cell(run: Run) -> Run:
        return run.model_copy(update={"cell": cell.label})

    pairs = (
        CheckpointPair(save=name_cell(pair.save), load=name_cell(pair.load))
        for pair in planned.checkpoint_pairs
    )
    return planned.model_copy(
        update={"runs": tuple(map(name_cell, planned.runs)), "checkpoint_pairs": tuple(pairs)}
    )


def expand_cell(cell: Cell) -> tuple[Run, ...]:
    """Return all runs of a cell: its performance run, then those that save and load a checkpoint."""
    return cell_plan(cell).all_runs


class _Exclusions:
    """A sweep's exclusions; it remembers which ones have matched."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._used: set[int] = set()

    def match(self, values: Mapping[str, Any]) -> bool:
        """Return whether a run with these values is excluded."""
        # Before planning `gpus` is text that may mean several counts; then nothing is compared with it.
        known = {name: value for name, value in values.items() if name != "gpus" or str(value).isdecimal()}
        matching = {
            number for number, exclusion in enumerate(self._sweep.exclude) if excludes(exclusion, known)
        }
        self._used |= matching
        return bool(matching)

    def require_used(self) -> None:
        """Raise UserError for an exclusion that matched nothing: it may be misspelt or outdated."""
        for number, exclusion in enumerate(self._sweep.exclude):
            if number not in self._used:
                raise UserError(
                    f"sweep '{self._sweep.name}', exclude.{number} ({_words(exclusion)}) excludes nothing: "
                    "correct it, or leave it out."
                )


def _all_cells(sweep: Sweep, exclusions: _Exclusions, check: Callable[[Plan], None]) -> Iterator[Cell]:
    """Yield the cells of all combinations that are not excluded; no run is in two cells.

    Raises UserError at the end, with the reason why each refused combination cannot be run. A reason that
    several combinations of an entry share is listed once. Raises it at once beyond `MOST_CELLS` cells.
    """
    asked_by: dict[str, str] = {}
    count = 0
    refused: dict[tuple[int, str], str] = {}
    for entry in range(len(sweep.runs)):
        for values in sweep.requests(entry):
            if exclusions.match(values):
                continue
            try:
                every = plan_cells(plan(parse_request(values)), entry, sweep.name)
                cells = [cell for cell in every if not exclusions.match(_values(cell.request))]
                for cell in cells:
                    check(cell_plan(cell))
                    _require_new(cell, asked_by)
            except UserError as error:
                where = f"sweep '{sweep.name}', runs.{entry} ({_words(values)})"
                refused.setdefault((entry, str(error)), f"{where}: {error}")
            else:
                count += len(cells)
                yield from cells
            if count > MOST_CELLS or len(refused) > MOST_CELLS:
                raise UserError(
                    f"sweep '{sweep.name}' has more than {MOST_CELLS:,} runs, the most that Airflow maps a "
                    "task over by default: split it into two sweeps."
                )
    if refused:
        raise BrokenFiles.from_sentences(tuple(refused.values()))


def _require_new(cell: Cell, asked_by: dict[str, str]) -> None:
    """Note in `asked_by` which entry asks for the cell's runs. Raises UserError for a run noted before."""
    for run in expand_cell(cell):
        key = run.model_copy(update={"repeat": cell.repeat, "cell": None}).model_dump_json()
        if other := asked_by.get(key):
            raise UserError(
                f"{other} asks for {cell.label}, too: leave one of the two out, or raise repeats to run it "
                "more often."
            )
        asked_by[key] = f"runs.{cell.entry}"


def plan_cells(planned: Plan, entry: int, sweep: str) -> Iterator[Cell]:
    """Yield each performance run of a plan as a cell; the first repeat's cell also has a checkpoint pair."""
    pairs = {pair.save.recipe.gpus: pair for pair in planned.checkpoint_pairs}
    workload = load_workload(planned.request.workload)
    for run in planned.runs:
        gpus, first = run.recipe.gpus, run.repeat == 1
        pair = pairs.get(gpus) if first else None
        alone = run.model_copy(update={"repeat": 1})
        jobs = (alone, pair.save, pair.load) if pair else (alone,)
        request = planned.request.model_copy(
            update={"gpus": str(gpus), "repeats": 1, "checkpoint": pair is not None}
        )
        gpu_hours = sum(job.recipe.gpus * job.time_limit_s for job in jobs) / 3600
        yield Cell(
            label=f"{workload.family}·{alone.label}",
            sweep=sweep,
            entry=entry,
            repeat=run.repeat,
            gpus=gpus,
            jobs=len(jobs),
            gpu_hours_max=gpu_hours,
            planned=Plan(
                request=request,
                runs=(alone,),
                checkpoint_pairs=(pair,) if pair else (),
                gpu_hours_max=gpu_hours,
                cluster_gpu_type=planned.cluster_gpu_type,
            ),
        )


def _with_labels(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells with unique labels: where cells share a label, the fields that differ are appended."""
    alike: dict[str, list[dict[str, Any]]] = defaultdict(list)
    every = [_values(cell.request) for cell in cells]
    for cell, mine in zip(cells, every, strict=True):
        alike[cell.label].append(mine)
    for cell, mine in zip(cells, every, strict=True):
        others = alike[cell.label]
        differing = {
            name: value for name, value in mine.items() if any(other.get(name) != value for other in others)
        }
        parts = [cell.label, *(f"{name} {value_in_words(value)}" for name, value in differing.items())]
        if cell.repeat > 1:
            parts.append(f"repeat {cell.repeat}")
        yield cell.model_copy(update={"label": "·".join(parts)})


def _values(request: PlanRequest) -> dict[str, Any]:
    return request.model_dump(mode="json", exclude={"repeats"})


def _costs(sweep: Sweep, cells: Sequence[Cell]) -> str:
    by_entry = [
        (entry, sum(cell.gpu_hours_max for cell in cells if cell.entry == entry))
        for entry in range(len(sweep.runs))
    ]
    of = [value_in_words(entry["workload"]) for entry in sweep.runs]
    return ", ".join(f"runs.{entry} ({of[entry]}) {format_hours(hours)}" for entry, hours in by_entry)


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value_in_words(value)}"
        for name, value in values.items()
        if name not in ("cluster", "repeats")
    )


def value_in_words(value: Any) -> str:
    """Return a value of an option as one line of text."""
    if isinstance(value, list):
        return " and ".join(map(value_in_words, value))
    return one_line(json.dumps(value) if isinstance(value, dict | bool) else value)
