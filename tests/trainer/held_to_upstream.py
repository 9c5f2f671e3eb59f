"""Comparison of our settings of a row with upstream's: the differences, and which of them were decided.

Upstream's settings are recorded in config/upstream/settings.json, from its own launch code; the decisions
are in config/upstream/differences.yaml.
"""

import fnmatch
import re
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import yaml
from pydantic import Field
from staged import staged_files

from steptime import settings
from steptime.clusters.config import load_cluster
from steptime.clusters.jobscript import job_environment, job_spec
from steptime.frozen import Frozen
from steptime.recipes.config_files import load_yaml_model
from steptime.recipes.notation import format_time_limit
from trainer import nemo1
from trainer.launch import Launch
from trainer.run import read_run

DIFFERENCES = settings.shipped("config") / "upstream" / "differences.yaml"

WHOLE = ("environment.", "gc.", "launch.", "overlap.")
"""Groups in which a setting that only ours has is a difference; elsewhere our newer NeMo has more fields."""

STAGED = staged_files(trainer_path="/trainer", image_path="/image.sqsh")


class Decision(Frozen):
    """Settings that differ from upstream's on purpose."""

    settings: tuple[str, ...] = Field(min_length=1)
    """Names of settings, or shell patterns of names."""
    documents: tuple[str, ...] = ()
    """The workloads it holds for; empty for all."""
    reason: str


class Decisions(Frozen):
    """The content of the file of decisions."""

    decisions: tuple[Decision, ...]


class Difference(NamedTuple):
    """A setting of a row that is not upstream's."""

    document: str
    setting: str
    ours: Any
    upstream: Any


def decisions(path=DIFFERENCES):
    """Return the decisions."""
    return load_yaml_model(path, Decisions).decisions


def launch_settings(run):
    """Return what our job script asks of Slurm and sets for the ranks, under the names of the record.

    The cluster's file lets jobs set vboost, as the documents' clusters did.
    """
    cluster = load_cluster(run.cluster).model_copy(update={"vboost": True})
    script = job_spec(run, STAGED, cluster, identity="upstream", started=0).script
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", script, flags=re.MULTILINE))
    (mpi,) = re.findall(r"^  --mpi=(\w+) \\$", script, flags=re.MULTILINE)
    bound = re.search(r"^  numactl \\\n  (\d+) \\$", script, flags=re.MULTILINE)
    image = PurePosixPath(run.recipe.image or "").name.replace(":", "+")
    return {
        "launch.nodes": int(options["nodes"]),
        "launch.ntasks_per_node": int(options["ntasks-per-node"]),
        "launch.mem": options["mem"],
        "launch.exclusive": "exclusive" in options,
        "launch.segment": int(options["segment"]) if "segment" in options else None,
        "launch.time": format_time_limit(run.time_limit_s),
        "launch.mpi": mpi,
        "launch.container_image": f"nvidia+{image}.sqsh",
        "launch.ranks_per_numa_node": int(bound[1]) if bound else None,
        "launch.vboost": "nvidia-smi boost-slider --vboost 1" in script,
        **_nsight_settings(script),
        **{f"environment.{name}": value for name, value in job_environment(run, STAGED, cluster).items()},
    }


def _nsight_settings(script):
    """Return the settings with which Nsight Systems is started; empty unless it is a profile run."""
    options = re.findall(r"^  '?(--[a-z-]+=[^\s']+)'? \\$", script.partition("  nsys \\\n")[2], re.MULTILINE)
    if not options:
        return {}
    (trace,) = (option.removeprefix("--trace=") for option in options if option.startswith("--trace="))
    of_steptime = ("--trace=", "--sample=", "--output=")
    return {
        "launch.nsys_trace": trace.split(","),
        "launch.nsys_extra_args": [option for option in options if not option.startswith(of_steptime)],
    }


def nemo_1_settings(run, folder):
    """Return what NeMo 1's program gets: the values of the config file, overridden by the plan's."""
    path = folder / "run.json"
    path.write_text(run.model_dump_json())
    launch = Launch(
        rank=0,
        world_size=run.recipe.gpus,
        local_world_size=run.recipe.gpus_per_node,
        threads=1,
        by_launcher=True,
        on_one_host=False,
    )
    named = dict(nemo1._flat(yaml.safe_load(nemo1.CONFIG.read_text())))
    planned = dict(nemo1._flat(nemo1._planned(read_run(path), launch, Path("/job"))))
    return {f"nemo1.{name}": value for name, value in (named | planned).items()}


def differences(document, ours, upstream):
    """Yield the settings that differ; a missing setting equals one that is off."""
    ours, upstream = _renamed(ours), _renamed(upstream)
    names = {*upstream, *(name for name in ours if name.startswith(WHOLE))}
    for name in sorted(names):
        mine, theirs = (_off_is_none(flat.get(name)) for flat in (ours, upstream))
        if mine != theirs:
            yield Difference(document, name, mine, theirs)


def _renamed(flat):
    """Return settings with the newer name of the one that NeMo renamed, and the image without its folder."""
    older, newer = "precision.fp8_params", "precision.fp8_param_gather"
    renamed = {name: value for name, value in flat.items() if name != older}
    image = PurePosixPath(flat.get("launch.container_image", "")).name
    return renamed | {"launch.container_image": image} | ({newer: flat[older]} if flat.get(older) else {})


def _off_is_none(value):
    return None if value is False or value in ("", [], {}) else value


def unexplained(all_differences, decided):
    """Return a line for each difference without a decision, and for each decision without a difference."""
    lines = {}
    used = set()
    for difference in all_differences:
        matching = [
            (number, pattern, difference.document)
            for number, decision in enumerate(decided)
            if not decision.documents or difference.document in decision.documents
            for pattern in decision.settings
            if fnmatch.fnmatchcase(difference.setting, pattern)
        ]
        used.update(matching)
        if not matching:
            values = f"{difference.ours!r}, upstream's {difference.upstream!r}"
            line = f"{difference.document}: {difference.setting} is {values}"
            lines[line] = lines.get(line, 0) + 1
    needed = used | {(number, pattern, "") for number, pattern, _ in used}
    stale = [
        f"no row{' of ' * bool(document)}{document} differs in {pattern} any more: {decision.reason}"
        for number, decision in enumerate(decided)
        for pattern in decision.settings
        for document in decision.documents or ("",)
        if (number, pattern, document) not in needed
    ]
    return [f"{line} ({count} rows)" for line, count in lines.items()] + stale
