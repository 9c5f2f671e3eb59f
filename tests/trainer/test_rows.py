"""Every row compared with upstream's launch code, setting by setting, and its model as NeMo builds it."""

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from printed_tables import ConfigurationRow, trained_rows

from recorders.nemo.settings_record import load, settings_of
from steptime import settings
from steptime.errors import UserError
from steptime.recipes.flops import model_flops
from steptime.recipes.models import Mode, Run
from steptime.recipes.planning import PlanRequest, plan
from trainer.versions import TRIED

from .held_to_upstream import decisions, differences, launch_settings, nemo_1_settings, unexplained
from .jobs import ROOT

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

NEMO_1 = "nemotron4-340b-24.11"
"""The document whose release lacks NeMo 2."""
MODES = {
    Mode.CHECKPOINT_SAVE: {"save_checkpoint": True},
    Mode.CHECKPOINT_LOAD: {"load_checkpoint": "/checkpoint"},
    Mode.PROFILE: {"profile": True},
    Mode.NCCL_TRACE: {"nccl_trace": True},
}


class Built(NamedTuple):
    """A planned run, with what the trainer's side made of it."""

    row: ConfigurationRow
    run: Run
    made: dict[str, Any]
    ours: dict[str, Any]
    """The settings of the trainer and of the job script."""


