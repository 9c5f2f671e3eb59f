"""The rows of the documents' tables, as `config/references/` has them, and the workloads they belong to."""

import csv
import shutil
from typing import Annotated

import yaml
from pydantic import BeforeValidator

from steptime import settings
from steptime.frozen import Frozen
from steptime.recipes.importing.workload import WRITTEN_BY
from steptime.recipes.models import Collective, NamedRecipe
from steptime.recipes.published import list_references, load_reference
from steptime.recipes.workloads import list_workloads, load_workload

Printed = Annotated[int | None, BeforeValidator(lambda cell: cell or None)]
"""A number, or None if the table has no such column."""


class ConfigurationRow(Frozen):
    """One row of a document's configuration tables, under the column names of the documents."""

    recipe: str
    size: str
    dtype: str
    gpu_type: str
    scaling: str
    gpus: int
    seq_len: int
    layers: Printed
    tp: int
    pp: int
    cp: int
    ep: str
    """The printed text: a number, NA, or empty if the table has no such column; also for `etp` and `vp`."""
    etp: str
    dp: Printed
    vp: str
    mbs: int
    gbs: int
    ga: Printed


def config_with(data, folder):
    """Copy the shipped configuration to a folder and add the workloads and references of `data`."""
    shutil.copytree(settings.config_dir(), folder, dirs_exist_ok=True)
    for kind in ("workloads", "references"):
        for path in (data / kind).glob("*.yaml"):
            shutil.copy(path, folder / kind)
    return folder


def configuration_rows():
    """Return every row of the documents' configuration tables."""
    with (settings.config_dir() / "references" / "configurations.csv").open(newline="") as file:
        return tuple(map(ConfigurationRow.model_validate, csv.DictReader(file)))


def trained_rows():
    """Return the rows of models that steptime's own trainer builds."""
    return tuple(row for row in configuration_rows() if not by_name(row.recipe))


def by_name(workload):
    """Return whether a shipped workload starts recipes of Megatron-Bridge by name."""
    return any(isinstance(size.model, NamedRecipe) for size in load_workload(workload).sizes.values())


def imported(workload):
    """Return whether a shipped workload was written by `steptime recipes import`."""
    path = settings.config_dir() / "workloads" / f"{workload}.yaml"
    return path.read_text(encoding="utf-8").startswith(WRITTEN_BY)


def workloads_on(gpu_type):
    """Return the shipped workloads that train a model on a type of GPU, or on the CPU."""
    return tuple(
        name for name in list_workloads() if gpu_type in load_workload(name).gpu_types and not times(name)
    )


def times(workload):
    """Return whether a shipped workload times collective operations, and trains nothing."""
    return any(isinstance(size.model, Collective) for size in load_workload(workload).sizes.values())


def performance_rows():
    """Return the rows of all published performance numbers, one for each scale."""
    return tuple(row for document in list_references() for row in load_reference(document).rows)


def timed_rows():
    """Return the rows that have step times; those of recipes by name have TFLOPS, or a log of one run."""
    return tuple(
        row for row in performance_rows() if row.step_time_s is not None and not by_name(row.document)
    )


def formulas_for(architecture):
    """Return the shipped formulas for models of an architecture, as in errors."""
    formulas = yaml.safe_load((settings.shipped("config") / "flops.yaml").read_text(encoding="utf-8"))
    return ", ".join(name for name, formula in formulas.items() if architecture in formula["architectures"])
