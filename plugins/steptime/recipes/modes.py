"""The mode of a request, and what it determines: steps, window, time limit and profile.

A request has one mode. A checkpoint pair (a run that saves and a run that loads) is planned in addition to
performance runs. Runs of any other mode replace them, because their step times are not comparable.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from steptime.errors import UserError, one_line
from steptime.frozen import Frozen
from steptime.recipes.models import Mode, ProfileWindow, Recipe, Window
from steptime.recipes.notation import parse_ranks, parse_window
from steptime.recipes.request import PlanRequest, marked, options_only_in
from steptime.recipes.selection import Selection
from steptime.recipes.workload_file import Profile
from steptime.recipes.workloads import load_workloads

_INSTEAD = {
    "save_checkpoint": Mode.CHECKPOINT_SAVE,
    "load_checkpoint": Mode.CHECKPOINT_LOAD,
    "profile": Mode.PROFILE,
    "nccl_trace": Mode.NCCL_TRACE,
}
_ASKS_FOR = {Mode.CHECKPOINT_SAVE: ("checkpoint", "save_checkpoint"), Mode.PROFILE: ("profile",)}
"""For each mode that has options of its own: the options of which one must ask for the mode."""
_LONGEST_PATH = 1000
_SAMPLES = re.compile(r"consumed_samples=(\d{1,15})(?:\.0)?(?:-last)?$", re.ASCII)
"""Finds the number of samples at the end of a checkpoint's name in NeMo."""


class Schedule(Frozen):
    """A run's mode, its first step, the step at which it ends, the steps to average, and the time limit."""

    mode: Mode
    first_step: int = 0
    max_steps: int
    window: Window
    time_limit: str


def requested_mode(request: PlanRequest) -> Mode:
    """Return the mode of the requested runs.

    Raises UserError if the request asks for several modes, or sets an option of a mode without asking for the
    mode.
    """
    requested = [name for name in ("checkpoint", *_INSTEAD) if _is_given(request, name)]
    if len(requested) > 1:
        raise UserError(
            f"{' and '.join(map(marked, requested))} cannot be in one request: keep one of them, and leave "
            "the others out."
        )
    mode = _INSTEAD.get(requested[0], Mode.PERFORMANCE) if requested else Mode.PERFORMANCE
    for mode_of_options, asking in _ASKS_FOR.items():
        for name in options_only_in(mode_of_options):
            if _is_given(request, name) and not any(_is_given(request, option) for option in asking):
                needed = " or ".join(map(marked, asking))
                raise UserError(
                    f"{marked(name)} needs {needed}: ask for that too, or leave {marked(name)} out."
                )
    return mode


def _is_given(request: PlanRequest, name: str) -> bool:
    value = getattr(request, name)
    return value is not None and value is not False


def make_schedule(
    request: PlanRequest, mode: Mode, selection: Selection, recipes: Sequence[Recipe]
) -> Schedule:
    """Return the steps, the window and the time limit of the requested runs.

    Raises UserError if they contradict each other, or if the workload has no settings for the mode.
    """
    steps = selection.workload.find_steps(selection.size_name)
    max_steps, time_limit = (
        steps.max_steps,
        selection.workload.find_time_limit(selection.size_name, selection.gpu_type, selection.scaling),
    )
    if mode is Mode.NCCL_TRACE:
        max_steps, time_limit = _trace(selection)
    elif mode is Mode.PROFILE:
        max_steps = _profiled_steps(request, selection)
    max_steps = request.max_steps or max_steps
    time_limit = time_limit if request.time_limit is None else request.time_limit
    if mode is Mode.CHECKPOINT_LOAD:
        saved_at = _saved_at(request, max_steps, recipes)
        return Schedule(
            mode=mode,
            first_step=saved_at,
            max_steps=saved_at + 1,
            window=Window(first=saved_at, last=saved_at),
            time_limit=time_limit,
        )
    window = parse_window(request.window) if request.window is not None else steps.choose_window(max_steps)
    if window.last >= max_steps and request.window is None and mode in (Mode.PROFILE, Mode.NCCL_TRACE):
        window = Window(
            first=max_steps - 1, last=max_steps - 1
        )  # shorter than the document's, and not compared
    if window.last >= max_steps:
        origin = "" if request.window is not None else " (the workload's default)"
        raise UserError(
            f"`window` {window}{origin} lies outside of a run of {max_steps} steps: "
            f"choose one within 0:{max_steps - 1}, or more `max_steps`."
        )
    return Schedule(mode=mode, max_steps=max_steps, window=window, time_limit=time_limit)


