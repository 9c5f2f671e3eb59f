"""The model of `config/trials/<name>.yaml`, and the plan of a trial: which variant of a run is fastest?

A trial is a sweep whose cells are variants × rounds. In each round every variant that is still in runs once,
in random order. `steptime.judging.trials` decides which variants stay.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    field_validator,
    model_validator,
)

from steptime.errors import BrokenFiles, UserError, unknown_value
from steptime.frozen import Frozen
from steptime.recipes.config_files import FieldError, FieldErrors, Mistake, load_yaml_model
from steptime.recipes.models import Mode, Run, TrialPosition, TrialRules
from steptime.recipes.notation import format_hours
from steptime.recipes.options import declaration
from steptime.recipes.planning import Plan, parse_request, plan, require_runnable
from steptime.recipes.request import option_fields
from steptime.recipes.sweep_planning import (
    MOST_CELLS,
    Cell,
    SweepPlan,
    cell_plan,
    plan_cells,
    value_in_words,
)
from steptime.recipes.sweeps import (
    NAME,
    NAME_IN_WORDS,
    Entry,
    check_alternatives,
    check_fields,
    check_value,
    find_file,
)
from steptime.refusals import matching
from steptime.settings import config_names, default_cluster
from steptime.wording import counted, first_names

MOST_VARIANTS = 16
"""Most variants of a trial: its chance of a wrong statement is simulated for 2 to 16."""
LEAST_ROUNDS = 2
"""Rounds that `gpu_hours_max` must be enough for: one round shows no noise."""
_SETTINGS_APART = ("Where", "Model", "Scale", "Run", "Profile and trace")
"""Sections of options that say what is trained, for how long and on how much, and not how."""
_ALSO_VARIED = ("dtype", "ignore_memory")
"""Options of those sections in which variants may differ."""
_NAMES_SHOWN = 5
"""More variants that are refused for the same reason are counted."""
_MERGED = ("environment", "arguments")
"""Options with values by name: a variant's are added to those of `run`."""


def varied_fields() -> tuple[str, ...]:
    """Return the options in which the variants of a trial may differ."""
    return tuple(
        name
        for name, field in option_fields().items()
        if name in _ALSO_VARIED or declaration(field).section not in _SETTINGS_APART
    )


