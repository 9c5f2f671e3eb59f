"""The shipped workload files, compared with the documents' tables."""

import csv
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from printed_tables import workloads_on

from steptime import settings
from steptime.errors import UserError
from steptime.recipes import tables
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import list_workloads, load_workload

CONFIGURATION_ROWS = settings.config_dir() / "references" / "configurations.csv"


def test_published_rows_are_the_documents():
    with CONFIGURATION_ROWS.open(newline="") as file:
        reader = csv.DictReader(file)
        printed = Counter(tuple(row.items()) for row in reader)
    ours = Counter(
        tuple((column, "" if cell is None else str(cell)) for column, cell in row.items())
        for name in list_workloads()
        for row in tables.published_rows(load_workload(name))
    )
    assert ours == printed


@pytest.mark.parametrize("name", workloads_on("cpu"))
def test_what_runs_on_the_cpu_is_a_tiny_size(name):
    tiny = [recipe for recipe, _ in load_workload(name).recipes() if recipe.size == "tiny"]
    assert {recipe.gpus for recipe in tiny} == {1, 2, 4}
    assert {recipe.scaling for recipe in tiny} == {"weak", "strong"}
    assert {(recipe.gpu_type, recipe.dtype, recipe.image) for recipe in tiny} == {("cpu", "fp32", None)}
    strong = {recipe.global_batch_size for recipe in tiny if recipe.scaling == "strong"}
    assert len(strong) == 1


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("nemotron4-340b", "nemotron4-340b-25.12"),
        ("GPT-OSS-mlperf", "gpt-oss-mlperf-26.08"),
        ("Llama3.1-25.04", "llama3.1-25.04"),
    ],
)
def test_a_name_without_a_release_is_the_newest_one(name, full):
    assert load_workload(name).workload == full


def test_the_guides_program_of_ones_own_can_be_planned(config):
    """`make test-bare` trains with it."""
    guide = (Path(__file__).parents[2] / "docs/guide/workload.md").read_text()
    (name, text), *_ = re.findall(r"```yaml\n# config/(workloads/\S+\.yaml)\n(.*?)```", guide, re.DOTALL)
    (config / name).write_text(text)
    run = plan(PlanRequest(workload=Path(name).stem, gpus="2")).runs[0]
    assert run.recipe.command(max_steps=50) == ("python", "train.py", "50", "4")
    assert run.recipe.launcher is not None
    compile(run.recipe.launcher.files["train.py"], "train.py", "exec")


DEFAULT = "default_release: true # llama3.1 means this one, which has a size for the CPU\n"


@pytest.mark.long
def test_a_family_may_mean_an_older_release(config):
    """The newest release may have no size for the default cluster: then `llama3.1` keeps its meaning."""
    path = config / "workloads" / "llama3.1-25.04.yaml"
    newer = path.with_name("llama3.1-99.01.yaml")
    assert DEFAULT in path.read_text()
    text = path.read_text().replace(DEFAULT, "")
    text = text.replace("llama3.1-25.04\ntitle", "llama3.1-99.01\ntitle")
    newer.write_text(text)
    assert load_workload("llama3.1").workload == "llama3.1-25.04"
    assert load_workload("llama3.1-99.01").workload == "llama3.1-99.01"
    with pytest.raises(UserError) as refused:
        plan(PlanRequest(workload="llama3.1", size="9b"))
    others = [name for name in list_workloads() if name.startswith("llama3.1-")][1:]
    assert "llama3.1-99.01" in others
    assert str(refused.value).endswith(
        f" 'llama3.1' means llama3.1-25.04; other releases are {', '.join(others)}."
    )
    with pytest.raises(UserError, match=r"Valid are: [a-z, -]+\.$"):
        plan(PlanRequest(workload="llama3.1", cluster="nowhere"))

    path.write_text(path.read_text().replace(DEFAULT, ""))
    os.utime(path, ns=(1, 1))
    assert load_workload("llama3.1").workload == "llama3.1-99.01"
    for each in (path, newer):
        each.write_text(each.read_text().replace("\ntitle:", "\ndefault_release: true\ntitle:"))
        os.utime(each, ns=(2, 2))
    with pytest.raises(UserError) as refused:
        load_workload("llama3.1")
    assert str(refused.value) == f"{path} and {newer} have default_release: true: leave it in one."


@pytest.mark.parametrize(
    ("image", "backend"),
    [
        ("nvcr.io/nvidia/nemo:26.02", "megatron_bridge"),
        ("nvcr.io/nvidia/nemo:27.01.01", "megatron_bridge"),
        ("registry.example.com/copies/nemo:26.04.01", "megatron_bridge"),
        ("nvcr.io/nvidia/nemo:25.11.01", "nemo"),
        ("nvcr.io/nvidia/pytorch:26.02-py3", "nemo"),
        ("nvcr.io/nvidia/nemo:dev", "nemo"),
        ("nvcr.io/nvidia/nemo@sha256:" + "0123456789abcdef" * 4, "nemo"),
    ],
)
def test_a_model_of_ones_own_trains_with_what_its_images_are_made_for(config, image, backend):
    text = (
        (config / "workloads/llama3.1-25.04.yaml").read_text().replace("llama3.1-25.04\n", "mine-26.11\n", 1)
    )
    mine = config / "workloads/mine-26.11.yaml"
    mine.write_text(text.replace("nvcr.io/nvidia/nemo:25.02.01", image))
    assert {recipe.backend for recipe, _ in load_workload("mine").recipes()} == {backend}
    mine.write_text(mine.read_text().replace("defaults:", "backend: nemo\ndefaults:", 1))
    assert {recipe.backend for recipe, _ in load_workload("mine").recipes()} == {"nemo"}


@pytest.mark.parametrize(
    ("images", "backend"),
    [
        (("25.02", None), "nemo"),
        (("25.02", "26.04"), "megatron_bridge"),
        (("26.04", "25.02"), "megatron_bridge"),
    ],
)
def test_one_image_of_a_release_with_megatron_bridge_decides_for_all_types_of_gpu(images, backend):
    workload = load_workload("llama3.1")
    model = next(workload.recipes())[0].model
    platform = workload.gpu_types["h100"]
    platforms = {
        f"type{number}": platform.model_copy(update={"image": image and f"nvcr.io/nvidia/nemo:{image}"})
        for number, image in enumerate(images)
    }
    assert workload.model_copy(update={"gpu_types": platforms})._backend(model) == backend


def test_shipped_recipes_name_their_backend_only_by_their_images():
    """Those of NVIDIA's scripts are trained by no backend of steptime's trainer."""
    backends = {recipe.backend for name in list_workloads() for recipe, _ in load_workload(name).recipes()}
    assert backends == {"nemo"}