def make_profile_window(
    request: PlanRequest, selection: Selection, recipe: Recipe, max_steps: int
) -> ProfileWindow:
    """Return which steps and ranks a profile run records.

    Raises UserError if the run lacks them, if the workload has no settings for profiling, or if GPU metrics
    are requested on the CPU.
    """
    start, stop = _profile_steps(request, selection)
    if not start < stop <= max_steps:
        raise UserError(
            f"profiling from step {start} to step {stop} cannot be in a run of {max_steps} steps: "
            f"choose `profile_start` below `profile_stop`, and both within 0 to {max_steps}."
        )
    if request.profile_ranks is None:
        documented = _documented(selection).ranks
        ranks = tuple(rank for rank in documented if rank < recipe.gpus)
        if not ranks:
            raise UserError(
                f"`profile`: {selection.workload.workload} profiles the ranks "
                f"{', '.join(map(str, documented))} by default, and a run on {recipe.gpus} GPUs has the "
                f"ranks 0 to "
                f"{recipe.gpus - 1}: name some of these as `profile_ranks`."
            )
    else:
        ranks = parse_ranks(request.profile_ranks)
        if ranks[-1] >= recipe.gpus:
            raise UserError(
                f"`profile_ranks` '{one_line(request.profile_ranks)}': a run on {recipe.gpus} GPUs has the "
                f"ranks 0 to {recipe.gpus - 1}: name some of these."
            )
    if request.gpu_metrics and recipe.gpu_type == "cpu":
        raise UserError("`gpu_metrics` needs GPUs, and this run is on the CPU: leave it out.")
    return ProfileWindow(
        first_step=start,
        last_step=stop,
        ranks=ranks,
        gpu_metrics=request.gpu_metrics,
        nsight=_documented(selection).nsight,
    )


def _profiled_steps(request: PlanRequest, selection: Selection) -> int:
    """Return the number of steps of a profile run.

    If the workload's default profile run ends with its profiled steps, so does this run.
    """
    documented, (_, stop) = _documented(selection), _profile_steps(request, selection)
    return stop if documented.max_steps == documented.last_step else max(documented.max_steps, stop)


def _profile_steps(request: PlanRequest, selection: Selection) -> tuple[int, int]:
    documented = _documented(selection)
    start = documented.first_step if request.profile_start is None else request.profile_start
    stop = documented.last_step if request.profile_stop is None else request.profile_stop
    return start, stop


def _documented(selection: Selection) -> Profile:
    profile = selection.workload.profile
    if profile is None:
        having = [workload.workload for workload in load_workloads()[0] if workload.profile is not None]
        raise UserError(
            f"{selection.workload.workload} has no settings for profiling; workloads that have them: "
            f"{', '.join(having) or 'none'}."
        )
    return profile


def _trace(selection: Selection) -> tuple[int, str]:
    """Return steps and time limit of a run that logs NCCL calls."""
    trace = selection.workload.nccl_trace
    if trace is None:
        having = [workload.workload for workload in load_workloads()[0] if workload.nccl_trace is not None]
        raise UserError(
            f"{selection.workload.workload} has no settings for an NCCL trace; workloads that have them: "
            f"{', '.join(having) or 'none'}."
        )
    return trace.max_steps, trace.time_limit