def _settings(options: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Check the names and values of a variant's options."""
    problems: list[Mistake] = []
    check_fields(options, check_value, problems, varied_fields())
    if problems:
        raise FieldErrors(problems)
    return options


def _lists(options: dict[str, list[JsonValue]]) -> dict[str, list[JsonValue]]:
    """Check the names and values of `vary`."""
    problems: list[Mistake] = []
    check_fields(options, _list, problems, varied_fields())
    if problems:
        raise FieldErrors(problems)
    if (number := math.prod(map(len, options.values()))) < 2:
        raise ValueError("has one combination only: name two values or more, as in micro_batch_size: [1, 2]")
    if number > MOST_CELLS:
        raise ValueError(f"has {number:,} combinations: shorten its lists to at most {MOST_VARIANTS}")
    return options


def _list(name: str, values: JsonValue) -> list[Any]:
    return check_alternatives(name, values if isinstance(values, list) else [values])


def _single(entry: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Refuse lists and repeats in `run`, which is one run."""
    problems = [
        Mistake("is one value here, not a list: put what differs into variants or vary", (name,))
        for name, value in entry.items()
        if isinstance(value, list)
    ]
    if "repeats" in entry:
        problems.append(Mistake("leave it out: the rounds of a trial are its repeats", ("repeats",)))
    if problems:
        raise FieldErrors(problems)
    return entry


Variant = Annotated[dict[str, JsonValue], AfterValidator(_settings)]
VariantName = Annotated[
    str, matching("[A-Za-z0-9][A-Za-z0-9._-]{0,39}", "letters, digits and . _ -, as in image-26.10")
]


class Trial(Frozen):
    """One file of `config/trials`: a run, the variants of it that are compared, and limits."""

    name: Annotated[str, matching(NAME, NAME_IN_WORDS)]
    """Equal to the file's name."""
    description: str = ""
    cluster: str = Field(default_factory=default_cluster)
    run: Annotated[Entry, AfterValidator(_single)]
    """What all variants have in common: the fields of an entry of a sweep."""
    variants: dict[VariantName, Variant] | None = None
    """Variants by name, with what each has of its own; the others are compared with the first."""
    vary: Annotated[dict[str, list[JsonValue]], AfterValidator(_lists)] | None = None
    """Instead of `variants`: lists of values, for all combinations."""
    least_difference_percent: float = Field(1.0, ge=0.1, le=50)
    """Smallest difference of step times that matters, in percent."""
    gpu_hours_max: PositiveFloat
    """Most GPU-hours: no round starts that could take more if its jobs run into their time limits."""
    approval_above_gpu_hours: NonNegativeFloat | None = None
    """GPU-hours above which a person has to approve the plan before anything starts; null for no approval."""
    rounds_max: int = Field(16, ge=LEAST_ROUNDS, le=64)
    stop_when: Literal["all within", "best known"] = "all within"
    """When a trial of variants that hardly differ ends: see `TrialRules`."""
    seed: NonNegativeInt = 0
    """Seed of the order in which the variants of a round run."""
    same_nodes: bool = True
    """Whether the variants of a round run one after the other on the same nodes, where the cluster can."""

    @field_validator("cluster")
    @classmethod
    def _cluster_is_text(cls, cluster: str) -> str:
        check_value("cluster", cluster)
        return cluster

    @field_validator("variants")
    @classmethod
    def _several(cls, variants: dict[str, Any] | None) -> dict[str, Any] | None:
        if variants is not None and not 2 <= len(variants) <= MOST_VARIANTS:
            raise ValueError(
                f"has {counted(len(variants), 'variant')}: a trial compares 2 to {MOST_VARIANTS}"
            )
        return variants

    @model_validator(mode="after")
    def _one_kind(self) -> "Trial":
        if (self.variants is None) == (self.vary is None):
            raise FieldError("give either variants, by name, or vary, with lists of values", "variants")
        return self

    def requests(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and the options of each variant."""
        common = {"cluster": self.cluster, **self.run}
        if self.variants is not None:
            for name, options in self.variants.items():
                yield name, _merge(common, options)
        elif self.vary is not None:
            for values in itertools.product(*self.vary.values()):
                options = dict(zip(self.vary, values, strict=True))
                yield _name(options), _merge(common, options)


def _merge(common: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    merged = {name: {**common.get(name, {}), **options[name]} for name in _MERGED if name in options}
    return {**common, **options, **merged}


def _name(options: Mapping[str, Any]) -> str:
    """Return the name of a combination: `tensor_parallel=2,micro_batch_size=1`."""
    return ",".join(f"{name}={value_in_words(value)}" for name, value in options.items())


def list_trials() -> tuple[str, ...]:
    """List the names of all trials, sorted: the stems of `config/trials/*.yaml`, own and shipped."""
    return config_names("trials")


def load_trial(name: str) -> Trial:
    """Load the file of a trial. Raises UserError if it is missing or broken."""
    return load_yaml_model(find_file("trial", name), Trial, named_in="name")


def sweep_entry(trial: Trial, variant: str) -> dict[str, Any]:
    """Return the entry of a sweep that runs a variant of a trial. Raises UserError for an unknown variant."""
    entries = dict(trial.requests())
    if variant not in entries:
        raise unknown_value("variant", variant, entries)
    return entries[variant]


def plan_trial(
    trial: Trial,
    check: Callable[[Plan], None] = require_runnable,
    can_repeat_nodes: Callable[[Run], bool] = lambda _: False,
    known_noise: Callable[[Run], float | None] = lambda _: None,
) -> SweepPlan:
    """Plan the cells of a trial: each variant in each round, in the order in which they start.

    Combinations of `vary` that cannot run are left out, with the reason; a variant of `variants` that cannot
    run is refused. `can_repeat_nodes` returns whether a run's cluster can run it on the same nodes again;
    `known_noise` the standard deviation of its runs in percent, as far as that is known.

    Raises UserError, with all reasons, if fewer than two variants can run, if there are more than
    `MOST_VARIANTS`, if a variant is more than one performance run, and if `gpu_hours_max` is not enough for
    `LEAST_ROUNDS` rounds.
    """
    cells: dict[str, Cell] = {}
    refused: dict[str, str] = {}
    for name, values in trial.requests():
        try:
            cells[name] = _cell(trial, values)
            check(cell_plan(cells[name]))
        except UserError as error:
            cells.pop(name, None)
            refused[name] = str(error)
    if refused and (trial.variants is not None or len(cells) < 2):
        raise BrokenFiles.from_sentences(list(_refusals(trial.name, refused, len(cells) + len(refused))))
    if len(cells) > MOST_VARIANTS:
        raise UserError(
            f"trial '{trial.name}' compares {len(cells)} variants, more than {MOST_VARIANTS}, for which its "
            "error rates are known: shorten its lists, or make two trials."
        )
    in_round = sum(cell.gpu_hours_max for cell in cells.values())
    if LEAST_ROUNDS * in_round > trial.gpu_hours_max:
        raise UserError(
            f"a round of trial '{trial.name}' may cost {format_hours(in_round)} GPU-hours, and "
            f"{LEAST_ROUNDS} are the least: raise gpu_hours_max of {format_hours(trial.gpu_hours_max)}, give "
            "run a shorter time_limit, or take variants out."
        )
    runs = [cell.planned.runs[0] for cell in cells.values()]
    rules = TrialRules(
        trial=trial.name,
        variants=tuple(cells),
        left_out=refused,
        least_difference_percent=trial.least_difference_percent,
        known_noise_percent=next(filter(None, map(known_noise, runs)), None),
        stop_when=trial.stop_when,
        rounds_max=trial.rounds_max,
        gpu_hours_max=trial.gpu_hours_max,
        gpu_hours_of_run={name: cell.gpu_hours_max for name, cell in cells.items()},
        seed=trial.seed,
        same_nodes=trial.same_nodes and all(map(can_repeat_nodes, runs)),
    )
    return SweepPlan(
        sweep=trial.name,
        cells=tuple(_in_rounds(rules, cells)),
        gpu_hours_max=min(trial.rounds_max * in_round, trial.gpu_hours_max),
        approval_above_gpu_hours=trial.approval_above_gpu_hours,
        trial=rules,
    )


def _refusals(trial: str, refused: Mapping[str, str], variants: int) -> Iterator[str]:
    """Yield a sentence for each reason, with the variants that have it; without them if all have it."""
    by_reason: dict[str, list[str]] = {}
    for name, why in refused.items():
        by_reason.setdefault(why, []).append(name)
    for why, names in by_reason.items():
        which = f", {first_names(names, _NAMES_SHOWN)}" if len(names) < variants else ""
        yield f"trial '{trial}'{which}: {why}"


def round_order(rules: TrialRules, number: int) -> list[str]:
    """Return the variants in the random order in which they start in a round, which follows from the seed."""
    return random.Random(f"{rules.trial} {rules.seed} {number}").sample(  # noqa: S311 (no secret)
        rules.variants, len(rules.variants)
    )


def cell_label(number: int, variant: str) -> str:
    """Return the label of a variant's cell in a round: `round 3 · ring`."""
    return f"round {number} · {variant}"


def _cell(trial: Trial, values: Mapping[str, Any]) -> Cell:
    """Plan a variant. Raises UserError if it cannot run, or is more than one performance run."""
    cells = list(plan_cells(plan(parse_request(values)), 0, trial.name))
    if len(cells) != 1:
        given = f"gpus {values['gpus']} means" if "gpus" in values else "without gpus, run means"
        raise UserError(
            f"{given} {len(cells)} runs, and a trial compares at one number of GPUs: set gpus in run to one "
            f"of {', '.join(str(cell.gpus) for cell in cells)}."
        )
    if cells[0].jobs != 1 or cells[0].planned.runs[0].mode is not Mode.PERFORMANCE:
        raise UserError("a trial compares step times: leave out checkpoints, profile and nccl_trace.")
    return cells[0]


def _in_rounds(rules: TrialRules, cells: Mapping[str, Cell]) -> Iterator[Cell]:
    index = 0
    for number in range(1, rules.rounds_max + 1):
        for variant in round_order(rules, number):
            position = TrialPosition(rules=rules, variant=variant, round=number, index=index)
            cell, planned = cells[variant], cells[variant].planned
            run = planned.runs[0].model_copy(update={"repeat": number, "trial": position})
            yield cell.model_copy(
                update={
                    "label": cell_label(number, variant),
                    "repeat": number,
                    "planned": planned.model_copy(update={"runs": (run,)}),
                }
            )
            index += 1
