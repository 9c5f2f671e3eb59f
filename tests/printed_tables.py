"""The rows of the documents' tables, as `config/references/` has them."""

import csv
import shutil
from pathlib import Path

from steptime import settings
from steptime.frozen import Frozen
from steptime.recipes.published import PerformanceRow, list_references, load_reference


class ConfigurationRow(Frozen):
    """One row of a document's configuration tables, under the column names of the documents."""

    recipe: str
    size: str
    dtype: str
    gpu_type: str
    scaling: str
    gpus: int
    seq_len: int
    layers: int
    tp: int
    pp: int
    cp: int
    ep: str
    """As printed: a number, NA, or empty if the table has no such column; `etp` and `vp` likewise."""
    etp: str
    dp: int
    vp: str
    mbs: int
    gbs: int
    ga: int


def config_with(data: Path, folder: Path) -> Path:
    """The shipped configuration in a folder, with the workloads and references of some data in it."""
    shutil.copytree(settings.config_dir(), folder)
    for kind in ("workloads", "references"):
        for path in (data / kind).glob("*.yaml"):
            shutil.copy(path, folder / kind)
    return folder


def configuration_rows() -> tuple[ConfigurationRow, ...]:
    """Every row of the documents' configuration tables."""
    with (settings.config_dir() / "references" / "configurations.csv").open(newline="") as file:
        return tuple(map(ConfigurationRow.model_validate, csv.DictReader(file)))


def performance_rows() -> tuple[PerformanceRow, ...]:
    """Every published performance number, one row a scale."""
    return tuple(row for document in list_references() for row in load_reference(document).rows)