def _saved_at(request: PlanRequest, max_steps: int, recipes: Sequence[Recipe]) -> int:
    """Return the step at which the checkpoint to load was saved, from its name; else `max_steps`.

    Raises UserError if the path, the request and the recipe do not fit together.
    """
    path = checked_checkpoint(request.load_checkpoint or "")
    if request.window is not None:
        raise UserError(
            f"`window` '{one_line(request.window)}' is not for runs with `load_checkpoint`, which train one "
            "step: leave it out."
        )
    if len(recipes) > 1:
        counts = ", ".join(str(recipe.gpus) for recipe in recipes)
        raise UserError(f"`load_checkpoint` needs a single number of GPUs: name one of {counts} as `gpus`.")
    named, batch = _SAMPLES.search(PurePosixPath(path).name), recipes[0].global_batch_size
    if named is None:
        return max_steps
    steps, rest = divmod(int(named[1]), batch)
    if rest or not steps:
        raise UserError(
            f"`load_checkpoint` '{one_line(path)}' was saved after {named[1]} samples, which is not a whole "
            f"number of steps of the global batch size {batch}: name the `gpus` and the `scaling` that it "
            "was saved with."
        )
    if request.max_steps not in (None, steps):
        raise UserError(
            f"`load_checkpoint` '{one_line(path)}' was saved at step {steps}, and `max_steps` is "
            f"{request.max_steps}: leave out `max_steps`."
        )
    return steps


def checked_checkpoint(path: str) -> str:
    """Return `path` if it can be a checkpoint folder: absolute, printable, without `..`. Raises UserError."""
    if (
        not path.startswith("/")
        or not path.isprintable()
        or len(path) > _LONGEST_PATH
        or ".." in path.split("/")
    ):
        raise UserError(
            f"`load_checkpoint` '{one_line(path)}' is not a folder on a cluster: write its absolute path, "
            "without '..' or control characters."
        )
    return path


def recipe_of_pair(selection: Selection, recipes: Sequence[Recipe]) -> Recipe:
    """Return the recipe for a pair of runs that saves and loads a checkpoint: the one with the most GPUs.

    `recipes` are ascending by GPU count. Raises UserError if all have fewer GPUs than the smallest number
    that saving and loading are tested with.
    """
    save, load = _tested(selection)
    large_enough = [recipe for recipe in recipes if recipe.gpus >= max(save, load)]
    if not large_enough:
        raise UserError(
            f"saving checkpoints of {selection} is tested on {save} GPUs or more, loading on {load} or more: "
            f"also ask for one of these `gpus`: {_from(selection, max(save, load))}."
        )
    return large_enough[-1]


def require_tested(selection: Selection, mode: Mode, recipes: Sequence[Recipe]) -> None:
    """Raise UserError if a run has fewer GPUs than saving or loading a checkpoint was tested with."""
    save, load = _tested(selection)
    least, doing = (save, "saving") if mode is Mode.CHECKPOINT_SAVE else (load, "loading")
    for recipe in recipes:
        if recipe.gpus < least:
            raise UserError(
                f"{doing} checkpoints of {selection} is tested on {least} GPUs or more, not on "
                f"{recipe.gpus}: ask for one of these `gpus`: {_from(selection, least)}."
            )


def _from(selection: Selection, least: int) -> str:
    return ", ".join(str(gpus) for gpus in selection.documented if gpus >= least)


def _tested(selection: Selection) -> tuple[int, int]:
    """Return the smallest GPU counts at which saving and loading a checkpoint are tested.

    Raises UserError if they are not tested for the selected size and GPU type.
    """
    limits = selection.size.checkpoint
    if limits is None or selection.proxy:
        having = [name for name, size in selection.workload.sizes.items() if size.checkpoint]
        raise UserError(
            f"checkpoints of {selection} are not supported: leave out `checkpoint`, `save_checkpoint` and "
            f"`load_checkpoint`; sizes of {selection.workload.workload} that support them: "
            f"{', '.join(having) or 'none'}."
        )
    save, load = (
        minimum.get(selection.gpu_type)
        for minimum in (limits.minimum_gpus_to_save, limits.minimum_gpus_to_load)
    )
    if save is None or load is None:
        tested = ", ".join(limits.minimum_gpus_to_load)
        raise UserError(
            f"saving and loading checkpoints of {selection} is not tested: choose one of these GPU types: "
            f"{tested}."
        )
    return save, load