@pytest.fixture(scope="module")
def clusters(tmp_path_factory):
    """Use the shipped workloads, and Slurm clusters with the documents' GPUs."""
    config = tmp_path_factory.mktemp("clusters") / "config"
    shutil.copytree(settings.shipped("config"), config)
    shutil.copytree(ROOT / "tests" / "golden" / "clusters", config / "clusters", dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STEPTIME_CONFIG_DIR", str(config))
        yield


def planned(row, **mode):
    """Return the run of a row, on a cluster with its GPUs."""
    options = row.model_dump(include={"size", "dtype", "gpu_type", "scaling"})
    return plan(
        PlanRequest(workload=row.recipe, gpus=str(row.gpus), cluster=row.gpu_type, **options, **mode)
    ).runs[0]


def of_modes():
    """Yield the largest row of each model, GPU type and dtype, in each mode that both sides have for it."""
    largest = {(row.recipe, row.size, row.dtype, row.gpu_type): row for row in trained_rows()}
    for row in largest.values():
        for mode, options in MODES.items():
            if mode.value not in load()[row.recipe]["modes"]:
                continue
            with contextlib.suppress(UserError):  # proxies and GB300 have no checkpoints
                yield row, planned(row, **options)


@pytest.fixture(scope="module")
def built(clusters, warm_trainer, tmp_path_factory):
    """Return performance runs of all rows, then those of other modes."""
    folder = tmp_path_factory.mktemp("rows")
    pairs = [*((row, planned(row)) for row in trained_rows()), *of_modes()]
    runs, answer = folder / "asked.json", folder / "built.json"
    runs.write_text(json.dumps([run.model_dump(mode="json") for _, run in pairs]))
    program = Path(__file__).parent / "programs" / "build_rows.py"
    done = warm_trainer.run(str(program), [str(runs), str(answer)], folder=folder)
    assert done.exit_code == 0, done.log
    return [
        Built(row, run, made, launch_settings(run) | _trainer_settings(run, made["settings"], folder))
        for (row, run), made in zip(pairs, json.loads(answer.read_text()), strict=True)
    ]


def _trainer_settings(run, in_nemo_2, folder):
    if run.recipe.workload != NEMO_1:
        return in_nemo_2
    environment = {name: value for name, value in in_nemo_2.items() if name.startswith("environment.")}
    return environment | nemo_1_settings(run, folder)


@pytest.fixture(scope="module")
def rows(built):
    return [(row.run, row.made) for row in built if row.run.mode is Mode.PERFORMANCE]


def test_what_differs_from_upstream_was_decided(built):
    """Runs of other modes are compared in what upstream sets otherwise than in a performance run."""
    modes = [built_row.run.mode is Mode.PERFORMANCE for built_row in built]
    assert (modes.count(True), modes.count(False)) == (123, 64)
    differing = []
    for row, run, _, ours in built:
        document = load()[row.recipe]
        columns = {name: str(value) for name, value in row.model_dump().items()}
        if run.mode is Mode.PERFORMANCE:
            differing += differences(row.recipe, ours, settings_of(document, columns))
        else:
            changed = settings_of(document["modes"][run.mode.value], columns)
            differing += differences(row.recipe, {name: ours.get(name) for name in changed}, changed)
    lines = unexplained(differing, decisions())
    assert not lines, "\n".join(lines)


def test_megatron_takes_every_row_with_the_graphs_of_its_gpus(rows):
    for run, built in rows:
        graphs = "local" if run.recipe.gpu_type in ("b200", "gb200", "gb300") else "none"
        assert built["graphs_of_connected_model"] == graphs, run.label


def test_nemo_2_2_is_asked_in_its_own_words(rows):
    """The image of the 25.04 documents has NeMo 2.2; current scaling came later and is refused there."""
    formats = set()
    for run, built in rows:
        made = built["precision_of_nemo_2_2"]
        number_format = run.performance.trainer.fp8_recipe or run.recipe.dtype
        formats.add(number_format)
        if number_format == "current":
            assert made.startswith(f"stand_in has no 'fp8_recipe' in NeMo {TRIED['nemo']}"), run.label
        else:
            fp8 = {name: value for name, value in made.items() if name.startswith("fp8")}
            expected = {"fp8": "hybrid", "fp8_params": "True"} if run.recipe.dtype == "fp8" else {}
            assert fp8.items() >= expected.items(), run.label
            assert bool(fp8) == (run.recipe.dtype == "fp8"), run.label
            assert "fp8_param_gather" not in fp8, run.label
    assert formats == {"bf16", "delayed", "current"}


def test_the_parameters_agree_with_the_models_name(rows):
    """Parameters are counted over every pipeline stage, virtual stage and tensor-parallel rank."""
    assert {(run.recipe.size, run.recipe.model.num_layers): built["parameters"] for run, built in rows} == {
        # As in Meta's models: 8.03, 70.6 and 406 billion.
        ("8b", 32): 8_030_261_248,
        ("70b", 80): 70_553_706_496,
        ("405b", 126): 405_853_388_800,
        ("405b-proxy", 8): 29_704_339_456,
        ("405b-proxy", 30): 99_833_823_232,
        ("405b-proxy", 62): 201_840_345_088,
        # As in NVIDIA's reports: 15.6 billion; 9.4 of embeddings and 331.6 others.
        ("15b", 32): 15_628_775_424,
        ("340b", 96): 341_029_195_776,
        ("56b", 118): 56_324_350_464,
    }
    for run, built in rows:
        recipe = run.recipe
        if not recipe.proxy:  # a proxy has the model's name, but fewer layers
            assert built["parameters"] == pytest.approx(float(recipe.size[:-1]) * 1e9, rel=0.05)


def test_the_formulas_count_every_matrix_product(rows):
    """The counts are equal, but the formula of 24.11 ignores that query groups share keys and values."""
    exact = {"llama": "llama3.1-25.04", "nemotron4": "nemotron4-25.12", "nemotron_h": "nemotron-h-25.05"}
    for run, built in rows:
        recipe = run.recipe
        assert built["matrix_product_flops"] == model_flops(recipe.model, exact[recipe.model.architecture])
    too_many = {
        run.recipe.size: round(
            model_flops(run.recipe.model, run.recipe.flops_formula) / built["matrix_product_flops"] - 1, 4
        )
        for run, built in rows
        if run.recipe.flops_formula == "nemotron4-24.11"
    }
    assert too_many == {"15b": 0.1285, "340b": 0.1705}
