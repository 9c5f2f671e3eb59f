"""What a training on the CPU leaves out of NeMo's import: nothing needs it, and what asks for it has it."""

import importlib
import importlib.metadata
import json
import logging
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from steptime.recipes.models import Mode, Parallelism, Run
from trainer.cpu import imports
from trainer.cpu.imports import PUT_OFF, WITHOUT, PutOff, changed_by_modelopt

from .conftest import Train
from .jobs import Trained, loading, planned

PACKAGES = sorted({package for packages in WITHOUT.values() for package in packages})


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module of `library`, a package whose `__init__` imports all that it has, and is put off."""
    names = ("library", "library.part", "library.whole", "library.broken")
    package = tmp_path / "library"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from library.whole import Whole\n__all__ = ['Whole']\nfrom library import broken\nruns = 1\n"
    )
    (package / "part.py").write_text("from library import whole\n")
    (package / "whole.py").write_text("class Whole: ...\ndef twice(number): return 2 * number\n")
    (package / "broken.py").write_text("raise ImportError('not yet')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [imports._PutOffFinder(), *sys.meta_path])
    monkeypatch.setitem(PUT_OFF, "library", {})
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


def test_a_module_is_imported_without_its_package_having_run(library: Callable[[str], Any]) -> None:
    part = library("library.part")

    assert isinstance(sys.modules["library"], PutOff)
    assert part.whole.twice(2) == 4
    assert sys.modules["library"].part is part


def test_a_package_runs_when_something_of_it_is_asked_for(
    library: Callable[[str], Any], tmp_path: Path
) -> None:
    (tmp_path / "library" / "broken.py").write_text("")
    package = library("library")
    assert isinstance(package, PutOff)
    from library import Whole  # type: ignore[import-not-found]

    assert Whole is sys.modules["library.whole"].Whole
    assert (type(package), package.runs) == (types.ModuleType, 1)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = package.nothing


def test_all_names_of_a_package_are_what_it_says(library: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "library" / "broken.py").write_text("")
    names: dict[str, Any] = {}

    exec("from library import *", names)  # noqa: S102

    assert names["Whole"] is sys.modules["library.whole"].Whole


def test_a_package_that_fails_is_run_again(library: Callable[[str], Any], tmp_path: Path) -> None:
    package = library("library")
    for _ in range(2):
        with pytest.raises(ImportError, match="not yet"):
            _ = package.runs
    (tmp_path / "library" / "broken.py").write_text("# now\n" * 2)
    importlib.invalidate_caches()

    assert package.runs == 1


def test_a_function_is_there_before_its_module_has_run(
    library: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PUT_OFF, "library.whole", {"twice": None, "Whole": lambda: "in its place"})
    twice = library("library.part").whole.twice
    module = sys.modules["library.whole"]
    assert module.Whole() == "in its place"
    assert isinstance(module, PutOff)

    assert [twice(2), twice(3)] == [4, 6]
    assert isinstance(module.Whole, type)


def test_what_counts_as_not_installed_is_there_again() -> None:
    modules = dict(sys.modules)
    version = importlib.metadata.version("pytest")
    handlers = [*logging.root.handlers]
    with imports._not_installed(("pytest", "tomllib")):
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("pytest")
        assert importlib.util.find_spec("pytest") is None
        with pytest.raises(importlib.metadata.PackageNotFoundError):
            importlib.metadata.version("pytest")
        assert importlib.metadata.version("pluggy")
        logging.root.addHandler(logging.NullHandler())  # as a warning of a missing package does

    assert sys.modules == modules
    assert logging.root.handlers == handlers
    assert importlib.metadata.version("pytest") == version
    assert importlib.import_module("tomllib").loads("") == {}


def test_functions_are_compiled_when_they_are_called() -> None:
    compiled: list[tuple[str, dict[str, Any]]] = []

    def compiler(function: Callable[[int], int], **options: Any) -> Callable[[int], int]:
        compiled.append((function.__name__, options))
        return lambda number: function(number) + 1

    def double(number: int) -> int:
        """Double it."""
        return 2 * number

    plain = imports._compiled_when_called(compiler, double)
    with_options = imports._compiled_when_called(compiler, dynamic=True)(double)
    assert (plain.__name__, plain.__doc__, compiled) == ("double", "Double it.", [])

    assert [plain(1), plain(2), with_options(1)] == [3, 5, 3]
    assert compiled == [("double", {}), ("double", {"dynamic": True})]


def test_a_checkpoint_of_a_quantised_model_needs_all_imports(tmp_path: Path) -> None:
    assert not changed_by_modelopt(None)
    assert not changed_by_modelopt(tmp_path)
    (tmp_path / "modelopt_state").mkdir()
    assert changed_by_modelopt(tmp_path)


LOOKS = """
import contextlib, json, os, sys
from trainer import __main__, forked_ranks
from trainer.cpu.imports import PUT_OFF, WITHOUT, PutOff

