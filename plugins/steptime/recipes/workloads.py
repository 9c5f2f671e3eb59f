"""Load the workloads of `config/workloads` by name."""

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from steptime.errors import BrokenFiles, UserError
from steptime.recipes.config_files import (
    file_state,
    load_each,
    load_yaml_model,
    read_document,
    unknown_file,
)
from steptime.recipes.flops import flops_file
from steptime.recipes.gpus import gpus_file
from steptime.recipes.workload_checks import find_mistakes
from steptime.recipes.workload_file import Workload
from steptime.settings import config_file, config_names


def list_workloads() -> tuple[str, ...]:
    """List all workloads by name, sorted: the stems of `config/workloads/*.yaml`, own and shipped."""
    return config_names("workloads")


def workload_name(name: str) -> str:
    """Return a workload's full name; a family alone (`llama3.1`) means its default release, else the newest.

    Raises UserError for an unknown name.
    """
    known = list_workloads()
    stem = name.lower()
    if stem in known:
        return stem
    if releases := family_releases(stem):
        return _meant(releases)
    raise unknown_file("workload", name, known)


def load_workload(name: str) -> Workload:
    """Load a workload by its name, `llama3.1-25.04`, or a family's usual release by the family's: `llama3.1`.

    Raises UserError for an unknown name, and for a file with mistakes, all of which it lists.
    """
    path = _path(workload_name(name))
    return _load(path, *map(file_state, (path, gpus_file(), flops_file())))


def family_releases(family: str) -> tuple[str, ...]:
    """Return the workloads of a family (`llama3.1`), sorted; empty if there are none."""
    names = (name for name in list_workloads() if name.rpartition("-")[0] == family.lower())
    return tuple(name for name in names if _release(name))


def _meant(releases: Sequence[str]) -> str:
    """Return the release that a family's name means. Raises UserError if several claim to be the default."""
    chosen = [name for name in releases if _is_default(_path(name), file_state(_path(name)))]
    if len(chosen) > 1:
        raise UserError(
            f"{' and '.join(map(str, map(_path, chosen)))} have default_release: true: leave it in one."
        )
    return chosen[0] if chosen else max(releases, key=_release)


@functools.lru_cache(maxsize=64)
def _is_default(path: Path, _state: tuple[int, int]) -> bool:
    return read_document(path).value("default_release") is True


def _path(name: str) -> Path:
    return config_file(f"workloads/{name}.yaml")


def load_workloads() -> tuple[Sequence[Workload], BrokenFiles | None]:
    """Load all workloads that can be read; also return what is wrong with the files of others.

    Empty if there are no files.
    """
    return load_each(list_workloads(), load_workload)


@functools.lru_cache(maxsize=64)
def _load(path: Path, *_state: tuple[int, int]) -> Workload:
    """Load one file; it is read again only when it, or a file that it depends on, changes."""
    return load_yaml_model(path, Workload, named_in="workload", check=find_mistakes)


def _release(name: str) -> tuple[int, ...]:
    """Return the release in a name as comparable numbers; empty if there is none."""
    release = name.rpartition("-")[2]
    return tuple(map(int, release.split("."))) if re.fullmatch(r"\d+\.\d+", release, re.ASCII) else ()
