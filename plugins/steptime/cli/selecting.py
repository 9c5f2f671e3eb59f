"""The flags that select stored runs, such as `--size`. They are the same filters as on the web page.

    @app.command()
    @takes_selection
    def results(*, selection: RunFilters, wide: bool = False) -> None: ...

gives a command `results --workload … --gpus … --search … --wide`.
"""

import inspect
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Annotated, Any

import typer

from steptime.ages import since_when
from steptime.errors import UserError, unknown_value
from steptime.recipes.workloads import workload_name
from steptime.store.columns import BY_NAME, CHOICES, ELEMENTS
from steptime.store.run_queries import Store

_HELP = {
    "state": "Only runs in this state: valid or rejected.",
    "workload": "Only this one: llama3.1-25.04, or llama3.1 for its default.",
    "size": "Only this model size, as tiny or 405b.",
    "dtype": "Only this number format, as bf16.",
    "gpu_type": "Only this type of GPU, as h100 or cpu.",
    "scaling": "Only this scaling: weak or strong.",
    "cluster": "Only runs of this cluster.",
    "mode": "Only this mode, as performance.",
    "gpus": "Only this number of GPUs (ranks on CPUs).",
    "sweep": "Only runs of this sweep's cells.",
    "image": "Only this container image, as nvcr.io/nvidia/nemo:25.04.01.",
    "nvidia_driver": "Only this version of the NVIDIA driver.",
    "nccl": "Only this version of NCCL.",
}
_OTHERS = {
    "node": "Only runs on this node.",
    "variable": "Only runs with this environment variable, as NCCL_ALGO=Ring.",
    "version": "Only runs with this version of a library, as 'torch 2.8.0'.",
    "search": "Only runs with these words in names, reason, image, versions, variables or nodes.",
    "dag": "Only runs of this Airflow DAG.",
    "dag_run": "Only runs of this Airflow DAG run; of a sweep's, with its --dag, those of its cells.",
    "since": "Only runs submitted since then: 30m, 12h, 7d, 2w or 2026-11-21.",
}
CELL_FLAGS = tuple(name for name in CHOICES if BY_NAME[name].series)
"""Filters that belong to a series, such as cluster, workload, size and GPUs."""


@dataclass(frozen=True)
class RunFilters:
    """The filters on stored runs that a command's flags set."""

    values: Mapping[str, Any]
    """The values as typed, by the flag's name; None if the flag is absent."""
    since: float | None
    """Oldest submission, in Unix time."""

    @property
    def flags(self) -> list[str]:
        """The flags that were given on the command line, such as `--size`."""
        return [_flag(name) for name, value in self.values.items() if value is not None]

    def rows(
        self, store: Store, *, include_rejected: bool = False, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the selected runs, in the order in which tables list them.

        Rejected runs are left out unless `include_rejected` or the filters select them; `limit` keeps the
        newest runs. Raises UserError for a value that no stored run has, and lists the stored values.
        """
        return store.results(**self.arguments(store, include_rejected=include_rejected, limit=limit))

    def arguments(
        self, store: Store, *, include_rejected: bool = False, limit: int | None = None
    ) -> dict[str, Any]:
        """Return the arguments of `Store.results` for which `rows` asks. Raises the same error."""
        limit = None if limit is None else min(limit, sys.maxsize)
        return {**self._filters(store, include_rejected), "limit": limit, "in_reading_order": True}

    def count(self, store: Store, *, include_rejected: bool = False) -> int:
        """Count the runs that `rows` returns without a limit."""
        return store.count(**self._filters(store, include_rejected))

    def latest_first(self, store: Store) -> list[dict[str, Any]]:
        """Return the selected runs, latest submitted first; rejected ones only if --state selects them.

        Raises UserError for a value that no stored run has.
        """
        return store.results(**self._filters(store, False))

    def cell_filters(self, store: Store) -> dict[str, Any]:
        """Return the given filters on columns that identify a series, each value spelled as in the store.

        Raises UserError for a value that no stored run has.
        """
        given = [name for name in CELL_FLAGS if self.values[name] is not None]
        stored = store.choices() if given else {}
        return {name: _stored(name, self.values[name], stored[name]) for name in given}

    def _filters(self, store: Store, include_rejected: bool) -> dict[str, Any]:
        """Return the filters as keyword arguments of the store's methods."""
        values, stored = self.values, store.choices()
        equal = {name: _stored(name, values[name], stored[name]) for name in CHOICES}
        scope = {"dag_id": values["dag"], "dag_run_id": values["dag_run"]}
        for flag, column, what in (("dag_run", "dag_run_id", "a DAG run"), ("dag", "dag_id", "a DAG")):
            if values[flag] is not None and not store.count(include_rejected=True, **scope):
                store.require(column, values[flag], what)
        return {
            "include_rejected": include_rejected or equal["state"] is not None,
            "since": self.since,
            "search": values["search"],
            **{name: values[name] for name in ELEMENTS},
            **equal,
            **scope,
        }


def takes_selection(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the parameter `selection` of `command` by one flag for each filter."""
    return _with_flags(command, (*CHOICES, *_OTHERS))


def takes_cells(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the parameter `selection` of `command` by a flag for each column that identifies a series."""
    return _with_flags(command, CELL_FLAGS)


def _with_flags(command: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    texts = {name: f"Only this {BY_NAME[name].heading}." for name in CHOICES} | _HELP | _OTHERS
    flags = [_parameter(name, texts[name]) for name in names]

    @wraps(command)
    def with_flags(*arguments: Any, **values: Any) -> Any:
        filters = {flag.name: values.pop(flag.name) for flag in flags}
        since = None if filters.get("since") is None else since_when(filters["since"], time.time())
        selection = RunFilters(filters, since)
        return command(*arguments, selection=selection, **values)

    given = inspect.signature(command, eval_str=True).parameters.values()
    others = [parameter for parameter in given if parameter.name != "selection"]
    before = [parameter for parameter in others if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    parameters = [*before, *flags, *others[len(before) :]]
    # Typer reads both: the signature for names and defaults, the annotations for the types.
    with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_flags


def require_results(store: Store, to: str) -> None:
    """Raise UserError if there is no metrics store; `to` completes "there are no results to …"."""
    if not store.exists():
        raise UserError(
            f"there are no results to {to}, as there is no metrics store at {store.shown_address}: "
            "name another one with STEPTIME_STORE_URL or STEPTIME_HOME, or make the first with "
            "'steptime up', then 'steptime run llama3.1 --wait'."
        )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameter(name: str, text: str) -> inspect.Parameter:
    is_number = name in BY_NAME and BY_NAME[name].kind == "integer"
    kind: Any = int if is_number else str
    annotation = Annotated[kind | None, typer.Option(help=text, show_default=False)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _stored(name: str, wanted: Any, stored: Sequence[Any]) -> Any:
    """Return the stored value that a filter means; None for no filter. Raises UserError if there is none."""
    if wanted is None:
        return None
    matches = [value for value in stored if str(wanted).lower() == str(value).lower()]
    if name == "workload" and not matches:  # without the release its family's default is meant, if that ran
        matches = [value for value in stored if wanted.lower() == value.rpartition("-")[0].lower()]
        with suppress(UserError):  # of a family that is not configured here, the newest one
            matches = [value for value in matches if value == workload_name(wanted)] or matches
    if not matches:
        raise unknown_value(name.replace("_", " "), wanted, stored, of="the stored results")
    return max(matches)
