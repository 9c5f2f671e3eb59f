"""Every name of NeMo and Megatron-Core that the trainer uses exists in the releases of the documents' images.

The releases' own wheels are read, by `ast`; nothing of them is installed. An argument under a condition of
the plan is looked up if a row of the image's workloads meets it. Of NeMo 1 it is the keys of the config file.
"""

import contextlib
import hashlib
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from called import captured

from steptime.recipes.models import Mode, NamedRecipe
from steptime.recipes.planning import PlanRequest, plan
from steptime.recipes.workloads import list_workloads, load_workload
from steptime.settings import home
from trainer import nemo1
from trainer.launch import Launch
from trainer.run import read_run
from trainer.versions import TRIED

from .jobs import ROOT, write_run
from .named_upstream import Trainer
from .release_source import Source
from .trainer_file import ARGUMENT

pytestmark = pytest.mark.service

LOCK = Path(__file__).with_name("releases.toml")
ON_THE_CPU = ("trainer/cpu/cpu_as_cuda.py", "trainer/cpu/cpu_layers.py", "trainer/cpu/mamba_reference.py")
"""Used where this project's environment trains, but in no image; only cpu_as_cuda is imported everywhere."""
OF_LIGHTNING = {
    "nemo.lightning.Trainer": {
        *("accelerator", "callbacks", "devices", "enable_checkpointing", "enable_model_summary"),
        *("limit_val_batches", "log_every_n_steps", "logger", "max_steps", "num_nodes"),
        *("num_sanity_val_steps", "plugins", "strategy", "use_distributed_sampler"),
    },
    "nemo.lightning.pytorch.strategies.MegatronStrategy": {"gradient_as_bucket_view"},
    "nemo.lightning.pytorch.callbacks.progress_bar.MegatronProgressBar": {"train_progress_bar"},
    "nemo.lightning.pytorch.callbacks.ModelCheckpoint": {"enable_version_counter"},
    "nemo.utils.callbacks.dist_ckpt_io.AsyncFinalizableCheckpointIO": {
        *("_record", "checkpoint_io", "load_checkpoint")  # the first one is the trainer's own
    },
    # A method of later releases, which the trainer's class has for these.
    "megatron.core.ssm.mamba_mixer.MambaMixer": {"_ssm_training"},
    "nemo.collections.llm.gpt.data.mock.MockDataModule": {"load_state_dict", "state_dict", "trainer"},
}
"""Names that NeMo passes on to Lightning or inherits from it, whose source is not read here, and our own."""

Row = dict[str, Any]


class Release(NamedTuple):
    """A release in the lock, with the rows of its images' workloads."""

    name: str
    source: Source
    rows: list[Row] | None
    """The fields of each row by name; None for the release in which every use is looked up."""


def source_of(release):
    """Return the wheels of a release in the lock, downloaded once from PyPI and checked by hash."""
    wanted = "\n".join(release["wheels"])
    kept = home() / "releases" / hashlib.sha256(wanted.encode()).hexdigest()[:16]
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as fresh:
            (Path(fresh) / "wanted").write_text(wanted)
            platform = ("--platform=manylinux_2_28_x86_64", "--python-version=3.11", "--only-binary=:all:")
            options = ("--no-deps", "--require-hashes", f"--requirement={fresh}/wanted", "--retries=2")
            done = captured(
                [sys.executable, "-m", "pip", "download", *options, *platform, f"--dest={fresh}/wheels"]
            )
            if done.returncode:
                pytest.fail(f"{release['name']} is read here, and could not be had from PyPI: {done.stderr}")
            with contextlib.suppress(OSError):  # another process was quicker
                Path(fresh, "wheels").rename(kept)
    return Source(sorted(kept.glob("*.whl")))


def rows_of_images():
    """Return the documents' rows for each image that runs steptime's trainer with NeMo 2."""
    rows = {}
    for name in list_workloads():
        workload = load_workload(name)
        for recipe, rule in workload.recipes():
            if rule.printed is None or recipe.image is None or recipe.has_nemo_1:
                continue
            if isinstance(recipe.model, NamedRecipe):
                continue
            settings = workload.performance.of(recipe, recipe.size, Mode.PERFORMANCE, "slurm").trainer
            stages = rule.parallelism.model_dump(include={"first_stage_layers", "last_stage_layers"})
            row = {**settings.model_dump(), **stages, "device": "cuda", "dtype": recipe.dtype}
            rows.setdefault(recipe.image, []).append({**row, "architecture": recipe.model.architecture})
    return rows


@pytest.fixture(scope="module")
def releases():
    """Return every release of the lock."""
    rows = rows_of_images()
    locked = tomllib.loads(LOCK.read_text())["release"]
    assert {image for release in locked for image in release["images"]} == set(rows)
    return [
        Release(
            release["name"],
            source_of(release),
            [row for image in release["images"] for row in rows[image]] or None,
        )
        for release in locked
    ]


@dataclass
class Checked:
    """The outcome of looking up every use in every release."""

    missing: list[str]
    undecided: dict[str, set[str]]
    """By class, the names of which only Lightning or torch can tell whether they exist."""


