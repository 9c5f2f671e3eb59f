"""Recipes of Megatron-Bridge by name, compared with their documents and with upstream's source.

What upstream prints and submits is in tests/data/megatron_bridge (recorders/launches.py).
"""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from launch_records import arguments_by_name, of_kind, read_launches
from printed_tables import by_name, configuration_rows, imported
from slurm_jobs import asked_of_slurm, numactl_of, run_of_row

from docs.make_published_numbers import odd_tokens
from steptime.measure.metrics import throughput
from steptime.recipes.bridge_launch import bridge_command
from steptime.recipes.models import NamedRecipe
from steptime.recipes.notation import parse_time_limit
from steptime.recipes.published import load_reference, published_performance
from steptime.recipes.workloads import list_workloads, load_workload

DATA = Path(__file__).parents[1] / "data" / "megatron_bridge"
BY_NAME = [name for name in list_workloads() if by_name(name) and not imported(name)]
ROWS = [recipe for name in BY_NAME for recipe, _ in load_workload(name).recipes()]
LAUNCHES = read_launches("megatron_bridge/launches.json")
DOCUMENTS = json.loads((DATA / "documents.json").read_text())


OF_SUMMARIES = [name for name, rows in DOCUMENTS.items() if "tflops_per_gpu" in next(iter(rows.values()))]
"""Workloads of Megatron-Bridge's own document, which has numbers; those of DGX Cloud have configurations."""
TIMED = [recipe for recipe in ROWS if recipe.workload in OF_SUMMARIES]
PRECISIONS = {"BF16": "bf16", "FP8": "fp8_cs", "MXFP8": "fp8_mx", "NVFP4": "nvfp4"}


@pytest.mark.parametrize("name", OF_SUMMARIES)
def test_every_row_that_a_document_prints_is_there_and_no_other(name):
    """Sizes, parallelism, batch and numbers are compared with those recorded from the document."""
    workload, rows = load_workload(name), DOCUMENTS[name].values()
    models = re.split(" and |, ", workload.document.partition(" NeMo container, ")[2])
    size_of = dict(zip(models, workload.sizes, strict=True))
    printed = {
        (
            *(
                size_of[row["model"]],
                PRECISIONS[row["precision"]],
                row["system"].removeprefix("DGX-").lower(),
            ),
            *(row[column] for column in ("gpus", "seq_length", "tp", "pp", "cp")),
            *(row["ep"], row["vp"], row["mbs"], row["gbs"]),
        ): (row["tokens_per_s_per_gpu"], row["tflops_per_gpu"])
        for row in rows
    }
    assert len(printed) == len(rows)
    numbers = {
        (row.size, row.dtype, row.gpu_type, row.gpus, row.global_batch_size): row
        for row in load_reference(name).rows
    }
    ours = {}
    for row in configuration_rows():
        if row.recipe == name:
            published = numbers.pop((row.size, row.dtype, row.gpu_type, row.gpus, row.gbs))
            cells = (row.size, row.dtype, row.gpu_type, row.gpus, row.seq_len, row.tp, row.pp, row.cp, row.ep)
            ours[tuple(map(str, (*cells, row.vp, row.mbs, row.gbs)))] = (
                f"{published.tokens_per_s_per_gpu}",
                f"{published.tflops_per_gpu:.0f}",
            )
    assert ours == printed
    assert not numbers


@pytest.mark.parametrize("name", sorted(DOCUMENTS.keys() - {*OF_SUMMARIES}))
def test_every_configuration_that_a_document_prints_is_there_and_no_other(name):
    """A document's FP8 is whatever its launch.sh makes of it, so the recorded launches have the dtypes."""
    columns = ("gpus", "seq_length", "layers", "tp", "pp", "cp", "ep", "dp", "vp", "mbs", "gbs", "ga")
    printed = Counter(
        (system.lower(), *(row[column] for column in columns))
        for row in DOCUMENTS[name].values()
        for system in row["system"].split(" and ")
        for _ in row["precision"].split("/")
    )
    ours = Counter(
        (
            *(row.gpu_type, *map(str, (row.gpus, row.seq_len, row.layers, row.tp, row.pp, row.cp)), row.ep),
            *map(str, (row.dp, row.vp, row.mbs, row.gbs, row.ga)),
        )
        for row in configuration_rows()
        if row.recipe == name
    )
    assert ours == printed
    launched = {
        f"{recipe.model.recipe} {recipe.gpu_type} {recipe.dtype} {recipe.gpus}"
        for recipe in ROWS
        if recipe.workload == name and isinstance(recipe.model, NamedRecipe)
    }
    assert launched == LAUNCHES[name].keys()


def test_every_document_of_recipes_by_name_is_recorded():
    assert list(DOCUMENTS) == BY_NAME


ADDED = {
    *("--tensor_model_parallel_size", "--pipeline_model_parallel_size", "--context_parallel_size"),
    *("--virtual_pipeline_model_parallel_size", "--expert_model_parallel_size"),
    *("--expert_tensor_parallel_size", "--micro_batch_size", "--global_batch_size"),
    *("--save_config_filepath", "logger.save_config_filepath=ConfigContainer.yaml"),
}
"""Arguments that we give where upstream's launch leaves the value to the recipe, which has the same."""


