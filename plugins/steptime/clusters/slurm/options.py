"""A run's options on a Slurm cluster: its placement, and additional options of sbatch.

Slurm itself reads these from the `#SBATCH` lines of the job script, so every one has a strict form.
`additional_slurm_params` has the form that NVIDIA's recipes use:
`nodelist=node001,node002;constraint=gpu;exclusive`.
"""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Self

from steptime.errors import UserError, one_line, unknown_value
from steptime.recipes.models import Recipe
from steptime.recipes.options import ClusterOptions, option

_LONGEST = 2000

_NAMES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*(?:,[A-Za-z0-9_][A-Za-z0-9_.+-]*)*", re.ASCII)
_RANGES = r"\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\]"
_NODE = rf"[A-Za-z0-9_](?:[A-Za-z0-9_.-]|{_RANGES})*"
_NODES = re.compile(rf"{_NODE}(?:,{_NODE})*", re.ASCII)
_VALUE = re.compile(r"[A-Za-z0-9._,:@/+*%&|()\[\]{}~^!=-]+", re.ASCII)
_OPTION = re.compile(r"--[a-z][a-z-]*(=[A-Za-z0-9._,:;@/+*%&|()\[\]{}~^!-]+)?", re.ASCII)

_OF_THE_JOB = (
    *("array", "chdir", "cluster-constraint", "clusters", "error", "export", "export-file", "get-user-env"),
    *("gid", "help", "hold", "input", "job-name", "kill-on-invalid-dep", "no-kill", "no-requeue"),
    *("open-mode", "output", "parsable", "priority", "requeue", "test-only", "time", "time-min", "uid"),
    *("usage", "version", "wait", "wrap"),
)
"""Options by which steptime names, submits, finds or ends a job, or finds its log."""
_OF_THE_PLAN = {
    "gpus": "gpus",
    "gpus-per-node": "gpus_per_node",
    "gpus-per-socket": "gpus_per_node",
    "gpus-per-task": "gpus_per_node",
    "gres": "gres",
    "nodes": "gpus",
    "ntasks": "gpus",
    "ntasks-per-core": "gpus_per_node",
    "ntasks-per-gpu": "gpus_per_node",
    "ntasks-per-node": "gpus_per_node",
    "ntasks-per-socket": "gpus_per_node",
}
"""Options of sbatch that follow from the plan, and for each the run's option that changes it."""
_FIELDS = ("partition", "account", "nodelist", "exclude", "reservation", "segment")
"""Options of sbatch that are also options of a run; `additional_slurm_params` may have them, too."""
_OFFERED = (
    *("acctg-freq", "bb", "begin", "comment", "constraint", "contiguous", "core-spec", "cores-per-socket"),
    *("cpu-freq", "cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution"),
    *("exclusive", "extra", "extra-node-info", "gpu-bind", "gpu-freq", "gres-flags", "hint"),
    *("licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu"),
    *("mincpus", "network", "nice", "oversubscribe", "power", "prefer", "profile"),
    *("propagate", "qos", "reboot", "signal"),
    *("sockets-per-node", "spread-job", "switches", "thread-spec", "threads-per-core", "tmp", "tres-bind"),
    *("tres-per-task", "use-min-nodes", "wait-all-nodes", "wckey"),
)
"""Options of sbatch that `additional_slurm_params` may have, by full names only: sbatch also takes
abbreviations, which would get past a list of refused options."""

_OF_ONE_RUN = ("begin", "deadline", "dependency")
"""Options for single runs, which make no sense for every job."""
_TYPED_GPUS = "gres"
"""An option that follows from the plan, but that a cluster's file may set with `gpu_option: none`, because a
site may need the GPUs' type: `--gres=gpu:a100:4`."""
_INSTEAD = {
    **dict.fromkeys(_OF_THE_JOB, "leave it out: steptime submits, follows and ends its jobs by it"),
    **dict.fromkeys(("cluster-constraint", "clusters"), "give that cluster a file of its own"),
    **dict.fromkeys(("export", "export-file", "get-user-env"), "set variables in environment"),
    "requeue": "write resubmissions, how often a run is resubmitted after the cluster failed its job",
    "time": "leave it out: the time limit is each run's",
    **dict.fromkeys(_OF_THE_PLAN, "leave it out: it follows from each run's gpus"),
    **{name: f"write gpu_option: {name}" for name in ("gpus-per-node", "gpus")},
    **dict.fromkeys(("gpus-per-task", "ntasks-per-node"), "write gpus_per_node"),
    **dict.fromkeys(_OF_ONE_RUN, "leave it out, and give it to a run, in additional_slurm_params"),
}
"""Options that a cluster's file cannot have for every job, and what to write in place of each."""


_option = partial(option, "Slurm", needs="On a Slurm cluster")


