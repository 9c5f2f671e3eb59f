"""The model of `config/sweeps/<name>.yaml`: combinations of options, exclusions, repeats, a budget.

An entry of `runs` has any fields of `PlanRequest`. A field with a list stands for one run per value, and
several lists for all combinations. `gpus` is the exception: a list of GPU counts means the same as `"8,16"`
on the command line. `steptime.recipes.sweep_planning` turns entries into cells, the units that are run.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
)

from steptime.errors import UserError, one_line, unknown_value
from steptime.files import write_whole
from steptime.frozen import Frozen
from steptime.recipes.cluster_files import readable_clusters
from steptime.recipes.config_files import (
    FieldError,
    FieldErrors,
    Mistake,
    load_each,
    load_yaml_model,
    message_of,
    unknown_file,
)
from steptime.recipes.node_lists import expand_nodes
from steptime.recipes.request import option_fields, parse_value
from steptime.refusals import describe_validation_error, matching
from steptime.settings import config_dir, config_file, config_names, default_cluster

NAME = "[a-z0-9]+([-_][a-z0-9]+)*"
NAME_IN_WORDS = "small letters and digits, with - or _ between, as in night-8b"
MOST_COMBINATIONS = 10_000
"""Most combinations of one entry before exclusions: more are a mistake, and would use up the memory."""

_NOT_EXCLUDED = ("repeats", "environment", "arguments")
"""Fields that an exclusion cannot name."""


def entry_fields() -> tuple[str, ...]:
    """Return the names of all fields that an entry may have."""
    return "workload", *option_fields()


def _entry(entry: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Check the names and values of an entry individually; GPU counts become text."""
    problems: list[Mistake] = []
    if "workload" not in entry:
        problems.append(Mistake("names no workload, as in workload: llama3.1"))
    checked = check_fields(entry, _plain, problems, entry_fields())
    if problems:
        raise FieldErrors(problems)
    return checked


def check_fields(
    values: Mapping[str, JsonValue],
    check: Callable[[str, JsonValue], Any],
    problems: list[Mistake],
    valid: Iterable[str],
) -> dict[str, JsonValue]:
    """Check each value whose field is in `valid`; return the checked values.

    Mistakes, including unknown fields, are appended to `problems`.
    """
    checked: dict[str, JsonValue] = {}
    for name, value in values.items():
        try:
            _known(name, valid)
            checked[name] = check(name, value)
        except FieldErrors as error:
            problems += error.problems
    return checked


def _plain(name: str, value: JsonValue) -> JsonValue:
    if name == "gpus" and isinstance(value, list):
        # A list of counts, and no matrix: then "the largest of the GPU counts" is what it means.
        counts = check_alternatives(name, value)
        if None in counts:
            raise FieldError("has to be a GPU count, as in 8, not null", name, counts.index(None))
        return ",".join(counts)
    if name == "repeats" and isinstance(value, list):
        raise FieldError("repeats is one number, not a list", name)
    return check_alternatives(name, value) if isinstance(value, list) else check_value(name, value)


def check_alternatives(name: str, values: list[JsonValue]) -> list[Any]:
    """Check each value of a list; an empty list and repeated values are refused."""
    if not values:
        raise FieldError("an empty list asks for nothing: leave it out, or name a value", name)
    checked = [check_value(name, value, name, index) for index, value in enumerate(values)]
    for index, value in enumerate(checked):
        if value in checked[:index]:
            raise FieldError(f"'{one_line(value)}' is in the list twice: name it once", name, index)
    return checked


