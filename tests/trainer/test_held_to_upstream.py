"""Every row as upstream's launch code sets it up, setting by setting; what differs has a reason."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from printed_tables import ConfigurationRow, trained_rows

from recorders.nemo.settings_record import load, settings_of
from steptime import settings
from steptime.errors import UserError
from steptime.recipes.models import Mode, Run
from steptime.recipes.planning import PlanRequest, plan

from .held_to_upstream import (
    Difference,
    decisions,
    differences,
    launch_settings,
    nemo_1_settings,
    unexplained,
)
from .jobs import ROOT, WarmTrainer

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

NEMO_1 = "nemotron4-340b-24.11"
"""The document whose release has no NeMo 2."""
MODES: dict[Mode, dict[str, Any]] = {
    Mode.CHECKPOINT_SAVE: {"save_checkpoint": True},
    Mode.CHECKPOINT_LOAD: {"load_checkpoint": "/checkpoint"},
    Mode.PROFILE: {"profile": True},
    Mode.NCCL_TRACE: {"nccl_trace": True},
}

Settings = Callable[[list[Run]], list[dict[str, Any]]]
"""What the trainer and the job script set for each run."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The shipped workloads, and Slurm clusters of the documents' GPUs."""
    folder = tmp_path_factory.mktemp("config") / "config"
    shutil.copytree(settings.shipped("config"), folder)
    shutil.copytree(ROOT / "tests" / "golden" / "clusters", folder / "clusters", dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STEPTIME_CONFIG_DIR", str(folder))
        yield folder


def planned(row: ConfigurationRow, **mode: Any) -> Run:
    """The run of a row, on a cluster of its GPUs."""
    asked = row.model_dump(include={"size", "dtype", "gpu_type", "scaling"})
    return plan(
        PlanRequest(workload=row.recipe, gpus=str(row.gpus), cluster=row.gpu_type, **asked, **mode)
    ).runs[0]


@pytest.fixture(scope="module")
def of_runs(config: Path, warm_trainer: WarmTrainer, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("settings")
    program = Path(__file__).parent / "programs" / "flat_settings.py"

    def found(runs: list[Run]) -> list[dict[str, Any]]:
        (folder / "runs.json").write_text(json.dumps([run.model_dump(mode="json") for run in runs]))
        files = [str(folder / "runs.json"), str(folder / "settings.json")]
        done = warm_trainer.run(str(program), files, folder=folder)
        assert done.exit_code == 0, done.log
        in_nemo = json.loads((folder / "settings.json").read_text())
        for run, settings_of_run in zip(runs, in_nemo, strict=True):
            if run.recipe.workload == NEMO_1:
                own = {
                    name: value for name, value in settings_of_run.items() if name.startswith("environment.")
                }
                settings_of_run.clear()
                settings_of_run.update(own | nemo_1_settings(run, folder))
        return [launch_settings(run) | one for run, one in zip(runs, in_nemo, strict=True)]

    return found


def upstream(row: ConfigurationRow, mode: Mode = Mode.PERFORMANCE) -> dict[str, Any]:
    """What upstream sets for a row; of another mode, what it sets otherwise than in a performance run."""
    document = load()[row.recipe]
    columns = {name: str(value) for name, value in row.model_dump().items()}
    return settings_of(document if mode is Mode.PERFORMANCE else document["modes"][mode.value], columns)


def of_modes() -> Iterator[tuple[ConfigurationRow, Mode, Run]]:
    """The largest row of each model, GPU type and dtype in each mode that both sides have for it."""
    largest = {(row.recipe, row.size, row.dtype, row.gpu_type): row for row in trained_rows()}
    for row in largest.values():
        for mode, asked in MODES.items():
            if mode.value not in load()[row.recipe]["modes"]:
                continue
            with contextlib.suppress(UserError):  # no checkpoints of proxies, and none on GB300
                yield row, mode, planned(row, **asked)


@pytest.fixture(scope="module")
def found(of_runs: Settings) -> list[Difference]:
    """All differences, of performance runs and of the other modes."""
    rows, modes = trained_rows(), list(of_modes())
    ours = of_runs([*map(planned, rows), *(run for _, _, run in modes)])
    assert (len(rows), len(modes)) == (123, 64)
    differing = [
        difference
        for row, one in zip(rows, ours, strict=False)
        for difference in differences(row.recipe, one, upstream(row))
    ]
    for (row, mode, _), one in zip(modes, ours[len(rows) :], strict=True):
        changed = upstream(row, mode)
        differing += differences(row.recipe, {name: one.get(name) for name in changed}, changed)
    return differing


def test_what_differs_was_decided(found: list[Difference]) -> None:
    lines = unexplained(found, decisions())
    assert not lines, "\n".join(lines)