def upstream_of(row):
    """Return what upstream submits for a row, with the fields of its recipe.

    It is of the row's or the default variant. If the document has a launch.sh, it is what the script submits.
    """
    assert isinstance(row.model, NamedRecipe)
    upstream = LAUNCHES[row.workload][f"{row.model.recipe} {row.gpu_type} {row.dtype} {row.gpus}"]
    if row.model.variant is None:
        assert "v2" not in upstream["variants"], "upstream prefers v2"
    return upstream


def test_each_row_is_what_upstreams_recipe_has():
    for row in ROWS:
        upstream = upstream_of(row)
        arguments = {name.removeprefix("--"): of for name, of in of_kind("argument", upstream).items()}
        ours = {
            "num_gpus": row.gpus,
            "tensor_model_parallel_size": row.parallelism.tensor,
            "pipeline_model_parallel_size": row.parallelism.pipeline,
            "context_parallel_size": row.parallelism.context,
            "virtual_pipeline_model_parallel_size": row.parallelism.virtual_pipeline,
            "expert_model_parallel_size": row.parallelism.expert or 1,
            "expert_tensor_parallel_size": row.parallelism.expert_tensor,
            "micro_batch_size": row.micro_batch_size,
            "global_batch_size": row.global_batch_size,
        }
        theirs = {
            field: int(arguments[field][0]) if field in arguments else upstream["fields"].get(field)
            for field in ours
        }
        assert ours == theirs, row.identity


def test_a_job_on_slurm_has_upstreams_variables_and_arguments():
    """Upstream's are set by its executor, its plugin, which may override them, and a launch.sh."""
    for row in ROWS:
        run, upstream = run_of_row(row), upstream_of(row)
        assert run.performance.environment == of_kind("variable", upstream), row.identity
        _, *arguments = bridge_command(run)
        ours, theirs = arguments_by_name(arguments), of_kind("argument", upstream)
        assert {name: ours[name] for name in ours if name in theirs or name not in ADDED} == theirs, (
            row.identity
        )
        if row.workload not in OF_SUMMARIES:
            assert load_workload(row.workload).steps.time_limit["weak"] == upstream["time"]


@pytest.mark.long
def test_a_job_on_slurm_is_asked_for_and_bound_as_upstreams(tmp_path):
    """The options of sbatch, srun and numactl are those that upstream's executor gives.

    Ours also asks for the GPUs, and makes every container writable, as enroot does by default.
    """
    bound = {}
    differing = []
    for row in ROWS:
        upstream, ours = upstream_of(row), asked_of_slurm(row)
        name = "·".join(map(str, row.identity.values()))
        options = of_kind("slurm", upstream)
        missing = {*options.pop("srun_args")} - ours.srun
        assert ours.further == {"ntasks", "gres"}
        if ours.sbatch != options or missing:
            differing.append(f"{name}: {ours.sbatch} {missing or ''}, upstream's {options}")
        bound[ours.binding, upstream["numactl"]] = name
    differing += [
        f"{name}: {ours}, upstream's {upstreams}"
        for (ours, upstreams), name in bound.items()
        if numactl_of(f"{ours} train", tmp_path) != numactl_of(f"{upstreams} train", tmp_path)
    ]
    assert not differing, "\n".join(differing)


def test_published_numbers_agree_with_each_other():
    """The ratio of TFLOPS to tokens is constant for a model, up to rounding, or a number is misprinted."""
    differing = {
        (name, row.size, row.dtype, row.gpu_type, row.tokens_per_s_per_gpu, fitting)
        for name in OF_SUMMARIES
        for row, fitting in odd_tokens(load_reference(name).rows)
    }
    assert differing == {("llama3.1-26.06", "405b", "nvfp4", "gb300", 1413, 1416)}


def test_published_tokens_come_back():
    for recipe in TIMED:
        row = published_performance(recipe)
        assert row is not None
        assert (row.step_time_s, row.tokens_per_s) == (None, None), "the documents have neither"
        assert row.step_time is not None
        rates = throughput(recipe, row.step_time, logged_tflops=row.tflops_per_gpu)
        assert rates.tokens_per_s_per_gpu == pytest.approx(row.tokens_per_s_per_gpu)
        assert rates.step_time_over_published == 1
        assert rates.model_tflops_per_gpu == row.tflops_per_gpu
        assert rates.mfu_percent == pytest.approx(100 * (row.tflops_per_gpu or 0) / rates.peak_tflops_per_gpu)
        assert 4 < (rates.mfu_percent or 0) < 60
    assert len(TIMED) == sum(len(load_reference(name).rows) for name in OF_SUMMARIES)


def test_each_run_fits_its_time_limit():
    """A run takes the published rate, and ten minutes for start and end."""
    for recipe in TIMED:
        published = published_performance(recipe)
        assert published is not None
        assert published.step_time is not None
        steps = load_workload(recipe.workload).steps
        limit_s = parse_time_limit(steps.time_limit["weak"])
        assert steps.max_steps * published.step_time + 600 < limit_s, (recipe.size, recipe.gpu_type)
