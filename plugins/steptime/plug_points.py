"""Plug points for other packages, with the built-in entries: docs/reference/plug-points.md.

Any installed package can add an extension by an entry point in the group of the plug point, without a change
in steptime.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from steptime.errors import UserError, unknown_value


@dataclass(frozen=True, eq=False)
class PlugPoint:
    """A kind of thing that other packages can add, looked up by name."""

    group: str
    """Name of the group of entry points."""
    what: str
    """What an entry is, for messages such as `unknown kind of cluster 'x'`."""
    built_in: Mapping[str, str]
    """The entries of steptime itself: name and object (`module` or `module:attribute`) as in entry points."""

    def names(self) -> tuple[str, ...]:
        """Return all names: built-in ones in their order, then those of other packages, sorted.

        Raises UserError if two have the same name.
        """
        return (*self.built_in, *sorted(_added(self)))

    def check(self, name: str, *, also: tuple[str, ...] = ()) -> None:
        """Raise UserError if no extension has this name, without importing any: DAG files are read often.

        `also`: further valid words, which the error lists beside the names.
        """
        if name not in self.built_in and name not in self.names():  # looking for others takes 0.1 s
            raise unknown_value(self.what, name, (*self.names(), *also))

    def load(self, name: str, module: str = "") -> Any:
        """Import and return what is registered as `name`, or its submodule `module` if it is a package.

        Raises UserError if there is none, or it cannot be imported.
        """
        return _load(self, name, module)


CLUSTER_KINDS = PlugPoint(
    "steptime.cluster_kinds",
    "kind of cluster",
    {
        "local": "steptime.clusters.local",
        "runai": "steptime.clusters.runai",
        "slurm": "steptime.clusters.slurm",
    },
)
"""Each entry is a package. Its module `config` has `Config`, the `ClusterConfig` for files of this kind. Its
module `cluster`, which is imported only when a cluster is opened, has `connect(config, connections)`, which
returns the `Cluster`. `job.sh.j2` is the template of its job scripts. The package may define `Options`, the
`recipes.options.ClusterOptions` of runs on such clusters."""

CONTAINERS = PlugPoint(
    "steptime.containers",
    "container",
    {
        "pyxis": "steptime.clusters.containers:PYXIS",
        "apptainer": "steptime.clusters.containers:APPTAINER",
        "bwrap": "steptime.clusters.containers:BWRAP",
        "kubernetes": "steptime.clusters.containers:KUBERNETES",
    },
)
"""What starts ranks in an image, in order of preference: each is a `clusters.containers.ContainerRuntime`."""

CHECKS = PlugPoint(
    "steptime.checks",
    "check",
    {
        "job_succeeded": "steptime.measure.quality:job_succeeded",
        "log_without_failure": "steptime.measure.quality:log_without_failure",
        "steps": "steptime.measure.quality:steps",
        "parallelism_as_planned": "steptime.measure.quality:parallelism_as_planned",
        "training_completed": "steptime.measure.quality:training_completed",
        "measured_over_window": "steptime.measure.quality:measured_over_window",
        "launched_as_published": "steptime.measure.quality:launched_as_published",
        "mfu_possible": "steptime.measure.quality:mfu_possible",
        "wall_time_agrees": "steptime.measure.quality:wall_time_agrees",
        "fabric_used": "steptime.measure.quality:fabric_used",
        "first_attempt": "steptime.measure.quality:first_attempt",
        "checkpoint_saved": "steptime.measure.quality:checkpoint_saved",
        "checkpoint_loaded": "steptime.measure.quality:checkpoint_loaded",
    },
)
"""Functions that take a `measure.quality.FinishedRun` and return `Check`s, in the order of the verdict."""

MODEL_FAMILIES = PlugPoint(
    "steptime.model_families",
    "model family",
    {
        "llama": "steptime.recipes.models:check_transformer",
        "nemotron4": "steptime.recipes.models:check_transformer",
        "nemotron_h": "steptime.recipes.models:check_hybrid",
        "gpt": "steptime.recipes.models:check_gpt",
    },
)
"""What a workload's file may name as `architecture`: functions that take a `ModelShape` and raise
ValueError for sizes that the family does not have. `trainer/families` builds the models, and has
an entry point group of its own."""

PLUG_POINTS = (CLUSTER_KINDS, CONTAINERS, CHECKS, MODEL_FAMILIES)


@cache
def _added(point: PlugPoint) -> Mapping[str, EntryPoint]:
    added: dict[str, EntryPoint] = {}
    for entry in entry_points(group=point.group):
        if entry.name in point.built_in or entry.name in added:
            owner = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an installed package"
            raise UserError(
                f"{point.what} '{entry.name}', which {owner} adds, already exists: give it another name in "
                f"its entry points, or uninstall that package."
            )
        added[entry.name] = entry
    return added


@cache
def _load(point: PlugPoint, name: str, module: str) -> Any:
    if name in point.built_in:
        return _object(point.built_in[name], module)
    point.check(name)
    added = _added(point)[name]
    try:
        return _object(added.value, module)
    except Exception as error:  # code of somebody else's
        raise UserError(
            f"{point.what} '{name}' cannot be loaded from '{added.value}': {error or type(error).__name__}. "
            "Repair or uninstall the package that adds it."
        ) from error


def _object(value: str, module: str) -> Any:
    return EntryPoint("", f"{value}.{module}" if module else value, "").load()
