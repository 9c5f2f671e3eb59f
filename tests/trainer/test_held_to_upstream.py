"""Every row as upstream's launch code sets it up, setting by setting; what differs has a reason."""

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from printed_tables import ConfigurationRow, trained_rows
from upstream.settings_record import load, settings_of

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

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(2400)]

NEMO_1 = "nemotron4-340b-24.11"
"""The document whose release has no NeMo 2."""
MODES: dict[Mode, dict[str, Any]] = {
    Mode.CHECKPOINT_SAVE: {"save_checkpoint": True},
    Mode.CHECKPOINT_LOAD: {"load_checkpoint": "/checkpoint"},
    Mode.PROFILE: {"profile": True},
    Mode.NCCL_TRACE: {"nccl_trace": True},
}
EDITS = [
    (
        "nemotron4-25.04",
        "wgrad_deferral_limit: 22",
        "wgrad_deferral_limit: 23",
        "overlap.wgrad_deferral_limit",
    ),
    ("nemotron4-25.04", "learning_rate: 4.5e-5", "learning_rate: 4.6e-5", "optimizer.lr"),
    ("nemotron4-25.04", "warmup_steps: 500", "warmup_steps: 501", "scheduler.warmup_steps"),
    ("nemotron4-25.04", 'NCCL_NVLS_ENABLE: "0"', 'NCCL_NVLS_ENABLE: "1"', "environment.NCCL_NVLS_ENABLE"),
    ("nemotron4-25.04", "gc_interval: 100", "gc_interval: null", "gc.gc_interval_train"),
    ("nemotron4-25.04", "fp8_recipe: delayed", "fp8_recipe: current", "precision.fp8_amax_history_len"),
    ("nemotron-h-25.05", "ranks_per_numa_node: 4", "ranks_per_numa_node: 8", "launch.ranks_per_numa_node"),
    (
        "nemotron-h-25.05",
        "overlap_grad_reduce: true",
        "overlap_param_gather: true",
        "ddp.overlap_param_gather",
    ),
    ("nemotron-h-25.05", "fusion_impl: te", "fusion_impl: native", "model.cross_entropy_fusion_impl"),
    ("nemotron4-340b-25.12", "cuda_graphs: true", "cuda_graphs: false", "model.enable_cuda_graph"),
    (
        "nemotron4-340b-25.12",
        "optimizer: true",
        "optimizer: false",
        "optimizer.use_precision_aware_optimizer",
    ),
]
"""Of a workload's file: the words that are changed, and a setting that must then be told."""

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


def test_without_a_decision_its_differences_are_told(found: list[Difference]) -> None:
    first, *others = decisions()
    assert any("scheduler.min_lr is None" in line for line in unexplained(found, tuple(others)))
    kept = [one for one in found if one.setting != "scheduler.min_lr"]
    assert unexplained(kept, (first, *others)) == [
        f"no row differs in scheduler.min_lr any more: {first.reason}"
    ]


def test_a_setting_that_is_changed_is_told(config: Path, of_runs: Settings) -> None:
    edited: list[tuple[ConfigurationRow, Run, str]] = []
    for workload, old, new, setting in EDITS:
        path = config / "workloads" / f"{workload}.yaml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
        rows = [row for row in trained_rows() if row.recipe == workload]
        by_kind = {(row.size, row.dtype, row.gpu_type): row for row in rows}
        edited += [(row, planned(row), setting) for row in by_kind.values()]
        path.write_text(text)
    told: dict[str, set[bool]] = {}
    for (row, _, setting), one in zip(edited, of_runs([run for _, run, _ in edited]), strict=True):
        differing = list(differences(row.recipe, one, upstream(row)))
        lines = [line for line in unexplained(differing, decisions()) if not line.startswith("no row")]
        told.setdefault(setting, set()).add(any(f" {setting} is " in line for line in lines))
    assert {setting: True in seen for setting, seen in told.items()} == dict.fromkeys(told, True)
    assert len(told) == len(EDITS)