def check(releases, uses):
    """Look up each use in each release whose rows reach it."""
    checked = Checked([], {})
    for release in releases:
        for use in uses:
            if not reached(use, release, releases):
                continue
            there = is_there(use, release.source)
            if there is False and use.kind == "override":  # ours alone, unless another release has it
                there = not any(is_there(use, other.source) for other in releases)
            if there is None:
                checked.undecided.setdefault(use.of, set()).add(use.name)
            elif not there:
                what = f"{use.of} has no '{use.name}'" if use.name else f"there is no {use.of}"
                checked.missing.append(f"{release.name}: {what} ({use.where})")
    return checked


def reached(use, release, releases):
    """Return whether the trainer reaches the use with this release, for a row of its images."""
    for name in (condition.name for condition in use.conditions if condition.value is ARGUMENT):
        # A condition is about this callable only if the callable has such an argument in some release.
        if any(has_argument(use.of, name, other.source) for other in releases):
            wanted = next(known.holds for known in use.conditions if known.name == name)
            if has_argument(use.of, name, release.source) is not wanted:
                return False
    if release.rows is None:
        return True
    if use.where.startswith(ON_THE_CPU) and not (use.kind == "name" and "cpu_as_cuda" in use.where):
        return False
    if "/families/" in use.where:
        family = Path(use.where.partition(":")[0]).stem
        if family != "families" and family not in {row["architecture"] for row in release.rows}:
            return False
    decided = [
        known for known in use.conditions if known.value is not ARGUMENT and known.name in release.rows[0]
    ]
    return any(
        all((row[known.name] == known.value) is known.holds for known in decided) for row in release.rows
    )


def has_argument(of, name, source):
    definition = source.find(of)
    parameters = source.parameters(definition) if definition else None
    return parameters is not None and name in parameters.names


def is_there(use, source):
    """Return whether a release has what is used; None if its source cannot tell."""
    definition = source.find(use.of)
    if definition is None:
        return use.optional
    if use.kind == "name" or use.optional:
        return True
    if use.kind == "argument":
        if has_argument(use.of, use.name, source):
            return True
        parameters = source.parameters(definition)
        return None if parameters is None or parameters.takes_more else False
    if definition.node is None:  # a module's member, given as text
        return source.find(f"{use.of}.{use.name}") is not None
    return use.name == "__init__" or source.has_attribute(definition, use.name)


def test_every_name_is_in_every_release(releases):
    checked = check(releases, list(Trainer(ROOT / "trainer").uses()))
    assert checked.missing == []
    assert checked.undecided == OF_LIGHTNING


def test_buffers_that_a_plan_names_are_in_its_images_release(releases):
    module = "nemo.collections.llm.recipes.tp_overlap_configs.userbuffers"
    named = {
        (
            release.name,
            row["tp_comm_overlap_cfg"],
            release.source.find(f"{module}.{row['tp_comm_overlap_cfg']}"),
        )
        for release in releases
        for row in release.rows or ()
        if row["tp_comm_overlap_cfg"] is not None
    }
    assert [(release, name) for release, name, found in named if found is None] == []
    assert {name.split("_")[2] for _, name, _ in named} == {"b200", "h100"}


def test_the_newest_is_what_this_project_trains_with(releases):
    assert releases[-1].name == f"NeMo {TRIED['nemo']}, Megatron-Core {TRIED['megatron_core']}"


OF_THE_TRAINER = {
    *("accelerator", "accumulate_grad_batches", "devices", "enable_checkpointing", "gradient_clip_val"),
    *("limit_test_batches", "limit_val_batches", "log_every_n_steps", "logger", "max_epochs", "max_steps"),
    *("max_time", "num_nodes", "num_sanity_val_steps", "precision", "use_distributed_sampler"),
    "val_check_interval",
}
"""Keys of `trainer`, which NeMo 1 passes to Lightning's Trainer unchanged."""
OF_APEX = {"bucket_cap_mb"}
"""Keys of Apex' DistributedFusedAdam, which gets the rest of `optim`."""


def test_nemo_1_reads_every_key_that_it_is_given(tmp_path):
    read = source_of(tomllib.loads(LOCK.read_text())["nemo_1"]).keys_read(
        "nemo.collections.nlp.models.language_modeling",
        "nemo.collections.nlp.modules.common",
        "nemo.collections.nlp.parts",
        "nemo.core.classes",
        "nemo.core.config.schedulers",
        "nemo.core.optim",
        "nemo.utils.exp_manager",
        "megatron.core.model_parallel_config",
        "megatron.core.transformer",
    )
    assert read.isdisjoint({"gc_intervall", "overlap_p2p_communication"})
    (run,) = plan(PlanRequest(workload="nemotron4-340b-24.11", gpu_type="h100", size="340b", gpus="128")).runs
    launch = Launch(rank=0, world_size=8, local_world_size=8, threads=1, by_launcher=True, on_one_host=True)
    (path,) = write_run(run, tmp_path)
    overrides = nemo1.overrides(read_run(Path(path)), launch, tmp_path)
    keys = {override.partition("=")[0].removeprefix("++") for override in overrides}
    keys |= {key for key, _ in nemo1._flat(yaml.safe_load(nemo1.CONFIG.read_text()))}
    assert {key.rpartition(".")[2] for key in keys if key.startswith("trainer.")} == OF_THE_TRAINER
    of_nemo = {key for key in keys if not key.startswith("trainer.")}
    unread = {key for key in of_nemo if not set(key.split(".")) <= read}
    assert {key.rpartition(".")[2] for key in unread} == OF_APEX