def look(train):
    code = train()
    modules = {name: sys.modules[name] for name in PUT_OFF if name in sys.modules}
    of = {
        "put off": [name for name, module in modules.items() if isinstance(module, PutOff)],
        "ran": [name for name, module in modules.items() if not isinstance(module, PutOff)],
        "without": [name for name in WITHOUT if name in sys.modules],
        "packages": sorted({name for names in WITHOUT.values() for name in names if name in sys.modules}),
    }
    with open(f"rank{os.environ['RANK']}.json", "w") as file:
        json.dump(of, file)
    return code

if __name__ == "__main__":
    if "all" in sys.argv:
        sys.argv.remove("all")
        __main__.few_imports = contextlib.nullcontext
    fork = forked_ranks.fork_ranks
    forked_ranks.fork_ranks = lambda ranks, train: fork(ranks, lambda: look(train))
    sys.exit(forked_ranks.main())
"""


def _saving() -> Run:
    spread = Parallelism(data=2)
    return planned(2, parallelism=spread, gbs=4, max_steps=2, mode=Mode.CHECKPOINT_SAVE)


def _in_job(train_in_job: Train, run: Run, folder: Path, *options: str) -> tuple[Trained, dict[str, Any]]:
    program = folder / "program.py"
    program.write_text(LOOKS, encoding="utf-8")
    done = train_in_job(run, folder, *options, program=str(program))
    assert done.exit_code == 0, done.log
    return done, json.loads((folder / "rank0.json").read_text())


@pytest.fixture(scope="module")
def job(train_in_job: Train, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trained, dict[str, Any]]:
    """Two ranks and a save, by a process with few imports."""
    return _in_job(train_in_job, _saving(), tmp_path_factory.mktemp("few"))


@pytest.mark.trainer
@pytest.mark.timeout(2400)
def test_a_job_trains_and_saves_with_what_is_left_out_left_out(job: tuple[Trained, dict[str, Any]]) -> None:
    """No list has a name that is there nevertheless, or that no import comes across any more."""
    assert job[1] == {"put off": [*PUT_OFF], "ran": [], "without": [*WITHOUT], "packages": []}


@pytest.mark.trainer
@pytest.mark.timeout(2400)
def test_its_losses_are_those_of_a_process_that_has_all(
    job: tuple[Trained, dict[str, Any]], train: Train, tmp_path: Path
) -> None:
    assert train(_saving(), tmp_path).losses == job[0].losses


@pytest.mark.trainer
@pytest.mark.exhaustive
@pytest.mark.timeout(2400)
def test_a_job_without_the_lists_takes_the_same_steps_and_loads_what_they_saved(
    job: tuple[Trained, dict[str, Any]], train_in_job: Train, tmp_path: Path
) -> None:
    """Imports NeMo twice as ever: 40 s of CPU."""
    (again := tmp_path / "again").mkdir()
    (loaded := tmp_path / "loaded").mkdir()
    done, imported = _in_job(train_in_job, _saving(), again, "all")
    assert done.losses == job[0].losses
    assert imported == {"put off": [], "ran": [*PUT_OFF], "without": [*WITHOUT], "packages": PACKAGES}
    continued = loading(job[0].checkpoints, 2, 3, gbs=4)
    few, _ = _in_job(train_in_job, continued, tmp_path)
    every, _ = _in_job(train_in_job, continued, loaded, "all")
    assert few.losses == every.losses