class SlurmOptions(ClusterOptions):
    """A run's Slurm options; for one that is None, the cluster's file decides, or else steptime or Slurm."""

    clusters = "Slurm"

    gpus_per_node: int | None = _option(
        "GPUs that a job takes of each node; by default the cluster's, or else the recipe's.",
        ge=1,
        le=1024,
        examples=[4, 8],
    )
    gres: bool | None = _option(
        "Ask Slurm for GPUs, or not; by default as in the cluster's file.", title="GRES"
    )
    partition: str | None = _option("Slurm partition; by default the cluster's.", examples=["batch"])
    account: str | None = _option("Slurm account; by default the cluster's.", examples=["llm"])
    nodelist: str | None = _option(
        "Nodes that a Slurm job must have.", examples=["node001,node002", "node[001-016]"]
    )
    exclude: str | None = _option("Nodes that a Slurm job must not have.", examples=["node[003,007-009]"])
    reservation: str | None = _option("Slurm reservation to run in.", examples=["llm_bench"])
    segment: int | None = _option(
        "Nodes that Slurm must keep together in a block; by default, on GB200 and GB300, the largest number "
        "that fits in a rack and divides the nodes.",
        needs="On a Slurm cluster, with so many nodes",
        ge=1,
        le=1024,
        examples=[16],
    )
    additional_slurm_params: str | None = _option(
        "Further options of sbatch: option=value;option=value;option.",
        title="Additional Slurm parameters",
        examples=["constraint=gpu&memory;exclusive"],
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Parse a run's Slurm options.

        An option in `additional_slurm_params` that has a field here, such as `partition`, moves to that
        field.

        Raises:
            UserError: a value of another form; an option of sbatch that steptime sets itself, an unknown one,
                or one that is given twice.
        """
        fields, further = dict(given), _parse_additional(given.get("additional_slurm_params") or "")
        for name in _FIELDS:
            if name in further:
                if name in fields:
                    raise UserError(f"`{name}` is also in `additional_slurm_params`: keep one of the two.")
                fields[name] = further.pop(name)
        for name in ("partition", "account", "reservation"):
            _check_value(_NAMES, name, fields.get(name), "write a name of letters, digits and _ . + - only")
        for name in ("nodelist", "exclude"):
            _check_value(
                _NODES, name, fields.get(name), "write nodes as in node001,node002 or node[001-016,020]"
            )
        number = re.compile(r"[1-9]\d{0,3}", re.ASCII)
        _check_value(number, "segment", fields.get("segment"), "write a number of nodes")
        left = ";".join(name if value is None else f"{name}={value}" for name, value in further.items())
        return cls(**fields | {"additional_slurm_params": left or None})

    def check(self, recipe: Recipe) -> None:
        """Raise UserError if the recipe's GPUs are more than `gpus_per_node`, but not a multiple of it."""
        per_node = self.gpus_per_node or 1
        if recipe.gpus > per_node and recipe.gpus % per_node:
            raise UserError(
                f"{recipe.gpus} GPUs are not a multiple of `gpus_per_node` {per_node}: choose another, or "
                f"leave {recipe.gpus} out of `gpus`."
            )

    @property
    def as_given(self) -> tuple[str, ...]:
        """The options that sbatch gets unchanged; `sbatch_options` adds those for GPUs."""
        values = self.model_dump(include=set(_FIELDS), exclude_none=True)
        further = (self.additional_slurm_params or "").split(";")
        return (
            *(f"--{name}={value}" for name, value in values.items()),
            *(f"--{option}" for option in further if option),
        )


def check_form(option: str) -> None:
    """Raise UserError for a text that cannot be an option on a `#SBATCH` line."""
    if not _OPTION.fullmatch(option):
        raise UserError(
            f"Slurm option '{one_line(option)}' is malformed: write --option or --option=value, "
            "without blanks, quotes or line ends."
        )


def check_of_every_job(option: str) -> None:
    """Raise UserError for an sbatch option that a cluster's file must not set for every job.

    These are the options that steptime sets for each job and those that make sense for a single run only.
    Unknown options pass, as sites have their own. sbatch accepts abbreviations, so abbreviations of refused
    options are refused too.
    """
    check_form(option)
    name = option.removeprefix("--").partition("=")[0]
    if name == _TYPED_GPUS or (name in (*_OFFERED, *_FIELDS) and name not in _INSTEAD):
        return
    refused = [known for known in _INSTEAD if known.startswith(name)]
    if refused:
        known = name if name in refused else refused[0]
        raise UserError(f"Slurm option '{one_line(option)}' cannot be set for every job: {_INSTEAD[known]}.")


def _check_value(form: re.Pattern[str], name: str, value: str | int | None, remedy: str) -> None:
    if value is not None and not (form.fullmatch(str(value)) and len(str(value)) <= _LONGEST):
        raise UserError(f"`{name}` '{one_line(value)}' cannot be given to Slurm: {remedy}.")


def _parse_additional(text: str) -> dict[str, str | None]:
    """Parse `constraint=gpu&memory;exclusive`: values by option, None without a value. Raises UserError."""
    options: dict[str, str | None] = {}
    for part in filter(None, (part.strip(" ") for part in text.split(";"))):
        name, equals, value = part.partition("=")
        _check_name(name, part)
        if name in options:
            raise UserError(f"`additional_slurm_params` has '{name}' twice: keep one.")
        if name in _FIELDS and not equals:
            raise UserError(f"`additional_slurm_params`: '{name}' needs a value, as in {name}=….")
        if equals and not (_VALUE.fullmatch(value) and len(value) <= _LONGEST):
            raise UserError(
                f"`additional_slurm_params`: the value '{one_line(value)}' of {name} cannot be given: "
                "use at least one character, and no blanks, quotes, '$', '#' or line ends."
            )
        options[name] = value if equals else None
    return options


def _check_name(name: str, part: str) -> None:
    if name in _OF_THE_JOB:
        raise UserError(
            f"`additional_slurm_params`: '{name}' cannot be given, because steptime needs it to submit, "
            "follow and end its jobs: leave it out."
        )
    if name in _OF_THE_PLAN:
        raise UserError(
            f"`additional_slurm_params`: '{name}' is set by steptime: use the option "
            f"`{_OF_THE_PLAN[name]}` instead."
        )
    if not re.fullmatch(r"[a-z][a-z-]*", name, re.ASCII):
        raise UserError(
            f"`additional_slurm_params`: '{one_line(part)}' is not of the form option=value or option, "
            "as in constraint=gpu;exclusive."
        )
    if name not in (*_OFFERED, *_FIELDS):
        raise unknown_value("option of sbatch", name, (*_OFFERED, *_FIELDS), of="`additional_slurm_params`")
