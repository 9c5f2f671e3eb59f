"""Every configuration row of the documents, built by the trainer, against the tables and NeMo's own recipes.

What differs from NeMo's recipes, and why, is docs/decisions/0012-recipes-follow-their-documents.md.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from printed_tables import trained_rows

from steptime import settings
from steptime.recipes.flops import model_flops
from steptime.recipes.models import Recipe, Run
from steptime.recipes.planning import PlanRequest, plan

from .jobs import ROOT, WarmTrainer

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(1500)]

NEMO_RECIPES = {
    ("llama", "8b"): "llama31_8b",
    ("llama", "70b"): "llama31_70b",
    ("llama", "405b"): "llama31_405b",
    ("nemotron4", "15b"): "nemotron4_15b",
    ("nemotron4", "340b"): "nemotron4_340b",
    ("nemotron_h", "56b"): "nemotronh_56b",
}


OF_GRAPHS = ("enable_cuda_graph", "use_te_rng_tracker", "cuda_graph_impl")
OF_LAUNCH = (*OF_GRAPHS, "cross_entropy_fusion_impl")
"""Fields of the model that NeMo's performance scripts set, not its recipes."""


@dataclass(frozen=True)
class Report:
    """What the trainer's side made of each run, in their order, and NeMo's own recipes by name."""

    rows: list[tuple[Run, dict[str, Any]]]
    nemo: dict[str, dict[str, Any]]
    precisions: dict[str, dict[str, str]]
    """NeMo's own number formats by name, every field of each."""

    @property
    def recipes(self) -> list[tuple[Recipe, dict[str, Any]]]:
        """The same rows by their recipes."""
        return [(run.recipe, built) for run, built in self.rows]

    def with_nemo(self) -> list[tuple[dict[str, Any], str, dict[str, Any]]]:
        """Each row of a model that NeMo has a recipe for, with the recipe; the proxies have none."""
        assert set(NEMO_RECIPES) < {(recipe.model.architecture, recipe.size) for recipe, _ in self.recipes}
        return [
            (row, name, self.nemo[name])
            for recipe, row in self.recipes
            if (name := NEMO_RECIPES.get((recipe.model.architecture, recipe.size)))
        ]


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The shipped workloads, and Slurm clusters of the documents' GPUs."""
    config = tmp_path_factory.mktemp("clusters") / "config"
    shutil.copytree(settings.shipped("config"), config)
    shutil.copytree(ROOT / "tests" / "golden" / "clusters", config / "clusters", dirs_exist_ok=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STEPTIME_CONFIG_DIR", str(config))
        yield


def planned_rows() -> list[Run]:
    """A performance run of every row of the documents' tables, on a cluster of its GPUs."""
    return [
        plan(
            PlanRequest(
                workload=row.recipe,
                size=row.size,
                dtype=row.dtype,
                gpu_type=row.gpu_type,
                scaling=row.scaling,
                gpus=str(row.gpus),
                cluster=row.gpu_type,
            )
        ).runs[0]
        for row in trained_rows()
    ]


@pytest.fixture(scope="module")
def report(clusters: None, warm_trainer: WarmTrainer, tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("rows")
    runs = planned_rows()
    asked, built = folder / "asked.json", folder / "built.json"
    content = {"runs": [run.model_dump(mode="json") for run in runs], "recipes": list(NEMO_RECIPES.values())}
    asked.write_text(json.dumps(content))
    program = Path(__file__).parent / "programs" / "build_rows.py"
    done = warm_trainer.run(str(program), [str(asked), str(built)], folder=folder)
    assert done.exit_code == 0, done.log
    content = json.loads(built.read_text())
    return Report(list(zip(runs, content["rows"], strict=True)), content["recipes"], content["precisions"])


def test_every_row_is_what_its_document_prints(report: Report) -> None:
    printed = {
        (row.recipe, row.size, row.layers, row.dtype, row.gpu_type, row.scaling, row.gpus): row
        for row in trained_rows()
    }
    assert len(report.rows) == len(printed)
    for recipe, built in report.recipes:
        row = printed[
            recipe.workload,
            recipe.size,
            built["num_layers"],
            recipe.dtype,
            recipe.gpu_type,
            recipe.scaling,
            recipe.gpus,
        ]
        assert (built["tensor"], built["pipeline"], built["context"]) == (row.tp, row.pp, row.cp)
        assert (built["micro_batch_size"], built["global_batch_size"]) == (row.mbs, row.gbs)
        assert built["seq_length"] == built["config_seq_length"] == row.seq_len
        if (row.recipe, row.size) == ("nemotron4-25.04", "340b"):  # prints none, and was run with 12
            assert (built["virtual_pipeline"], row.vp) == (12, "NA")
        else:
            assert str(built["virtual_pipeline"] or "NA") == row.vp


def test_every_model_is_the_one_of_its_workload(report: Report) -> None:
    for recipe, built in report.recipes:
        for name in (
            "num_layers",
            "hidden_size",
            "ffn_hidden_size",
            "num_attention_heads",
            "num_query_groups",
            "vocab_size",
            "seq_length",
        ):
            assert built[name] == getattr(recipe.model, name), (recipe.identity, name)


def test_every_field_of_the_model_is_that_of_nemos_recipe(report: Report) -> None:
    """All of Megatron's and NeMo's options, initial weights included, but for what the decision names."""
    for built, name, nemo in report.with_nemo():
        theirs = nemo["config"]
        ours = built["config"] | {field: theirs[field] for field in OF_LAUNCH}
        assert set(ours) == set(theirs)
        differing = {field: (ours[field], theirs[field]) for field in ours if ours[field] != theirs[field]}
        if name == "nemotronh_56b":
            assert differing == {"mamba_num_heads": ("256", "None")}  # None: 2 × hidden size / head size
        else:
            assert differing == {"vocab_size": (str(built["vocab_size"]), "None")}


def test_number_formats_are_nemos(report: Report) -> None:
    """Every field, but for what NeMo's performance scripts set.

    Gradients are reduced in bf16, and with current scaling the outermost layers are in FP8, too.
    """
    ours_alone = {"grad_reduce_in_fp32": "False"}
    outer_layers = {"first_last_layers_bf16": "False"}
    seen = set()
    for run, built in report.rows:
        recipe = run.recipe
        name = run.performance.trainer.fp8_recipe or recipe.dtype
        upstream = report.precisions[name] | ours_alone | (outer_layers if name == "current" else {})
        assert built["precision"] == upstream, recipe.identity
        seen.add((recipe.workload, name))
    assert {name for name in seen if name[1] != "bf16"} == {
        *((workload, "delayed") for workload in ("llama3.1-25.04", "nemotron4-25.04", "nemotron-h-25.05")),
        ("nemotron4-340b-24.11", "delayed"),
        ("nemotron4-340b-25.12", "current"),
    }


def test_nemo_2_2_is_asked_in_its_own_words(report: Report) -> None:
    """The image of the 25.04 documents has it; current scaling came later, and is refused there."""
    formats = set()
    for run, built in report.rows:
        made = built["precision_of_nemo_2_2"]
        number_format = run.performance.trainer.fp8_recipe or run.recipe.dtype
        formats.add(number_format)
        if number_format == "current":
            assert made.startswith("stand_in has no 'fp8_recipe' in NeMo 2.7.3"), run.label
        else:
            fp8 = {name: value for name, value in made.items() if name.startswith("fp8")}
            asked = {"fp8": "hybrid", "fp8_params": "True"} if run.recipe.dtype == "fp8" else {}
            assert fp8.items() >= asked.items(), run.label
            assert bool(fp8) == (run.recipe.dtype == "fp8"), run.label
            assert "fp8_param_gather" not in fp8, run.label
    assert formats == {"bf16", "delayed", "current"}


def test_graphs_and_overlap_are_as_upstream_launches_them(report: Report) -> None:
    """CUDA graphs on Blackwell; overlap wherever there is tensor parallelism, but for Nemotron-H."""
    for recipe, built in report.recipes:
        graphs = recipe.gpu_type in ("b200", "gb200", "gb300")
        wanted = ["False", "True", "local"] if graphs else ["False", "False", "none"]
        assert [built["config"][field] for field in OF_GRAPHS] == wanted
        assert built["graphs_of_connected_model"] == wanted[-1]
        assert built["settings"]["strategy.use_te_rng_tracker"] is graphs
        overlaps = recipe.parallelism.tensor > 1 and recipe.model.architecture != "nemotron_h"
        assert built["settings"].get("overlap.tp_comm_overlap", False) is overlaps
    tuned = {
        (recipe.size, recipe.dtype, recipe.gpu_type)
        for recipe, built in report.recipes
        if built["settings"].get("overlap.tp_comm_overlap_cfg") is not None
    }
    dtypes = ("bf16", "fp8")
    assert tuned == {
        *((size, dtype, "h100") for size in ("70b", "405b", "405b-proxy") for dtype in dtypes),
        *(("340b", dtype, gpu_type) for dtype in dtypes for gpu_type in ("b200", "gb200")),
    }


def test_layers_are_dealt_as_upstream_deals_them(report: Report) -> None:
    """Embedding and output count as a layer each where the layers alone cannot be dealt evenly."""
    counting = {
        (recipe.size, recipe.model.num_layers)
        for recipe, built in report.recipes
        if built["settings"]["strategy.account_for_embedding_in_pipeline_split"]
    }
    assert counting == {("405b", 126), ("405b-proxy", 30), ("405b-proxy", 62)}
    for recipe, built in report.recipes:
        assert built["settings"]["strategy.sequence_parallel"] == (recipe.parallelism.tensor > 1)


def test_the_parameters_agree_with_the_models_name(report: Report) -> None:
    """Counted over every pipeline stage, virtual stage and tensor-parallel rank of each layout."""
    assert {
        (recipe.size, recipe.model.num_layers): built["parameters"] for recipe, built in report.recipes
    } == {
        # As Meta's models have: 8.03, 70.6 and 406 billion.
        ("8b", 32): 8_030_261_248,
        ("70b", 80): 70_553_706_496,
        ("405b", 126): 405_853_388_800,
        ("405b-proxy", 8): 29_704_339_456,
        ("405b-proxy", 30): 99_833_823_232,
        ("405b-proxy", 62): 201_840_345_088,
        # NVIDIA's reports: 15.6 billion; 9.4 of embeddings and 331.6 others.
        ("15b", 32): 15_628_775_424,
        ("340b", 96): 341_029_195_776,
        ("56b", 118): 56_324_350_464,
    }
    for recipe, built in report.recipes:
        if not recipe.proxy:  # named after the model whose layers it has, fewer of them
            assert built["parameters"] == pytest.approx(float(recipe.size[:-1]) * 1e9, rel=0.05)


def test_the_formulas_count_every_matrix_product(report: Report) -> None:
    """To the last operation; the formula of 24.11 leaves out that query groups share keys and values."""
    exact = {"llama": "llama3.1-25.04", "nemotron4": "nemotron4-25.12", "nemotron_h": "nemotron-h-25.05"}
    for recipe, built in report.recipes:
        assert built["matrix_product_flops"] == model_flops(recipe.model, exact[recipe.model.architecture])
    too_many = {
        recipe.size: round(
            model_flops(recipe.model, recipe.flops_formula) / built["matrix_product_flops"] - 1, 4
        )
        for recipe, built in report.recipes
        if recipe.flops_formula == "nemotron4-24.11"
    }
    assert too_many == {"15b": 0.1285, "340b": 0.1705}