def check_value(name: str, value: JsonValue, *location: int | str) -> Any:
    """Return a valid value of an option, a GPU count as text; other types are not coerced.

    Raises FieldError, at `location` in the file or at the option, for any other value.
    """
    if name == "gpus" and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    try:
        parse_value(name, value, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        raise FieldError(message_of(problem), *(location or (name,)), *problem["loc"]) from None
    return value


def _exclusion(exclusion: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """Check an exclusion's names and values: each a value or a list of values."""
    if not exclusion:
        raise FieldError("an empty exclusion would exclude everything: name a field, as in size: 70b")

    def each(name: str, value: JsonValue) -> None:
        for single in value if isinstance(value, list) else [value]:
            check_value(name, single)

    problems: list[Mistake] = []
    check_fields(exclusion, each, problems, [name for name in entry_fields() if name not in _NOT_EXCLUDED])
    if problems:
        raise FieldErrors(problems)
    return exclusion


def _known(name: str, valid: Iterable[str]) -> None:
    valid = tuple(valid)
    if name not in valid:
        raise FieldError(str(unknown_value("field", name, valid)).removesuffix("."), name)


Entry = Annotated[dict[str, JsonValue], AfterValidator(_entry)]
Exclusion = Annotated[dict[str, JsonValue], AfterValidator(_exclusion)]


def _several(names: str) -> str:
    nodes = expand_nodes(names)
    if not nodes or names.count("[") != names.count("]"):
        raise ValueError("names no nodes, as in gpu[001-018]")
    if len(set(nodes)) < len(nodes) or len(nodes) < 2:
        raise ValueError("names a node twice" if nodes[1:] else "one node has no pairs: name two or more")
    return names


class NodeSweep(Frozen):
    """The block `nodes` of a sweep: each run is made on every node alone, and on pairs of nodes."""

    names: Annotated[str, AfterValidator(_several)]
    """Nodes in Slurm's notation, such as `gpu[001-018]`."""
    gpus_per_node: PositiveInt
    """Number of all GPUs of a node: with fewer, jobs would share nodes and disturb each other."""
    rounds: PositiveInt | None = None
    """Number of pairs of each node; null to pair it with every other node."""

    def groups(self) -> Iterator[tuple[str, ...]]:
        """Yield each node alone, then pairs of nodes in rounds; pairs of one round share no node."""
        nodes = expand_nodes(self.names)
        yield from ((node,) for node in nodes)
        ring: list[str | None] = [*nodes, *([None] if len(nodes) % 2 else [])]
        for _ in range(min(self.rounds or len(nodes), len(ring) - 1)):
            for node, other in zip(ring[: len(ring) // 2], reversed(ring), strict=False):
                if node is not None and other is not None:
                    yield node, other
            ring.insert(1, ring.pop())

    def requests(self, chosen: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the options `chosen` for each node alone and each pair, with nodes and GPU count added."""
        for group in self.groups():
            nodelist, gpus = ",".join(group), str(self.gpus_per_node * len(group))
            yield {**chosen, "nodelist": nodelist, "gpus": gpus, "gpus_per_node": self.gpus_per_node}


class Sweep(Frozen):
    """One file of `config/sweeps`: runs to start together, with exclusions and limits."""

    name: Annotated[
        str,
        matching(NAME, NAME_IN_WORDS),
    ]
    """Equal to the file's name."""
    description: str = ""
    gpu_type: str | None = None
    """The GPU type that all entries are planned for; null for that of each entry's cluster."""
    cluster: str = Field(default_factory=default_cluster)
    """Cluster of entries that name none; if the file names only a GPU type, the one that `runs_on` gives."""
    repeats: int = Field(1, ge=1, le=100)
    """Number of runs of each cell, unless its entry has a number."""
    gpu_hours_max: PositiveFloat
    """Most GPU-hours if every job runs into its time limit; a plan that may cost more is refused."""
    approval_above_gpu_hours: NonNegativeFloat | None = None
    """GPU-hours above which a person has to approve the plan before anything starts; null for no approval."""
    confirm: bool = True
    """Whether cells suspected of a slowdown or speedup run again at the end of the sweep, to decide it."""
    nodes: NodeSweep | None = None
    """A sweep over single nodes and pairs of nodes; null to let the cluster choose the nodes."""
    runs: tuple[Entry, ...]
    exclude: tuple[Exclusion, ...] = ()
    """Cells that are left out: those that match all fields of one of these."""

    @field_validator("cluster")
    @classmethod
    def _cluster_is_text(cls, cluster: str) -> str:
        check_value("cluster", cluster)
        return cluster

    @field_validator("runs")
    @classmethod
    def _runs_something(cls, runs: tuple[Entry, ...]) -> tuple[Entry, ...]:
        if not runs:
            raise ValueError("asks for nothing: give at least one entry, as in - {workload: llama3.1}")
        return runs

    @property
    def runs_on(self) -> str:
        """The cluster of entries that name none: the file's, else one with its GPU type, else the default."""
        return (
            self.cluster
            if "cluster" in self.model_fields_set
            else cluster_with(self.gpu_type) or self.cluster
        )

    @property
    def has_cluster(self) -> bool:
        """Whether some cluster has the sweep's type of GPU; True if the sweep names none."""
        return self.gpu_type is None or cluster_with(self.gpu_type) is not None

    def requests(self, entry: int) -> Iterator[dict[str, Any]]:
        """Yield the runs that an entry (counted from 0) asks for, each as values of `PlanRequest` fields.

        Raises UserError if the entry has more than `MOST_COMBINATIONS` combinations.
        """
        values = dict(self.runs[entry])
        lists = {name: value for name, value in values.items() if isinstance(value, list)}
        number = math.prod(map(len, lists.values()))
        if number > MOST_COMBINATIONS:
            raise UserError(
                f"sweep '{self.name}', runs.{entry} has {number:,} combinations, more than "
                f"{MOST_COMBINATIONS:,}: shorten its lists."
            )
        fixed: dict[str, Any] = {"cluster": self.runs_on, "repeats": self.repeats}
        fixed |= {} if self.gpu_type is None else {"gpu_type": self.gpu_type}
        fixed |= {name: value for name, value in values.items() if name not in lists}
        for combination in itertools.product(*lists.values()):
            chosen = fixed | dict(zip(lists, combination, strict=True))
            for on_nodes in [chosen] if self.nodes is None else self.nodes.requests(chosen):
                yield {name: on_nodes[name] for name in entry_fields() if name in on_nodes}


def cluster_with(gpu_type: str | None) -> str | None:
    """Return the name of the first cluster with this type of GPU; None if no cluster has it."""
    clusters = {} if gpu_type is None else readable_clusters()
    return next((name for name, cluster in clusters.items() if cluster.gpu_type == gpu_type), None)


def excludes(exclusion: Mapping[str, JsonValue], values: Mapping[str, Any]) -> bool:
    """Return whether an exclusion matches a run: all its fields must match.

    A field that `values` lacks does not match. A workload matches with or without its release.
    """
    return all(
        name in values
        and any(
            _same(name, choice, values[name])
            for choice in (excluded if isinstance(excluded, list) else [excluded])
        )
        for name, excluded in exclusion.items()
    )


def _same(name: str, excluded: JsonValue, value: Any) -> bool:
    pattern, text = str(excluded).lower(), str(value).lower()
    return pattern == text or (name == "workload" and pattern == text.rpartition("-")[0])


def list_sweeps() -> tuple[str, ...]:
    """List the names of all sweeps, sorted: the stems of `config/sweeps/*.yaml`, own and shipped."""
    return config_names("sweeps")


def startable_sweeps() -> tuple[str, ...]:
    """List the sweeps that can be read and whose GPUs a cluster has."""
    sweeps, _ = load_each(list_sweeps(), load_sweep)
    return tuple(sweep.name for sweep in sweeps if sweep.has_cluster)


def load_sweep(name: str) -> Sweep:
    """Load the sweep of that name. Raises UserError if it is missing or broken."""
    return load_yaml_model(find_file("sweep", name), Sweep, named_in="name")


def copy_file(kind: Literal["sweep", "trial"], example: str, name: str) -> Path:
    """Copy the file of a sweep or trial into the team's folder, under another name; return the new path.

    Raises UserError if there is no such file, if `name` is not a valid name or that of another one, and if
    the file cannot be written.
    """
    path = config_dir() / f"{kind}s" / f"{name}.yaml"
    text = find_file(kind, example).read_text(encoding="utf-8")
    text, named = re.subn(r"^name: .*$", f"name: {name}", text, count=1, flags=re.MULTILINE)
    if not re.fullmatch(NAME, name):
        raise UserError(f"'{one_line(name)}' is not a valid name of a {kind}: use {NAME_IN_WORDS}.")
    if name in config_names(f"{kind}s"):
        raise UserError(f"there is a {kind} '{name}' already, {find_file(kind, name)}: choose another name.")
    if not named:
        raise UserError(f"{find_file(kind, example)} has no line 'name: {example}': copy it by hand.")
    try:
        write_whole(path, text)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from None
    return path


def add_entry(name: str, entry: Mapping[str, Any]) -> Path:
    """Append an entry to `runs` in the team's file of a sweep, whose other lines stay; return its path.

    Raises UserError if the file is a shipped one, if its `runs` is not a list with a dash on each line, and
    if the sweep would have a mistake then; nothing is written then.
    """
    path = find_file("sweep", name)
    if path.parent.parent != config_dir():
        raise UserError(
            f"{path} ships with steptime: 'steptime sweep new NEW --from {name}' makes a sweep of yours."
        )
    load_sweep(name)
    text = path.read_text(encoding="utf-8")
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    (runs,) = (value for key, value in root.value if key.value == "runs")
    if runs.flow_style:
        raise UserError(f"{path} has its runs in brackets: add the line by hand, or write a dash for each.")
    last = text[: _end(runs)].rstrip()
    indent = " " * (runs.value[0].start_mark.column - len("- "))
    # What follows the last entry on its line is a comment.
    comment, _, rest = text[len(last) :].partition("\n")
    new = f"{last}{comment}\n{indent}{entry_line(entry)}\n{rest}"
    try:
        Sweep.model_validate_json(json.dumps(yaml.safe_load(new)), strict=True)
    except ValidationError as error:
        problem = describe_validation_error(error.errors()[0])
        raise UserError(f"{path} cannot have this entry: {problem}.") from None
    try:
        write_whole(path, new)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from None
    return path


def _end(node: Any) -> int:
    """Return where a YAML node ends in its text; comments after a block are not a part of it."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(node, yaml.MappingNode) else last)


def entry_line(entry: Mapping[str, Any]) -> str:
    """Return an entry as it stands in the list `runs` of a sweep's file, on one line."""
    counts = {"gpus": int(entry["gpus"])} if str(entry.get("gpus")).isdecimal() else {}
    flow = yaml.safe_dump({**entry, **counts}, default_flow_style=True, sort_keys=False, width=10_000)
    return f"- {flow.strip()}"


def find_file(kind: Literal["sweep", "trial"], name: str) -> Path:
    """Return the path of the file of a sweep or trial. Raises UserError if there is none."""
    known = config_names(f"{kind}s")
    if name in known:
        return config_file(f"{kind}s/{name}.yaml")
    if f"example-{name}" in known:
        raise UserError(
            f"there is no {kind} '{name}' yet: 'steptime {kind} new {name} --from example-{name}' makes it."
        )
    raise unknown_file(kind, name, known)
